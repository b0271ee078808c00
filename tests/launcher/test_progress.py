"""What a run prints while it trains."""

import json

import pytest

from mxscale.config.schema import from_dict
from mxscale.config.sizes import Sizes
from mxscale.launcher import progress
from mxscale.rundir import directory
from mxscale.rundir.plan import Plan

PLAN = Plan(sizes=Sizes(2, 2, 4, 8, 0.1, 160, 20, 40, 0))


@pytest.fixture
def watched(tmp_path, monkeypatch):
    """Return a Progress whose clock stands still; `write` adds a line, `at` sets the clock and shows what is new."""
    run = directory.create(from_dict({"runs": str(tmp_path)}))
    clock = [1000.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(progress.OtherPrograms, "share", lambda self: made.busy)
    made = progress.Progress(run, PLAN, lambda line: {})

    def at(second, *lines, phase="compute", steps=0, idle_s=0.0):
        clock[0] = 1000.0 + second
        run.rank_alive(0).parent.mkdir(exist_ok=True)
        run.rank_alive(0).write_text(json.dumps({"phase": phase, "steps": steps, "idle_s": idle_s}) + "\n")
        with open(run.metrics_file, "a") as file:
            for step, metrics in lines:
                line = {"attempt": 1, "step": step, "time_ms": int(1000 * second), "metrics": metrics}
                file.write(json.dumps(line) + "\n")
        return made.update()

    made.at, made.busy = at, 0.0
    return made


LOSS = {"train/loss": 1.5}


def test_a_line_without_metrics_begins_an_attempt(watched):
    """A resume that first repeats a validation writes one."""
    assert not watched.at(0)
    assert watched.at(0, (10, {}))


def test_a_long_phase_is_printed_every_30_seconds(watched, capsys):
    watched.at(0, (10, LOSS))
    for second in (10, 30, 50, 61):
        watched.at(second, phase="validation", idle_s=second)
    assert capsys.readouterr().out.splitlines() == [
        "epoch 0.5  step 10/40  validation under way for 30 s",
        "epoch 0.5  step 10/40  validation under way for 61 s",
    ]


def test_the_test_after_the_last_step_is_named(watched, capsys):
    watched.at(0, (40, {**LOSS, "val/top1": 50.0}))
    watched.at(31, phase="validation", idle_s=0.1)
    assert capsys.readouterr().out.splitlines()[1] == "epoch 2  step 40/40  test under way"


def test_the_validation_after_the_last_step_is_named(watched, capsys):
    watched.at(0, (40, LOSS))
    watched.at(31, phase="validation", idle_s=0.1)
    assert capsys.readouterr().out == "epoch 2  step 40/40  last validation and test under way\n"


def test_slow_steps_read_as_slow(watched, capsys):
    watched.at(0, (10, LOSS))
    watched.at(31, phase="exchange", steps=2, idle_s=14.0)
    assert capsys.readouterr().out == "epoch 0.6  step 12/40  step 13 under way for 14 s (rank 0: exchange)\n"


def test_steps_between_two_lines_are_counted_by_the_heartbeat(watched, capsys):
    watched.at(0, (10, LOSS))
    watched.at(31, steps=5, idle_s=2.0)
    assert capsys.readouterr().out == "epoch 0.75  step 15/40  loss 1.500  about 02:35 left\n"


def test_lines_forecast_the_time_left_from_this_attempt(watched, capsys):
    watched.at(0, (10, {}))
    watched.at(120, (30, {**LOSS, "val/top1": 50.0}))
    watched.at(180, (40, {**LOSS, "val/top1": 60.0}))
    assert capsys.readouterr().out.splitlines() == [
        "epoch 1.5  step 30/40  loss 1.500  val 50.00 %  about 01:00 left",
        "epoch 2  step 40/40  loss 1.500  val 60.00 %",
    ]


def test_a_line_tells_that_other_programs_use_the_cores(watched, capsys):
    watched.busy = 40.0
    watched.at(0, (0, {}))
    watched.at(60, (20, {**LOSS, "val/top1": 50.0}))
    assert capsys.readouterr().out.endswith("about 01:00 left  other programs use 40 % of the cores\n")


def test_an_epoch_is_printed_once_with_its_validation(watched, capsys):
    watched.at(0, (0, {}))
    watched.at(40, (20, LOSS))
    watched.at(45, (20, {"val/top1": 50.0}))
    assert capsys.readouterr().out.splitlines() == ["epoch 1  step 20/40  loss 1.500  val 50.00 %  about 00:45 left"]


def test_after_a_stop_request_lines_say_what_it_waits_for(watched, capsys):
    watched.at(0, (10, LOSS))
    watched.at(1)
    watched.stop_asked()
    watched.at(4)
    watched.at(7, phase="exchange", idle_s=7.0)
    watched.at(12, (11, LOSS), phase="checkpoint")
    assert capsys.readouterr().out.splitlines() == [
        "epoch 0.5  step 10/40  stopping, asked 6 s ago; step 11 under way for 7 s (rank 0: exchange)",
        "epoch 0.55  step 11/40  stopping, asked 11 s ago; checkpoint under way for 0 s",
    ]
