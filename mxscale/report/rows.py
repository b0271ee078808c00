"""Values of the rows of a report, and its table. An unrecorded value is None and shown as a dash, never as 0."""

from typing import Any, Callable, List, NamedTuple, Sequence, Tuple

from mxscale.cost import prices
from mxscale.records.recorded import NOT_KNOWN, Row, varied
from mxscale.util import csv_tables


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
