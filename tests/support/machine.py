"""Processes, ports, mounts and namespaces of this machine."""

import os
import shutil
import signal
import socket
import subprocess
import time
from contextlib import contextmanager

import pytest


def namespace(kind: str, change: str) -> list:
    """Return the start of a command that runs in a Linux namespace of its own, after a change to it."""
    words = ["unshare", kind, "sh", "-c", f'{change} && exec "$@"', "sh"]
    if subprocess.run([*words, "true"], capture_output=True).returncode:
        pytest.skip(f"not allowed here: {change}")
    return words


def free_port() -> int:
    """Return a port of this machine on which no server listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def until(condition, timeout_s=60.0, interval_s=0.01):
    """Return the first true value of `condition()`. Raises AssertionError after `timeout_s`."""
    deadline = time.monotonic() + timeout_s
    while not (value := condition()):
        assert time.monotonic() < deadline, f"not within {timeout_s:.0f} s"
        time.sleep(interval_s)
    return value


@contextmanager
def mounted(folder, options):
    """Mount a tmpfs at a new folder within the `with` block; skip the test if mounting is not allowed."""
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", options, "none", folder]
    if shutil.which("mount") is None or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("mounting is not allowed here")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True)  # files may still be open there


def kill_session(process) -> None:
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
