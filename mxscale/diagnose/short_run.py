"""A run that a diagnosis times and stops: `python -m mxscale.diagnose.short_run CONFIG.yaml`.

SIGTERM stops it at a step, and so does the end of the process that started it.
"""

import ctypes
import signal
import sys

import yaml

from mxscale.config.schema import from_dict
from mxscale.launcher import run
from mxscale.rundir.directory import FAILURE, REFUSED
from mxscale.util.errors import ConfigError, RunFailed

PR_SET_PDEATHSIG = 1  # sys/prctl.h


def main(path: str) -> int:
    """Run the config in a file and return the exit status."""
    stop_with_parent()
    with open(path) as file:
        config = from_dict(yaml.safe_load(file))
    try:
        return run.execute(config).exit
    except ConfigError as error:
        print(f"error: {error}", flush=True)
        return REFUSED
    except RunFailed as error:
        print(f"error: {error}", flush=True)
        return FAILURE


def stop_with_parent() -> None:
    """Have the kernel send SIGTERM to this process when its parent ends."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
