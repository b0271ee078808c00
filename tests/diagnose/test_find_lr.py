"""`mxscale find-lr`: the curve of a range test, its suggestions, and tests of real runs."""

import math

import pytest
from composed import composed_values
from PIL import Image
from refusals import command_error

from mxscale.cli import main
from mxscale.config.schema import from_dict
from mxscale.config.validation import validate
from mxscale.config.verb_settings import FindLr
from mxscale.diagnose import find_lr, lr_curve
from mxscale.train.optim.schedule import learning_rate

NAN = float("nan")
RATES = [10 ** (-5 + 6 * step / 100) for step in range(101)]  # 1e-5 to 10


def falling(rate: float) -> float:
    """Return a loss that falls from 2 to 1 around the rate 0.01, fastest there, and rises from 0.1 on."""
    decades = math.log10(rate)
    return 1 + 1 / (1 + math.exp(6 * (decades + 2))) + max(0, decades + 1) ** 2 / 2


def test_smoothing_is_the_mean_of_the_neighbours():
    assert lr_curve.smooth([1, 2, 6, 3, 0], half=1) == [1.5, 3, 11 / 3, 3, 1.5]
    assert [lr_curve.half_window(steps) for steps in (20, 100, 250)] == [1, 4, 10]


def test_suggestions_of_a_curve_with_a_known_slope_and_minimum():
    curve = lr_curve.curve(RATES, [falling(rate) for rate in RATES], half=1)
    assert curve.steepest_lr == pytest.approx(0.01, rel=0.15)  # within a step, a factor of 1.148
    assert curve.rates[curve.minimum] == pytest.approx(0.103, rel=0.15)  # where 6 / (1 + e^6) balances the rise
    assert curve.tenth_lr == curve.rates[curve.minimum] / 10


@pytest.mark.parametrize(
    "losses",
    [[2.0] * 101, [2 + step for step in range(101)], [2 + 0.1 * (-1) ** step - step / 5000 for step in range(101)]],
    ids=["constant", "rising", "noise"],
)
def test_loss_that_does_not_fall_suggests_nothing(losses):
    curve = lr_curve.curve(RATES, losses, half=1)
    assert (curve.steepest_lr, curve.tenth_lr) == (None, None)


def test_test_ends_when_the_smoothed_loss_exceeds_four_times_its_minimum():
    # means of three: 1, 1, 1, 4, 7; 4 is not above 4
    assert lr_curve.end_of([1, 1, 1, 1, 1, 10, 10], half=1) == 7
    assert lr_curve.end_of([1, 1, 1, 1, 1, 10], half=1) is None
    assert lr_curve.end_of([1, 1, 9], half=1) is None  # the first mean has nothing to exceed


@pytest.mark.parametrize("bad", [NAN, math.inf])
def test_losses_from_the_first_that_is_not_finite_are_left_out(bad):
    assert lr_curve.end_of([2, 1, bad, 1], half=1) == 2
    assert lr_curve.curve(RATES, [2, 1, bad, 1], half=1).losses == [2, 1]
    assert lr_curve.curve(RATES, [bad], half=1) == lr_curve.Curve([], [], [])


def composed(*overrides):
    values, own = composed_values("find-lr", *overrides)
    return validate(from_dict(values)), own.find_lr


def test_the_trial_rises_exponentially_from_lr_min_to_lr_max():
    config, own = composed("batch.per_device=128", "find_lr.lr_min=0.001", "find_lr.lr_max=10", "find_lr.steps=41")
    trial = validate(find_lr.trial(config, own))
    from mxscale.config.sizes import sizes

    rate = learning_rate(trial, sizes(trial, 1, 1280))  # linear scaling halves the rates
    assert [2 * rate(step) for step in (0, 10, 20, 40, 50)] == pytest.approx([0.001, 0.01, 0.1, 10, 10])


def test_all_settings_of_train_apply_to_the_trial():
    config, own = composed("model=mobilenet0.25", "optimizer=adam", "label_smoothing=0.1", "optimizer.weight_decay=0.5")
    trial = find_lr.trial(config, own)
    assert (trial.model, trial.label_smoothing, trial.data) == (config.model, 0.1, config.data)
    assert (trial.optimizer.name, trial.optimizer.weight_decay, trial.tracking.enabled) == ("adam", 0.5, False)


def found(losses) -> dict:
    curve = lr_curve.curve(RATES[: len(losses)], losses, half=1)
    settings = FindLr(1e-5, 10, 101)
    return {**curve._asdict(), "scaling": 0.25, "global_batch": 64, "ended": find_lr.why_ended(losses, curve, settings)}


