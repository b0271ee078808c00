"""Run directories written by schema version 1 (before `plan.json` was typed) are still usable.

The archive holds a finished and an interrupted run of digits on two ranks. The weights are zero, which keeps it small.
"""

import shutil
import subprocess
import sys
import tarfile

import pytest
from repository import ROOT
from run_files import read_json
from verbs import Cli

from mxscale.rundir.status import FINISHED

ARCHIVE = ROOT / "tests" / "fixtures" / "runs_schema_1.tar.xz"

pytestmark = pytest.mark.slow


@pytest.fixture
def old(tmp_path, data_cache):
    """Unpack the two runs to a temporary folder and set the paths in their records to it."""
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(tmp_path)
    for path in [*tmp_path.glob("runs/train/*/*.json"), *tmp_path.glob("runs/train/*/*.yaml")]:
        path.write_text(path.read_text().replace("@FOLDER@", str(tmp_path)).replace("@CHECKOUT@", str(ROOT)))
    shutil.copytree(data_cache, tmp_path / "cache", dirs_exist_ok=True)
    return Cli(tmp_path / "runs", tmp_path / "cache")


def finished(old):
    return old.folder / "train" / "finished"


def test_an_interrupted_run_resumes(old):
    run = old.folder / "train" / "interrupted"
    ended = old("train", f"resume={run}", small=False)
    status = read_json(run / "status.json")
    assert (status["state"], status["step"], len(status["attempts"])) == (FINISHED, 15, 2)
    assert ended.run.path == run


def test_a_finished_run_reruns_to_a_verdict(old):
    again = old("train", f"rerun={finished(old)}", small=False).run
    record = again.read("rerun.json")
    assert record["of"] == str(finished(old))
    assert record["verdict"] in ("identical", "within spread", "different")
    assert not [line for line in record["differs"] if line.startswith(("config", "data"))]


def test_a_finished_run_is_synchronised_and_reported(old, tmp_path):
    uri = f"sqlite:///{tmp_path}/mlflow.db"
    sync = [sys.executable, "-m", "mxscale", "sync", str(finished(old)), f"tracking.uri={uri}"]
    subprocess.run(sync, cwd=ROOT, check=True)
    old("report", f"tracking.uri={uri}", f"report.output={tmp_path}/report", small=False)
    page = (tmp_path / "report" / "report.html").read_text()
    assert "small" in page and (tmp_path / "report" / "report.csv").read_text().count("\n") == 2
