"""The page of claims: which published figures were measured here, which are modelled, and which are neither."""

from typing import List, Sequence

from mxscale.records import claims
from mxscale.records.claims import STATES, Outcome
from mxscale.util import text_table

HEADINGS = ("claim", "figure", "published", "measured", "reduced scale", "modelled", "state", "needs", "command")
ABOUT = """Made by `mxscale report report.action=claims`. *Measured*: by runs under the conditions of the claim.
*Reduced scale*: by a scaled-down [replay](replays.md#measured-at-reduced-scale), which never counts as reproduced.
*Modelled*: by prices or the planner, with its error. *Source fact*: a price, or a result of another team that the
work quotes. *Not reproducible here*: with what it needs, and the command that measures it or makes the runs to
compare. The works print no spread, so the tolerances are ours (`mxscale/tables/claims.csv`). A claim counts once,
under its first state."""


def counted(outcomes: Sequence[Outcome]) -> str:
    """Return the counts, such as `44 claims: 0 measured, 12 reduced scale, ...; 4 of 9 modelled figures ...`."""
    counts = [f"{sum(claim.state == state for claim in outcomes)} {state}" for state in STATES]
    modelled = [claim for claim in outcomes if claim.modelled]
    numbers = [claim.within_modelled for claim in modelled if claim.within_modelled is not None]
    return (
        f"{len(outcomes)} claims: {', '.join(counts)}. Of {len(modelled)} modelled figures, {sum(numbers)} of the "
        f"{len(numbers)} that are numbers are within tolerance"
    )


def measured(claim: Outcome) -> str:
    """Return the measured value; "" if there is none."""
    if not claim.measured.runs:
        return ""
    value, unit = claim.measured.value, claim.row["unit"]
    return f"{value:,.4g} {unit}".rstrip() if abs(value) < 10000 else f"{value:,.0f} {unit}"


def reduced(claim: Outcome) -> str:
    """Return the figure at reduced scale and its direction; "" if there is none."""
    if not claim.reduced:
        return ""
    why = f", because {claim.reduced.why}" if claim.reduced.why else ""
    return f"{claim.reduced.text}: {claim.reduced.direction}{why}"


def modelled(claim: Outcome) -> str:
    """Return the modelled value with its error; "" if there is none."""
    return f"{claim.modelled.text} ({claim.modelled.error})" if claim.modelled else ""


def state(claim: Outcome) -> str:
    """Return the state, and whether the value is within tolerance."""
    return ", ".join(filter(None, (claim.state, claims.agreement(claim))))


def here(claim: Outcome) -> str:
    """Return all values of a claim here, to be shown behind its state."""
    model = f"modelled: {modelled(claim)}" if claim.modelled and claim.state != claims.MODELLED else modelled(claim)
    return "; ".join(filter(None, (measured(claim), reduced(claim), model)))


def table_row(claim: Outcome) -> List[str]:
    """Return the texts below HEADINGS."""
    lines = [measured(claim), f"runs {' '.join(claim.measured.runs)}" if claim.measured.runs else ""]
    lines += [f"run {run} has its tag, but under other conditions: {why}" for run, why in claim.measured.other]
    small = [reduced(claim), f"`mxscale replay {claim.reduced.replay} scale=small`: runs {' '.join(claim.reduced.runs)}"
             if claim.reduced else ""]  # fmt: skip
    command = claim.row["command"]
    return [
        f"`{claim.row['id']}`", claim.row["statement"], claim.row["published"], *map(_joined, (lines, small)),
        modelled(claim), state(claim), claim.row["needs"], f"`{command}`" if command else "",
    ]  # fmt: skip


def _joined(lines: Sequence[str]) -> str:
    return "<br>".join(filter(None, lines))


def in_markdown(outcomes: Sequence[Outcome]) -> str:
    """Return a page with a table for each work."""
    parts = ["# Claims", f"{counted(outcomes)}.", ABOUT]
    for work in dict.fromkeys(claim.row["work"] for claim in outcomes):
        rows = [table_row(claim) for claim in outcomes if claim.row["work"] == work]
        parts += [f"## {work}", text_table.markdown(HEADINGS, rows, left=len(HEADINGS), padded=False).rstrip()]
    return _with_numbered_errors("\n\n".join(parts), outcomes) + "\n"


def _with_numbered_errors(page: str, outcomes: Sequence[Outcome]) -> str:
    """Return a page with a list of the models' errors at its end, and their numbers in its tables."""
    errors = dict.fromkeys(claim.modelled.error for claim in outcomes if claim.modelled)
    for number, error in enumerate(errors, 1):
        page = page.replace(f"({error})", f"(error {number})")
    return "\n".join([f"{page}\n\n## Errors of the models\n", *(f"{n}. {error}" for n, error in enumerate(errors, 1))])


def in_text(outcomes: Sequence[Outcome]) -> str:
    """Return the claims for the terminal, one line each."""
    rows = [(claim.row["id"], claim.row["published"], state(claim), measured(claim)) for claim in outcomes]
    return "\n".join(text_table.columns([("claim", "published", "state", "measured"), *rows]))
