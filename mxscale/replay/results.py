"""The numbers of a replay: the published ones, and those of its trials' runs."""

from dataclasses import replace
from typing import Dict, List, Mapping, NamedTuple, Optional

from mxscale.records.recorded import Recorded, known
from mxscale.replay.entry import Grid, Panel, Replay
from mxscale.rundir.directory import FINISHED, RunDir
from mxscale.rundir.sweep_directory import SweepDirectory, TrialRecord
from mxscale.tracking import history
from mxscale.util import csv_tables

PUBLISHED, HERE = "published", "here"


class Point(NamedTuple):
    """A number of a panel."""

    metric: str  # Panel.name
    series: str
    x: str
    by: str  # PUBLISHED or HERE
    value: float
    source: str  # citation, or the run
    note: str = ""


def published(replay: Replay) -> List[Point]:
    """Return the published numbers, in the order of the table."""
    return [
        Point(row["metric"], row["series"], row["x"], PUBLISHED, float(row["value"]), row["source"], row["note"])
        for row in csv_tables.read("published_figures")
        if row["replay"] == replay.name
    ]


def measured(panel: Panel, grid: Grid, runs: Mapping[str, Recorded]) -> List[Point]:
    """Return the numbers of a panel by the runs; runs: name of a trial -> its finished run."""
    shown = [(trial, runs[trial.name]) for trial in grid.shown if trial.name in runs]
    shown = [(trial, run) for trial, run in shown if known(run.metrics.get(panel.metric))]
    values = {(trial.series, trial.x): run.metrics[panel.metric] for trial, run in shown}
    points = []
    for trial, run in shown:
        value = panel.shown(values[trial.series, trial.x], values.get((panel.reference, trial.x)))
        if value is not None:
            points.append(Point(panel.name, trial.series, trial.x, HERE, value, run.id))
    return points


def finished(sweep: Optional[SweepDirectory]) -> Dict[str, TrialRecord]:
    """Return the latest record of each finished trial whose run directory exists, by the trial's name."""
    records = sweep.trials() if sweep else []
    return {one.name: one for one in records if one.state == FINISHED and one.run and RunDir(one.run).exists}


def runs_of(sweep: Optional[SweepDirectory]) -> Dict[str, Recorded]:
    """Return the finished runs by the names of their trials; the id is the name of the run directory."""
    runs = {name: RunDir(record.run) for name, record in finished(sweep).items()}
    return {name: replace(history.of_directory(run), id=run.path.name, name=name) for name, run in runs.items()}
