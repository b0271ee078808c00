"""Heartbeats between a rank and its parent.

The parent touches the run's `alive` file, and a rank ends itself if that heartbeat stops. Each rank writes
`ranks/<r>.alive`, which the parent reads (launcher/heartbeat_monitor.py).
"""

import contextlib
import json
import os
import threading
import time

from mxscale.rundir.directory import FINISH, RunDir
from mxscale.rundir.status import INTERRUPTED
from mxscale.util import file_lock

PARENT_TIMEOUT_S = 20.0
WRITE_EVERY_S = 2.0


class Phase:
    """What a rank is doing. In EXCHANGE it waits for dispatched work of its devices or for other ranks."""

    STARTING, INPUT, COMPUTE, EXCHANGE = "starting", "input", "compute", "exchange"
    METRICS, VALIDATION, CHECKPOINT = "metrics", "validation", "checkpoint"


def end_with_parent(run: RunDir, attempt: int) -> None:
    """End this process from a thread if the parent's heartbeat stops or belongs to another attempt.

    The rank writes no checkpoint first, because its peers may have ended already; the last checkpoint remains.
    Until it ends, the rank holds a shared lock that the next attempt's parent waits for.
    """
    lock = file_lock.acquire(run.ranks_lock, shared=True)

    def watch():
        seen, since = None, time.monotonic()  # the wall clock may be set, or stop during suspend
        while True:
            time.sleep(2)
            try:
                touched = run.alive_file.stat().st_mtime_ns
                if touched != seen:
                    seen, since = touched, time.monotonic()
                silent_s = time.monotonic() - since
                current = int(run.alive_file.read_text())
            except (OSError, ValueError):  # of the storage, which may pass, or the directory was removed
                current, silent_s = attempt, time.monotonic() - since
            if silent_s > PARENT_TIMEOUT_S or current != attempt:
                print(f"no heartbeat from the parent of attempt {attempt} for {silent_s:.0f} s: ending", flush=True)
                os.close(lock)
                os._exit(INTERRUPTED)

    threading.Thread(target=watch, daemon=True, name="parent heartbeat").start()


def rank_from_environment() -> int:
    """Return this process's rank before its communicator exists, from the launcher's environment variables."""
    return int(os.environ.get("HOROVOD_RANK", os.environ.get("OMPI_COMM_WORLD_RANK", 0)))


class Heartbeat:
    """Writes `ranks/<r>.alive` from a thread every WRITE_EVERY_S seconds while this process runs.

    MXNet and Horovod are called through ctypes, which releases the interpreter's lock, so the thread writes during
    calls of any duration.
    """

    phase = Phase.STARTING  # the training loop assigns others

    def __init__(self, run: RunDir, rank: int, attempt: int):
        self.run, self.attempt = run, attempt
        self.count, self.steps, self.progress_at, self.longest_s = 0, 0, time.monotonic(), 0.0
        self.file = os.open(run.rank_alive(rank), os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        self._write()
        threading.Thread(target=self._write_periodically, daemon=True, name="heartbeat").start()

    def progress(self, step: bool = False) -> None:
        """Record the end of a step, or of a validation batch."""
        now = time.monotonic()
        self.count, self.steps = self.count + 1, self.steps + step
        if self.count == 1:
            self._write()  # at once: from now on its end does not count as a crash at the start
        else:  # the first step is excluded: it may compile
            self.longest_s = max(self.longest_s, now - self.progress_at)
        self.progress_at = now

    def stop_requested(self) -> bool:
        """Return whether the parent asked this rank to stop. Other ranks may not have seen the request yet."""
        return self.run.stop_reason() not in (None, FINISH)

    @contextlib.contextmanager
    def checkpointing(self):
        """Set the phase to CHECKPOINT within the block. Its duration depends on the storage and is no stall."""
        before, self.phase = self.phase, Phase.CHECKPOINT
        try:
            yield
        finally:
            self.phase, self.progress_at = before, time.monotonic()

    def _write_periodically(self):
        while True:
            time.sleep(WRITE_EVERY_S)
            self._write()

    def _write(self):
        fields = {"attempt": self.attempt, "pid": os.getpid(), "phase": self.phase}
        fields.update(progress=self.count, steps=self.steps)
        fields.update(idle_s=round(time.monotonic() - self.progress_at, 1), longest_s=round(self.longest_s, 1))
        try:
            os.pwrite(self.file, f"{json.dumps(fields):<200}\n".encode(), 0)  # in place: works on a full disk too
        except OSError:  # a storage error alone must not make this rank look dead
            with contextlib.suppress(OSError):
                os.utime(self.file)
