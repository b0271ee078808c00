"""The directory of a sweep, which lists its trials; each trial is a run with a directory of its own.

    runs/sweeps/<date>_<time>_<name>/
      sweep.json                  command line, swept keys, number of concurrent trials
      cells/<attempt>-<n>-*.json  a trial: settings, run directory, state; the process of the trial writes it
      stop                        stop requests, one per line; trials in other processes and on other machines poll it
      table.csv                   all trials, at the end
      config.yaml environment.json summary.json status.json alive lock tracking.json
                                  as in a run directory: the parent run in MLflow is made from them

A trial's run directory holds `cell.json`, which names the sweep.
"""

import json
import os
import socket
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import List, Optional

from mxscale.rundir import json_record
from mxscale.rundir.directory import RunDir
from mxscale.rundir.status import ENDED, FAILED, FINISHED, KILLED, RUNNING
from mxscale.util.atomic_files import write_text
from mxscale.util.errors import ConfigError

FOLDER = "sweeps"  # below config.runs
REFUSED_TRIAL = "REFUSED"  # state of a trial whose settings are refused: it has no run directory
CELL = "cell.json"  # in a trial's run directory


@dataclass
class TrialRecord:
    """Content of cells/<attempt>-<number>-<key>.json."""

    attempt: int
    number: int
    key: str  # digest of the composed settings: the same key is the same trial
    name: str
    overrides: List[str] = field(default_factory=list)  # of swept keys
    how: str = "run"  # run | resumed | kept: an earlier attempt finished it
    run: Optional[str] = None  # its run directory
    state: str = RUNNING
    exit: Optional[int] = None
    error: Optional[str] = None

    @property
    def ended(self) -> str:
        """The state as a word, in tables and on pages."""
        words = {**ENDED, REFUSED_TRIAL: "refused"}
        return words.get(self.state, "not started" if self.run is None else "interrupted")


class SweepDirectory(RunDir):
    """A sweep's directory; the tracker treats it as a run."""

    def facts(self) -> dict:
        """Return the content of sweep.json."""
        return self.read("sweep.json") or {}

    @property
    def attempt(self) -> int:
        return self.facts()["attempt"]

    def write_trial(self, trial: TrialRecord) -> None:
        name, folder = f"{trial.attempt}-{trial.number:04d}-{trial.key[:12]}.json", self.path / "cells"
        folder.mkdir(exist_ok=True)
        write_text(folder / name, json.dumps(asdict(trial), indent=1) + "\n")

    def trial_records(self, key: str = "") -> List[TrialRecord]:
        """Return the records of all attempts, oldest first; those of one trial if its key is given."""
        records = []
        for path in (self.path / "cells").glob(f"[0-9]*-{key[:12] or '*'}.json"):
            with suppress(ConfigError):  # damaged, or written by another version
                records.append(_with_run_status(json_record.load(path, TrialRecord)))
        records = [trial for trial in records if key in ("", trial.key)]
        return sorted(records, key=lambda trial: (trial.attempt, trial.number))

    def trials(self) -> List[TrialRecord]:
        """Return the latest record of each trial, by number; one with other settings changed is the same trial."""
        latest = {tuple(sorted(trial.overrides)) or trial.name: trial for trial in self.trial_records()}
        return sorted(latest.values(), key=lambda trial: (trial.number, trial.attempt))


def _with_run_status(trial: TrialRecord) -> TrialRecord:
    """Return the trial with the state of its run directory: if its process was killed, or its run resumed by hand."""
    ends = {RUNNING: (FINISHED, FAILED, KILLED), FINISHED: ()}.get(trial.state, (FINISHED,))
    try:
        status = RunDir(trial.run).status() if trial.run and ends else None
    except ConfigError:  # damaged
        return trial
    if status and status.state in ends:
        trial.state, trial.exit, trial.error = status.state, status.exit, status.error
    return trial


def this_process() -> List:
    return [socket.gethostname(), os.getpid()]


def sweep_of(run: RunDir) -> Optional[SweepDirectory]:
    """Return the sweep that a run is a trial of; None if there is none, or its directory is not on this machine."""
    trial = run.read(CELL)
    if trial is None:
        return None
    recorded = Path(trial["sweep"])
    # In a container, or where `runs` is mounted elsewhere, the same directory has another path
    for path in (recorded, run.path.parents[1] / FOLDER / recorded.name):
        if (path / "sweep.json").is_file():
            return SweepDirectory(path)
    return None
