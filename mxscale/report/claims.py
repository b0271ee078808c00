"""The page of claims: which published figures were measured here, which are modelled, and which are neither."""

from typing import List, Mapping, Sequence

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
    verdicts = [claims.verdict(claim.row, claim.modelled.value) for claim in modelled]
    return (
        f"{len(outcomes)} claims: {', '.join(counts)}. Of {len(modelled)} modelled figures, {verdicts.count(True)} of "
        f"the {len(verdicts) - verdicts.count(None)} that are numbers are within tolerance"
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
    why = "" if claim.reduced.same else f", because {claim.row['why_not']}"
    return f"{claim.reduced.text}: {claim.reduced.direction}{why}"


def state(claim: Outcome) -> str:
    """Return the state, and whether the value is within tolerance, such as `measured, within tolerance (>=94 <=98)`."""
    if claim.within is None:
        return claim.state
    return f"{claim.state}, {'' if claim.within else 'not '}within tolerance ({claim.row['agrees']})"


def here(claim: Outcome) -> str:
    """Return all values of a claim here, to be shown behind its state."""
    model = claim.modelled and f"{claim.modelled.text} ({claim.modelled.error})"
    if model and claim.state != claims.MODELLED:
        model = f"modelled: {model}"
    return "; ".join(filter(None, (measured(claim), reduced(claim), model)))


def in_markdown(outcomes: Sequence[Outcome]) -> str:
    """Return a page with a table for each work, and the errors of the models at its end."""
    errors = dict.fromkeys(claim.modelled.error for claim in outcomes if claim.modelled)
    numbers = {error: number for number, error in enumerate(errors, 1)}
    parts = ["# Claims", f"{counted(outcomes)}.", ABOUT]
    for work in dict.fromkeys(claim.row["work"] for claim in outcomes):
        rows = [_table_row(claim, numbers) for claim in outcomes if claim.row["work"] == work]
        parts += [f"## {work}", text_table.markdown(HEADINGS, rows, left=len(HEADINGS), padded=False).rstrip()]
    listed = "\n".join(f"{number}. {error}" for error, number in numbers.items())
    return "\n\n".join([*parts, "## Errors of the models", listed]) + "\n"


def _table_row(claim: Outcome, numbers: Mapping[str, int]) -> List[str]:
    """Return the texts below HEADINGS; `numbers` are those of the models' errors."""
    row, found, small, model = claim.row, claim.measured, claim.reduced, claim.modelled
    lines = [measured(claim), f"runs {' '.join(found.runs)}" if found.runs else ""]
    lines += [f"run {run} has its tag, but under other conditions: {why}" for run, why in found.other]
    reduced_by = f"`mxscale replay {row['replay']} scale=small`: runs {' '.join(small.runs)}" if small else ""
    return [
        f"`{row['id']}`", row["statement"], row["published"], "<br>".join(filter(None, lines)),
        "<br>".join(filter(None, (reduced(claim), reduced_by))),
        f"{model.text} (error {numbers[model.error]})" if model else "",
        state(claim), row["needs"], f"`{row['command']}`" if row["command"] else "",
    ]  # fmt: skip


def in_text(outcomes: Sequence[Outcome]) -> str:
    """Return the claims for the terminal, one line each."""
    rows = [(claim.row["id"], claim.row["published"], state(claim), measured(claim)) for claim in outcomes]
    return "\n".join(text_table.columns([("claim", "published", "state", "measured"), *rows]))
