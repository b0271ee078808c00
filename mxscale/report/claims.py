"""The page of claims: which published figures were measured here, which are modelled, and which are neither."""

import textwrap
from typing import List, Sequence

from mxscale.records import claims
from mxscale.records.claims import MODELLED, STATES, Outcome
from mxscale.util import text_table

HEADINGS = ("claim", "figure", "published", "here", "source or requirement")
ABOUT = """Made by `mxscale report report.action=claims`. *Measured*: by runs under the conditions of the claim.
*Reduced scale*: by a scaled-down [replay](replays.md#measured-at-reduced-scale), which never counts as reproduced.
*Modelled*: by prices or the planner, with its error. *Source fact*: a price, or a result of another team that the
work quotes. *Not reproducible here*: with what it needs, and the command that measures it or makes the runs to
compare. The works print no spread, so the tolerances are ours (`mxscale/tables/claim_conditions.csv`). A claim
counts once, under its first state."""


def counted(found: Sequence[Outcome]) -> str:
    """Return the counts, such as `44 claims: 0 measured, 12 reduced scale, ...; 4 of 9 modelled figures ...`."""
    each = [(sum(one.state == state for one in found), state) for state in STATES]
    modelled = [one for one in found if one.modelled]
    numbers = [one.within_modelled for one in modelled if one.within_modelled is not None]
    return (
        f"{len(found)} claims: {', '.join(f'{count} {state}' for count, state in each)}. Of {len(modelled)} modelled "
        f"figures, {sum(numbers)} of the {len(numbers)} that are numbers are within tolerance"
    )


def figure(one: Outcome) -> str:
    """Return the figures of a claim: measured, at reduced scale, and modelled."""
    parts = [claims.in_unit(one.row, one.value)] if one.runs else []
    if one.reduced:
        why = f", because {one.reduced.why}" if one.reduced.why else ""
        parts.append(f"{one.reduced.text}: {one.reduced.direction}{why}")
    if one.modelled:
        parts.append(f"{'modelled: ' * (one.state != MODELLED)}{one.modelled.text} ({one.modelled.error})")
    return "; ".join(parts)


def provenance(one: Outcome, code: str = "`") -> List[str]:
    """Return the runs that measured a claim; else the requirements and the command; code: quotes the command."""
    lines = [f"runs {' '.join(one.runs)}"] if one.runs else []
    lines += [f"run {run} has its tag, but under other conditions: {why}" for run, why in one.other]
    if one.reduced:
        lines.append(f"{code}mxscale replay {one.reduced.replay} scale=small{code}: runs {' '.join(one.reduced.runs)}")
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
    return _with_numbered_errors("\n\n".join(parts), found) + "\n"


def _with_numbered_errors(page: str, found: Sequence[Outcome]) -> str:
    """Return a page with a list of the models' errors at its end, and their numbers in its tables."""
    errors = dict.fromkeys(one.modelled.error for one in found if one.modelled and one.modelled.error)
    for number, error in enumerate(errors, 1):
        page = page.replace(f"({error})", f"(error {number})")
    return "\n".join([f"{page}\n\n## Errors of the models\n", *(f"{n}. {error}" for n, error in enumerate(errors, 1))])


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
