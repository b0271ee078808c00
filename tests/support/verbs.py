"""Verbs in their own processes, as users start them."""

import os
import re
import subprocess
import sys
import time
from pathlib import Path

from repository import ROOT

from mxscale.rundir.directory import RunDir

# Small enough to end in seconds: 120 training images of 16 px, 10 steps of 12 in an epoch, on one rank.
SMALL = ["data.train_per_class=24", "data.image_size=16", "batch.per_device=12", "epochs=2", "log_every=1",
         "launch.ranks=1", "tracking=none"]  # fmt: skip


class Cli:
    """Starts verbs with their runs in one folder."""

    def __init__(self, folder: Path, cache: Path):
        self.folder, self.cache = folder, cache
        self.overrides = [f"runs={folder}", f"data.cache={cache}"]

    def start(self, entry, *overrides, small=True, env=None, within=()):
        script = [f"{entry}.py"] if entry in ("train", "finetune") else ["-m", "mxscale", entry]
        argv = [*within, sys.executable, *script, *self.overrides, *(SMALL if small else []), *overrides]
        environment = {k: v for k, v in os.environ.items() if not k.startswith("MLFLOW_")}
        return subprocess.Popen(
            argv, cwd=ROOT, env={**environment, **(env or {})}, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, text=True, start_new_session=True,
        )  # fmt: skip

    def __call__(self, entry, *overrides, expect=0, timeout=180, **options):
        """Run to the end and assert the exit status."""
        return self.ended(self.start(entry, *overrides, **options), expect, timeout)

    def ended(self, process, expect=0, timeout=180):
        out, err = process.communicate(timeout=timeout)
        assert process.returncode == expect, f"exit {process.returncode}, expected {expect}\n{out}\n{err}"
        found = re.search(r"^run +(\S+)$", out, re.MULTILINE)
        run = RunDir(found[1]) if found else None
        return Ended(run, out, err)

    def run_of(self, process, timeout=180) -> RunDir:
        """Return the run directory that a process prints at its start."""
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline:
            line = process.stdout.readline()
            if line.startswith("run "):
                return RunDir(line.split(None, 1)[1].strip())
        raise AssertionError("no run directory was printed")


class Ended:
    def __init__(self, run, out, err):
        self.run, self.out, self.err = run, out, err

    @property
    def status(self):
        return self.run.read("status.json")

    @property
    def sha(self):
        return self.status["params_sha256"]


def with_script(argv: list, script) -> list:
    """Return the command that starts ranks with a script in the place of `-m mxscale.train.rank`."""
    at = argv.index("mxscale.train.rank")
    return [*argv[: at - 1], str(script), *argv[at + 1 :]]
