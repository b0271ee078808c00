"""Facts that child processes find out: MXNet's part, and the rate of the input. A failure is a fact of its own."""

import json
import os
import signal
import subprocess
import sys
from typing import Mapping, Optional

from mxscale.config.schema import Config
from mxscale.environment import description
from mxscale.launcher import container

TIMEOUT_S = 120.0  # MXNet's import from a cold or remote disk is slow
BUILD = ("-m", "mxscale.train.build_facts")
SPEED = ("-m", "mxscale.data.reader.speed")


def of_mxnet(config: Config) -> dict:
    """Return MXNet's part of the facts, of the image with launch=docker; {'error'} if it can't be imported."""
    return of_image(config, *BUILD) if config.launch.kind == "docker" else of_child("import mxnet", BUILD)


def of_input(config: Config, cores: int) -> dict:
    """Return {'images_per_s'} that the cores decode and augment, in the image with launch=docker; {'error'}."""
    command = (*SPEED, str(cores))
    return of_image(config, *command) if config.launch.kind == "docker" else of_child("decoding", command)


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


def of_image(config: Config, *command: str) -> dict:
    """Return what Python prints inside `launch.image`, in which launch=docker starts the ranks."""
    try:
        return json.loads(container.answer(config, "python", *command).splitlines()[-1])
    except Exception as error:  # any failure of the engine, the image or its content is a result
        return {"error": str(error).splitlines()[0][:200]}
