"""A sweep: its start or resume, and its trials, each of which is a run. See rundir/sweep_directory.py for the files."""

import math
import os
import signal
import threading
import time
from contextlib import ExitStack, contextmanager
from typing import List, Optional, Sequence

from mxscale.config.schema import Config, Rerun, from_dict, to_dict
from mxscale.cost import run_cost
from mxscale.environment.container_limits import available_cores
from mxscale.launcher.context import Hook, Signals
from mxscale.rundir import directory, guards
from mxscale.rundir.directory import RunDir
from mxscale.rundir.status import DONE, FINISHED, KILLED, REFUSED, RUNNING, Attempt, Status
from mxscale.rundir.sweep_directory import CELL, FOLDER, REFUSED_TRIAL, SweepDirectory, TrialRecord, this_process
from mxscale.sweep import trials
from mxscale.util.background import background_thread
from mxscale.util.errors import ConfigError

POLL_S = 0.3


def begin(values: dict, typed: Sequence[str], facts: dict, stack: ExitStack) -> SweepDirectory:
    """Return a new sweep's directory, or with sweep.resume=true that of the newest sweep of this command line.

    Args:
        typed: The overrides of the command line.
        stack: Receives the lock of the directory, which is taken before anything is written.
        facts: {"swept": {key: values}, "cells", "at_a_time", "sweeper"}.

    Raises:
        ConfigError: There is no sweep to resume, or it is still running.
    """
    config = from_dict(values)
    command = trials.identity(typed)
    sweep = find(config, command) if config.sweep.resume else None
    if config.sweep.resume and sweep is None:
        raise ConfigError(
            f"sweep.resume=true: no sweep of this command line in {config.runs}/{FOLDER}; to start one, leave it out"
        )
    sweep = sweep or SweepDirectory(directory.new_folder(config, FOLDER))
    stack.enter_context(guards.locked(sweep))
    sweep.write_config(config)
    earlier = sweep.facts()
    attempt = earlier.get("attempt", 0) + 1
    sweep.stop_file.unlink(missing_ok=True)
    order = earlier.get("order", trials.identifying(typed))
    sweep.write("sweep.json", {**facts, "entry": config.entry, "command": command, "order": order, "attempt": attempt,
                               "process": this_process(), "objective": config.sweep.objective})  # fmt: skip
    started = Attempt(attempt, int(time.time() * 1000))
    sweep.save(Status(attempts=(*sweep.attempts, started), attempt=attempt))
    return sweep


def find(config: Config, command: List[str]) -> Optional[SweepDirectory]:
    """Return the newest sweep of this command line, if any."""
    for run in directory.runs_of(config.runs, FOLDER):
        facts = SweepDirectory(run.path).facts()
        if facts.get("command") == command and facts.get("entry") == config.entry:
            return SweepDirectory(run.path)
    return None


