"""A sweep with Hydra's sweepers and launchers: its directory, one trial, the end of the sweep. See sweep/sweep.py."""

import os
import signal
import sys
import threading
import time
import traceback
from contextlib import ExitStack
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import List, Optional

from hydra._internal.callbacks import Callbacks
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.core.plugins import Plugins
from hydra.types import HydraContext
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from mxscale.cli import composition, job
from mxscale.cli.explain import explain, refuse
from mxscale.config.schema import from_dict
from mxscale.config.typed import check_group
from mxscale.config.validation import validate
from mxscale.environment.container_limits import available_cores
from mxscale.environment.description import ROOT
from mxscale.launcher.alive import kept_alive
from mxscale.launcher.budget import REASON as BUDGET
from mxscale.launcher.context import Signals
from mxscale.rundir import guards
from mxscale.rundir.directory import RunDir
from mxscale.rundir.status import DONE, FAILED, FAILURE, FINISHED, INTERRUPTED, KILLED, Status
from mxscale.rundir.sweep_directory import SweepDirectory
from mxscale.sweep import conclusion, trials
from mxscale.sweep.sweep import Trial, begin
from mxscale.tracking import history
from mxscale.util.atomic_files import write_text
from mxscale.util.background import background_thread
from mxscale.util.errors import ConfigError
from mxscale.util.override_text import quoted
from mxscale.util.redaction import redact
from mxscale.util.terminal import echo

TERMINAL = (signal.SIGINT, signal.SIGHUP)
DIRECTIONS = {"accuracy": "maximize", "cost": "minimize"}  # of the names in sweep.objective


@dataclass
class Session:
    """What an invocation of the command line has run so far."""

    statuses: List[int] = field(default_factory=list)  # exit statuses of the trials of a sweep
    stopped: bool = False  # a stop request ended a run: no further trial starts
    trains: bool = False  # a run has begun, whose record is its directory, not what is printed


# Hydra's launchers call `trial` themselves, in other processes too (joblib, submitit), without an object of ours. A
# context variable holds the session of the invocation.
_SESSION: ContextVar[Session] = ContextVar("session")


def begin_session() -> Session:
    """Return a new session, which becomes the current one."""
    session = Session()
    _SESSION.set(session)
    return session


def current_session() -> Session:
    """Return the session of this process; a new one in a process that a Hydra launcher started."""
    return _SESSION.get(None) or begin_session()


def run(config) -> int:
    """Run the sweep that Hydra composed, and return its exit status: the highest of its trials and of its end."""
    statuses = begin_session().statuses
    try:
        opened = open_multirun(config)
    except (ConfigError, OSError, OmegaConfBaseException) as error:
        return refuse(explain(error))
    try:
        context = HydraContext(GlobalHydra.instance().config_loader(), Callbacks(config))
        sweeper = Plugins.instance().instantiate_sweeper(config=config, hydra_context=context, task_function=trial)
        sweeper.sweep(OmegaConf.to_container(config.hydra.overrides.task))
    except KeyboardInterrupt:
        statuses.append(INTERRUPTED)
    except Exception as error:
        statuses.append(opened.ended_early(error) if opened.begun() else refuse(explain(error)))
    finally:
        statuses.extend(opened.close())
    return max(statuses, default=DONE)


def trial(composed):
    """Run the trial that Hydra composed, unless an earlier attempt finished it.

    Hydra's launchers call it, in other processes too.

    Returns:
        The values of sweep.objective for the sweeper.
    """
    session = current_session()
    if session.stopped:  # a stop request holds for the whole sweep
        return None
    since = time.time() if session.trains else None  # the cost of the first trial starts with the process
    session.trains = True
    session.statuses.append(FAILURE)  # until the run has ended
    hook = _trial_of(composed, HydraConfig.get(), since)
    if hook.sweep.stop_reason():
        status, objective = Status(KILLED, exit=INTERRUPTED), None  # it has not started
    else:
        status, objective = run_trial(composed, hook), hook.result()
    session.statuses[-1] = status.exit
    session.stopped = status.exit == INTERRUPTED and status.reason != BUDGET  # a budget is one run's
    return objective


