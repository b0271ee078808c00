"""MXNet's part of the facts, which a child process finds out. A failure is a fact of its own."""

import json
import os
import signal
import subprocess
import sys
from typing import Mapping, Optional

from mxscale.environment import description

TIMEOUT_S = 120.0  # MXNet's import from a cold or remote disk is slow
BUILD = ("-m", "mxscale.train.build_facts")


def of_mxnet() -> dict:
    """Return MXNet's part of the facts; {'error'} if it can't be imported."""
    return of_child("import mxnet", BUILD)


def of_child(what: str, command, env: Optional[Mapping[str, str]] = None) -> dict:
    """Return the last line of output, a JSON object, of Python with the arguments `command`.

    Args:
        what: What it does, for errors.
        env: Its environment variables; None for those of this process.
    """
    env = env or {**os.environ, "PYTHONPATH": str(description.ROOT)}
    try:
        done = subprocess.run(
            [sys.executable, *command], env=dict(env), capture_output=True, text=True, timeout=TIMEOUT_S
        )
    except subprocess.TimeoutExpired:
        return {"error": f"{what} timed out after {TIMEOUT_S:g} s"}
    lines = done.stdout.splitlines()
    if done.returncode == 0 and lines:
        return json.loads(lines[-1])
    if done.returncode < 0:
        return {"error": f"{what} was killed by {signal.Signals(-done.returncode).name}"}
    return {"error": (done.stderr.strip().splitlines() or [f"{what} exited with {done.returncode}"])[-1]}
