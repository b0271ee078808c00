"""MXNet's part of the facts, which a child process finds out. A failure is a fact of its own."""

import json
import os
import subprocess
import sys
from typing import Mapping, Optional

from mxscale.environment import description
from mxscale.util.errors import signal_name

TIMEOUT_S = 120.0  # MXNet's import from a cold or remote disk is slow


def of_mxnet(environ: Optional[Mapping[str, str]] = None) -> dict:
    """Return MXNet's part of the facts; {'error'} if it can't be imported.

    Args:
        environ: Environment variables of the child; None: those of this process.
    """
    environ = environ or {**os.environ, "PYTHONPATH": str(description.ROOT)}
    command = [sys.executable, "-m", "mxscale.train.build_facts"]
    try:
        done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=TIMEOUT_S)
    except subprocess.TimeoutExpired:
        return {"error": f"import mxnet timed out after {TIMEOUT_S:g} s"}
    lines = done.stdout.splitlines()
    if done.returncode == 0 and lines:
        return json.loads(lines[-1])
    if done.returncode < 0:
        return {"error": f"import mxnet was killed by {signal_name(-done.returncode)}"}
    return {"error": (done.stderr.strip().splitlines() or [f"import mxnet exited with {done.returncode}"])[-1]}
