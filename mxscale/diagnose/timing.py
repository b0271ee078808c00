"""Timed short runs: child processes, stopped after the measurement; their rates are read from metrics.jsonl.

`python -m mxscale.diagnose.timing CONFIG.yaml` is such a child. SIGTERM stops it at a step, and so does the end of the
process that started it.
"""

import contextlib
import ctypes
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Callable, Iterator, List, NamedTuple, Optional

import yaml

from mxscale.config.schema import Config, from_dict, to_dict
from mxscale.diagnose.record import ProbeFailed, Stopped
from mxscale.launcher import run as launcher
from mxscale.launcher.commands import ROOT
from mxscale.launcher.context import Signals
from mxscale.rundir import directory
from mxscale.rundir.directory import RunDir
from mxscale.rundir.status import FAILURE, INTERRUPTED, REFUSED
from mxscale.util.errors import ConfigError, RunFailed

RATE = "throughput/images_per_s"
LEAST = 3  # intervals of a probe, at least
POLL_S = 0.1
PR_SET_PDEATHSIG = 1  # sys/prctl.h
PATIENCE_S = 60.0  # beyond launch.stop_grace_s, for a run to stop


class Reading(NamedTuple):
    """The metrics of one run while it was timed."""

    rates: List[float]  # images/s by interval
    waited: List[float]  # data wait by interval, as a share
    run: RunDir


class ShortRun:
    """A run in progress, with its run directory below `folder`."""

    def __init__(self, config: Config, folder: Path):
        self.folder, self.entry, self.patience = folder, config.entry, config.launch.stop_grace_s + PATIENCE_S
        folder.mkdir(parents=True)
        request = folder / "asked.yaml"
        request.write_text(yaml.safe_dump({**to_dict(config), "runs": str(folder)}, sort_keys=False))
        self.log = folder / "output.log"
        with open(self.log, "wb") as log:
            # in its own session, so that Ctrl-C reaches only the diagnosis
            self.process = subprocess.Popen(
                [sys.executable, "-m", "mxscale.diagnose.timing", str(request)],
                env={**os.environ, "PYTHONPATH": str(ROOT)},
                stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip

    def run(self) -> Optional[RunDir]:
        """Return the run directory; None before it exists."""
        runs = directory.runs_of(self.folder, self.entry)
        return runs[0] if runs else None

    def lines(self) -> List[dict]:
        """Return the lines of its metrics that have a rate."""
        run = self.run()
        return [line for line in run.history() if RATE in line["metrics"]] if run else []

    def check(self, expected: Optional[int] = None) -> None:
        """Raise ConfigError if the run was refused, ProbeFailed if it ended with another status than expected."""
        status = self.process.poll()
        if status != expected:
            errors = re.findall(r"^error: (.*)$", self.log.read_text(errors="replace"), re.MULTILINE)
            kind = ConfigError if status == REFUSED else ProbeFailed
            raise kind(errors[-1] if errors else f"exit status {status}; see {self.log}")

    def stop(self) -> None:
        """Send SIGTERM; a second one stops at once."""
        if self.process.poll() is None:
            self.process.terminate()

    def wait(self, signals: Signals) -> None:
        """Wait until the run ends, stop it at once after PATIENCE_S or a second Ctrl-C, and delete its checkpoints."""
        deadline = time.monotonic() + self.patience
        while self.process.poll() is None and not signals.urgent and time.monotonic() < deadline:
            time.sleep(POLL_S)
        self.stop()
        self.process.wait()
        if run := self.run():
            shutil.rmtree(run.checkpoints, ignore_errors=True)


def together(configs: List[Config], folder: Path, seconds: float, warmup: int, signals: Signals) -> List[Reading]:
    """Run configs at the same time and read their metrics for `seconds`, once all have done `warmup` steps.

    Raises as `wait_for`.
    """

    def warm(written) -> bool:
        return all(lines and lines[-1]["step"] >= warmup for lines in written)

    def measured(written) -> bool:
        enough = all(len(lines) - begin >= LEAST for begin, lines in zip(first, written))
        return enough and time.monotonic() >= deadline

    runs: List[ShortRun] = []
    with stopping(runs, signals):
        for number, config in enumerate(configs):
            runs.append(ShortRun(config, folder / str(number)))
        first = [count + 1 for count in wait_for(runs, signals, warm)]  # the first complete line after the warm-up
        deadline = time.monotonic() + seconds
        last = wait_for(runs, signals, measured)
    for run in runs:
        run.check(expected=INTERRUPTED)
    return [_reading(run, begin, end) for run, begin, end in zip(runs, first, last)]


@contextlib.contextmanager
def stopping(runs: List[ShortRun], signals: Signals) -> Iterator[None]:
    """Stop the runs at the end of the block, all of them before waiting for any."""
    try:
        yield
    finally:
        for run in runs:
            run.stop()
        for run in runs:
            run.wait(signals)


def wait_for(runs: List[ShortRun], signals: Signals, enough: Callable[[List[List[dict]]], bool]) -> List[int]:
    """Wait until the lines of the runs that have a rate are enough; return the number of lines of each.

    Raises Stopped after a signal, ProbeFailed or ConfigError if a run ended before.
    """
    while True:
        time.sleep(POLL_S)
        if signals.reason:
            raise Stopped(signals.reason)
        ended = [run for run in runs if run.process.poll() is not None]  # before reading, so that no line is missed
        written = [run.lines() for run in runs]
        if enough(written):
            return [len(lines) for lines in written]
        for run in ended:
            run.check()


def _reading(run: ShortRun, first: int, last: int) -> Reading:
    lines = [line["metrics"] for line in run.lines()[first:last]]
    names = (RATE, "time/data_wait")
    return Reading(*([line[name] for line in lines if name in line] for name in names), run.run())


def main(path: str) -> int:
    """Run the config in a file until SIGTERM, which the kernel sends when the parent ends; return the exit status."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    with open(path) as file:
        config = from_dict(yaml.safe_load(file))
    try:
        return launcher.execute(config).exit
    except (ConfigError, RunFailed) as error:
        print(f"error: {error}", flush=True)
        return REFUSED if isinstance(error, ConfigError) else FAILURE


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
