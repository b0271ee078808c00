"""The results of a replay: the published numbers, those of its trials' runs, and the content of its page."""

from dataclasses import replace
from typing import Dict, List, Mapping, NamedTuple, Optional, Tuple

from mxscale.records import claims
from mxscale.records.recorded import Recorded, known
from mxscale.replay import availability
from mxscale.replay.availability import Here
from mxscale.replay.entry import SMALL, Grid, Panel, Replay, Trial
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


class Content(NamedTuple):
    """What the page of a replay shows."""

    replay: Replay
    scale: str
    about: str
    command: str
    points: List[Point]  # published ones and those of runs here
    missing: List[Tuple[Trial, str]]  # trials without a result, and why
    outcomes: List[claims.Outcome]
    runs: Mapping[str, Recorded]  # by the names of their trials

    @property
    def state(self) -> str:
        """How many trials have a result, such as `5 of 6 runs`."""
        trials = len(self.replay.grid(self.scale).shown)
        return f"{trials - len(self.missing)} of {trials} runs"

    def of(self, panel: Panel, by: str) -> List[Point]:
        """Return the points of a panel that are PUBLISHED, or those from HERE."""
        return [point for point in self.points if (point.metric, point.by) == (panel.name, by)]


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


def content(replay: Replay, scale: str, sweep: Optional[SweepDirectory], here: Here, command: str) -> Content:
    """Return what the page of a replay shows, from the records of its sweep."""
    grid, runs = replay.grid(scale), runs_of(sweep)
    about = grid.about
    if any(trial.slow_hosts for trial in grid.trials):
        about += "; two workers and their servers are on "
        about += "slow_hosts" if here.slow_hosts else "this machine without slow links, since slow_hosts is not set"
    records = {record.name: record for record in (sweep.trials() if sweep else [])}
    missing = []
    for trial in grid.shown:
        if trial.name not in runs:
            needs = availability.missing(trial, here)
            missing.append((trial, f"needs {'; '.join(needs)}" if needs else _unfinished(records.get(trial.name))))
    points = published(replay)
    for panel in replay.panels:
        points += measured(panel, grid, runs)
    small = {replay.name: {name: [run] for name, run in runs.items()}}
    full, small = ([], small) if scale == SMALL else (list(runs.values()), {})
    outcomes = claims.outcomes(full, claims.modelled(), small, replay.name)
    return Content(replay, scale, about, command, points, missing, outcomes, runs)


def _unfinished(record: Optional[TrialRecord]) -> str:
    if record is None:
        return "not run yet: the same command continues"
    if record.state == FINISHED:
        return f"its run directory is gone: {record.run}"
    return f"{record.state.lower()}: {record.error}" if record.error else record.state.lower()
