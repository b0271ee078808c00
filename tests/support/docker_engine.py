"""Helpers of the tests of images: commands, Compose projects, output of a process."""

import json
import os
import re
import shutil
import subprocess
import threading
import urllib.request
from pathlib import Path

import pytest
from machine import free_port
from repository import ROOT

QUICK = ["data.train_per_class=24", "batch.per_device=12", "epochs=2", "log_every=1"]


ENGINE_ANSWERS = shutil.which("docker") and subprocess.run(["docker", "info"], capture_output=True).returncode == 0
NEEDS_ENGINE = [
    pytest.mark.docker,
    pytest.mark.slow,
    pytest.mark.skipif(not ENGINE_ANSWERS, reason="no Docker engine answers"),
]


def sh(*argv, expect=0, timeout=600, env=None, **options):
    """Run a command, assert its exit status and return (stdout, stderr)."""
    done = subprocess.run(
        argv, cwd=ROOT, capture_output=True, text=True, timeout=timeout, stdin=subprocess.DEVNULL,
        env={**os.environ, **(env or {})}, **options,
    )  # fmt: skip
    assert done.returncode == expect, f"{' '.join(argv)}\nexit {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout, done.stderr


def copy_of_sources(folder: Path) -> Path:
    """Copy the checkout without ignored folders, and return the copy."""
    ignored = {
        ROOT: {".venv", ".venv-reference", ".venv-skypilot", "runs", "data", "sbom"},
        ROOT / "docker": {"mxnet-src"},
    }

    def ignore(path, names):
        return ignored.get(Path(path), set()) & set(names)

    shutil.copytree(ROOT, folder, symlinks=True, ignore=ignore)
    return folder


class Project:
    """A Compose project with its own ports."""

    def __init__(self, name: str, data: Path):
        self.name, self.port, self.serve_port = name, free_port(), free_port()
        self.env = {"MLFLOW_PORT": str(self.port), "SERVE_PORT": str(self.serve_port), "DATA": str(data),
                    "COMPOSE_PROJECT_NAME": name}  # fmt: skip

    def compose(self, *words, **options):
        return sh("docker", "compose", *words, env=self.env, **options)

    def run(self, service, *words, **more):
        """Return the output of `docker compose run --rm SERVICE WORDS`."""
        out, err = self.compose("run", "--rm", "-T", service, *words, **more)
        return out + err

    def start(self, service, *words):
        argv = ["docker", "compose", "run", "--rm", "-T", service, *words]
        return subprocess.Popen(
            argv, cwd=ROOT, env={**os.environ, **self.env}, text=True, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip

    def read(self, path) -> str:
        """Return the text of a file in the volume `runs`."""
        return self.inside("cat", str(path))

    def inside(self, *words) -> str:
        """Return the output of a command in a container with the volumes."""
        command, *arguments = words
        return self.compose("run", "--rm", "-T", "--no-deps", "--entrypoint", command, "train", *arguments)[0]

    def status(self, output) -> dict:
        return json.loads(self.read(f"{run_of(output)}/status.json"))

    def mlflow(self, path, body=None):
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}/api/2.0/mlflow/{path}",
            json.dumps(body).encode() if body else None,
            {"Content-Type": "application/json"},
        )
        return json.load(urllib.request.urlopen(request, timeout=20))


def run_of(output) -> str:
    return re.search(r"^run +(\S+)$", output, re.MULTILINE)[1]


def wait_for(process, pattern, timeout=120):
    """Return the match of the first printed line that fits. The process is killed after the timeout."""
    watchdog = threading.Timer(timeout, process.kill)
    watchdog.start()
    try:
        for line in iter(process.stdout.readline, ""):
            found = re.search(pattern, line)
            if found:
                return found
    finally:
        watchdog.cancel()
    raise AssertionError(f"no line fits {pattern}, and it ended with {process.wait()}")


def answers(url) -> bool:
    try:
        urllib.request.urlopen(url, timeout=3).close()
    except OSError:
        return False
    return True


def link_or_copy(file: Path, folder: Path) -> None:
    """Hard-link a file into a folder, or copy it if the folder is on another disk."""
    folder.mkdir(parents=True, exist_ok=True)
    try:
        os.link(file, folder / file.name)
    except OSError:
        shutil.copy(file, folder)
