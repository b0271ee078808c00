"""What users do, once each: train on two ranks with MLflow, kill, resume, sweep, predict, evaluate, export."""

import csv

import exported
import pytest
from machine import kill_session
from run_files import recorded_in, wait_for_step

from mxscale.cli import main
from mxscale.rundir.directory import runs_of

TWO_RANKS = ["launch.ranks=2", "epochs=1", "checkpoint.every_steps=1"]


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return f"sqlite:///{tmp_path_factory.mktemp('store')}/mlflow.db"


@pytest.fixture(scope="module")
def finished(shared_cli, store):
    return shared_cli("train", *TWO_RANKS, "tracking=mlflow", f"tracking.uri={store}")


@pytest.mark.user
def test_training_on_two_ranks_is_in_mlflow(finished, store):
    assert finished.status["state"] == "FINISHED" and finished.run.plan().sizes.ranks == 2
    assert [line["step"] for line in finished.run.lines() if "train/loss" in line["metrics"]] == [1, 2, 3, 4, 5]
    _, recorded = recorded_in(store)
    assert recorded.info.status == "FINISHED" and recorded.data.params["launch.ranks"] == "2"
    assert recorded.data.metrics["test/top1"] == finished.run.summary().metrics["test/top1"]


@pytest.mark.user
def test_killed_run_resumes_to_the_bytes_of_an_uninterrupted_one(shared_cli, finished):
    process = shared_cli.start("train", *TWO_RANKS)
    run = shared_cli.run_of(process)
    wait_for_step(run, 2)
    kill_session(process)
    assert shared_cli("train", f"resume={run}", small=False).sha == finished.sha


@pytest.mark.user
def test_sweep_trains_one_run_per_value(cli):
    cli("train", "optimizer.lr=0.01,0.02", "max_steps=1", "launch.ranks=1", "data.train_per_class=4", "-m")
    trials = list(runs_of(cli.folder, "train"))
    assert {run.config().optimizer.lr for run in trials} == {0.01, 0.02}
    assert [run.state for run in trials] == ["FINISHED"] * 2


@pytest.mark.user
def test_finished_run_evaluates_predicts_and_exports(finished, tmp_path, capsys):
    runs, run = f"runs={tmp_path}", str(finished.run)
    exported.photographs(tmp_path / "photographs", 3)
    assert main.main(["evaluate", run, runs, "tracking=none"]) == 0
    assert f"{finished.run.summary().metrics['test/top1']:.2f}" in capsys.readouterr().out
    assert main.main(["export", run, runs, f"output={tmp_path}/net.onnx"]) == 0
    for name in (run, f"{tmp_path}/net.onnx"):
        assert main.main(["predict", name, f"{tmp_path}/photographs", runs, f"output={tmp_path}/out.csv"]) == 0
        with open(tmp_path / "out.csv", newline="") as file:
            assert len(list(csv.DictReader(file))) == 3
