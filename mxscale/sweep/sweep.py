"""A sweep: the directory that its cells, runs of their own, are noted in.  Pure: no mxnet, hydra or mlflow.

    runs/sweeps/<date>_<time>_<name>/
      sweep.json                the command line, what of it is swept, how many cells at a time
      cells/<attempt>-<n>-*.json  a cell: what it is, its run directory, how it ended; its own process writes it
      stop                      the wish to stop: cells in other processes, on other machines too, look at it
      table.csv                 all cells, at the end
      config.yaml environment.json metrics.jsonl summary.json status.json alive lock tracking.json
                                as of a run: MLflow's parent is made of them, and `tracking sync` sends it later

A cell's run directory holds `cell.json`, which leads back here.
"""

import json
import math
import os
import signal
import socket
import threading
import time
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import List, Optional, Sequence

from mxscale.config.schema import Config, Rerun, from_dict, to_dict
from mxscale.config.sizes import unsaved
from mxscale.cost import run_cost
from mxscale.environment.container_limits import available_cores
from mxscale.launcher.context import Hook, Signals
from mxscale.launcher.supervisor import beside
from mxscale.rundir import directory, guards
from mxscale.rundir.directory import DONE, FAILED, FINISHED, INTERRUPTED, KILLED, REFUSED, RUNNING, RunDir
from mxscale.rundir.status import Attempt, Status
from mxscale.sweep import cells
from mxscale.util.atomic_files import write_text
from mxscale.util.errors import ConfigError

FOLDER = "sweeps"  # of runs
REFUSED_CELL = "REFUSED"  # the state of a cell whose settings are refused: it has no run directory
POLL_S = 0.3


@dataclass
class Note:
    """What cells/<attempt>-<number>-<key>.json says of a cell."""

    attempt: int
    number: int
    key: str  # of its composed settings: the same again is the same cell
    name: str
    overrides: List[str] = field(default_factory=list)  # the swept ones
    how: str = "run"  # run | resumed | kept: it had finished before
    run: Optional[str] = None  # its directory
    state: str = RUNNING
    exit: Optional[int] = None
    error: Optional[str] = None


class Sweep(RunDir):
    """A sweep's directory: to the tracker a run like any other."""

    def facts(self) -> dict:
        """sweep.json."""
        return self.read("sweep.json") or {}

    @property
    def attempt(self) -> int:
        return self.facts()["attempt"]

    def elsewhere(self) -> bool:
        """Whether this process is another one than the sweep's own."""
        return self.facts()["process"] != this_process()

    # ------------------------------------------------------------ cells

    def note(self, note: Note) -> None:
        text = json.dumps(asdict(note), indent=1) + "\n"
        write_text(self.path / "cells" / f"{note.attempt}-{note.number:04d}-{note.key[:12]}.json", text)

    def notes(self, of: str = "*") -> List[Note]:
        """Every note there is, oldest attempt first; how a cell ended that could not say so is found out.

        of: the beginning of a key, for a large sweep has many.
        """
        found = []
        for path in (self.path / "cells").glob(f"[0-9]*-{of}.json"):
            try:
                found.append(settled(Note(**json.loads(path.read_text()))))
            except (ValueError, TypeError):  # of another version
                continue
        return sorted(found, key=lambda note: (note.attempt, note.number))

    def cells(self) -> List[Note]:
        """The newest note of each cell, by number."""
        newest = {note.key: note for note in self.notes()}
        return sorted(newest.values(), key=lambda note: (note.number, note.attempt))

    def last_of(self, key: str) -> Optional[Note]:
        return next((note for note in reversed(self.notes(key[:12])) if note.key == key), None)


def settled(note: Note) -> Note:
    """The same; of a cell whose process is gone what its run directory says."""
    if note.state != RUNNING or not note.run:
        return note
    status = RunDir(note.run).status()
    if status and status.state in (FINISHED, FAILED, KILLED):
        note.state, note.exit, note.error = status.state, status.exit, status.error
    return note


