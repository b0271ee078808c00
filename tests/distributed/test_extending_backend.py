"""A new back end takes two files: its registry entry and its implementation (docs/extending.md)."""

import re
import shutil
import subprocess
import sys

import pytest
from repository import ROOT
from verbs import SMALL

from mxscale.rundir.directory import RunDir

ENTRY = """        Backend(
            name="gather",
            help="each rank gathers all gradients and adds them up itself",
            implementation="mxscale.distributed.gather:Gather",
            uses_horovod=True,
        ),
"""

IMPLEMENTATION = """
from mxscale.distributed.communicators import Horovod


class Gather(Horovod):
    def all_reduce(self, arrays, name):
        first, *others = self.all_gather(arrays, name)
        arrays[0][:] = sum(others, first)
"""


@pytest.mark.slow
def test_a_toy_back_end_takes_two_files_and_trains(tmp_path, data_cache, shared_cli):
    checkout = tmp_path / "checkout"
    for name in ("mxscale", "conf"):
        shutil.copytree(ROOT / name, checkout / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "train.py", checkout)
    registry = checkout / "mxscale/config/backends.py"
    head, last, tail = registry.read_text().rpartition("        ),\n")
    registry.write_text(head + last + ENTRY + tail)
    (checkout / "mxscale/distributed/gather.py").write_text(IMPLEMENTATION)

    case = [*SMALL, "launch.ranks=2", "max_steps=3"]
    where = [f"runs={tmp_path}/runs", f"data.cache={data_cache}"]
    argv = [sys.executable, "train.py", *where, *case, "comm.backend=gather"]
    done = subprocess.run(argv, cwd=checkout, capture_output=True, text=True, timeout=180)
    assert done.returncode == 0, done.stdout + done.stderr
    run = RunDir(re.search(r"^run +(\S+)$", done.stdout, re.MULTILINE)[1])
    assert run.read("status.json")["params_sha256"] == shared_cli("train", *case).sha  # two addends: the same sum