class Trial(Hook):
    """One trial of a sweep, in any process and on any machine."""

    def __init__(
        self,
        sweep: SweepDirectory,
        number: int,
        values: dict,
        overrides: Sequence[str],
        started: Optional[float],
        name: Optional[str] = None,
    ):
        """Find the earlier record of the trial.

        Args:
            started: When its cost begins, in seconds since 1970; None: when this process started.
            name: Its name; by default made from the settings that the sweep varies.
        """
        facts = sweep.facts()
        self.sweep, self.values, self.typed, self.started = sweep, values, list(overrides), started
        swept = trials.swept(overrides, facts["swept"])
        key = trials.key(values, facts["swept"])
        self.previous: Optional[TrialRecord] = next(iter(reversed(sweep.trial_records(key))), None)
        self.record = TrialRecord(facts["attempt"], number, key, name or trials.name(swept), swept)
        self.at_a_time, self.objective = facts["at_a_time"], facts["objective"]

    def finished_before(self) -> bool:
        """Return whether this trial has finished already; then record it as kept."""
        previous = self.previous
        if previous is None or previous.state != FINISHED or RunDir(previous.run).summary() is None:
            return False
        if previous.attempt == self.record.attempt:  # a sweeper asks for the same trial twice: the record stays
            self.record = previous
        else:
            self.record.how, self.record.run = "kept", previous.run
            self.record.state, self.record.exit = FINISHED, DONE
            self.sweep.write_trial(self.record)
        return True

    def settings(self, resumable: Sequence[str]) -> tuple:
        """Return (values, overrides) for `settings.configure`: with the trial's name, threads and run to resume.

        Args:
            resumable: The groups that a resume may change.

        Raises:
            ConfigError: The cost is an objective and unknown.
        """
        config = from_dict(self.values)
        values = to_dict(config)
        values["sweep"]["resume"] = False  # it applies to the sweep
        if "name" not in (override.partition("=")[0] for override in self.record.overrides):
            values["name"] = self.record.name if config.name == "run" else f"{config.name}_{self.record.name}"
        if self.at_a_time > 1 and config.launch.hosts is None:
            values["launch"]["threads"] = trials.threads(config, self.at_a_time, available_cores())
        if "cost" in self.objective:
            price = run_cost.pricing(config)(config.machine)
            if not price.known:
                raise ConfigError(f"sweep.objective has cost, which is unknown ({price.why}); set machine.usd_per_hour")
        overrides = self.typed
        unfinished = self.unfinished()
        if unfinished:
            self.record.how, values["resume"] = "resumed", str(unfinished)
            values["rerun"] = to_dict(Rerun())  # the run's own record names what it repeats
            overrides = [override for override in self.typed if trials.top_of(override) in resumable]
        return values, overrides

    def unfinished(self) -> Optional[RunDir]:
        """Return the interrupted run to resume; None if there is none."""
        previous = self.previous
        if previous is None or previous.state not in (RUNNING, KILLED, REFUSED_TRIAL) or not previous.run:
            return None
        found = RunDir(previous.run)
        return found if found.exists else None

    def on_created(self, run: RunDir, signals: Signals) -> None:
        """Record the run directory; take over a stop request that arrived before the run handled signals."""
        self.record.run = str(run)
        run.write(CELL, {"sweep": str(self.sweep), "number": self.record.number, "name": self.record.name,
                         "overrides": self.record.overrides, "replay": self.sweep.facts().get("replay")})  # fmt: skip
        self.sweep.write_trial(self.record)
        signals.reason = signals.reason or (self.sweep.stop_reason() and "SIGTERM")

    def record_end(self, status: Status) -> None:
        self.record.state, self.record.exit, self.record.error = status.state, status.exit, status.error
        if status.exit == REFUSED and self.record.how == "resumed":
            self.record.run = self.previous.run
        elif self.record.run and not RunDir(self.record.run).exists:  # removed with a refused run
            self.record.run = None
        self.sweep.write_trial(self.record)

    def result(self):
        """Return the objectives for the sweeper; None if the trial did not finish."""
        finished = self.record.state == FINISHED and self.record.run
        return objective_values(RunDir(self.record.run).figures if finished else {}, self.objective)

    @contextmanager
    def following_stop_requests(self):
        """In a process other than the sweep's: turn stop requests of the sweep into SIGTERM of this process.

        SIGUSR2, which submitit sends before a time limit, becomes SIGTERM too. Signals of a terminal are ignored:
        between two trials they would end a process of joblib's pool, and joblib then kills all others with their ranks.
        """
        if self.sweep.facts()["process"] == this_process():
            yield
            return
        for number in (signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        signal.signal(signal.SIGUSR2, lambda *_: os.kill(os.getpid(), signal.SIGTERM))
        # SIGTERM must not end this process before the run handles it; on_created reads the stop request
        previous = signal.signal(signal.SIGTERM, lambda *_: None)
        try:
            with background_thread(self._forward_stop_requests, "sweep"):
                yield
        finally:
            signal.signal(signal.SIGTERM, previous)

    def _forward_stop_requests(self, ended: threading.Event) -> None:
        forwarded = 0
        while not ended.wait(POLL_S):
            requests = len((self.sweep.stop_reason() or "").splitlines())
            for _ in range(requests - forwarded):
                os.kill(os.getpid(), signal.SIGTERM)
            forwarded = max(forwarded, requests)


def objective_values(metrics: dict, objective: Sequence[str]):
    """Return a number, or one for each objective; None if one is unknown."""
    figures = {"accuracy": metrics.get("best/val_top1"),
               "cost": metrics.get("cost/total_usd", metrics.get("cost/total_eur"))}  # fmt: skip
    values = [figures[name] for name in objective]
    if any(value is None or not math.isfinite(value) for value in values):
        return None
    return values[0] if len(values) == 1 else values
