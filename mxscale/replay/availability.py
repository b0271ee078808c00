"""What a trial needs that this machine lacks, and its settings here."""

import os
import re
import shutil
from dataclasses import dataclass, field
from typing import List, Mapping, Optional, Sequence

from mxscale.environment import description
from mxscale.environment.hosts import Host
from mxscale.replay import inputs
from mxscale.replay.entry import Grid, Trial
from mxscale.rundir.sweep_directory import TrialRecord
from mxscale.util.override_text import quoted

PLACEHOLDER = re.compile(r"\{([\w:]+)\}")
RUN = "run:"


@dataclass(frozen=True)
class Here:
    """What this machine and this command line have."""

    gpus: Sequence[str] = ()  # names
    hosts: Sequence[Host] = ()  # launch.hosts
    slow_hosts: Sequence[str] = ()  # hosts with slow links, ADDRESS:SLOTS
    keys: Sequence[str] = ()  # settings of the command line
    inputs: Mapping[str, str] = field(default_factory=dict)  # folders by their names in the settings of a trial
    lacking: Mapping[str, str] = field(default_factory=dict)  # inputs that are not there, and why


def missing(trial: Trial, here: Here) -> List[str]:
    """Return why a trial can't run, one reason for each unmet requirement."""
    reasons = [reason for need in trial.needs if (reason := _unmet(need, here))]
    if trial.nodes is not None and len(here.hosts) < trial.nodes:
        hosts = "name it" if trial.nodes == 1 else f"name {trial.nodes}"
        reasons.append(f"{trial.nodes} machine{'s' * (trial.nodes > 1)}: {hosts} in launch.hosts")
    if 0 < len(here.slow_hosts) < trial.slow_hosts:
        reasons.append(f"{trial.slow_hosts} hosts with slow links: name {trial.slow_hosts} in slow_hosts")
    return reasons


def lacking(grid: Grid, here: Here) -> List[str]:
    """Return the reasons of all trials of a grid, without repetition."""
    return list(dict.fromkeys(reason for trial in grid.trials for reason in missing(trial, here)))


def runnable(grid: Grid, here: Here) -> str:
    """Return how many trials of the figure can run, such as `2 of 4 runs`."""
    return f"{sum(not missing(trial, here) for trial in grid.shown)} of {len(grid.shown)} runs"


def _unmet(need: str, here: Here) -> Optional[str]:
    """Return the reason of an unmet requirement of Trial.needs; None if it is met."""
    kind, _, what = need.partition(":")
    if kind == "gpus":
        name, count = what.split(":")
        if here.hosts or sum(name in gpu for gpu in here.gpus) >= int(count):
            return None
        gpus = f"{len(here.gpus)} x {here.gpus[0]}" if here.gpus else "no GPU"
        return f"{count} {name or 'GPU'}{'' if name else 's' * (count != '1')} (this machine has {gpus})"
    if kind == "mpi":
        return None if shutil.which("mpirun") else "mpirun: install Open MPI, then remove .venv and run make setup"
    if kind == "input":
        return here.lacking.get(what)
    if kind == "build":
        build = description.identity().get("build", "wheel")
        return None if build == what else f"MXNet of the build {what} (this is {build}): run the replay in its image"
    if kind == "file":
        return None if os.path.exists(what) else f"{what}, to be placed there"
    return None if what in here.keys else f"{what}=PATH"


def settings(trial: Trial, grid: Grid, finished: Mapping[str, TrialRecord], cache: str, here: Here) -> List[str]:
    """Return the overrides of a trial.

    Args:
        finished: Records of finished trials by name.
        cache: Folder of the generated photographs.
        here: Its hosts and folders are those of the command line.

    Raises:
        KeyError: The trial starts from a run that has not finished.
    """

    def value(placeholder: re.Match) -> str:
        name = placeholder[1]
        if name.startswith(RUN):
            return quoted(str(finished[name[len(RUN) :]].run))
        return quoted(here.inputs.get(name) or inputs.photographs(cache))

    overrides = [word if "${" in word else PLACEHOLDER.sub(value, word) for word in (*grid.base, *trial.overrides)]
    if trial.nodes is not None:
        hosts = ",".join(f"{host.name}:{host.slots}" for host in here.hosts[: trial.nodes])
        overrides += [f"launch.hosts=[{hosts}]", f"machine.nodes={trial.nodes}"]
    if trial.slow_hosts and here.slow_hosts:
        overrides.append(f"launch.hosts=[{','.join(here.slow_hosts[: trial.slow_hosts])}]")
    return overrides
