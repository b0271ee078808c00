"""Optimizers by name, the loss, and dropout that a resumed run repeats."""

import re

import mxnet as mx
import numpy as np
import pytest
from composed import composed
from refusals import error_of

from mxscale.config.schema import Optimizer
from mxscale.models import zoo
from mxscale.train.builders import has_dropout, reseeder
from mxscale.train.optim.optimizer import CrossEntropy, clip_norm, make_optimizer, make_trainer
from mxscale.util.errors import ConfigError


def after_steps(config, gradients, global_batch):
    """Return a weight of one number that starts at 1, after one update per gradient."""
    parameter = mx.gluon.Parameter("w", shape=(1,))
    parameter.initialize(mx.init.One())
    trainer = make_trainer([parameter], config, multi_precision=False)
    for gradient in gradients:
        with mx.autograd.record():
            loss = parameter.data() * gradient
        loss.backward()
        trainer.update(global_batch)
    return parameter.data().asscalar()


# ---------------------------------------------------------------- updates by hand


@pytest.mark.parametrize(
    "settings, gradients, global_batch, weight",
    [
        ({"name": "sgd", "lr": 0.1, "momentum": None, "weight_decay": 0.5}, [2.0], 1, 1 - 0.1 * (2 + 0.5 * 1)),
        ({"name": "sgd", "lr": 0.1, "momentum": 0.9}, [1.0, 1.0], 1, 1 - 0.1 - (0.09 + 0.1)),
        # m = 0.9 m + g; w -= lr (g + 0.9 m): 1.9 and then 1 + 0.9 x 1.9 = 2.71
        ({"name": "nag", "lr": 0.1, "momentum": 0.9}, [1.0, 1.0], 1, 1 - 0.19 - 0.271),
        ({"name": "adam", "lr": 0.01, "momentum": None, "params": {"beta1": 0.8}}, [5.0], 1, 0.99),  # a step of lr
        ({"name": "sgd", "lr": 1.0, "momentum": None}, [32.0], 64, 0.5),
        ({"name": "sgd", "lr": 1.0, "momentum": None, "clip_gradient": 0.25}, [-64.0], 64, 1.25),  # after the division
    ],
    ids=["decay", "momentum", "nag", "adam", "global batch", "clipping"],
)
def test_updates_equal_those_worked_by_hand(settings, gradients, global_batch, weight):
    config = Optimizer(**{"weight_decay": 0.0, **settings})
    assert after_steps(config, gradients, global_batch=global_batch) == pytest.approx(weight, rel=1e-6)


def test_lars_scales_weights_alone_and_alike_on_every_device():
    """Trust ratio 0.001 x |w| / |g| of arXiv:1708.03888, after a fall of the rate, too."""
    devices, parameters = [mx.cpu(0), mx.cpu(1)], []
    for number in range(6):
        for kind in ("weight", "bias"):
            parameters.append(mx.gluon.Parameter(f"conv{number}_{kind}", shape=(4,)))
            parameters[-1].initialize(mx.init.Constant(0.5), ctx=devices)
    trainer = make_trainer(parameters, Optimizer(name="lars", momentum=0.9, lr=1.0, weight_decay=0.0), False)
    for rate in (1.0, 0.1):
        before = [parameter.data(devices[0]).asnumpy() for parameter in parameters]
        for parameter in parameters:
            for value, gradient in zip(parameter.list_data(), parameter.list_grad()):
                gradient[:], value._fresh_grad = 1, True
        trainer.set_learning_rate(rate)
        trainer.update(1)
    moved = [(parameter.data(devices[0]).asnumpy() - old)[0] for parameter, old in zip(parameters, before)]
    first_step = np.array([0.0005, 1.0])
    np.testing.assert_allclose(np.reshape(moved, (6, 2)), [-(0.9 + 0.1) * first_step] * 6, rtol=2e-3)
    assert all((p.data(devices[0]).asnumpy() == p.data(devices[1]).asnumpy()).all() for p in parameters)


