"""The page of published works: each claim with its published value, its values here, and the verdict."""

import re
from typing import Dict, List, Mapping, Optional, Sequence

from mxscale.records import claims
from mxscale.records.claims import BY_RUNS, MODELLED, REDUCED, SOURCE, STATES, Outcome
from mxscale.util import csv_tables, text_table

HEADINGS = ("claim", "published", "here", "verdict", "remarks and command")
ABOUT = """Made by `mxscale report report.action=claims`. *Measured*: by runs under the published conditions. *Measured
on other hardware*: under those conditions apart from the hardware, which is named. *Reduced scale*: by a scaled-down
[replay](replays.md) with another network, data and devices. These two are no reproductions. *Modelled*: by the price
tables or the planner, with the known error. *Source fact*: a price, or a result of another team, which the work only
quotes. *Not possible here*: the last column has what is needed. A claim with several states counts under the one that
is printed first.

**Verdict.** The published value *agrees* if the values of all runs, or of all rounds of a comparison, are within the
tolerance, and *disagrees* if all are on the same side of it. Otherwise, and with fewer than three values, the result is
*inconclusive*. The verdict on a modelled value ignores the error of the model, which is often larger than the
tolerance. Where a work prints no range, the tolerance is ours."""
COLUMNS = ("id", "state", "values", "hardware", "date", "command", "note")  # of tables/measured_claims.csv


def counts(outcomes: Sequence[Outcome]) -> str:
    """Return how many claims have each state, such as `42 published claims: 0 measured, 2 measured on ...`."""
    each = [f"{sum(claim.state == state for claim in outcomes)} {state}{'s' * (state == SOURCE)}" for state in STATES]
    return f"{len(outcomes)} published claims: {', '.join(each)}"


def verdicts(outcomes: Sequence[Outcome]) -> str:
    """Return how many results by runs have each verdict, and how many modelled figures are within tolerance."""
    by_runs = [claim.verdict(state) for claim in outcomes for state in claim.figures]
    words = ", ".join(f"{word} {by_runs.count(word)}" for word in claims.VERDICTS)
    models = [claim.verdict(MODELLED) for claim in outcomes if claim.modelled]
    agree, disagree = (models.count(word) for word in (claims.AGREES, claims.DISAGREES))
    return f"Verdicts by runs: {words}. Of {agree + disagree} modelled numbers with a tolerance, {agree} agree"


def verdict(claim: Outcome, of: str) -> str:
    found = claim.verdict(of) or ""
    return f"modelled value {found}" if found and of not in BY_RUNS else found


def state(claim: Outcome) -> str:
    """Return the state with its verdict, such as `reduced scale, agrees`."""
    found = verdict(claim, claim.state)
    return found if claim.state == MODELLED and found else ", ".join(filter(None, (claim.state, found)))


def by_runs(claim: Outcome, of: str) -> str:
    """Return the figure of a state in words: median, `(low to high, n = runs)`, hardware, date; "" without one."""
    figure = claim.figures.get(of)
    if not figure:
        return ""
    form = (
        claim.row["figure"]
        if of == REDUCED
        else f"{'{:,.0f}' if figure.high >= 999.5 else '{:.4g}'} {claim.row['unit']}"
    )
    [number] = re.findall("{[^{}]*}", form)
    spread = f"{number} to {number}, ".format(figure.low, figure.high) if len(figure.values) > 1 else ""
    value = f"{form.format(figure.median).rstrip()} ({spread}n = {len(figure.values)})"
    expected = f"agrees if {tolerance(claim.row['same'])}" if of == REDUCED else ""
    return "; ".join(filter(None, (value, expected, figure.hardware, figure.date, figure.note)))


def tolerance(bounds: str) -> str:
    """Return bounds such as `>=94 <=98` in words: 94 to 98."""
    words = {">=": "at least ", "<=": "at most ", ">": "over ", "<": "under "}
    text = re.sub("[<>]=?", lambda sign: words[sign[0]], bounds)
    return re.sub(r"at least (\S+) at most (\S+)", lambda ends: " to ".join(dict.fromkeys(ends.groups())), text)


