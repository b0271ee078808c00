"""The page of claims: which published figures were measured here, which are modelled, and which are neither."""

import textwrap
from typing import List, Sequence

from mxscale.records import claims
from mxscale.records.claims import MEASURED, MODELLED, NEITHER, Outcome
from mxscale.util import text_table

HEADINGS = ("claim", "figure", "published", "here", "source or requirement")
ABOUT = """Made by `mxscale report report.action=claims`. *Measured*: by the named runs, which were recorded under
the conditions of the claim. *Modelled*: by prices or by the planner, with its error. *Not reproducible here*: with the
hardware and data that it needs, and the command that measures it. For a claim that no single figure of a run states
("cheaper", "two for each worker"), the command makes the runs to compare. The works print no spread, so the tolerances
are ours (`mxscale/tables/claim_conditions.csv`). The error of the planner is that on published series, given the
first rate of each; the rate of one device has the error of its own source."""


def counted(found: Sequence[Outcome]) -> str:
    """Return the counts, such as `44 claims: 0 measured here, 2 modelled, 42 not reproducible here`."""
    each = [sum(one.state == state for one in found) for state in (MEASURED, MODELLED, NEITHER)]
    return f"{len(found)} claims: {each[0]} measured here, {each[1]} modelled, {each[2]} not reproducible here"


def figure(one: Outcome) -> str:
    """Return the measured and the modelled figure of a claim."""
    parts = [claims.in_unit(one.row, one.value)] if one.runs else []
    if one.modelled:
        parts.append(f"{'modelled: ' * bool(one.runs)}{one.modelled.text} ({one.modelled.error})")
    return "; ".join(parts)


def provenance(one: Outcome, code: str = "`") -> List[str]:
    """Return the runs that measured a claim; else the requirements and the command; code: quotes the command."""
    lines = [f"runs {' '.join(one.runs)}"] if one.runs else []
    lines += [f"run {run} has its tag, but under other conditions: {why}" for run, why in one.other]
    if not one.runs:
        lines.append(f"needs {one.conditions['needs']}")
        if one.conditions["command"]:
            lines.append(f"{code}{one.conditions['command']}{code}")
    return lines


def in_markdown(found: Sequence[Outcome]) -> str:
    """Return a page with a table for each work."""
    parts = ["# Claims", f"{counted(found)}.", ABOUT]
    for work in dict.fromkeys(one.row["work"] for one in found):
        cells = [_cells(one) for one in found if one.row["work"] == work]
        parts += [f"## {work}", text_table.markdown(HEADINGS, cells, left=len(HEADINGS), padded=False).rstrip()]
    return "\n\n".join(parts) + "\n"


def _cells(one: Outcome) -> List[str]:
    here = "; ".join(part for part in (f"**{one.state}**", figure(one), claims.agreement(one)) if part)
    return [f"`{one.row['id']}`", one.row["statement"], claims.published(one.row), here, "<br>".join(provenance(one))]


def in_text(found: Sequence[Outcome], width: int = 110) -> str:
    """Return the claims for the terminal, one paragraph each."""
    parts, work = [], None
    for one in found:
        if one.row["work"] != work:
            work = one.row["work"]
            parts.append(f"\n{work}\n{'=' * len(work)}")
        verdict = f", {claims.agreement(one)}" if claims.agreement(one) else ""
        parts.append(f"{one.row['id']}: {one.state}{verdict}")
        lines = [f"published: {one.row['statement']}, {claims.published(one.row)}"]
        lines += [f"here: {figure(one)}"] if figure(one) else []
        for line in [*lines, *provenance(one, "")]:
            is_command = line == one.conditions["command"]  # to be copied, so never broken
            wrapped = textwrap.fill(line, width, initial_indent="  ", subsequent_indent="    ")
            parts.append(f"    {line}" if is_command else wrapped)
    return "\n".join(parts)
