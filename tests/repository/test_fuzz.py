"""Generated inputs: a sample of each kind, and the judgement itself. `make fuzz` runs as many as wanted."""

import json
import subprocess
import sys

import numpy as np
import pytest
from repository import ROOT

from tests.fuzz import trees
from tests.fuzz.faulty import FAULTS


def fuzz(*arguments) -> tuple:
    """Run cases in a process of its own, which forks; return (exit status, what it prints, the last line's object)."""
    command = [sys.executable, "-m", "tests.fuzz", *arguments]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert ended.stdout, ended.stderr
    return ended.returncode, ended.stdout, json.loads(ended.stdout.splitlines()[-1])


@pytest.mark.slow
def test_a_sample_of_files_has_no_violation():
    status, printed, counts = fuzz(
        "--kind", "image", "tree", "weights", "--count", "6", "--commands", "0", "--seed", "3"
    )
    assert (status, counts["cases"], counts["violations"]) == (0, 18, 0), printed


@pytest.mark.slow
def test_a_sample_of_commands_has_no_violation():
    status, printed, counts = fuzz(
        "--kind", "run", "settings", "address", "--count", "4", "--commands", "1", "--seed", "0"
    )
    assert (status, counts["cases"], counts["commands"], counts["violations"]) == (0, 12, 3, 0), printed


@pytest.mark.slow
@pytest.mark.slow
def test_a_sample_of_exported_networks_outputs_and_packed_sets_has_no_violation():
    status, printed, counts = fuzz(
        "--kind", "onnx", "output", "packed", "name", "--count", "2", "--commands", "0", "--seed", "0"
    )
    assert (status, counts["cases"], counts["violations"]) == (0, 8, 0), printed


@pytest.mark.slow
def test_every_fault_is_reported():
    status, printed, counts = fuzz("--kind", "faulty", "--count", "60", "--commands", "0", "--limit", "2")
    assert (status, counts["violations"]) == (1, 60), printed
    assert [fault for fault in FAULTS if f"\n  {fault}\n" not in f"\n{printed}"] == []
    for line in ("traceback: IndexError", "took longer than 2 s", "ended with -11", "left processes",
                 "a file's content was executed",
                 "the password is in runs/config.yaml", "wrong result: a pixel differs"):  # fmt: skip
        assert line in printed


def test_a_number_repeats_its_case(tmp_path):
    made = [trees.make(np.random.default_rng(7), tmp_path / name, False) for name in "ab"]
    files = [sorted(str(path.relative_to(tmp_path / name)) for path in (tmp_path / name).rglob("*")) for name in "ab"]
    assert made[0].what == made[1].what and files[0] == files[1]
