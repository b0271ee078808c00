"""Rows of recorded runs -> the figures and the table of a report.  Pure: standard library alone.

What is not on record is None and shown as a dash, never as 0.
"""

import csv
import io
import math
import statistics
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Tuple

from mxscale.records.recorded import NOT_KNOWN, Recorded, Row, Spread, known, spread, varied

# ---------------------------------------------------------------- figures of a row


REACHED = "time/to_target_s"


def reached(row: Row, metric: str = REACHED) -> Optional[Spread]:
    """Time or cost until the target was reached; a run that never did counts as endless.  None: no target, no price."""
    if row.target is None:
        return None
    values = [run.metrics.get(metric) for run in row.runs]
    for run, value in zip(row.runs, values):  # a cost that is unknown is no target that was missed
        if not known(value) and metric != REACHED and (REACHED in run.metrics or not _priced(run, metric)):
            return None
    return spread([value if known(value) else math.inf for value in values])


def _priced(run: Recorded, metric: str) -> bool:
    return known(run.metrics.get("cost/total_eur" if "eur" in metric else "cost/total_usd"))


def shares(row: Row) -> Optional[Dict[str, float]]:
    """Shares of a measured step: waiting for data, and compute and exchange as timed one after the other.

    Together they are more than 1 where the exchange hides behind backward, less where other work takes its time.
    """
    rate, wait = row.median("throughput/median"), _timed(row, "data_wait")
    images = row.runs[0].param("batch/global")
    if not rate or wait is None or not images:
        return None
    step_s, found = int(images) / rate, {"waiting for data": wait}
    for part in ("compute", "exchange"):
        seconds = _timed(row, part)
        if seconds is not None:
            found[part] = seconds / step_s
    return found if len(found) > 1 else None


def _timed(row: Row, part: str) -> Optional[float]:
    """The median over the run where it is on record, else its last value."""
    whole = row.median(f"time/{part}_median")
    return row.median(f"time/{part}") if whole is None else whole


def prediction(row: Row) -> Optional[Tuple[float, float]]:
    """(planned, measured) images/s: medians of the runs that have both.  The first of a configuration has no plan."""
    figures = [[run.metrics.get(name) for name in ("plan/images_per_s", "throughput/median")] for run in row.runs]
    both = [pair for pair in figures if all(map(known, pair))]
    return tuple(map(statistics.median, zip(*both))) if both else None


# ---------------------------------------------------------------- the table


class Column(NamedTuple):
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
    Column("planned images/s", "plan/images_per_s", "{:,.0f}"),
)


def cell(row: Row, column: Column) -> str:
    """`408 (390–420)`: median, and the least and most where there are several runs."""
    found = column.of(row, column.metric)
    if found is None:
        return NOT_KNOWN
    median, low, high = (_shown(value, column) for value in found[:3])
    return median if low == high else f"{median} ({low.removesuffix(' %').removesuffix(' s')}–{high})"


def _shown(value: float, column: Column) -> str:
    return column.form.format(column.scale * value) if math.isfinite(value) else "not reached"


def shown_columns(found: Sequence[Row]) -> List[Column]:
    """Those that some row has a figure for; that no row reached its target is one."""
    return [column for column in COLUMNS if any(_tells(column, column.of(row, column.metric)) for row in found)]


def _tells(column: Column, of_row: Optional[Spread]) -> bool:
    return of_row is not None and (math.isfinite(of_row.low) or column.metric == REACHED)


def table(found: Sequence[Row]) -> Tuple[List[str], List[List[str]]]:
    """(headings, cells)"""
    columns = shown_columns(found)
    headings = ["configuration", "runs", *(column.heading for column in columns)]
    return headings, [[row.label, str(len(row.runs)), *(cell(row, c) for c in columns)] for row in found]


def markdown(headings: Sequence[str], cells: Sequence[Sequence[str]], words: int = 1, aligned: bool = True) -> str:
    """A Markdown table, the first `words` columns to the left, figures to the right.

    aligned: padded to be read as it stands; False: for cells too long for that.
    """
    lines = [[text.replace("|", "\\|").replace("\n", " ") for text in line] for line in [headings, *cells]]
    widths = [max(3, *(len(line[i]) for line in lines)) if aligned else 3 for i in range(len(headings))]
    rule = [("-" * width if i < words else "-" * (width - 1) + ":") for i, width in enumerate(widths)]
    padded = [
        [text.ljust(width) if i < words else text.rjust(width) for i, (text, width) in enumerate(zip(line, widths))]
        for line in lines
    ]
    return "".join(f"| {' | '.join(line)} |\n" for line in [padded[0], rule, *padded[1:]])


def as_csv(found: Sequence[Row]) -> str:
    """Every key that differs, and median, min, max and number of runs of every figure; numbers unrounded."""
    keys, columns = varied(found), shown_columns(found)
    head = ["configuration", "runs", "seeds", *keys]
    for column in columns:
        head += [f"{column.metric}{end}" for end in ("", ".min", ".max", ".runs")]
    lines: List[List[Any]] = [[*head, "run_ids"]]
    for row in found:
        line = [row.label, len(row.runs), " ".join(row.seeds), *(row.settings.get(key, "") for key in keys)]
        for column in columns:
            line += column.of(row, column.metric) or ["", "", "", ""]
        lines.append([*line, " ".join(run.id for run in row.runs)])
    file = io.StringIO()
    csv.writer(file, lineterminator="\n").writerows(lines)
    return file.getvalue()
