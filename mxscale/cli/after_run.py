"""What follows a finished run with tracking.register=NAME: its best checkpoint is logged and registered."""

import os
import shlex
import subprocess
import sys
from importlib.util import find_spec

from mxscale.config.operation_settings import Tracking
from mxscale.launcher.progress import echo
from mxscale.rundir.directory import INTERRUPTED, RunDir
from mxscale.util.errors import ConfigError
from mxscale.util.override_text import quoted


def check(tracking: Tracking) -> None:
    """Raise ConfigError if a model is to be registered and MXNet cannot export it."""
    mxnet = find_spec("mxnet") if tracking.enabled and tracking.register else None
    if mxnet and not any(os.path.isdir(os.path.join(path, "onnx")) for path in mxnet.submodule_search_locations):
        raise ConfigError(
            f"tracking.register={tracking.register}: this MXNet cannot export to ONNX; use 1.9, as `make setup` "
            "installs it"
        )


def register(run: RunDir, runs: str, tracking: Tracking) -> None:
    """Run `mxscale register` in the store of the run if `tracking` asks for it, in a process that loads MXNet.

    The run has ended well, so a failure here, or Ctrl-C, is printed and does not change its status.
    """
    if not (tracking.enabled and tracking.register):
        return
    verb = ["register", str(run), tracking.register]
    argv = [*verb, f"runs={quoted(runs)}", f"tracking.timeout_s={tracking.timeout_s}"]
    # In the environment, because an address may hold a password, which others read in a command line
    address = {"MLFLOW_TRACKING_URI": tracking.uri} if tracking.uri else {}
    try:
        status = subprocess.run([sys.executable, "-m", "mxscale", *argv], env={**os.environ, **address}).returncode
    except KeyboardInterrupt:
        status = INTERRUPTED
    if status:
        echo(f"register ended with status {status}; repeat it with: {shlex.join(['mxscale', *verb])}")
