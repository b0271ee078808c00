"""Large batches: RMSprop warm-up, slow start and Goyal's schedule, each against numpy."""

import math
import re
import shutil

import mxnet as mx
import numpy as np
import pytest
from composed import composed
from in_process import prepared, trained

from mxscale.config.schema import Optimizer
from mxscale.config.sizes import sizes
from mxscale.train.optim.optimizer import make_optimizer, make_trainer
from mxscale.train.optim.schedule import learning_rate, sgd_share
from mxscale.util.errors import ConfigError

IMAGENET = 1_281_167  # training images


def test_sgd_share_is_half_at_its_center():
    known = {0: math.exp(-4) / 2, 7.5: math.exp(-1) / 2, 10: 0.5, 11.25: 0.75, 12.5: 1.0, 12.6: 1.0, 90: 1.0}
    assert {epoch: sgd_share(epoch, 10, 5) for epoch in known} == pytest.approx(known, rel=1e-12)


def test_sgd_share_rises_without_a_jump():
    shares = np.array([sgd_share(epoch, 10, 5) for epoch in np.arange(0, 20, 1e-3)])
    steps = np.diff(shares)
    assert shares.min() > 0 and shares.max() == 1
    assert steps.min() >= 0 and steps.max() <= 1e-3 / 5 * (1 + 1e-9)  # nowhere steeper than 1 / period


PAPER = {"mu2": 0.99, "eps": 1e-8, "eta_rms": 3e-4, "beta_center": 10.0, "beta_period": 5.0}
EPOCHS = [0, 2, 5, 9, 10, 11, 12.4, 12.5, 13, 40]  # of ten steps: RMSprop, both phases of the transition, SGD
RATES = [6.4] * 8 + [0.96, 0.0128]
SHAPES = [(4, 3, 3, 3), (7,), (5, 6), (1,)]
BATCH = 64


def rmsprop_warmup(**others):
    return Optimizer(**{"name": "rmsprop_warmup", "lr": 0.1, "momentum": 0.9, "weight_decay": 0.0, **others})


def parameters(dtype="float32"):
    draw = np.random.RandomState(0)
    made = []
    for i, shape in enumerate(SHAPES):
        parameter = mx.gluon.Parameter(f"p{i}", shape=shape, dtype=dtype)
        parameter.initialize(mx.init.Zero())
        parameter.set_data(mx.nd.array(draw.normal(size=shape), dtype=dtype))
        made.append(parameter)
    return made


def gradients(steps=10):
    """Return gradients by step and parameter, summed over a batch."""
    draw = np.random.RandomState(1)
    return [[draw.normal(size=shape).astype("float32") * 0.1 * BATCH for shape in SHAPES] for _ in range(steps)]


def train(trainer, made, summed, epochs=EPOCHS, rates=RATES):
    for epoch, lr, grads in zip(epochs, rates, summed):
        with mx.autograd.record():
            products = [p.data() * mx.nd.array(grad, dtype=p.dtype) for p, grad in zip(made, grads)]
        mx.autograd.backward(products)
        trainer.set_learning_rate(lr)
        trainer.optimizer.epoch = epoch
        trainer.update(BATCH)


def by_numpy(start, summed, wd=0.0, clip=None, lr_mult=1.0, mu1=0.9):
    """Apply the paper's formula in float64 to one parameter."""
    w, m, delta = start.astype(float), np.zeros(start.shape), np.zeros(start.shape)
    for epoch, lr, grad in zip(EPOCHS, RATES, summed):
        g = grad.astype(float) / BATCH
        g = g if clip is None else np.clip(g, -clip, clip)
        g = g + wd * w
        if epoch < 10:
            a_sgd = 0.5 * np.exp(2 * (epoch - 10) / 5)
        elif epoch < 12.5:
            a_sgd = 0.5 + (epoch - 10) / 5
        else:
            a_sgd = 1.0
        a_rms = (1 - a_sgd) * 3e-4 / lr
        m = 0.99 * m + (1 - 0.99) * g**2
        delta = mu1 * delta - (a_sgd + a_rms / (np.sqrt(m) + 1e-8)) * g
        w = w + lr_mult * lr * delta
    return w


def values(made):
    return [parameter.data().asnumpy() for parameter in made]


def test_ten_steps_equal_numpy():
    made, summed = parameters(), gradients()
    started = values(made)
    train(make_trainer(made, rmsprop_warmup(), False), made, summed)
    for i, found in enumerate(values(made)):
        expected = by_numpy(started[i], [grads[i] for grads in summed])
        np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-6)
        assert np.abs(expected - started[i]).max() > 0.1


