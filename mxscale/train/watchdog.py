"""A rank ends itself when its parent is gone: no orphan holds a machine that is paid for."""

import fcntl
import os
import threading
import time

from mxscale.run.rundir import INTERRUPTED, RunDir

PATIENCE_S = 20.0


def end_with_the_parent(run: RunDir, attempt: int, patience_s: float = PATIENCE_S) -> None:
    """Watch the parent's `alive` file from a thread; end this process when it has not been touched for
    long, or when it speaks of another attempt.

    The rank does not checkpoint first: its peers may be gone already.  The last checkpoint stands.
    Until it ends, the rank holds a lock that the next attempt's parent waits for.
    """
    lock = run.ranks_lock()
    fcntl.flock(lock, fcntl.LOCK_SH)

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
                lock.close()
                os._exit(INTERRUPTED)

    threading.Thread(target=watch, daemon=True, name="watchdog").start()
