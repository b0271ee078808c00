"""Horovod's launcher `horovodrun` without its check for Gloo: `python -m mxscale.launcher.horovodrun ARGUMENTS`.

The check imports MXNet in a further process, about 2 s of each start. The preparation has already checked the back end.
"""

import sys

from horovod.runner import launch

if __name__ == "__main__":
    launch.gloo_built = lambda verbose=False: True
    sys.exit(launch.run_commandline())