def values(claim: Outcome, numbers: Optional[Mapping[str, int]] = None) -> Dict[str, str]:
    """Return all values of a claim here in words, by state; numbers: those of the models' errors."""
    found = {of: by_runs(claim, of) for of in BY_RUNS if of in claim.figures}
    if claim.modelled:
        error = f"note {numbers[claim.modelled.error]}" if numbers else claim.modelled.error
        found[MODELLED] = f"{claim.modelled.text} ({error})"
    return found if claim.state in found else {claim.state: "", **found}


def here(claim: Outcome) -> str:
    """Return all values of a claim here, to be shown behind its state."""
    return "; ".join(text if of == claim.state else f"{of}: {text}" for of, text in values(claim).items() if text)


def in_markdown(outcomes: Sequence[Outcome]) -> str:
    """Return a page with a table for each work, and the errors of the models at its end."""
    errors = dict.fromkeys(claim.modelled.error for claim in outcomes if claim.modelled)
    numbers = {error: number for number, error in enumerate(errors, 1)}
    parts = ["# Published works", f"**{counts(outcomes)}.** {verdicts(outcomes)}.", ABOUT]
    sources = csv_tables.read("published_works")
    for work in dict.fromkeys(claim.row["work"] for claim in outcomes):
        cited = [
            f"{row['by']}: [{row['title']}]({row['address']}), {row['date']}." for row in sources if row["work"] == work
        ]
        rows = [_table_row(claim, numbers) for claim in outcomes if claim.row["work"] == work]
        table = text_table.markdown(HEADINGS, rows, left=len(HEADINGS), padded=False).rstrip()
        parts += [f"## {work}", "\n".join(f"- {source}" for source in cited), table]
    listed = "\n".join(f"{number}. {error}" for error, number in numbers.items())
    return "\n\n".join([*parts, "## Notes: errors of the models", listed]) + "\n"


def _table_row(claim: Outcome, numbers: Mapping[str, int]) -> List[str]:
    """Return the texts below HEADINGS; `numbers` are those of the models' errors."""
    row, figures, within = claim.row, claim.figures, tolerance(claim.row["agrees"])
    published = [row["published"], "" if within in row["published"] else f"(tolerance {within})"]
    found = values(claim, numbers)
    lines = [f"**{of}**{': ' * bool(text)}{text}" for of, text in found.items()]
    lines += [f"runs {' '.join(figure.runs)}" for figure in figures.values() if figure.runs]
    lines += [f"run {run} has its tag, but under other conditions: {why}" for run, why in claim.other]
    judged = {of: verdict(claim, of) for of in found}
    words = dict.fromkeys(
        f"{of}: {word}" if of in BY_RUNS[1:] and len(figures) > 1 else word for of, word in judged.items()
    )
    needs = "" if claim.state == claims.MEASURED else f"{'needs ' * (claim.state != SOURCE)}{row['needs']}"
    replayed = f"mxscale replay {row['replay']} scale=small" if REDUCED in figures else ""
    commands = dict.fromkeys([*(figure.command for figure in figures.values()), row["command"], replayed])
    notes = [row["why"] if figures else "", needs, *(f"`{command}`" for command in commands if command)]
    cells = ([f"`{row['id']}`", row["statement"]], published, lines, words, notes)
    return ["<br>".join(filter(None, cell)) for cell in cells]


def measurements(outcomes: Sequence[Outcome]) -> str:
    """Return the results by runs as a table with the columns of tables/measured_claims.csv."""
    rows = [(claim.row["id"], of, " ".join(f"{value:.6g}" for value in one.values), one.hardware, one.date,
             one.command, one.note) for claim in outcomes for of, one in claim.figures.items()]  # fmt: skip
    return csv_tables.text([COLUMNS, *rows])


def in_text(outcomes: Sequence[Outcome]) -> str:
    """Return the claims for the terminal, one line each."""
    rows = [(claim.row["id"], claim.row["published"], state(claim), by_runs(claim, claim.state)) for claim in outcomes]
    return "\n".join(text_table.columns([("claim", "published", "state", "by runs"), *rows]))
