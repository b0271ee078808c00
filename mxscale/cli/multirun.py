"""Hydra's multirun: what comes before its cells and after them, and what a cell is.  See sweep/sweep.py."""

import os
import signal
import sys
import time
import traceback
from contextlib import ExitStack
from typing import Callable, List, Optional

from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.experimental.callback import Callback
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from mxscale.cli.explain import explain, refuse
from mxscale.config.schema import from_dict
from mxscale.config.validation import validate
from mxscale.environment.container_limits import available_cores
from mxscale.environment.description import ROOT
from mxscale.launcher.context import Signals
from mxscale.launcher.progress import say
from mxscale.launcher.supervisor import kept_alive
from mxscale.rundir import guards
from mxscale.rundir.directory import FAILED, FAILURE, INTERRUPTED
from mxscale.rundir.status import Status
from mxscale.sweep import conclusion
from mxscale.sweep.sweep import Cell, Sweep, begin
from mxscale.util.errors import ConfigError

TERMINAL = (signal.SIGINT, signal.SIGHUP)
DIRECTIONS = {"accuracy": "maximize", "cost": "minimize"}  # of the names in sweep.objective

_opened: List["Opened"] = []  # in the sweep's own process: the sweep


class Opening(Callback):
    """Makes the sweep's directory before the first cell; Hydra calls it, for conf/train.yaml names it.

    It has no state: launchers send it to their cells' processes.
    """

    def on_multirun_start(self, config, **_) -> None:
        try:
            _opened.append(Opened(config))
        except (ConfigError, OSError, OmegaConfBaseException) as error:
            sys.exit(refuse(explain(error)))
        except Exception:  # Hydra would make a warning of it, and go on
            traceback.print_exc()
            sys.exit(FAILURE)


class Opened:
    """A sweep while its own process looks after it."""

    def __init__(self, config):
        typed = OmegaConf.to_container(config.hydra.overrides.task)
        ours = OmegaConf.masked_copy(config, [key for key in config if key != "hydra"])
        values = OmegaConf.to_container(ours, resolve=True)
        if values["budget"]["dry_run"]:
            raise ConfigError("budget.dry_run=true with -m: ask for one run at a time")
        validate(from_dict({"sweep": values["sweep"]}))  # before a sweeper is told of it
        suit(config.hydra, values["sweep"]["objective"])
        facts = facts_of(config, typed)
        self.sweep = begin(values, typed, facts)
        self._until_closed = ExitStack()
        self._until_closed.enter_context(guards.locked(self.sweep))
        self._until_closed.enter_context(kept_alive(self.sweep))
        self.signals = self._until_closed.enter_context(Heard(self.sweep))
        if facts["launcher"] != "basic":
            # A terminal sends these to all processes of a command.  Those that submitit starts shall not hear them, and
            # inherit this.  Here the thread that keeps `alive` still does, and Python handles them as ever.
            signal.pthread_sigmask(signal.SIG_BLOCK, TERMINAL)
        # Every cell composes its settings anew, of these overrides and its own
        config.hydra.sweep.dir = str(self.sweep)
        config.hydra.overrides.hydra.append(f"hydra.sweep.dir='{self.sweep}'")
        # Processes that a launcher starts elsewhere import mxscale
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))

    def close(self) -> Optional[int]:
        """The exit status; None of a sweep that was refused before its first cell: nothing is left of it."""
        with self._until_closed:
            if self.begun() or self.signals.reason or self.sweep.attempt > 1:
                return conclusion.end(self.sweep, self.signals.reason, lambda: self.signals.urgent)
        guards.discard(self.sweep)
        return None

    def begun(self) -> bool:
        """Whether one of its cells has, this time."""
        return any(note.attempt == self.sweep.attempt for note in self.sweep.notes())


class Heard(Signals):
    """The wish to stop is one of the whole sweep: it is passed on to cells in other processes."""

    def __init__(self, sweep: Sweep):
        super().__init__()
        self.sweep, self.wishes = sweep, []

    def _handle(self, number, frame):
        if self.urgent:  # a third time: cells that wait in a queue are not waited for
            raise KeyboardInterrupt
        super()._handle(number, frame)
        self.wishes.append(f"signal {self.reason}")
        self.sweep.ask_to_stop("\n".join(self.wishes))


def suit(hydra, objective: List[str]) -> None:
    """Give a sweeper that chooses cells by what it is told, Optuna's, what suits a sweep here, where nothing is given.

    Directions follow sweep.objective.  A failed cell does not end the sweep.  A seeded sampler asks for the same cells
    again, given the same answers: sweep.resume=true relies on it.
    """
    if hydra.sweeper.get("storage"):
        raise ConfigError(
            f"hydra.sweeper.storage={hydra.sweeper.storage}: Optuna 2.10 can't use the SQLAlchemy that MLflow brings; "
            "leave it out: the sweep's directory remembers, and sweep.resume=true goes on"
        )
    sweeper, given = hydra.sweeper, [override.partition("=")[0] for override in hydra.overrides.hydra]
    suited = {
        "direction": [DIRECTIONS.get(name) for name in objective],
        "max_failure_rate": 1.0,
        "sampler.seed": 1,
    }
    for key, value in suited.items():
        *group, last = key.split(".")
        node = OmegaConf.select(sweeper, ".".join(group)) if group else sweeper
        if node is not None and last in node and f"hydra.sweeper.{key}" not in given:
            node[last] = value


