"""A rank and its parent see each other: the rank ends itself when its parent is gone, and shows that it lives.

No orphan holds a machine that is paid for, and no rank that hangs does.
"""

import contextlib
import json
import os
import sys
import threading
import time
from pathlib import Path

from mxscale.rundir.directory import INTERRUPTED, RunDir
from mxscale.util import file_lock

PATIENCE_S = 20.0
TOUCH_EVERY_S = 2.0


def end_with_the_parent(run: RunDir, attempt: int, patience_s: float = PATIENCE_S) -> None:
    """Watch the parent's `alive` file from a thread; end this process when it has not been touched for
    long, or when it speaks of another attempt.

    The rank does not checkpoint first: its peers may be gone already.  The last checkpoint stands.
    Until it ends, the rank holds a lock that the next attempt's parent waits for.
    """
    lock = file_lock.acquire(run.ranks_lock, shared=True)

    def watch():
        seen, since = None, time.monotonic()  # not the wall clock: it may be set, or stand still in suspend
        while True:
            time.sleep(2)
            try:
                touched = run.alive_file.stat().st_mtime_ns
                if touched != seen:
                    seen, since = touched, time.monotonic()
                silent = time.monotonic() - since
                current = int(run.alive_file.read_text())
            except (FileNotFoundError, ValueError):
                continue
            if silent > patience_s or current != attempt:
                print(f"the parent of attempt {attempt} is gone ({silent:.0f} s silent): ending", flush=True)
                os.close(lock)
                os._exit(INTERRUPTED)

    threading.Thread(target=watch, daemon=True, name="watchdog").start()


def rank_to_be() -> int:
    """This process's rank before its communicator knows, as its launcher put it into the environment."""
    return int(os.environ.get("HOROVOD_RANK", os.environ.get("OMPI_COMM_WORLD_RANK", 0)))


class NoLife:
    """Nobody watches."""

    def moved(self) -> None:
        """A step is done, or a batch of a validation."""

    def asked_to_stop(self) -> bool:
        """Whether the parent wants this rank to stop; other ranks may not have heard of it yet."""
        return False

    @contextlib.contextmanager
    def saving(self):
        """What is done within takes as long as the disk wants."""
        yield


UNSEEN = NoLife()


class Life(NoLife):
    """ranks/<r>.alive, touched by a thread for as long as this process runs; launcher/heartbeat_monitor.py reads it.

    MXNet and Horovod are called through ctypes, which lets go of the interpreter's lock: the thread touches
    during calls of any length.
    """

    def __init__(self, run: RunDir, rank: int, attempt: int):
        self.run, self.attempt, self.doing = run, attempt, "starting"
        self.moves, self.moved_at, self.longest_s = 0, time.monotonic(), 0.0
        self.watched = threading.get_ident()
        self.file = os.open(run.rank_alive(rank), os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        threading.Thread(target=self._touch, daemon=True, name="life").start()

    def moved(self):
        now = time.monotonic()
        self.moves += 1
        if self.moves == 1:
            self._say()  # at once: whoever is gone from now on did not crash as it started
        else:  # the first step is under way when its move is noted, and may be compiling
            self.longest_s = max(self.longest_s, now - self.moved_at)
            self.doing = "training"
        self.moved_at = now

    def asked_to_stop(self):
        return self.run.stop_reason() is not None

    @contextlib.contextmanager
    def saving(self):
        before, self.doing = self.doing, "saving"
        try:
            yield
        finally:
            self.doing, self.moved_at = before, time.monotonic()

    def _touch(self):
        while True:
            self._say()
            time.sleep(TOUCH_EVERY_S)

    def _say(self):
        idle_s = time.monotonic() - self.moved_at
        said = {"attempt": self.attempt, "pid": os.getpid(), "doing": self.doing, "at": place_of(self.watched),
                "moves": self.moves, "idle_s": round(idle_s, 1), "longest_s": round(self.longest_s, 1)}  # fmt: skip
        try:
            os.pwrite(self.file, f"{json.dumps(said):<400}\n".encode(), 0)  # in place: a full disk takes it too
        except OSError:  # the storage's trouble, not a reason to be thought dead at once
            with contextlib.suppress(OSError):
                os.utime(self.file)


def place_of(thread: int) -> str:
    """FILE:LINE (FUNCTION) of our code that a thread is in, in calls of others' code perhaps."""
    frame = sys._current_frames().get(thread)
    while frame and any(others in frame.f_code.co_filename for others in ("/site-packages/", "/lib/python", "<")):
        frame = frame.f_back
    return f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno} ({frame.f_code.co_name})"[:100] if frame else ""