def _trial_of(composed, hydra, since: Optional[float]) -> Trial:
    """Return the trial of the settings that Hydra composed, hydra being its own settings."""
    try:
        values = OmegaConf.to_container(composed, resolve=True)
    except OmegaConfBaseException:  # such as an unknown ${key}: `job` refuses the trial, and the others run
        values = OmegaConf.to_container(composed)
    sweep = SweepDirectory(hydra.sweep.dir)
    written = sweep.path / "multirun.yaml"  # by Hydra before the first trial, passwords included
    if written.exists() and (text := written.read_text()) != redact(text):
        write_text(written, redact(text))
    typed = OmegaConf.to_container(hydra.overrides.task)
    return Trial(sweep, hydra.job.num, values, typed, since)


def run_trial(composed, trial: Trial) -> Status:
    """Run a trial unless an earlier attempt finished it, record how it ended, and return its status."""
    name = f"trial {trial.record.number} {trial.record.name}"
    if trial.finished_before():
        echo(f"{name} already finished: {trial.record.run}")
        return Status(FINISHED, exit=DONE)
    echo(name)
    with trial.following_stop_requests():
        try:
            status = job.execute(composed, trial.typed, trial)
        except Exception as error:  # a bug: the other trials run
            traceback.print_exc()
            status = Status(FAILED, exit=FAILURE, error=f"{type(error).__name__}: {error}")
    trial.record_end(status)
    return status


def open_multirun(config) -> "OpenSweep":
    """Return the sweep that Hydra's settings describe, and direct Hydra's trials to its directory."""
    typed = OmegaConf.to_container(config.hydra.overrides.task)
    values = OmegaConf.to_container(composition.of_run(config), resolve=True)
    check_group("budget", values["budget"])
    if values["budget"]["dry_run"]:
        raise ConfigError("budget.dry_run=true with -m: it prepares one run")
    validate(from_dict({"sweep": values["sweep"]}))  # before a sweeper receives it
    suit(config.hydra, values["sweep"]["objective"])
    facts = facts_of(config, typed)
    opened = OpenSweep(values, typed, facts)
    if facts["launcher"] != "basic":
        # A terminal sends these signals to all processes of a command. The processes that submitit starts inherit
        # the mask and do not receive them; here the thread of OpenSweep does, and Python handles them.
        signal.pthread_sigmask(signal.SIG_BLOCK, TERMINAL)
    # Every trial composes its settings from these overrides and its own. A resume in another order would number the
    # trials otherwise
    config.hydra.overrides.task = trials.in_order(typed, opened.sweep.facts()["order"])
    config.hydra.sweep.dir = str(opened.sweep)
    config.hydra.overrides.hydra.append(f"hydra.sweep.dir={quoted(str(opened.sweep))}")
    # Processes that a launcher starts elsewhere import mxscale
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    return opened


def _report(sweep: SweepDirectory) -> None:
    """Write the report of the finished trials into the sweep's folder, if this installation can draw it."""
    from mxscale.rendering import page  # not at the start of every verb
    from mxscale.report import experiment

    finished = [one.run for one in sweep.trials() if one.state == FINISHED]
    if not finished or page.lacking():
        return
    try:
        runs = [history.of_directory(RunDir(path)) for path in finished]
        experiment.write(runs, sweep.path.name, str(sweep.path), sweep.path)
    except ConfigError as error:  # a damaged run, a full disk
        echo(f"no report: {error}")


class OpenSweep:
    """A sweep in its own process, from before the first trial until after the last."""

    def __init__(self, values: dict, typed: List[str], facts: dict):
        """The arguments are those of `begin`."""
        self.tracking = from_dict({"tracking": values["tracking"]}).tracking  # config.yaml lacks its password
        with ExitStack() as opened:
            self.sweep = begin(values, typed, facts, opened)
            opened.enter_context(kept_alive(self.sweep))
            opened.enter_context(background_thread(threading.Event.wait, "signals"))  # see open_multirun
            self.signals = opened.enter_context(SweepSignals(self.sweep))
            self._until_closed = opened.pop_all()

    def close(self) -> List[int]:
        """Conclude the sweep and return its exit status; none if it was refused before its first trial and removed."""
        with self._until_closed:
            if self.begun() or self.signals.reason or self.sweep.attempt > 1:
                _report(self.sweep)
                return [conclusion.end(self.sweep, self.tracking, self.signals.reason, lambda: self.signals.urgent)]
        guards.discard(self.sweep)
        return []

    def begun(self) -> bool:
        """Return whether a trial of this attempt has started."""
        return any(trial.attempt == self.sweep.attempt for trial in self.sweep.trial_records())

    def ended_early(self, error: Exception) -> int:
        """Print why the sweep ended before its last trial, and return the exit status."""
        if self.signals.reason:
            return INTERRUPTED
        if "No trials are completed" not in str(error):  # Optuna's error if every trial failed
            traceback.print_exception(type(error), error, error.__traceback__)
            echo(f"error: the sweep ended early: {explain(error)}", sys.stderr)
        return FAILURE


