"""epochs=auto: the steps that a budget leaves time for."""

import json
import os
import time

import pytest
from plans import make_sizes, make_splits
from refusals import error_of

from mxscale.cli import job, main
from mxscale.config.schema import from_dict
from mxscale.config.validation import validate
from mxscale.diagnose import budget_fit
from mxscale.diagnose.budget_fit import Durations, durations_of, fitted_to
from mxscale.diagnose.record import Stopped
from mxscale.launcher import setup
from mxscale.rundir import directory
from mxscale.rundir.directory import RunDir
from mxscale.rundir.plan import Plan
from mxscale.rundir.status import INTERRUPTED
from mxscale.util.errors import ConfigError

PLAN = Plan(sizes=make_sizes(per_device_batch=10, steps_per_epoch=100, total_steps=100),
            splits=make_splits(train=1000, val=200, test=400))  # fmt: skip
QUICK = Durations(start=5, step=0.2, validation=3, end=4)


def config(**settings):
    return from_dict({"epochs": "auto", "budget": {"minutes": 10}, **settings})


def refused(**settings):
    return error_of(lambda: validate(config(**settings)))


def test_steps_and_validations_fill_the_budget_but_for_its_reserve(capsys):
    fitted = fitted_to(config(), PLAN, QUICK, 600)
    # 0.2 s each, 26 validations of 3 s, 9 s for start and end; 2 % stay in reserve
    assert fitted.max_steps == int((600 * 0.98 - 9 - 26 * 3) / 0.2)
    assert (fitted.epochs, fitted.schedule.steps) == (26, fitted.max_steps)
    assert "2,505 steps, 25.1 epochs: a step takes 0.2 s (50 images/s), a validation 3 s" in capsys.readouterr().out
    assert validate(fitted) == fitted


def test_a_short_budget_keeps_what_a_stop_would_take_in_reserve():
    fitted = fitted_to(config(), PLAN, replace_step(2.0), 120)
    assert fitted.max_steps == int((120 - (3 + 3) - 12) / 2)
    assert fitted.log_every == 5


def replace_step(seconds):
    return QUICK._replace(step=seconds)


def test_a_last_epoch_is_not_begun_for_the_time_of_its_validation():
    # 100 steps and a validation take 23 s, one more step 0.2 s and 3 s
    assert [QUICK.steps_in(9 + seconds, 100) for seconds in (23.1, 23.3, 26.1, 26.3)] == [100, 100, 100, 101]


def test_rarer_validations_leave_time_for_more_steps():
    often, rarely = (fitted_to(config(validate_every=every), PLAN, QUICK, 600).max_steps for every in (1, 10))
    assert rarely == int((600 * 0.98 - 9 - 3 * 3) / 0.2) > often


def test_warm_up_takes_a_third_at_most():
    brief, long = (fitted_to(config(schedule={"warmup_epochs": 5.0}), PLAN, QUICK, left) for left in (120, 6000))
    assert brief.schedule.warmup_epochs == pytest.approx(brief.max_steps / 300) and long.schedule.warmup_epochs == 5


def test_a_constant_rate_has_no_decay_to_complete():
    constant = config(schedule={"kind": "constant"})
    assert fitted_to(constant, PLAN, QUICK, 600).schedule == constant.schedule


def test_a_budget_without_room_for_a_step_is_refused():
    with pytest.raises(ConfigError, match=r"budget.minutes=10: 15 s are left; start, validation and end take 18 s"):
        fitted_to(config(), PLAN, QUICK, 15)


def test_durations_are_those_of_the_short_run(tmp_path):
    run = directory.create(from_dict({"runs": str(tmp_path)}))
    run.save(PLAN)
    run.write("price.json", {})
    os.utime(run.path / "price.json", (3, 3))
    lines = [
        (0, 10.0, {"lr": 0.1}),
        (1, 14.0, {"throughput/images_per_s": 2.5}),
        (2, 15.0, {"throughput/images_per_s": 10.0}),
        (3, 15.5, {"throughput/images_per_s": 20.0}),
        (4, 16.0, {"throughput/images_per_s": 20.0}),
        (4, 18.0, {"val/top1": 50.0}),
        (4, 21.0, {"test/top1": 1.0}),
    ]
    for step, second, metrics in lines:
        with open(run.metrics_file, "a") as file:
            file.write(
                json.dumps({"attempt": 1, "step": step, "time_ms": int(1000 * second), "metrics": metrics}) + "\n"
            )
    # The first two steps are slow, and so is the first evaluation; the test has twice its images
    assert durations_of(run, ended=25.0) == Durations(7.5, 0.5, 1.5, 7.0)


def test_auto_needs_a_budget_and_nothing_else_that_ends_the_training():
    assert "epochs=auto: set budget.minutes, budget.max_usd or budget.max_eur" in refused(budget={})
    assert "max_steps=5: the budget ends the training" in refused(max_steps=5)
    assert "schedule.steps=5" in refused(schedule={"steps": 5})
    assert "epochs=auto with schedule=step, " in refused(schedule={"kind": "step"})
    assert "expected auto or a whole number of at least 1" in refused(epochs="some")


LINE = ["train", "epochs=auto", "budget.minutes=10", "tracking=none", "launch.ranks=1"]


@pytest.mark.slow
def test_a_fitted_training_completes_its_decay_and_a_rerun_repeats_it(tmp_path, monkeypatch, data_cache):
    slow = replace_step(40.0)  # so that few steps fit; the real ones are quick
    monkeypatch.setattr(budget_fit, "measured", lambda config, steps: (PLAN, slow))
    for module in (job, setup):  # this process began long ago
        monkeypatch.setattr(module, "started", lambda hooks: time.time())
    place = [f"runs={tmp_path}", f"data.cache={data_cache}"]
    assert main.main([*LINE, *place]) == 0
    [run] = directory.runs_of(tmp_path, "train")
    config, rates = run.config(), [line["metrics"]["lr"] for line in run.history() if "lr" in line["metrics"]]
    assert run.status().step == config.max_steps == config.schedule.steps == 14
    assert rates[-1] < 0.02 * rates[0]
    assert main.main(["train", f"rerun={run.path}", "tracking=none"]) == 0
    assert RunDir(run.path).status().params_sha256 == directory.runs_of(tmp_path, "train")[0].status().params_sha256


@pytest.mark.slow
def test_the_short_run_measures_real_ranks_and_is_removed(tmp_path, data_cache):
    short = config(runs=str(tmp_path), data={"cache": str(data_cache)}, launch={"ranks": 1})
    plan, durations = budget_fit.measured(short, 4)
    assert plan.sizes.ranks == 1 and durations.step > 0 and durations.start > durations.step and durations.end > 0
    assert not list(tmp_path.iterdir())


def test_a_signal_before_the_training_records_nothing(tmp_path, monkeypatch, capsys):
    def stopped(config, steps):
        raise Stopped("SIGINT")

    monkeypatch.setattr(budget_fit, "measured", stopped)
    assert main.main([*LINE, f"runs={tmp_path}"]) == INTERRUPTED
    assert "interrupted (SIGINT) before the training; nothing is recorded" in capsys.readouterr().out
    assert not list(tmp_path.iterdir())
