"""The results of a replay: the published numbers, those of its trials' runs, and the content of its page."""

import statistics
from dataclasses import replace
from typing import Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from mxscale.records import claims
from mxscale.records.recorded import Recorded, known
from mxscale.replay import availability
from mxscale.replay.availability import Here
from mxscale.replay.entry import HERE, PUBLISHED, RATIO, SMALL, Grid, Panel, Planned, Replay
from mxscale.rundir.directory import RunDir
from mxscale.rundir.status import FINISHED
from mxscale.rundir.sweep_directory import SweepDirectory, TrialRecord
from mxscale.tracking import history
from mxscale.util import csv_tables

Runs = Mapping[str, Sequence[Recorded]]  # name of a trial -> its finished runs, by seed


class Point(NamedTuple):
    """A number of a panel."""

    metric: str  # Panel.name
    series: str
    x: str
    by: str  # PUBLISHED or HERE
    value: float  # the median of the rounds
    low: Optional[float]  # None: published without a range
    high: Optional[float]
    absolute: Optional[float]  # in the metric's own unit, if `value` relates to a reference
    source: str  # citation, or the runs
    note: str = ""


class Content(NamedTuple):
    """What the page of a replay shows."""

    replay: Replay
    scale: str
    about: str
    command: str
    points: List[Point]  # published ones and those of runs here
    planned: Sequence[Planned]  # runs of the figure
    missing: List[Tuple[Planned, str]]  # those without a result, and why
    outcomes: List[claims.Outcome]
    runs: Runs

    @property
    def state(self) -> str:
        """How many runs have a result, such as `5 of 6 runs`."""
        return f"{len(self.planned) - len(self.missing)} of {len(self.planned)} runs"

    def of(self, panel: Panel) -> List[Point]:
        """Return the points of a panel, the published ones first."""
        return [point for point in self.points if point.metric == panel.name]


def published(replay: Replay) -> List[Point]:
    """Return the published numbers of each panel, in the order of the table."""
    rows = [row for row in csv_tables.read("published_figures") if row["replay"] == replay.name]
    points = []
    for panel in replay.panels:
        values = {(row["series"], row["x"]): float(row["value"]) for row in rows if row["metric"] == panel.metric}
        for row in rows:
            place, value, absolute = (row["series"], row["x"]), float(row["value"]), None
            if panel.way == RATIO and row["metric"] == panel.metric:
                absolute, value = value, panel.shown(value, values.get(panel.reference.of(*place, PUBLISHED)))
            elif row["metric"] != panel.name:
                continue
            if value is not None:
                points.append(Point(panel.name, *place, PUBLISHED, value, None, None, absolute, row["source"],
                                    row["note"]))  # fmt: skip
    return points


def measured(panel: Panel, grid: Grid, runs: Runs) -> List[Point]:
    """Return the numbers of a panel by the runs; a run relates to the reference of its own round."""
    rounds = {}
    for trial in grid.shown:
        found = [run for run in runs.get(trial.name, ()) if known(run.metrics.get(panel.metric))]
        rounds[trial.series, trial.x] = {run.param("seed"): run for run in found}
    points = []
    for place, by_seed in rounds.items():
        references = rounds.get(panel.reference.of(*place, HERE), {}) if panel.reference else by_seed
        paired = [(run, references[seed].metrics[panel.metric]) for seed, run in by_seed.items() if seed in references]
        values = [panel.shown(run.metrics[panel.metric], reference) for run, reference in paired]
        if values and None not in values:
            absolute = panel.absolute(statistics.median(run.metrics[panel.metric] for run, _ in paired))
            points.append(Point(panel.name, *place, HERE, statistics.median(values), min(values), max(values), absolute,
                                " ".join(run.id for run, _ in paired)))  # fmt: skip
    return points


def finished(sweep: Optional[SweepDirectory]) -> Dict[str, TrialRecord]:
    """Return the latest record of each finished trial whose run directory exists, by the trial's name."""
    records = sweep.trials() if sweep else []
    return {one.name: one for one in records if one.state == FINISHED and one.run and RunDir(one.run).exists}


def runs_of(done: Mapping[str, TrialRecord], planned: Sequence[Planned]) -> Runs:
    """Return the runs that `finished` returned by the names of their trials; the id is the run directory's name."""
    runs: Runs = {}
    for one in planned:
        if one.name in done:
            run = RunDir(done[one.name].run)
            found = replace(history.of_directory(run), id=run.path.name, name=one.name)
            runs.setdefault(one.trial.name, []).append(found)
    return runs


def content(
    replay: Replay, scale: str, seeds: Sequence[int], sweep: Optional[SweepDirectory], here: Here, command: str
) -> Content:
    """Return what the page of a replay shows, from the records of its sweep."""
    grid = replay.grid(scale)
    planned, done = grid.planned(seeds), finished(sweep)
    runs, shown = runs_of(done, planned), [one for one in planned if one.trial.series is not None]
    about = grid.about
    if any(trial.slow_hosts for trial in grid.trials):
        about += "; two workers and their servers are on "
        about += "slow_hosts" if here.slow_hosts else "this machine without slow links, since slow_hosts is not set"
    records, missing = {record.name: record for record in (sweep.trials() if sweep else [])}, []
    for one in shown:
        if one.name not in done:
            needs = availability.missing(one.trial, here)
            missing.append((one, f"needs {'; '.join(needs)}" if needs else _unfinished(records.get(one.name))))
    points = published(replay)
    for panel in replay.panels:
        points += measured(panel, grid, runs)
    full = [] if scale == SMALL else [run for of_trial in runs.values() for run in of_trial]
    small = {replay.name: runs} if scale == SMALL else {}
    outcomes = [one for one in claims.outcomes(full, claims.modelled(), small) if one.row["replay"] == replay.name]
    return Content(replay, scale, about, command, points, shown, missing, outcomes, runs)


def _unfinished(record: Optional[TrialRecord]) -> str:
    if record is None:
        return "not run yet: the same command continues"
    if record.state == FINISHED:
        return f"its run directory is gone: {record.run}"
    return f"{record.ended}: {record.error}" if record.error else record.ended