class SweepSignals(Signals):
    """A stop request to the sweep, passed on to trials in other processes through the file `stop`."""

    def __init__(self, sweep: SweepDirectory):
        super().__init__()
        self.sweep, self.requests = sweep, []

    def _handle(self, number, frame):
        if self.urgent:  # the third request: do not wait for trials in a queue
            raise KeyboardInterrupt
        before = self.reason, self.urgent
        super()._handle(number, frame)
        if before != (self.reason, self.urgent):
            self.requests.append(f"signal {self.reason}")
            self.sweep.ask_to_stop("\n".join(self.requests))


def suit(hydra, objective: List[str]) -> None:
    """Set defaults of the Optuna sweeper that the command line does not set.

    Directions follow sweep.objective. A failed trial does not end the sweep. A seeded sampler proposes the same trials
    again for the same results; sweep.resume=true relies on this.
    """
    if hydra.sweeper.get("storage"):
        raise ConfigError(
            f"hydra.sweeper.storage={hydra.sweeper.storage}: Optuna 2.10 can't use the SQLAlchemy that MLflow brings; "
            "leave it out: the sweep directory keeps the results, and sweep.resume=true resumes the sweep"
        )
    sweeper, typed = hydra.sweeper, [override.partition("=")[0] for override in hydra.overrides.hydra]
    suited = {"direction": [DIRECTIONS.get(name) for name in objective], "max_failure_rate": 1.0, "sampler.seed": 1}
    for key, value in suited.items():
        *group, last = key.split(".")
        node = OmegaConf.select(sweeper, ".".join(group)) if group else sweeper
        if node is not None and last in node and f"hydra.sweeper.{key}" not in typed:
            node[last] = value


def facts_of(config, typed: List[str]) -> dict:
    """Return what sweep.json records of the command line. Raises ConfigError if it defines no trial."""
    sweeper = config.hydra.sweeper
    for key in ("n_trials", "n_jobs", "max_batch_size"):  # each sweeper has some of them
        value = sweeper.get(key)
        if value is not None and value < 1:
            raise ConfigError(f"hydra.sweeper.{key}={value}: expected at least 1")
    if config.hydra.launcher.get("n_jobs") == 0:
        raise ConfigError("hydra.launcher.n_jobs=0: expected the number of trials at a time, or -1 for one per core")
    parameters = [f"{key}={value}" for key, value in (sweeper.get("params") or {}).items()]
    loader = GlobalHydra.instance().config_loader() if GlobalHydra.instance().is_initialized() else None  # for glob(*)
    parsed = OverridesParser.create(loader).parse_overrides([*parameters, *typed])
    sweeps = [override for override in parsed if override.is_sweep_override()]
    swept = {sweep.get_key_element().lstrip("+"): redact(sweep.input_line).partition("=")[2] for sweep in sweeps}
    count = 1
    for sweep in filter(Override.is_discrete_sweep, sweeps):
        values = sum(1 for _ in sweep.sweep_string_iterator())
        if not values:
            raise ConfigError(f"{sweep.input_line}: the list of values is empty, so there is no trial to run")
        count *= values
    launcher, kind = (config.hydra.runtime.choices.get(f"hydra/{group}") for group in ("launcher", "sweeper"))
    batch = sweeper.get("max_batch_size")
    if kind == "optuna":
        count, batch = sweeper.n_trials, sweeper.get("n_jobs")
    most = min(count, batch or count)
    return {"swept": swept, "sweeper": kind, "launcher": launcher, "cells": count,
            "at_a_time": at_a_time(launcher, config.hydra.launcher.get("n_jobs"), most)}  # fmt: skip


def at_a_time(launcher: str, jobs: Optional[int], most: int) -> int:
    """Return how many trials share this machine. most: the number of trials of a batch."""
    if launcher == "joblib":
        return min(most, available_cores() if jobs is None or jobs < 0 else max(1, jobs))
    return most if launcher == "submitit_local" else 1  # Slurm gives each its own cores