def test_decay_clipping_and_lr_mult_equal_numpy():
    made, summed = parameters(), gradients()
    made[1].wd_mult, made[2].lr_mult = 0.0, 0.25
    started = values(made)
    trainer = make_trainer(made, rmsprop_warmup(weight_decay=0.01, clip_gradient=0.05, momentum=0.8), False)
    train(trainer, made, summed)
    for i, found in enumerate(values(made)):
        own = {"wd": 0.0 if i == 1 else 0.01, "lr_mult": 0.25 if i == 2 else 1.0}
        expected = by_numpy(started[i], [grads[i] for grads in summed], clip=0.05, mu1=0.8, **own)
        np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-6)


def test_first_steps_are_rmsprop_for_any_lr():
    for lr in (0.1, 12.8):
        made = parameters()
        started = values(made)
        # The share of SGD is negligible 50 epochs before its center
        trainer = make_trainer(made, rmsprop_warmup(params={"beta_center": 50}), False)
        train(trainer, made, gradients(1), epochs=[0], rates=[lr])
        for before, after, grad in zip(started, values(made), gradients(1)[0]):
            # m = 0.01 g^2, so that g / sqrt(m) is 10
            np.testing.assert_allclose(after - before, -3e-4 * 10 * np.sign(grad), rtol=1e-3, atol=1e-6)


def test_after_warmup_it_is_sgd_with_momentum():
    rmsprop, sgd = parameters(), parameters()
    epochs, rates = [13 + i for i in range(10)], [0.5] * 10
    train(make_trainer(rmsprop, rmsprop_warmup(weight_decay=0.01), False), rmsprop, gradients(), epochs, rates)
    plain = Optimizer(name="sgd", momentum=0.9, weight_decay=0.01)
    train(make_trainer(sgd, plain, False), sgd, gradients(), epochs, rates)
    for found, expected in zip(values(rmsprop), values(sgd)):
        np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-6)


def test_float16_weights_round_float32_master_weights():
    made, summed = parameters("float16"), gradients()
    started = values(made)
    exact = [[grad.astype("float16").astype("float32") for grad in grads] for grads in summed]
    train(make_trainer(made, rmsprop_warmup(), multi_precision=True), made, exact)
    for i, found in enumerate(values(made)):
        expected = by_numpy(started[i], [grads[i] for grads in exact])
        assert found.dtype == np.float16
        np.testing.assert_allclose(found, expected.astype("float16"), rtol=1e-3)  # half a last place of float16


def test_float16_weights_keep_small_squares():
    made = parameters("float16")
    before = values(made)
    summed = [[np.full(shape, 1e-3 * BATCH, "float32") for shape in SHAPES]]  # 0.01 x 1e-6 is 0 in float16
    train(make_trainer(made, rmsprop_warmup(multi_precision=False), True), made, summed)
    for old, new in zip(before, values(made)):
        np.testing.assert_allclose(new - old, -3e-3, atol=1e-3)


@pytest.mark.parametrize(
    "params, wrong",
    [
        ({"mu2": 1.0}, "mu2=1.0: expected at least 0 and less than 1"),
        ({"eps": 0.0}, "eps=0.0: expected more than 0"),
        ({"beta_period": 0}, "beta_period=0: expected more than 0"),
        ({"beta_center": -1}, "beta_center=-1: expected at least 0"),
        ({"eta_rms": float("nan")}, "eta_rms=nan: expected at least 0"),
        ({"beta_center": "ten"}, "'<=' not supported"),
        ({"beta_centre": 10}, "beta_centre"),
    ],
)
def test_parameter_out_of_range_is_one_line(params, wrong):
    with pytest.raises(ConfigError, match=re.escape(wrong)) as error:
        make_optimizer(rmsprop_warmup(params=params))
    assert str(error.value).startswith("optimizer.name=rmsprop_warmup does not accept these settings")
    assert "\n" not in str(error.value)


def test_configuration_has_the_parameters_of_the_paper():
    config = composed("train", "optimizer=rmsprop_warmup").optimizer
    assert (config.momentum, config.params) == (0.9, PAPER)
    bare = make_optimizer(rmsprop_warmup())
    assert {name: getattr(bare, name) for name in ("momentum", *PAPER)} == {"momentum": 0.9, **PAPER}


