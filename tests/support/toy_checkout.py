"""A checkout to which a test adds a registry entry and its implementation, as docs/extending.md describes it."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

from repository import ROOT

from mxscale.rundir.directory import RunDir


class ToyCheckout:
    """A copy of this checkout's product in `folder`.

    Args:
        registry: FILE:NAME of a registry below mxscale/, which gets `entry` as its last one.
        module: The file of the implementation, below mxscale/.
    """

    def __init__(self, folder: Path, registry: str, entry: str, module: str, implementation: str):
        self.folder = folder
        for name in ("mxscale", "conf"):
            shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copy(ROOT / "train.py", folder)
        path, _, name = registry.partition(":")
        file = folder / "mxscale" / path
        before, begin, text = file.read_text().partition(f"\n{name}: ")
        head, end, tail = text.partition("    )\n}")
        file.write_text(before + begin + head + entry + end + tail)
        (folder / "mxscale" / module).write_text(implementation)

    def train(self, *overrides) -> RunDir:
        """Train with the checkout's train.py; return the finished run."""
        argv = [sys.executable, "train.py", *overrides]
        done = subprocess.run(argv, cwd=self.folder, capture_output=True, text=True, timeout=180)
        assert done.returncode == 0, done.stdout + done.stderr
        return RunDir(re.search(r"^run +(\S+)$", done.stdout, re.MULTILINE)[1])
