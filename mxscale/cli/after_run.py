"""What follows a finished run if its settings ask for it: its best checkpoint is evaluated, logged, registered."""

import os
import shlex
import subprocess
import sys
from importlib.util import find_spec
from typing import List

from mxscale.config.datasets import DATASETS
from mxscale.config.schema import Config
from mxscale.launcher.progress import echo
from mxscale.rendering.page import check_installed
from mxscale.rundir.directory import DONE, INTERRUPTED, RunDir
from mxscale.util.errors import ConfigError
from mxscale.util.override_text import quoted


def check(config: Config) -> None:
    """Raise ConfigError if what is asked to follow the run is not possible here."""
    if config.evaluation == "full":
        check_installed("evaluation=full")
        if DATASETS[config.data.kind].generated:
            raise ConfigError(f"evaluation=full: data={config.data.kind} has no labels to evaluate")
    if not verbs("RUN", config):
        return
    mxnet = find_spec("mxnet")
    if mxnet and not any(os.path.isdir(os.path.join(path, "onnx")) for path in mxnet.submodule_search_locations):
        name = config.tracking.register
        asked = f"tracking.register={name}" if name else "tracking.log_model=best"
        if config.evaluation == "full":
            asked = "evaluation=full"
        raise ConfigError(f"{asked}: this MXNet cannot export to ONNX; use 1.9, as `make setup` installs it")


def follow_up(run: RunDir, config: Config) -> None:
    """Run the verbs that `evaluation` and `tracking` ask for, in processes of their own, which load MXNet.

    The run has ended well, so a failure here is printed and does not change its status. Ctrl-C ends all of them.
    """
    status = DONE
    for verb in verbs(str(run), config):
        try:
            status = INTERRUPTED if status == INTERRUPTED else execute(verb, config)
        except KeyboardInterrupt:
            status = INTERRUPTED
        if status:
            echo(f"{verb[0]} ended with status {status}; repeat it with: {shlex.join(['mxscale', *verb])}")


def execute(verb: List[str], config: Config) -> int:
    """Run a verb in the store of the run and return its exit status."""
    argv = [*verb, f"runs={quoted(config.runs)}", f"tracking.timeout_s={config.tracking.timeout_s}"]
    if not config.tracking.enabled:
        argv.append("tracking=none")
    # In the environment, because an address may hold a password, which others read in a command line
    address = {"MLFLOW_TRACKING_URI": config.tracking.uri} if config.tracking.uri else {}
    return subprocess.run([sys.executable, "-m", "mxscale", *argv], env={**os.environ, **address}).returncode


def verbs(run: str, config: Config) -> List[List[str]]:
    """Return the command lines that follow a run."""
    evaluation = [["evaluate", run]] if config.evaluation == "full" else []
    tracking = config.tracking
    logged = tracking.enabled and (tracking.register or tracking.log_model == "best")
    return evaluation + ([["register", run, *filter(None, [tracking.register])]] if logged else [])
