"""The numbers of a replay: the published ones, and one's own from the records of its cells."""

from dataclasses import dataclass, replace
from typing import Dict, List, Mapping, Optional, Sequence, Tuple

from mxscale.records.recorded import Recorded, known
from mxscale.replay.entry import Grid, Panel, Replay
from mxscale.rundir.directory import FINISHED, RunDir
from mxscale.rundir.sweep_directory import CellRecord, SweepDirectory
from mxscale.tracking import history
from mxscale.util import csv_tables


@dataclass(frozen=True)
class Point:
    """A number of a panel."""

    series: str
    x: str
    value: float
    source: str  # citation, or the run
    note: str = ""


def published(replay: Replay, panel: Panel) -> List[Point]:
    """Return the published numbers of a panel, in the order of the table."""
    return [
        Point(row["series"], row["x"], float(row["value"]), row["source"], row["note"])
        for row in csv_tables.read("published_figures")
        if row["replay"] == replay.name and row["metric"] == panel.name
    ]


def own(panel: Panel, grid: Grid, runs: Mapping[str, Recorded]) -> List[Point]:
    """Return one's own numbers of a panel, by the cells of the grid; runs: name of a cell -> its finished run."""
    shown = [(cell, runs[cell.name]) for cell in grid.cells if cell.series is not None and cell.name in runs]
    if panel.metric.endswith("/"):
        return [
            Point(cell.series, name[len(panel.metric) :], panel.factor * value, run.id)
            for cell, run in shown
            for name, value in _by_number(run.metrics, panel.metric)
        ]
    values = {(cell.series, cell.x): value for cell, run in shown if known(value := run.metrics.get(panel.metric))}
    points = []
    for cell, run in shown:
        value = values.get((cell.series, cell.x))
        value = value if value is None else panel.derived(value, values.get((panel.reference, cell.x)), run.devices)
        if value is not None:
            points.append(Point(cell.series, cell.x, panel.factor * value, run.id))
    return points


def _by_number(metrics: Mapping[str, float], prefix: str) -> List[Tuple[str, float]]:
    """Return the metrics whose names are the prefix and a whole number, by this number."""
    found = [name for name in metrics if name.startswith(prefix) and name[len(prefix) :].isdigit()]
    return [(name, metrics[name]) for name in sorted(found, key=lambda name: int(name[len(prefix) :]))]


def latest(sweep: Optional[SweepDirectory]) -> Dict[str, CellRecord]:
    """Return the latest record of each cell of a sweep by the cell's name."""
    return {cell.name: cell for cell in (sweep.cell_records() if sweep else [])}


def finished(sweep: Optional[SweepDirectory]) -> Dict[str, CellRecord]:
    """Return the latest record of each finished cell whose run directory exists, by the cell's name."""
    ended = {name: cell for name, cell in latest(sweep).items() if cell.state == FINISHED and cell.run}
    return {name: cell for name, cell in ended.items() if RunDir(cell.run).exists}


def runs_of(sweep: Optional[SweepDirectory]) -> Dict[str, Recorded]:
    """Return the finished runs of a sweep's cells by the cells' names."""
    return {name: recorded(cell) for name, cell in finished(sweep).items()}


def recorded(cell: CellRecord) -> Recorded:
    """Return the record of a cell's run as `records` reads it; its id is the name of the run directory."""
    run = RunDir(cell.run)
    return replace(history.of_directory(run), id=run.path.name, name=cell.name)


def as_csv(replay: Replay, tables: Sequence[tuple]) -> str:
    """Return one line for each number; tables: (panel, published points, own points)."""
    rows = [["replay", "metric", "series", "x", "by", "value", "source", "note"]]
    for panel, theirs, ours in tables:
        for by, points in (("published", theirs), ("here", ours)):
            rows += ([replay.name, panel.name, p.series, p.x, by, p.value, p.source, p.note] for p in points)
    return csv_tables.text(rows)
