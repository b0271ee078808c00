"""Whether a run is running, by the file that its parent process touches."""

import time

from mxscale.rundir.directory import RunDir
from mxscale.rundir.status import FAILED, FINISHED, KILLED

ENDED = {FINISHED: "finished", FAILED: "failed", KILLED: "interrupted"}  # state -> word in tables
ALIVE_S = 20.0  # the parent touches `alive` every 5 s; ranks end themselves after this time without it


def is_running(run: RunDir) -> bool:
    """Return whether the parent process of the run lives."""
    if run.state in ENDED:
        return False
    try:
        return time.time() - run.alive_file.stat().st_mtime < ALIVE_S
    except FileNotFoundError:
        return False


def end_state(run: RunDir) -> str:
    """Return FINISHED, FAILED or KILLED; a parent that recorded no end was killed."""
    return run.state if run.state in ENDED else KILLED
