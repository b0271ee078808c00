"""The claims: what of the published figures was measured here, what is modelled, and what is neither."""

import textwrap
from typing import List, Sequence

from mxscale.records import claims
from mxscale.records.claims import MEASURED, MODELLED, NEITHER, Outcome
from mxscale.report import rows

HEADINGS = ("claim", "what", "published", "here", "by")
# The tolerances are ours: the works print their figures and "approximately", and no spread
ABOUT = """Made by `mxscale report report.action=claims`. *Measured*: by the runs named, whose records have the
conditions of the claim. *Modelled*: by prices or by the planner, with its error. *Not reproducible here*: with what it
needs, and the command that would measure it, or that makes the runs to judge by where a claim is no one figure of a run
("cheaper", "two for each worker"). How far a figure may be from an "about" is our choice, kept in
`mxscale/tables/claim_conditions.csv`. The planner's error is that over published series, the first rate of each
given; the rate of one device, named beside it, is as far off as its own source."""


def counted(found: Sequence[Outcome]) -> str:
    """`44 claims: 0 measured here, 2 modelled, 42 not reproducible here`"""
    each = [sum(one.state == state for one in found) for state in (MEASURED, MODELLED, NEITHER)]
    return f"{len(found)} claims: {each[0]} measured here, {each[1]} modelled, {each[2]} not reproducible here"


def figure(one: Outcome) -> str:
    parts = [claims.in_unit(one.row, one.value)] if one.runs else []
    if one.modelled:
        parts.append(f"{'modelled: ' * bool(one.runs)}{one.modelled.says} ({one.modelled.error})")
    return "; ".join(parts)


def way(one: Outcome, code: str = "`") -> List[str]:
    """The runs that measured it; else why none did, and the command that would."""
    lines = [f"runs {' '.join(one.runs)}"] if one.runs else []
    lines += [f"run {run} carries it, under other conditions: {why}" for run, why in one.other]
    if not one.runs:
        lines.append(f"it needs {one.conditions['needs']}")
        if one.conditions["command"]:
            lines.append(f"{code}{one.conditions['command']}{code}")
    return lines


def in_markdown(found: Sequence[Outcome]) -> str:
    """A page with a table for each work."""
    parts = ["# The claims", f"{counted(found)}.", ABOUT]
    for work in dict.fromkeys(one.row["work"] for one in found):
        cells = [_cells(one) for one in found if one.row["work"] == work]
        parts += [f"## {work}", rows.markdown(HEADINGS, cells, words=len(HEADINGS), aligned=False).rstrip()]
    return "\n\n".join(parts) + "\n"


def _cells(one: Outcome) -> List[str]:
    here = "; ".join(part for part in (f"**{one.state}**", figure(one), claims.judged(one)) if part)
    return [f"`{one.row['id']}`", one.row["statement"], claims.published(one.row), here, "<br>".join(way(one))]


def in_text(found: Sequence[Outcome], width: int = 110) -> str:
    """The same for the terminal: a paragraph for each."""
    parts, work = [], None
    for one in found:
        if one.row["work"] != work:
            work = one.row["work"]
            parts.append(f"\n{work}\n{'=' * len(work)}")
        head = f"{one.row['id']:<22}  {one.state}{f', {claims.judged(one)}' if claims.judged(one) else ''}"
        said = [f"published: {one.row['statement']}, {claims.published(one.row)}"]
        said += [f"here: {figure(one)}"] if figure(one) else []
        lines = [textwrap.fill(line, width, initial_indent="  ", subsequent_indent="    ") for line in said]
        for line in way(one, ""):
            a_command = line == one.conditions["command"]  # to be copied: never broken
            lines.append(f"    {line}" if a_command else textwrap.fill(line, width, initial_indent="  ",
                                                                       subsequent_indent="    "))  # fmt: skip
        parts.append("\n".join([head, *lines]))
    return "\n".join(parts)
