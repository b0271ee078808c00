"""Stop requests during an evaluation: it is interrupted, and repeated after the resume."""

import signal
from dataclasses import replace

import pytest
from evaluations import CASE, FinishAfter, StopAfter
from in_process import prepared, trained
from run_files import wait_for_step

from mxscale.rundir.status import INTERRUPTED, SPENT
from mxscale.train import prepare

pytestmark = pytest.mark.slow


@pytest.fixture
def new(tmp_path, data_cache):
    """new(name) -> a run, prepared."""
    return lambda name: prepared(tmp_path / name, *CASE, f"data.cache={data_cache}")


def evaluations(run):
    return {
        (line["step"], name): value
        for line in run.history()
        for name, value in line["metrics"].items()
        if name.startswith(("val/", "test/"))
    }


@pytest.mark.parametrize("batches, step", [(10, 5), (50, 10), (100, 10)], ids=["first", "last", "test"])
def test_interrupted_evaluation_is_repeated_after_resume(new, batches, step):
    uninterrupted = new("uninterrupted")
    expected = trained(uninterrupted)
    run = new("interrupted")
    stopped = trained(run, heartbeat=StopAfter(batches))
    assert stopped == {"state": "interrupted", "exit": INTERRUPTED, "step": step}
    assert (run.checkpoint(step) / "MANIFEST").exists()
    assert evaluations(run).items() < evaluations(uninterrupted).items()
    again = trained(run, attempt=2)
    assert again["params_sha256"] == expected["params_sha256"]
    first = next(line for line in run.lines() if line["attempt"] == 2)
    assert (first["step"], first["metrics"]) == (step, {}), "before the validation: the parent waits for a line"
    assert evaluations(run) == evaluations(uninterrupted)
    assert run.read("best.json") == uninterrupted.read("best.json")


def test_validation_interrupted_twice_is_completed(new):
    uninterrupted, run = new("uninterrupted"), new("interrupted")
    trained(uninterrupted)
    trained(run, heartbeat=StopAfter(10))
    assert trained(run, attempt=2, heartbeat=StopAfter(10))["state"] == "interrupted"
    trained(run, attempt=3)
    assert evaluations(run) == evaluations(uninterrupted)


def test_a_run_that_is_asked_to_finish_ends_as_at_its_last_step(new):
    run, shorter = new("run"), new("shorter")
    ended = trained(run, heartbeat=FinishAfter(run, 3))
    assert (ended["state"], ended["reason"]) == ("done", SPENT) and 3 <= ended["step"] < 10
    shorter.write_config(replace(shorter.config(), max_steps=ended["step"]))
    prepare.prepare(shorter, shorter.config())
    assert trained(shorter) == {**ended, "reason": None}
    assert evaluations(run) == evaluations(shorter)
    assert {step for step, _ in evaluations(run)} >= {ended["step"]}
    assert run.read("best.json") == shorter.read("best.json")


def test_two_ranks_interrupt_validation_with_checkpoint(cli):
    case = ["launch.ranks=2", "model=resnet18_v1b", "data.image_size=96", "data.train_per_class=4", "max_steps=4",
            "batch.per_device=1"]  # fmt: skip
    expected = cli("train", *case)
    process = cli.start("train", *case)
    run = cli.run_of(process)
    wait_for_step(run, 4)  # its line is written before the validation: of 90 images on each rank, one by one
    process.send_signal(signal.SIGTERM)
    cli.ended(process, expect=75)
    assert run.rank_status(1, 1).step == 4 and not evaluations(run)
    assert (run.checkpoints / "000000004" / "MANIFEST").exists()
    resumed = cli("train", f"resume={run}", small=False)
    assert resumed.sha == expected.sha
    assert evaluations(run) == evaluations(expected.run)
