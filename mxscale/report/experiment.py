"""The report of an experiment: figures and tables, written to files.

An unrecorded value of a row is None and shown as a dash, never as 0.
"""

from collections import Counter
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Callable, List, NamedTuple, Sequence, Tuple

from mxscale.cost import prices
from mxscale.records import recorded
from mxscale.records.recorded import FINISHED, NOT_KNOWN, Recorded, Row, varied
from mxscale.rendering import page
from mxscale.report import figures
from mxscale.util import csv_tables, text_table
from mxscale.util.errors import ConfigError


def write(runs: Sequence[Recorded], name: str, recorded_in: str, folder: Path) -> str:
    """Write report.html, report.csv and a PNG of each figure to `folder`.

    Args:
        name: Of the experiment or sweep whose runs they are.
        recorded_in: The store or folder of the runs.

    Returns:
        The table, for the terminal.

    Raises:
        ConfigError: No run is finished, or the folder is not writable.
    """
    rows = recorded.rows(runs)
    counted = count(runs, rows)
    if not rows:
        raise ConfigError(f"report of {name}: {counted}; a report needs at least one finished run")
    drawn, missing = figures.draw(rows)
    headings, cells = table(rows)
    texts = {
        "report.csv": as_csv(rows),
        "report.html": page.render(
            Path(__file__).with_name("experiment.html"), name=name, counted=counted, figures=drawn,
            headings=headings, cells=cells, missing=missing, facts=facts(runs, recorded_in), rows=rows,
            unfinished=[run for run in runs if run.status != FINISHED],
        ),
    }  # fmt: skip
    page.save(texts, drawn, folder, "report.output")
    return f"{text_table.markdown(headings, cells)}\n{counted}\n"


def count(runs: Sequence[Recorded], rows: Sequence[Row]) -> str:
    """Return the number of runs by state, such as `12 runs, 10 finished, in 5 rows, 2 FAILED`."""
    states = Counter(run.status for run in runs)
    done = states.pop(FINISHED, 0)
    parts = [plural(len(runs), "run"), f"{done} finished, in {plural(len(rows), 'row')}" if done else "none finished"]
    return ", ".join([*parts, *(f"{number} {state}" for state, number in sorted(states.items()))])


def plural(number: int, what: str) -> str:
    return f"{number} {what}{'s' * (number != 1)}"


def facts(runs: Sequence[Recorded], recorded_in: str) -> List[Tuple[str, str]]:
    """Return (name, value) of the runs' environment."""
    started = sorted(run.started_ms for run in runs if run.started_ms)
    days = [datetime.fromtimestamp(ms / 1000, timezone.utc).strftime("%Y-%m-%d %H:%M UTC") for ms in started]
    tags = (("machine", "machine"), ("GPU", "gpu"), ("build", "build"), ("packages", "versions"),
            ("code", "git.commit"), ("data", "data.digest"))  # fmt: skip
    values = [(name, "; ".join(sorted({run.tags[tag] for run in runs if tag in run.tags}))) for name, tag in tags]
    dates = [("date", days[0] if days[0] == days[-1] else f"{days[0]} to {days[-1]}")] if days else []
    return [*dates, *((name, value) for name, value in values if value), ("recorded in", recorded_in)]


class Column(NamedTuple):
    """A column of the table."""

    heading: str
    metric: str
    form: Callable[[float], str]
    scale: float = 1.0


COLUMNS = (
    Column("images/s", "throughput/median", "{:,.0f}".format),
    Column("efficiency", "scaling/efficiency", "{:.1f} %".format, 100),
    Column("val top-1", "best/val_top1", "{:.2f} %".format),
    Column("test top-1", "test/top1", "{:.2f} %".format),
    Column("data wait", "time/data_wait_median", "{:.1f} %".format, 100),
    Column("time", "time/wall_s", "{:,.1f} s".format),
    Column("USD", "cost/total_usd", prices.amount),
    Column("EUR", "cost/total_eur", prices.amount),
    Column("kWh", "energy/kwh", "{:.4g}".format),
    Column("kg CO2", "co2/kg", "{:.4g}".format),
    Column("to target", "time/to_target_s", "{:,.1f} s".format),
    Column("USD to target", "cost/usd_to_target", prices.amount),
    Column("EUR to target", "cost/eur_to_target", prices.amount),
)


def cell(row: Row, column: Column) -> str:
    """Return the median, with minimum and maximum if they differ and the runs that have a value if not all have one.

    Examples: `408 (390–420)`, and `31.0 s, 2 of 3 runs` for a target that one seed missed.
    """
    values = row.spread(column.metric)
    if values is None:
        return NOT_KNOWN
    median, low, high = (column.form(column.scale * value) for value in values[:3])
    text = median if low == high else f"{median} ({low.removesuffix(' %').removesuffix(' s')}–{high})"
    return text if values.runs == len(row.runs) else f"{text}, {values.runs} of {len(row.runs)} runs"


def shown_columns(rows: Sequence[Row]) -> List[Column]:
    """Return the columns with a value in some row."""
    return [column for column in COLUMNS if any(row.values(column.metric) for row in rows)]


def table(rows: Sequence[Row]) -> Tuple[List[str], List[List[str]]]:
    """Return the headings and the cells of the table."""
    columns = shown_columns(rows)
    headings = ["configuration", "runs", *(column.heading for column in columns)]
    return headings, [[row.label, str(len(row.runs)), *(cell(row, c) for c in columns)] for row in rows]


def as_csv(rows: Sequence[Row]) -> str:
    """Return the settings that differ, and median, min, max and number of runs of each metric, unrounded."""
    keys, columns = varied(rows), shown_columns(rows)
    head = ["configuration", "runs", "seeds", *keys]
    for column in columns:
        head += [f"{column.metric}{end}" for end in ("", ".min", ".max", ".runs")]
    lines: List[List[Any]] = [[*head, "run_ids"]]
    for row in rows:
        line = [row.label, len(row.runs), " ".join(row.seeds), *(row.settings.get(key, "") for key in keys)]
        for column in columns:
            line += row.spread(column.metric) or ["", "", "", ""]
        lines.append([*line, " ".join(run.id for run in row.runs)])
    return csv_tables.text(lines)
