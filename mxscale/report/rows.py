"""Values of the rows of a report, and its table. An unrecorded value is None and shown as a dash, never as 0."""

import math
from typing import Any, Callable, List, NamedTuple, Optional, Sequence, Tuple

from mxscale.records.recorded import NOT_KNOWN, Recorded, Row, Spread, known, spread, varied
from mxscale.util import csv_tables

REACHED = "time/to_target_s"


def reached(row: Row, metric: str = REACHED) -> Optional[Spread]:
    """Return time or cost to target; infinite for a run that missed it. None without a target or a price."""
    if row.target is None:
        return None
    values = [run.metrics.get(metric) for run in row.runs]
    for run, value in zip(row.runs, values):  # an unknown cost is not a missed target
        if not known(value) and metric != REACHED and (REACHED in run.metrics or not _priced(run, metric)):
            return None
    return spread([value if known(value) else math.inf for value in values])


def _priced(run: Recorded, metric: str) -> bool:
    return known(run.metrics.get("cost/total_eur" if "eur" in metric else "cost/total_usd"))


class Column(NamedTuple):
    """A column of the table."""

    heading: str
    metric: str
    form: str
    scale: float = 1.0
    of: Callable[[Row, str], Optional[Spread]] = Row.spread


COLUMNS = (
    Column("images/s", "throughput/median", "{:,.0f}"),
    Column("efficiency", "scaling/efficiency", "{:.1f} %", 100),
    Column("val top-1", "best/val_top1", "{:.2f} %"),
    Column("test top-1", "test/top1", "{:.2f} %"),
    Column("data wait", "time/data_wait_median", "{:.1f} %", 100),
    Column("time", "time/wall_s", "{:,.1f} s"),
    Column("USD", "cost/total_usd", "{:.4f}"),
    Column("EUR", "cost/total_eur", "{:.4f}"),
    Column("to target", REACHED, "{:,.1f} s", of=reached),
    Column("USD to target", "cost/usd_to_target", "{:.4f}", of=reached),
    Column("EUR to target", "cost/eur_to_target", "{:.4f}", of=reached),
    Column("USD per point", "cost/usd_per_point", "{:.6f}"),
    Column("EUR per point", "cost/eur_per_point", "{:.6f}"),
)


def cell(row: Row, column: Column) -> str:
    """Return the median, with minimum and maximum if they differ, such as `408 (390–420)`."""
    values = column.of(row, column.metric)
    if values is None:
        return NOT_KNOWN
    median, low, high = (_shown(value, column) for value in values[:3])
    return median if low == high else f"{median} ({low.removesuffix(' %').removesuffix(' s')}–{high})"


def _shown(value: float, column: Column) -> str:
    return column.form.format(column.scale * value) if math.isfinite(value) else "not reached"


def shown_columns(rows: Sequence[Row]) -> List[Column]:
    """Return the columns with a value in some row; a target that no row reached counts as a value."""
    return [column for column in COLUMNS if any(_has_value(column, column.of(row, column.metric)) for row in rows)]


def _has_value(column: Column, value: Optional[Spread]) -> bool:
    return value is not None and (math.isfinite(value.low) or column.metric == REACHED)


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
            line += column.of(row, column.metric) or ["", "", "", ""]
        lines.append([*line, " ".join(run.id for run in row.runs)])
    return csv_tables.text(lines)
