"""What follows a finished run if its settings ask for it: its best checkpoint is evaluated, logged, registered."""

import os
import shlex
import subprocess
import sys
from typing import List

from mxscale.config.schema import Config
from mxscale.launcher.progress import echo
from mxscale.rundir.directory import RunDir


def follow_up(run: RunDir, config: Config) -> None:
    """Run the verbs that `evaluation` and `tracking` ask for, in processes of their own, which load MXNet.

    The run has ended well, so a failure here is printed and does not change its status.
    """
    for verb in verbs(run, config):
        tracking = (f"tracking.{key}={getattr(config.tracking, key)}" for key in ("experiment", "timeout_s"))
        argv = [*verb, f"runs={config.runs}", *tracking]
        if not config.tracking.enabled:
            argv.append("tracking=none")
        # In the environment, because an address may hold a password, which others read in a command line
        address = {"MLFLOW_TRACKING_URI": config.tracking.uri} if config.tracking.uri else {}
        done = subprocess.run([sys.executable, "-m", "mxscale", *argv], env={**os.environ, **address})
        if done.returncode:
            echo(f"{verb[0]} ended with status {done.returncode}; repeat it with: {shlex.join(['mxscale', *verb])}")


def verbs(run: RunDir, config: Config) -> List[List[str]]:
    """Return the command lines that follow a run."""
    evaluation = [["evaluate", str(run)]] if config.evaluation == "full" else []
    tracking = config.tracking
    logged = tracking.enabled and (tracking.register or tracking.log_model == "best")
    return evaluation + ([["register", str(run), *filter(None, [tracking.register])]] if logged else [])