@pytest.mark.parametrize("momentum", ["0.9", "0.0"])
def test_an_optimizer_that_fails_with_momentum_is_refused(momentum):
    error = error_of(composed, "train", "optimizer.name=dcasgd", f"optimizer.momentum={momentum}")
    assert error == f"optimizer.momentum={momentum}: MXNet's dcasgd fails with it; set null"


@pytest.mark.parametrize("limit, factor", [(None, 1.0), (20.0, 1.0), (5.0, 0.5)])
def test_gradients_are_clipped_by_their_common_norm(limit, factor):
    gradients = {"a": [0.0, 60.0, 0.0], "b": [80.0]}  # sums over a batch of 10: the mean has the norm 10
    parameters = {name: mx.gluon.Parameter(name, shape=(len(values),)) for name, values in gradients.items()}
    for name, parameter in parameters.items():
        parameter.initialize(mx.init.Zero())
        parameter.grad()[:] = mx.nd.array(gradients[name])
    trainer = make_trainer(list(parameters.values()), Optimizer(lr=1.0), multi_precision=False)
    clip_norm(list(parameters.values()), limit, 10, trainer)
    for name, parameter in parameters.items():
        assert parameter.grad().asnumpy() == pytest.approx(factor * np.array(gradients[name]), rel=1e-5)


def test_norm_of_many_values_is_exact():
    parameter = mx.gluon.Parameter("w", shape=(2_000_000,))
    parameter.initialize(mx.init.Zero())
    values = np.random.RandomState(0).standard_normal(parameter.shape).astype(np.float32)
    parameter.grad()[:] = mx.nd.array(values)
    clip_norm([parameter], 1.0, 1, make_trainer([parameter], Optimizer(), False))
    assert np.linalg.norm(parameter.grad().asnumpy().astype(np.float64)) == pytest.approx(1, rel=1e-5)


# ---------------------------------------------------------------- names and arguments


@pytest.mark.parametrize(
    "name", ["sgd", "nag", "adam", "rmsprop", "adagrad", "ftrl", "nadam", "signum", "lamb", "lars"]
)
def test_mxnet_optimizer_is_created(name):
    make_optimizer(Optimizer(name=name, momentum=None))


@pytest.mark.parametrize("name", mx.optimizer.Optimizer.opt_registry)
def test_mxnet_names_update_a_network_or_are_refused(name):
    try:
        update = mx.optimizer.get_updater(make_optimizer(Optimizer(name=name, momentum=None)))
    except ConfigError as error:
        assert "\n" not in str(error)
        return
    for place, shape in enumerate([(4, 3, 2, 2), (4,), (3, 4)]):  # a convolution, a bias, a dense layer
        weight = mx.nd.ones(shape)
        update(place, mx.nd.full(shape, 0.1), weight)
        assert (weight.asnumpy() != 1).all()


def test_optimizer_of_a_newer_mxnet_is_refused(monkeypatch):
    registry = mx.optimizer.Optimizer.opt_registry
    monkeypatch.setattr(
        mx.optimizer.Optimizer, "opt_registry", {n: o for n, o in registry.items() if n not in ("lamb", "lars")}
    )
    with pytest.raises(ConfigError, match=r"^optimizer\.name=lamb: MXNet \S+ does not have it; use another, or"):
        make_optimizer(Optimizer(name="lamb"))


@pytest.mark.parametrize("name, nearest", [("sdg", "sgd"), ("adaam", "adam"), ("rmsprob", "rmsprop"), ("nagg", "nag")])
def test_unknown_name_suggests_the_nearest(name, nearest):
    with pytest.raises(ConfigError, match=f"^{re.escape(f'optimizer.name={name}: did you mean {nearest}?')}$"):
        make_optimizer(Optimizer(name=name))


@pytest.mark.parametrize(
    "config",
    [
        Optimizer(name="adam", momentum=0.9),
        Optimizer(name="sgd", params={"beta3": 1}),
        Optimizer(name="NAG", params={"x": 1}),
    ],
)
def test_unknown_argument_is_refused_with_a_remedy(config):
    with pytest.raises(ConfigError) as error:
        make_optimizer(config)
    assert str(error.value).startswith(f"optimizer.name={config.name} does not accept these settings (")
    assert "optimizer.momentum=null omits momentum" in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "name, key", [("wd", "weight_decay"), ("learning_rate", "lr"), ("momentum", "momentum"), ("mu1", "momentum")]
)
def test_parameter_with_its_own_key_is_refused(name, key):
    with pytest.raises(ConfigError, match=f"^optimizer.params.{name}: set optimizer.{key} instead$"):
        make_optimizer(Optimizer(name="sgd", params={name: 0.5}))


