"""The numbers of a replay: the published ones, and one's own from the records of its cells."""

import csv
import io
from dataclasses import dataclass
from typing import Dict, List, Mapping, Optional, Sequence

from mxscale.records.recorded import Recorded, known
from mxscale.replay.entry import Grid, Panel, Replay
from mxscale.rundir.directory import FINISHED, RunDir
from mxscale.rundir.sweep_directory import CellRecord, SweepDirectory
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
            for name, value in sorted(run.metrics.items(), key=lambda pair: _number(pair[0][len(panel.metric) :]))
            if name.startswith(panel.metric) and name[len(panel.metric) :].isdigit()
        ]
    values = {(cell.series, cell.x): value for cell, run in shown if known(value := run.metrics.get(panel.metric))}
    points = []
    for cell, run in shown:
        value = values.get((cell.series, cell.x))
        value = value if value is None else panel.derived(value, values.get((panel.reference, cell.x)), run.devices)
        if value is not None:
            points.append(Point(cell.series, cell.x, panel.factor * value, run.id))
    return points


def _number(text: str) -> float:
    return float(text) if text.isdigit() else 0.0


def runs_of(sweep: Optional[SweepDirectory]) -> Dict[str, Recorded]:
    """Return the finished runs of a sweep's cells by the cells' names."""
    finished = [cell for cell in (sweep.cells() if sweep else []) if cell.state == FINISHED and cell.run]
    return {cell.name: recorded(cell) for cell in finished}


def recorded(cell: CellRecord) -> Recorded:
    """Return the record of a cell's run as `records` reads it; its id is the name of the run directory."""
    run = RunDir(cell.run)
    tags = {key: str(value) for key, value in ((run.read("environment.json") or {}).get("tags") or {}).items()}
    return Recorded(run.path.name, cell.name, FINISHED, {}, tags, {**last_values(run), **run.figures})


def last_values(run: RunDir) -> Dict[str, float]:
    """Return the last value of each metric in metrics.jsonl."""
    found: Dict[str, float] = {}
    for line in run.history():
        found.update(line["metrics"])
    return found


def as_csv(replay: Replay, tables: Sequence[tuple]) -> str:
    """Return one line for each number; tables: (panel, published points, own points)."""
    file = io.StringIO()
    out = csv.writer(file, lineterminator="\n")
    out.writerow(["replay", "metric", "series", "x", "by", "value", "source", "note"])
    for panel, theirs, ours in tables:
        for by, points in (("published", theirs), ("here", ours)):
            for point in points:
                out.writerow([replay.name, panel.name, point.series, point.x, by, point.value, point.source, point.note])
    return file.getvalue()