def this_process() -> List:
    return [socket.gethostname(), os.getpid()]


# ---------------------------------------------------------------- beginning


def begin(values: dict, typed: Sequence[str], facts: dict) -> Sweep:
    """The sweep's directory: a new one, or with sweep.resume=true that of the newest sweep of the same command line.

    values: the settings that all cells have in common.  typed: the overrides as they were typed.
    facts: {"swept": {key: values}, "cells", "at_a_time", "sweeper"}.  Raises ConfigError.
    """
    config = from_dict(values)
    command = cells.identity(typed)
    sweep = find(config, command) if config.sweep.resume else Sweep(directory.new_folder(config, FOLDER))
    sweep.write_config(config)
    attempt = sweep.facts().get("attempt", 0) + 1
    sweep.stop_file.unlink(missing_ok=True)
    sweep.write("sweep.json", {**facts, "entry": config.entry, "command": command, "attempt": attempt,
                               "process": this_process(), "objective": config.sweep.objective})  # fmt: skip
    started = Attempt(attempt, int(time.time() * 1000))
    sweep.write_status(Status(attempts=(*sweep.attempts, started), attempt=attempt))
    return sweep


def find(config: Config, command: List[str]) -> Sweep:
    """The newest sweep of this command line.  Raises ConfigError where there is none, or it is still going."""
    for found in map(lambda run: Sweep(run.path), directory.runs_of(config.runs, FOLDER)):
        facts = found.facts()
        if facts.get("command") == command and facts.get("entry") == config.entry:
            with guards.locked(found):  # refuses one that is going
                return found
    raise ConfigError(
        f"sweep.resume=true: no sweep of this command line in {config.runs}/{FOLDER}; to start one, leave it out"
    )


# ---------------------------------------------------------------- one cell


