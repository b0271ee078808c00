"""Samples of this machine's use in system.jsonl, which MLflow shows as system metrics.

A thread of the parent takes them, so ranks are not delayed. Of several hosts only the parent's is sampled.
"""

import threading
import time
from contextlib import suppress

from mxscale.environment.usage import Usage
from mxscale.rundir import metrics_file
from mxscale.rundir.directory import SYSTEM, RunDir
from mxscale.util.background import background_thread

EVERY_S = 10.0
FIRST_S = 1.0  # before the first sample; the time doubles up to EVERY_S, so that short runs have some
WAIT_S = 2.0  # for the last sample: a hanging driver must not delay the end


def sampled(run: RunDir, attempt: int):
    """Append a line to system.jsonl every EVERY_S seconds while the block runs; its step is the number of the sample.

    A disk that is full loses samples; the parent reports it where it writes records.
    """

    def sample(ended: threading.Event) -> None:
        usage, wait_s = Usage(run.path), FIRST_S
        with suppress(OSError), metrics_file.appended(run.path / SYSTEM) as file:
            step = _last(run)
            while not ended.wait(wait_s):
                step, wait_s = step + 1, min(EVERY_S, 2 * wait_s)
                file.write(metrics_file.entry(attempt, step, time.time(), usage.sample()))
                file.flush()

    return background_thread(sample, "system metrics", WAIT_S)


def _last(run: RunDir) -> int:
    """Return the number of the last sample of earlier attempts; 0 without one."""
    return max((line["step"] for line, _ in run.lines_from(0, SYSTEM)), default=0)