def test_master_weights_follow_precision():
    assert make_optimizer(Optimizer(), multi_precision=True).multi_precision is True
    assert make_optimizer(Optimizer(multi_precision=False), multi_precision=True).multi_precision is False
    assert make_optimizer(Optimizer(), multi_precision=False).multi_precision is False


# ---------------------------------------------------------------- objective


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.5])
@pytest.mark.parametrize("hybrid", [False, True])
def test_cross_entropy_equals_numpy(smoothing, hybrid):
    logits = np.random.RandomState(0).normal(size=(6, 4)).astype("float32") * 3
    labels = np.array([0, 1, 2, 3, 1, 1])
    log_p = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    target = (1 - smoothing) * np.eye(4)[labels] + smoothing / 4
    objective = CrossEntropy(smoothing)
    if hybrid:
        objective.hybridize(static_alloc=True, static_shape=True)
    found = objective(mx.nd.array(logits), mx.nd.array(labels))
    assert found.shape == (6,)
    assert found.asnumpy() == pytest.approx(-(target * log_p).sum(axis=1), rel=1e-5)


def test_loss_of_equal_scores_is_ln_of_the_classes():
    assert CrossEntropy(0.1)(mx.nd.zeros((1, 1000)), mx.nd.zeros(1)).asscalar() == pytest.approx(6.9078, abs=1e-4)


def test_float16_scores_give_float32_losses_without_overflow():
    loss = CrossEntropy()(mx.nd.array([[60000, -60000]], dtype="float16"), mx.nd.array([1]))
    assert loss.dtype == np.float32 and loss.asscalar() == pytest.approx(120000, rel=1e-3)


# ---------------------------------------------------------------- dropout


def with_dropout(hybrid):
    net = mx.gluon.nn.HybridSequential()
    net.add(mx.gluon.nn.Flatten(), mx.gluon.nn.Dropout(0.5))
    net.initialize()
    if hybrid:
        net.hybridize(static_alloc=True, static_shape=True)
    return net


@pytest.mark.parametrize("hybrid", [False, True])
def test_dropout_is_a_function_of_step_and_shard(hybrid):
    def mask(net, reseed, step, shard):
        reseed(step, shard, 0, device=mx.cpu())
        with mx.autograd.record():
            return net(mx.nd.ones((4, 64))).asnumpy().tobytes()

    net = with_dropout(hybrid)
    reseed = reseeder(net, seed=1)
    masks = {(step, shard): mask(net, reseed, step, shard) for step in range(3) for shard in range(2)}
    assert len(set(masks.values())) == 6
    resumed = with_dropout(hybrid)
    mx.nd.random.uniform(shape=100)  # another random state
    again = reseeder(resumed, seed=1)
    assert mask(resumed, again, 2, 1) == masks[2, 1] and mask(resumed, again, 1, 0) == masks[1, 0]
    assert mask(resumed, reseeder(resumed, seed=2), 2, 1) != masks[2, 1]


def test_network_without_dropout_keeps_the_random_state():
    net = zoo.build("small", 5)
    mx.random.seed(3)
    first = mx.nd.random.uniform(shape=3).asnumpy()
    mx.random.seed(3)
    reseeder(net, seed=1)(7, 0, 0, mx.cpu())
    assert np.array_equal(mx.nd.random.uniform(shape=3).asnumpy(), first)


@pytest.mark.parametrize(
    "name, has", [("alexnet", True), ("squeezenet1.0", True), ("small", False), ("resnet18_v1", False)]
)
def test_dropout_is_found_in_nested_blocks(name, has):
    assert has_dropout(zoo.build(name, 5)) is has


def test_dropout_of_rate_0_is_ignored():
    assert not has_dropout(mx.gluon.nn.Dropout(0.0))