@pytest.mark.parametrize(
    "zero",
    [
        ["optimizer.lr=0"],
        ["schedule.warmup_lr=0"],  # the recipe of the digits warms up
        ["schedule=step", "schedule.factor=0"],
        ["schedule=slow_start", "schedule.factors=[0,1,1,1]"],
        ["schedule.steps=5", "schedule.final_lr=0"],
    ],
)
def test_rate_of_0_is_refused(zero):
    key = zero[-1].partition("=")[0]
    with pytest.raises(ConfigError, match=f"^{key}: 0 is invalid with optimizer.name=rmsprop_warmup, which divides by"):
        composed("train", "optimizer=rmsprop_warmup", *zero)
    composed("train", *zero)  # no other optimizer does


def test_optimizer_that_draws_random_numbers_is_refused():
    with pytest.raises(ConfigError, match=r"^optimizer\.name=sgld draws random numbers in its update"):
        composed("train", "optimizer.name=sgld", "optimizer.momentum=null")


def rates_of(schedule, ranks, *overrides):
    """Return the lr of each step of 90 epochs of ImageNet, 32 images per rank, and the steps of an epoch."""
    config = composed("train", f"schedule={schedule}", "epochs=90", "optimizer.lr=0.1", *overrides)
    derived = sizes(config, ranks, IMAGENET)
    lr = learning_rate(config, derived)
    return np.array([lr(step) for step in range(derived.total_steps)]), derived.steps_per_epoch


def test_slow_start_with_batch_32768():
    found, steps = rates_of("slow_start", 1024)
    epochs = np.arange(len(found)) / steps
    base = 0.1 * 32768 / 256
    levels = [0.5 * base, 0.075 * base, 0.01 * base, 0.001 * base]
    expected = np.select([epochs < 40, epochs < 70, epochs < 85, epochs >= 85], levels)
    assert (steps, len(found)) == (39, 3510)
    np.testing.assert_allclose(found, expected, rtol=1e-12)
    assert found[[0, 1560, 2730, 3315]] == pytest.approx([6.4, 0.96, 0.128, 0.0128])


def test_goyal_schedule_with_batch_8192():
    found, steps = rates_of("goyal", 256)
    epochs = np.arange(len(found)) / steps
    expected = np.where(epochs < 5, 0.1 + (3.2 - 0.1) * epochs / 5, 3.2 * 0.1 ** np.digitize(epochs, [30, 60, 80]))
    assert (steps, len(found)) == (156, 14_040)
    np.testing.assert_allclose(found, expected, rtol=1e-12)


def test_factors_and_milestones_are_settings():
    found, steps = rates_of("slow_start", 1024, "schedule.milestones=[1]", "schedule.factors=[0.25,2]")
    assert found[steps - 1] == pytest.approx(3.2) and found[steps] == pytest.approx(25.6)


@pytest.mark.parametrize("factors", ["[0.5,0.1]", "[1,1,1,1,1]", "[]", "[0.5,-1,0.1,0.1]"])
def test_number_of_factors_is_checked(factors):
    with pytest.raises(ConfigError, match=r"^schedule\.factors=.*: expected (4 numbers, one|at least 0)"):
        composed("train", "schedule=slow_start", f"schedule.factors={factors}")


RECIPE = ["optimizer=rmsprop_warmup", "schedule=slow_start", "model.bn_statistics=last_batch", "data.shards=2",
          "launch.ranks=1", "data.train_per_class=8", "batch.per_device=4", "epochs=2", "log_every=1",
          "data.image_size=16", "checkpoint.every_steps=1", "checkpoint.keep=100", "schedule.milestones=[0.5,1,1.5]",
          "optimizer.params.beta_center=1", "optimizer.params.beta_period=1"]  # fmt: skip


@pytest.mark.slow
def test_run_resumed_in_warmup_ends_with_same_bytes(tmp_path, data_cache):
    run = prepared(tmp_path / "run", *RECIPE, f"data.cache={data_cache}")
    unbroken = trained(run)
    assert unbroken["step"] == 10  # 40 images, 8 per step: beta_center is at step 5
    for step in range(4, 11):
        shutil.rmtree(run.checkpoint(step))
    resumed = trained(run, attempt=2)
    assert resumed["params_sha256"] == unbroken["params_sha256"]
    assert min(line["step"] for line in run.lines() if line["attempt"] == 2 and line["metrics"]) == 4
    lr = {line["step"]: line["metrics"]["lr"] for line in run.lines() if "lr" in line["metrics"]}
    # 0.8 x 8 / 256 is 0.025; the milestones are at steps 2.5, 5 and 7.5
    assert [lr[step] for step in (3, 4, 6, 9)] == pytest.approx([0.0125, 0.001875, 0.00025, 0.000025])
