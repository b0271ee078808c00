"""The trials of a replay as a sweep: their settings, and the content of the page from their records."""

import re
from typing import List, Mapping, Optional

from mxscale.records import claims
from mxscale.replay import availability, inputs, results
from mxscale.replay.availability import Here
from mxscale.replay.entry import SMALL, Grid, Replay, Trial
from mxscale.replay.page import Content
from mxscale.rundir.directory import FINISHED
from mxscale.rundir.sweep_directory import SweepDirectory, TrialRecord
from mxscale.util.override_text import quoted

PLACEHOLDER = re.compile(r"\{([\w:]+)\}")
RUN = "run:"


def settings(trial: Trial, grid: Grid, finished: Mapping[str, TrialRecord], cache: str, here: Here) -> List[str]:
    """Return the overrides of a trial.

    Args:
        finished: Records of finished trials by name.
        cache: Folder of generated inputs.
        here: Its hosts are those of the command line.

    Raises:
        KeyError: The trial starts from a run that has not finished.
    """

    def value(placeholder: re.Match) -> str:
        name = placeholder[1]
        return quoted(str(finished[name[len(RUN) :]].run if name.startswith(RUN) else inputs.folder_of(name, cache)))

    overrides = [word if "${" in word else PLACEHOLDER.sub(value, word) for word in (*grid.base, *trial.overrides)]
    if trial.nodes is not None:
        hosts = ",".join(f"{host.name}:{host.slots}" for host in here.hosts[: trial.nodes])
        overrides += [f"launch.hosts=[{hosts}]", f"machine.nodes={trial.nodes}"]
    if trial.slow_hosts and here.slow_hosts:
        overrides.append(f"launch.hosts=[{','.join(here.slow_hosts[: trial.slow_hosts])}]")
    return overrides


def content(replay: Replay, scale: str, sweep: Optional[SweepDirectory], here: Here, command: str) -> Content:
    """Return what the page of a replay shows, from the records of its sweep."""
    grid, runs = replay.grid(scale), results.runs_of(sweep)
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
    points = results.published(replay)
    for panel in replay.panels:
        points += results.measured(panel, grid, runs)
    full, small = ([], {replay.name: runs}) if scale == SMALL else (list(runs.values()), {})
    outcomes = claims.outcomes(full, claims.modelled(), small, replay.name)
    return Content(replay, scale, about, command, points, missing, outcomes, runs)


def _unfinished(record: Optional[TrialRecord]) -> str:
    if record is None:
        return "not run yet: the same command continues"
    if record.state == FINISHED:
        return f"its run directory is gone: {record.run}"
    return f"{record.state.lower()}: {record.error}" if record.error else record.state.lower()
