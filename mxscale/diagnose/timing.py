"""Short runs that are timed: children, ended when enough was measured, their rates read from metrics.jsonl."""

import contextlib
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import List, NamedTuple, Optional

import psutil
import yaml

from mxscale.config.schema import Config, to_dict
from mxscale.launcher.commands import ROOT
from mxscale.launcher.context import Signals
from mxscale.rundir import directory
from mxscale.rundir.directory import INTERRUPTED, RunDir

RATE = "throughput/images_per_s"
LEAST = 3  # intervals that a probe gives, whatever its seconds
POLL_S = 0.1
PATIENCE_S = 60.0  # beyond launch.stop_grace_s, for a run that was asked to end


class ProbeFailed(Exception):
    """A probe did not give what was asked of it; the message is one line."""


class Refused(ProbeFailed):
    """Before its first step, as bad input is."""


class Stopped(Exception):
    """The diagnosis was asked to end."""


class Reading(NamedTuple):
    """What one run said of itself while it was timed."""

    rates: List[float]  # images/s by interval
    waited: List[float]  # share of each interval that was waited for data
    exchange: List[float]  # seconds of exchanges that were taken apart; none in a short run
    run: RunDir
    others: float = 0.0  # cores of this machine that all else took meanwhile
    parameters_mb: Optional[float] = None


class ShortRun:
    """A run that is going, with its run directory somewhere in `folder`."""

    def __init__(self, config: Config, folder: Path):
        self.folder, self.entry, self.patience = folder, config.entry, config.launch.stop_grace_s + PATIENCE_S
        folder.mkdir(parents=True)
        asked = folder / "asked.yaml"
        asked.write_text(yaml.safe_dump({**to_dict(config), "runs": str(folder)}, sort_keys=False))
        self.log = folder / "output.log"
        with open(self.log, "wb") as log:
            # A session of its own: Ctrl-C reaches who times it alone
            self.process = subprocess.Popen(
                [sys.executable, "-m", "mxscale.diagnose.short_run", str(asked)],
                env={**os.environ, "PYTHONPATH": str(ROOT)},
                stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip

    def run(self) -> Optional[RunDir]:
        found = directory.runs_of(self.folder, self.entry)
        return found[0] if found else None

    def lines(self) -> List[dict]:
        """Those of its metrics that have a rate."""
        run = self.run()
        return [line for line in run.history() if RATE in line["metrics"]] if run else []

    def look(self) -> None:
        """Raises where it has ended by itself: it was not to."""
        status = self.process.poll()
        if status is not None:
            kind = Refused if status == directory.REFUSED else ProbeFailed
            raise kind(self.last_error() or f"it ended with status {status}; see {self.log}")

    def last_error(self) -> Optional[str]:
        lines = re.findall(r"^error: (.*)$", self.log.read_text(errors="replace"), re.MULTILINE)
        return lines[-1] if lines else None

    def ask_to_stop(self) -> None:
        if self.process.poll() is None:
            self.process.terminate()

    def wait(self, signals: Signals) -> None:
        """For its end; what it does not do in time, or before a second Ctrl-C, is done to it."""
        deadline = time.monotonic() + self.patience
        while self.process.poll() is None and not signals.urgent and time.monotonic() < deadline:
            time.sleep(POLL_S)
        self.ask_to_stop()  # the second time: at once
        self.process.wait()


def together(configs: List[Config], folder: Path, seconds: float, warmup: int, signals: Signals) -> List[Reading]:
    """Run all of them at once, and read what they do from the moment that all are warm on, for `seconds`.

    Raises ProbeFailed, Stopped.
    """
    runs = []
    try:
        for number, config in enumerate(configs):
            runs.append(ShortRun(config, folder / str(number)))
        first, before = _when_warm(runs, warmup, signals), load(runs)
        last, after = _when_measured(runs, first, seconds, signals), load(runs)
        others = max(0.0, (after[1] - before[1]) / (after[0] - before[0]))
        readings = [_reading(run, begin, end, others) for run, begin, end in zip(runs, first, last)]
    finally:
        for run in runs:  # all hear of it before any is waited for
            run.ask_to_stop()
        for run in runs:
            run.wait(signals)
    for run in runs:
        if run.process.returncode != INTERRUPTED:
            raise ProbeFailed(run.last_error() or f"it ended with status {run.process.returncode}; see {run.log}")
    return [_weighed(reading) for reading in readings]


def _weighed(reading: Reading) -> Reading:
    """With the size of the checkpoint that its end wrote, which is not kept."""
    sizes = [path.stat().st_size for path in reading.run.checkpoints.glob("[0-9]*/params")]
    shutil.rmtree(reading.run.checkpoints, ignore_errors=True)
    return reading._replace(parameters_mb=sizes[-1] / 1e6 if sizes else None)


def _when_warm(runs: List[ShortRun], warmup: int, signals: Signals) -> List[int]:
    """Of each run, how many lines it has written when all are `warmup` steps on; the one under way does not count."""
    while True:
        _look(runs, signals)
        written = [run.lines() for run in runs]
        if all(lines and lines[-1]["step"] >= warmup for lines in written):
            return [len(lines) + 1 for lines in written]


def _when_measured(runs: List[ShortRun], first: List[int], seconds: float, signals: Signals) -> List[int]:
    """Of each run, how many lines it has written when the time is over and each has enough that count."""
    deadline = time.monotonic() + seconds
    while True:
        _look(runs, signals)
        written = [len(run.lines()) for run in runs]
        if time.monotonic() >= deadline and all(last - begin >= LEAST for begin, last in zip(first, written)):
            return written


def _look(runs: List[ShortRun], signals: Signals) -> None:
    time.sleep(POLL_S)
    if signals.reason:
        raise Stopped(signals.reason)
    for run in runs:
        run.look()


def load(runs: List[ShortRun]) -> tuple:
    """(now, seconds that cores have been busy with anything but these runs, or kept from this machine by its host)."""
    times, own = psutil.cpu_times(), 0.0
    for run in runs:
        with contextlib.suppress(psutil.NoSuchProcess):
            parent = psutil.Process(run.process.pid)
            for process in [parent, *parent.children(recursive=True)]:
                with contextlib.suppress(psutil.NoSuchProcess):
                    own += sum(process.cpu_times()[:2])
    return time.monotonic(), sum(times[:8]) - times.idle - times.iowait - own


def _reading(run: ShortRun, first: int, last: int, others: float) -> Reading:
    metrics = [line["metrics"] for line in run.lines()[first:last]]
    values = {name: [one[name] for one in metrics if name in one] for name in (RATE, "time/data_wait", "time/exchange")}
    return Reading(*values.values(), run.run(), others)