class Cell(Hook):
    """One cell of a sweep, in whichever process and on whichever machine it runs."""

    def __init__(self, sweep: Sweep, number: int, values: dict, overrides: Sequence[str], since: Optional[float]):
        """since: when what it costs began, in seconds since 1970; None: when this process did."""
        facts = sweep.facts()
        self.sweep, self.values, self.typed, self.started = sweep, values, list(overrides), since
        swept = cells.swept(overrides, facts["swept"])
        key = cells.key(values, facts["swept"])
        self.before = sweep.last_of(key)
        self.note = Note(facts["attempt"], number, key, cells.name(swept), swept)
        self.at_a_time, self.objective = facts["at_a_time"], facts["objective"]

    def kept(self) -> Optional[Status]:
        """The status of the run that this cell has finished with before; None where it has not."""
        before = self.before
        if before is None or before.state != FINISHED:
            return None
        if RunDir(before.run).summary() is None:  # somebody removed it
            return None
        if before.attempt == self.note.attempt:  # a sweeper that chooses asked for it twice: its own note stands
            self.note = before
        else:
            self.note.how, self.note.run, self.note.state, self.note.exit = "kept", before.run, FINISHED, DONE
            self.sweep.note(self.note)
        return Status(FINISHED, exit=DONE)

    def settings(self, resumable: Sequence[str]) -> tuple:
        """(values, overrides) for `settings.configure`: named after the cell, its share of the cores, resumed.

        resumable: the groups that a resume may set anew.  Raises ConfigError.
        """
        config = from_dict(self.values)
        values = to_dict(config)
        values["sweep"]["resume"] = False  # that is the sweep's
        if "name" not in (override.partition("=")[0] for override in self.note.overrides):
            values["name"] = self.note.name if config.name == "run" else f"{config.name}_{self.note.name}"
        if self.at_a_time > 1 and config.launch.hosts is None:
            values["launch"]["threads"] = cells.threads(config, self.at_a_time, available_cores())
        if "cost" in self.objective:
            price = run_cost.pricing(config)(config.machine)
            if not price["known"]:
                why = price.get("why", "no price")
                raise ConfigError(f"sweep.objective has cost, and it is unknown ({why}); set machine.usd_per_hour")
        overrides = self.typed
        broken_off = self.unfinished()
        if broken_off:
            self.note.how, values["resume"] = "resumed", str(broken_off)
            values["rerun"] = to_dict(Rerun())  # its own record says what it repeats
            overrides = [each for each in self.typed if cells.top_of(each) in resumable]
        return values, overrides

    def unfinished(self) -> Optional[RunDir]:
        """The run to go on with: it was interrupted, and is still there."""
        before = self.before
        if before is None or before.state not in (RUNNING, KILLED, REFUSED_CELL) or not before.run:
            return None
        found = RunDir(before.run)
        if not (found.path / "config.yaml").is_file() or (unsaved(found.config().comm) and found.has_checkpoint()):
            return None
        return found

    def on_created(self, run: RunDir, signals: Signals) -> None:
        """Record the run directory in the sweep; take over a stop request from before the run handled signals."""
        self.note.run = str(run)
        run.write("cell.json", {"sweep": str(self.sweep), "number": self.note.number, "name": self.note.name,
                                "overrides": self.note.overrides})  # fmt: skip
        self.sweep.note(self.note)
        signals.reason = signals.reason or (self.sweep.stop_reason() and "SIGTERM")

    def ended(self, status: Status) -> None:
        self.note.state, self.note.exit, self.note.error = status.state, status.exit, status.error
        if status.exit == REFUSED:
            self.note.run = self.before.run if self.note.how == "resumed" else None  # a new one has left nothing
        self.sweep.note(self.note)

    def result(self):
        """Return what the sweeper gets of this cell; None if it did not finish."""
        finished = self.note.state == FINISHED and self.note.run
        return objective_values(RunDir(self.note.run).figures if finished else {}, self.objective)

    def not_begun(self) -> Status:
        """The status of a cell of a sweep that was stopped before it."""
        return Status(KILLED, exit=INTERRUPTED)

    @contextmanager
    def stopped_with_the_sweep(self):
        """In another process than the sweep's: its wish to stop becomes this process's SIGTERM.

        So does SIGUSR2, which submitit sends before a time limit.  What a terminal sends is the sweep's to hear:
        between two cells it would end a process of joblib's pool, and joblib then kills all others with their ranks.
        """
        if not self.sweep.elsewhere():
            yield
            return
        for number in (signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        signal.signal(signal.SIGUSR2, lambda *_: os.kill(os.getpid(), signal.SIGTERM))
        # Before the run hears it, a wish must not end this process; the run asks for it when it begins
        before = signal.signal(signal.SIGTERM, lambda *_: None)
        try:
            with beside(self._obey, "sweep"):
                yield
        finally:
            signal.signal(signal.SIGTERM, before)

    def _obey(self, over: threading.Event) -> None:
        heard = 0
        while not over.wait(POLL_S):
            wishes = len((self.sweep.stop_reason() or "").splitlines())
            for _ in range(wishes - heard):
                os.kill(os.getpid(), signal.SIGTERM)
            heard = max(heard, wishes)


def objective_values(metrics: dict, objective: Sequence[str]):
    """Return a number, or one for each objective; None if one is unknown."""
    figures = {"accuracy": metrics.get("best/val_top1"),
               "cost": metrics.get("cost/total_usd", metrics.get("cost/total_eur"))}  # fmt: skip
    values = [figures[name] for name in objective]
    if any(value is None or not math.isfinite(value) for value in values):
        return None
    return values[0] if len(values) == 1 else values


def of_run(run: RunDir) -> Optional[Sweep]:
    """The sweep that a run is a cell of; None where it is of none, or its directory is not here."""
    cell = run.read("cell.json")
    if cell is None:
        return None
    there = Path(cell["sweep"])
    # A container, or a machine that mounts `runs` elsewhere, knows the same directory by another path
    for path in (there, run.path.parents[1] / FOLDER / there.name):
        if (path / "sweep.json").is_file():
            return Sweep(path)
    return None