def facts_of(config, typed: List[str]) -> dict:
    """What sweep.json says of the command line.  Raises ConfigError where it asks for no cell."""
    sweeper = config.hydra.sweeper
    for key in ("n_trials", "n_jobs", "max_batch_size"):  # each sweeper has some of them
        value = sweeper.get(key)
        if value is not None and value < 1:
            raise ConfigError(f"hydra.sweeper.{key}={value}: expected at least 1")
    if config.hydra.launcher.get("n_jobs") == 0:
        raise ConfigError("hydra.launcher.n_jobs=0: expected how many cells side by side, or -1 for one on each core")
    parameters = [f"{key}={value}" for key, value in (sweeper.get("params") or {}).items()]
    loader = GlobalHydra.instance().config_loader() if GlobalHydra.instance().is_initialized() else None  # for glob(*)
    parsed = OverridesParser.create(loader).parse_overrides([*parameters, *typed])
    parsed = [each for each in parsed if each.is_sweep_override()]
    swept = {each.get_key_element().lstrip("+"): each.input_line.partition("=")[2] for each in parsed}
    count = 1
    for each in parsed:
        if each.is_discrete_sweep():
            values = sum(1 for _ in each.sweep_string_iterator())
            if not values:
                raise ConfigError(f"{each.input_line}: there is no value in it, so no cell to run")
            count *= values
    launcher = config.hydra.runtime.choices.get("hydra/launcher")
    kind = config.hydra.runtime.choices.get("hydra/sweeper")
    batch = sweeper.get("n_jobs") if kind == "optuna" else sweeper.get("max_batch_size")
    count = sweeper.n_trials if kind == "optuna" else count
    most = min(count, batch or count)
    return {"swept": swept, "sweeper": kind, "launcher": launcher, "cells": count,
            "at_a_time": at_a_time(launcher, config.hydra.launcher.get("n_jobs"), most)}  # fmt: skip


def at_a_time(launcher: str, jobs: Optional[int], most: int) -> int:
    """How many cells share this machine; `most`: that there are of a batch."""
    if launcher == "joblib":
        return min(most, available_cores() if jobs is None or jobs < 0 else max(1, jobs))
    return most if launcher == "submitit_local" else 1  # Slurm gives each its own cores


def close() -> List[int]:
    """The exit status of the sweep of this process, if it is one."""
    statuses = [opened.close() for opened in _opened]
    _opened.clear()
    return [status for status in statuses if status is not None]


def begun() -> bool:
    """Whether this process has a sweep that has come to its first cell."""
    return any(opened.begun() for opened in _opened)


def broken_off(error: Exception) -> int:
    """Say why the sweep ended before its last cell; the exit status."""
    stopped = any(opened.signals.reason for opened in _opened)
    if not stopped and "No trials are completed" in str(error):  # Optuna, of a sweep all of whose cells failed
        return FAILURE
    if not stopped:
        traceback.print_exception(type(error), error, error.__traceback__)
        say(f"error: the sweep ended early: {explain(error)}", sys.stderr)
    return INTERRUPTED if stopped else FAILURE


def run_cell(composed, hydra, first: bool, once: Callable) -> tuple:
    """Run the cell that Hydra composed, unless it has finished before; (status, what the sweeper is told).

    first: of this process, so that what it costs began with it.  once(composed, overrides, cell) -> status.
    """
    since = None if first else time.time()
    try:
        values = OmegaConf.to_container(composed, resolve=True)
    except OmegaConfBaseException:  # such as an unknown ${key}: `once` refuses it, and the other cells run
        values = OmegaConf.to_container(composed)
    cell = Cell(Sweep(hydra.sweep.dir), hydra.job.num, values, OmegaConf.to_container(hydra.overrides.task), since)
    if cell.sweep.stop_reason():
        return cell.not_begun(), None
    kept = cell.kept()
    if kept:
        say(f"cell {cell.note.number} {cell.note.name} has finished before: {cell.note.run}")
        return kept, cell.result()
    say(f"cell {cell.note.number} {cell.note.name}")
    with cell.stopped_with_the_sweep():
        try:
            status = once(composed, cell.typed, cell)
        except Exception as error:  # of ours: the other cells are not to blame
            traceback.print_exc()
            status = Status(FAILED, exit=FAILURE, error=f"{type(error).__name__}: {error}")
    cell.ended(status)
    return status, cell.result()
