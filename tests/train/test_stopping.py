"""Early stopping, and the end at a target accuracy."""

import pytest
from composed import composed
from evaluations import CASE, StopAfter
from in_process import prepared, trained

from mxscale.config.schema import from_dict
from mxscale.config.sizes import sizes
from mxscale.train.trainer import reason_to_end
from mxscale.util.errors import ConfigError


@pytest.mark.parametrize(
    "settings, step, best, reason",
    [
        ({"patience": 2}, 30, (10, 50.0), "no higher val top-1 in patience=2 validations"),
        ({"patience": 2}, 29, (10, 50.0), None),
        ({"patience": 2, "validate_every": 2}, 30, (10, 50.0), None),  # two validations are four epochs
        ({"patience": 2, "validate_every": 2}, 50, (10, 50.0), "no higher val top-1 in patience=2 validations"),
        ({"patience": 2}, 25, (13, 50.0), None),  # a resume with another max_steps: the best is no multiple of ten
        ({"patience": 2}, 30, (13, 50.0), "no higher val top-1 in patience=2 validations"),
        ({"patience": 1}, 30, None, None),  # not validated yet
        ({"patience": 2, "epochs": 3}, 30, (10, 50.0), None),  # the last step: not early
        ({"target_top1": 50.0}, 30, (10, 50.0), None),  # recorded, but training continues
        ({"target_top1": 50.0, "stop_at_target": True}, 10, (10, 50.0), "val top-1 reached target_top1=50"),
        ({"target_top1": 50.1, "stop_at_target": True}, 10, (10, 50.0), None),
    ],
)
def test_reason_to_end_is_a_function_of_step_and_best(settings, step, best, reason):
    config = from_dict({"batch": {"per_device": 10}, **settings})
    ten_steps_an_epoch = sizes(config, 1, 100)
    best = best and {"step": best[0], "val/top1": best[1]}
    assert reason_to_end(config, ten_steps_an_epoch, step, best) == reason


def test_stop_at_target_needs_a_target():
    with pytest.raises(ConfigError, match="stop_at_target=true: set target_top1"):
        composed("train", "stop_at_target=true")


@pytest.fixture
def new(tmp_path, data_cache):
    """new(name, *overrides) -> a run of ten epochs of five steps, prepared."""
    return lambda name, *more: prepared(tmp_path / name, *CASE, f"data.cache={data_cache}", "epochs=10", *more)


@pytest.mark.slow
@pytest.mark.parametrize(
    "overrides, end",
    [(["optimizer.lr=0", "patience=2"], 15), (["target_top1=1", "stop_at_target=true"], 5)],
    ids=["patience", "target"],
)
def test_run_ends_early_and_evaluates_its_best(new, overrides, end):
    run = new("run", *overrides)
    ended = trained(run)
    assert (ended["state"], ended["step"]) == ("done", end)
    assert (run.checkpoint(end) / "MANIFEST").exists()
    assert run.read("best.json")["step"] == 5
    assert "test/top1" in run.history()[-1]["metrics"]


@pytest.mark.slow
def test_early_end_is_that_of_an_uninterrupted_run(new):
    overrides = ["optimizer.lr=0", "patience=2", "optimizer.ema_decay=0.9", "optimizer.clip_norm=0.5"]
    expected = trained(new("uninterrupted", *overrides))
    run = new("interrupted", *overrides)
    assert trained(run, heartbeat=StopAfter(50))["state"] == "interrupted"
    assert trained(run, attempt=2) == expected