def test_the_line_to_paste_is_the_tenth_in_units_of_optimizer_lr():
    last = find_lr.report(found([falling(rate) for rate in RATES])).splitlines()[-1]
    assert last == "  use     optimizer.lr=0.0091    (effective lr 0.0023 at a global batch of 64)"


def test_loss_that_still_falls_at_the_end_asks_for_higher_rates():
    text = find_lr.report(found([2 - step / 101 for step in range(101)]))
    assert "the loss still falls at 10: set a higher find_lr.lr_max" in text


def test_nan_ends_the_test_with_a_suggestion():
    losses = [falling(rate) for rate in RATES[:90]] + [NAN] * 11
    assert "ended: the loss is nan at step 91" in find_lr.report(found(losses))
    assert "no suggestion: the loss did not fall" in find_lr.report(found([NAN]))


@pytest.mark.parametrize("losses", [[falling(rate) for rate in RATES], [2.0] * 101, [2.0], [NAN]])
def test_every_result_can_be_drawn(losses, tmp_path):
    lr_curve.draw(found(losses), str(tmp_path / "x.png"))
    assert Image.open(tmp_path / "x.png").size == (1080, 540)


@pytest.mark.parametrize(
    "settings, message",
    [
        (["find_lr.lr_min=1", "find_lr.lr_max=1"], "find_lr.lr_min=1: expected less than find_lr.lr_max=1"),
        (["find_lr.lr_max=0"], "find_lr.lr_max=0.0: expected above 0"),
        (["find_lr.lr_min=0"], "find_lr.lr_min=0.0: expected above 0"),
        (["find_lr.lr_max=1e60"], "find_lr.lr_max=1e+60: expected a size from 1.2e-38 to 3.4e38"),
        (["find_lr.steps=19"], "find_lr.steps=19: expected at least 20"),
        (["find_lr.steps=50.5"], "find_lr.steps=50.5: expected a whole number"),
        (["resume=auto"], "resume=auto: a range test starts its own runs"),
        (["budget.max_usd=1"], "budget.*: a range test is limited by find_lr.steps"),
    ],
)
def test_invalid_setting_is_one_line(settings, message, capsys, tmp_path):
    assert message in command_error(capsys, "find-lr", f"runs={tmp_path}/runs", *settings)
    assert not list(tmp_path.glob("runs/*/*"))


@pytest.mark.slow
def test_too_few_images_are_refused_before_the_first_step(cli, tmp_path):
    ended = cli("find-lr", "batch.per_device=600", "launch.ranks=1", "tracking=none", small=False, expect=2)
    assert "error: batch.per_device=600: the global batch of 600 exceeds the" in ended.err
    assert not list(cli.folder.glob("*/*"))


QUICK = ["data.image_size=8", "data.augment.pad=0", "batch.per_device=32", "launch.ranks=1"]


@pytest.mark.slow
def test_the_suggestion_for_the_digits_trains_them(cli, tmp_path):
    uri = f"tracking.uri=sqlite:///{tmp_path}/mlflow.db"
    ended = cli("find-lr", *QUICK, "find_lr.lr_min=0.001", "find_lr.lr_max=100", uri, small=False)
    record = ended.run
    result = record.read("find-lr.json")
    assert record.state == "FINISHED" and f"use     optimizer.lr={lr_curve.shown(result['tenth_lr'])}" in ended.out
    assert 0.02 < result["tenth_lr"] < 5 and 0.02 < result["steepest_lr"] < 20
    assert len(record.history()) == len(result["losses"]) == len(result["smoothed"])
    assert all(name.startswith("find_lr/") for line in record.history() for name in line["metrics"])
    assert not list(record.path.glob("**/params")) and (record.path / "find-lr.png").is_file()
    rate = f"optimizer.lr={lr_curve.shown(result['tenth_lr'])}"
    run = cli("train", *QUICK, rate, "epochs=10", "tracking=none", small=False).run
    assert run.read("summary.json")["metrics"]["best/val_top1"] > 80


@pytest.mark.slow
def test_a_real_divergence_is_a_result(cli):
    rates = ["find_lr.lr_min=1e10", "find_lr.lr_max=1e38", "find_lr.steps=20"]
    ended = cli("find-lr", *QUICK, *rates, "tracking=none", small=False)
    result = ended.run.read("find-lr.json")
    assert ended.run.state == "FINISHED" and len(result["losses"]) < 20 and all(map(math.isfinite, result["losses"]))


def test_help_lists_the_settings_of_the_test(capsys):
    assert main.main(["find-lr", "--help"]) == 0
    assert "find_lr.lr_max" in capsys.readouterr().out
