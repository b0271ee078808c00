"""A rank ends itself when its parent is gone: no orphan holds a machine that is paid for."""

import os
import threading
import time

from mxscale.run.rundir import INTERRUPTED, RunDir

PATIENCE_S = 20.0


def end_with_the_parent(run: RunDir, patience_s: float = PATIENCE_S) -> None:
    """Watch the parent's `alive` file from a thread; end this process when it has not been touched for long.

    The rank does not checkpoint first: its peers may be gone already.  The last checkpoint stands.
    """

    def watch():
        while True:
            time.sleep(2)
            try:
                silent = time.time() - run.alive_file.stat().st_mtime
            except FileNotFoundError:
                continue
            if silent > patience_s:
                print(f"the parent has been silent for {silent:.0f} s: ending", flush=True)
                os._exit(INTERRUPTED)

    threading.Thread(target=watch, daemon=True, name="watchdog").start()
