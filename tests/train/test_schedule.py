"""The learning rate: numbers printed in arXiv:1706.02677 and worked by hand."""

import pytest

from mxscale.config.schema import from_dict
from mxscale.config.sizes import sizes
from mxscale.train.optim.schedule import learning_rate

IMAGENET = 1_281_167  # training images (arXiv:1706.02677, sec. 5)


def schedule(images=IMAGENET, ranks=256, **settings):
    """Return (function step -> lr, sizes); by default 256 ranks of 32 images, lr 0.1 per 256, 90 epochs."""
    values = {"epochs": 90, "optimizer": {"lr": 0.1}, **settings}
    values["schedule"] = {"kind": "step", **values.get("schedule", {})}
    config = from_dict(values)
    derived = sizes(config, ranks, images)
    return learning_rate(config, derived), derived


def per_100_steps(**settings):
    """Return step -> lr of 10 epochs of 10 steps of 32 images at an unscaled lr of 0.1."""
    values = {"epochs": 10, "schedule": {}, **settings}
    values["schedule"] = {"reference_batch": None, "kind": "cosine", **values["schedule"]}
    return schedule(images=320, ranks=1, **values)[0]


def test_sizes_of_imagenet_with_batch_8192():
    _, derived = schedule()
    assert derived.global_batch == 8192
    assert derived.steps_per_epoch == 156
    assert derived.total_steps == 14_040
    assert derived.effective_lr == pytest.approx(3.2, abs=1e-12)


def test_reference_batch_has_the_reference_lr():
    lr, derived = schedule(ranks=8)
    assert (derived.global_batch, derived.effective_lr, lr(0)) == (256, 0.1, 0.1)


def test_lr_is_divided_at_epochs_30_60_80():
    lr, _ = schedule(schedule={"warmup_epochs": 5})
    boundaries = {29: 3.2, 30: 0.32, 59: 0.32, 60: 0.032, 79: 0.032, 80: 0.0032, 89: 0.0032}
    for epoch, expected in boundaries.items():
        assert lr(156 * epoch) == pytest.approx(expected, rel=1e-12)
        assert lr(156 * epoch + 155) == pytest.approx(expected, rel=1e-12)


def test_warmup_is_linear_over_five_epochs():
    lr, _ = schedule(schedule={"warmup_epochs": 5})
    assert lr(0) == 0.1
    assert lr(390) == pytest.approx(1.65, rel=1e-12)  # half way from 0.1 to 3.2
    assert lr(780) == pytest.approx(3.2, rel=1e-12)
    steps = [lr(step + 1) - lr(step) for step in range(780)]
    assert steps == pytest.approx([3.1 / 780] * 780, rel=1e-9)


def test_warmup_of_a_batch_below_the_reference_does_not_exceed_its_lr():
    lr, derived = schedule(ranks=2, schedule={"warmup_epochs": 1})
    assert derived.effective_lr == pytest.approx(0.1 * 64 / 256)
    assert {lr(step) for step in range(derived.steps_per_epoch)} == {derived.effective_lr}


def test_warmup_starts_at_warmup_lr():
    lr, _ = schedule(schedule={"warmup_epochs": 1, "warmup_lr": 0.0})
    assert [lr(0), lr(78), lr(156)] == pytest.approx([0.0, 1.6, 3.2])


def test_warmup_of_half_an_epoch():
    lr, _ = schedule(schedule={"warmup_epochs": 0.5})
    assert lr(77) < 3.2
    assert lr(78) == pytest.approx(3.2)


def test_final_lr_is_reached_at_the_given_step_and_kept():
    lr = per_100_steps(schedule={"kind": "poly", "power": 1.0, "final_lr": 10.1, "steps": 4})
    assert [lr(step) for step in (0, 1, 2, 4, 99)] == pytest.approx([0.1, 2.6, 5.1, 10.1, 10.1], rel=1e-12)


def test_final_lr_is_scaled_with_the_batch():
    lr, _ = schedule(schedule={"kind": "poly", "power": 1.0, "final_lr": 0.05, "steps": 2})  # lr 0.1 is 3.2
    assert [lr(0), lr(1), lr(2)] == pytest.approx([3.2, 2.4, 1.6], rel=1e-12)


@pytest.mark.parametrize("kind", ["constant", "step", "cosine", "poly"])
def test_max_steps_does_not_shorten_the_schedule(kind):
    full, _ = schedule(schedule={"kind": kind, "warmup_epochs": 5})
    short, derived = schedule(max_steps=1000, schedule={"kind": kind, "warmup_epochs": 5})
    assert derived.total_steps == 1000
    asked = [0, 1, 779, 780, 999]
    assert [short(step) for step in asked] == [full(step) for step in asked]


def test_max_steps_beyond_the_end_adds_no_steps():
    assert schedule(max_steps=1_000_000)[1].total_steps == 14_040


def test_constant():
    lr, _ = schedule(schedule={"kind": "constant"})
    assert {lr(step) for step in (0, 5000, 14_039)} == {lr(0)} and lr(0) == pytest.approx(3.2)


def test_cosine_falls_to_the_final_lr():
    lr = per_100_steps()
    # (1 + cos(pi/4)) / 2 = 0.853553...
    assert [lr(0), lr(25), lr(50), lr(100)] == pytest.approx([0.1, 0.0853553391, 0.05, 0.0], abs=1e-10)
    lr = per_100_steps(schedule={"final_lr": 0.02})
    assert [lr(0), lr(50), lr(100)] == pytest.approx([0.1, 0.06, 0.02])


def test_poly_of_power_2_is_a_quarter_half_way():
    lr = per_100_steps(schedule={"kind": "poly", "power": 2.0})
    assert [lr(0), lr(50), lr(90), lr(100)] == pytest.approx([0.1, 0.025, 0.001, 0.0])
    lr = per_100_steps(schedule={"kind": "poly", "power": 1.0, "final_lr": 0.02})
    assert [lr(0), lr(50), lr(100)] == pytest.approx([0.1, 0.06, 0.02])


@pytest.mark.parametrize("kind, half", [("cosine", 0.05), ("poly", 0.025)])
def test_decay_begins_after_warmup(kind, half):
    lr = per_100_steps(schedule={"kind": kind, "warmup_epochs": 2, "warmup_lr": 0.0})
    assert [lr(0), lr(10), lr(20), lr(60), lr(100)] == pytest.approx([0.0, 0.05, 0.1, half, 0.0])


def test_final_lr_scales_with_the_batch():
    lr, derived = schedule(schedule={"kind": "cosine", "final_lr": 0.001})
    assert lr(derived.total_steps) == pytest.approx(0.032)  # 0.001 x 8192 / 256


def test_final_lr_remains_after_the_end():
    assert per_100_steps(schedule={"final_lr": 0.01})(250) == pytest.approx(0.01)


def test_lr_0_remains_0():
    lr, _ = schedule(optimizer={"lr": 0.0}, schedule={"kind": "cosine", "warmup_epochs": 5})
    assert {lr(0), lr(390), lr(5000)} == {0.0}
