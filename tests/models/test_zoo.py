"""Networks by name: shapes, initial values, freezing and weight decay."""

import dataclasses

import mxnet as mx
import numpy as np
import pytest
from composed import composed
from mxnet.gluon import nn
from mxnet.gluon.model_zoo import vision

from mxscale.config.networks import NAMES, network
from mxscale.config.schema import Model
from mxscale.models import weights, zoo
from mxscale.util.errors import ConfigError

CPU = mx.cpu()


def ready(name="small", classes=5, side=32, seed=1, zero_gamma=True, hybrid=False):
    net = zoo.build(name, classes)
    if hybrid:
        net.hybridize()
    zoo.initialise(net, seed, CPU, zero_gamma)
    zoo.finish(net, (1, 3, side, side), CPU)
    return net


def output_shape(symbol, side):
    try:
        return symbol.infer_shape(data=(2, 3, side, side))[1][0]
    except mx.MXNetError:
        return None


def trained_step(net, images):
    trainer = mx.gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.1, "wd": 0.1}, kvstore=None)
    with mx.autograd.record():
        loss = (net(images) ** 2).sum()
    loss.backward()
    trainer.step(1)


def images(side=32, count=2):
    return mx.nd.array(np.random.RandomState(0).normal(size=(count, 3, side, side)).astype("float32"))


# ---------------------------------------------------------------- names and shapes


def test_names_are_gluons_zoo_and_v1b_and_those_for_small_images():
    with pytest.raises(ValueError) as error:
        vision.get_model("?")
    gluon = [line.strip() for line in str(error.value).splitlines()[1:]]
    v1b = [f"resnet{layers}_v1b" for layers in (18, 34, 50, 101, 152)]
    lite = [f"efficientnet_lite{number}" for number in range(5)]
    assert sorted([*gluon, *v1b, *lite, "small", "resnet9", "mnist_convnet"]) == NAMES


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_networks_have_one_score_per_class(name):
    net = zoo.build(name, 7)
    smallest = network(name).min_side
    symbol = net(mx.sym.var("data"))
    for side in (smallest, smallest + 1, 224, 299, 448):
        if side >= smallest:
            assert output_shape(symbol, side) == (2, 7), side
    if smallest > 8:
        assert output_shape(symbol, smallest - 1) is None
    shapes = {n: p.shape for n, p in weights.parameters(net).items()}
    others = {n: p.shape for n, p in weights.parameters(zoo.build(name, 3)).items()}
    assert shapes.keys() == others.keys() and all(n.startswith(("features.", "output.")) for n in shapes)
    assert all(n.startswith("output.") for n in shapes if shapes[n] != others[n])


@pytest.mark.parametrize(
    "name, message", [("resnet50_v1c", "did you mean resnet50_v1"), ("Small", "did you mean small")]
)
def test_an_unknown_name_gets_a_suggestion(name, message):
    for call in (lambda: zoo.build(name, 2), lambda: network(name).min_side):
        with pytest.raises(ConfigError, match=f"^model.name={name}: {message}") as error:
            call()
        assert "\n" not in str(error.value)


LARGE = ["densenet121", "inceptionv3", "vgg11_bn", "resnet50_v1b", "resnet18_v2"]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["small", "alexnet", "squeezenet1.1", "mobilenetv2_0.25", *LARGE])
def test_networks_run_from_their_smallest_side(name):
    for side in (network(name).min_side, *((9, 33) if name == "small" else ())):
        assert ready(name, side=side)(images(side)).shape == (2, 5)


def test_global_pooling_changes_nothing_at_the_published_size():
    net = ready("squeezenet1.1", side=224)
    gluon = vision.get_model("squeezenet1.1", classes=5)
    gluon.initialize()
    gluon(images(224))
    for name, parameter in weights.parameters(gluon).items():
        parameter.set_data(weights.parameters(net)[name].data())
    np.testing.assert_allclose(net(images(224)).asnumpy(), gluon(images(224)).asnumpy(), rtol=1e-5, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_every_network_is_a_choice_of_the_group_model(name):
    assert composed("train", f"model={name}").model == dataclasses.replace(Model(), name=name)


# ---------------------------------------------------------------- v1b and small


@pytest.mark.parametrize(
    "layers, published", [(18, 11689512), (34, 21797672), (50, 25557032), (101, 44549160), (152, 60192808)]
)
def test_v1b_has_torchvisions_number_of_parameters(layers, published):
    net = zoo.build(f"resnet{layers}_v1b", 1000)
    symbol = net(mx.sym.var("data"))
    shapes = symbol.infer_shape(data=(1, 3, 224, 224))[0]
    assert sum(int(np.prod(shape)) for shape in shapes[1:]) == published  # without the image; statistics are separate


def test_v1b_has_pytorchs_strides_and_epsilon():
    net = zoo.build("resnet50_v1b", 10)
    block = net.features[5][0]
    assert [block.body[i]._kwargs["stride"] for i in (0, 3, 6)] == [(1, 1), (2, 2), (1, 1)]
    assert [n for n in weights.parameters(net) if n.endswith("bias")] == ["output.bias"]
    epsilons = []
    net.apply(lambda b: epsilons.append(b._kwargs["eps"]) if isinstance(b, nn.BatchNorm) else None)
    assert len(epsilons) == 53 and set(epsilons) == {1e-5}


def test_small_is_resnet_14():
    net = ready(classes=10)
    weighted = [n for n in weights.parameters(net) if n.endswith("weight") and "downsample" not in n]
    assert len(weighted) == 14
    trained = [p for p in weights.parameters(net).values() if p.grad_req != "null"]
    assert sum(p.data().size for p in trained) == 175258


def test_resnet_v2_normalises_its_input_alike_in_training_and_inference():
    net, bright = ready("resnet18_v2"), images() + 3
    with mx.autograd.train_mode():
        training = net.features[0](bright).asnumpy()
    np.testing.assert_array_equal(training, net.features[0](bright).asnumpy())


# ---------------------------------------------------------------- initial values


def test_initial_values_depend_only_on_the_seed():
    digests = [weights.params_sha256(weights.arrays(ready("mobilenet0.25", seed=3, hybrid=h))) for h in (False, True)]
    assert digests[0] == digests[1]
    assert digests[0] != weights.params_sha256(weights.arrays(ready("mobilenet0.25", seed=4)))


def test_a_fitted_network_has_the_same_random_head():
    drawn, fitted = ready(seed=3), zoo.build("small", 5)
    zoo.initialise(fitted, 3, CPU, True, fitted=True)
    zoo.finish(fitted, (1, 3, 32, 32), CPU)
    for name, value in weights.arrays(fitted).items():
        same = weights.arrays(drawn)[name]
        assert (value == (same if name.startswith("output.") else 0)).all(), name


def test_initialise_seeds_the_generators_and_can_be_repeated():
    net = ready(seed=3)
    first = weights.params_sha256(weights.arrays(net)), mx.nd.random.uniform(shape=3).asnumpy(), np.random.rand()
    zoo.initialise(net, 3, CPU, True)
    second = weights.params_sha256(weights.arrays(net)), mx.nd.random.uniform(shape=3).asnumpy(), np.random.rand()
    assert first[0] == second[0] and (first[1] == second[1]).all() and first[2] == second[2]


def test_weights_are_gaussian_by_fan_in():
    values = weights.arrays(ready("resnet18_v1b", zero_gamma=False))
    weight = values["features.7.1.body.3.weight"]  # 512 x 512 x 3 x 3
    assert weight.std() == pytest.approx(np.sqrt(2 / (512 * 9)), rel=0.01) and abs(weight.mean()) < 1e-4
    assert values["output.weight"].std() == pytest.approx(0.01, rel=0.05)
    for kind, constant in {"bias": 0, "beta": 0, "gamma": 1, "running_mean": 0, "running_var": 1}.items():
        assert all((v == constant).all() for n, v in values.items() if n.endswith(kind)), kind


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_every_parameter_is_a_weight_or_has_a_constant(name):
    kinds = {n.rpartition(".")[2] for n in weights.parameters(zoo.build(name, 2))}
    assert kinds <= {"weight", *zoo.CONSTANTS}


@pytest.mark.parametrize(
    "name, blocks, last",
    [("small", 6, "body.4"), ("resnet18_v1b", 8, "body.4"), ("resnet18_v1", 8, "body.4"),
     ("resnet50_v1b", 16, "body.7")],
)  # fmt: skip
def test_zero_gamma_applies_to_last_norm_of_blocks(name, blocks, last):
    values = weights.arrays(ready(name))
    zero = {n for n, v in values.items() if n.endswith("gamma") and not v.any()}
    assert zero == {n for n in values if n.endswith(f"{last}.gamma")} and len(zero) == blocks
    assert not [n for n in zero if "downsample" in n]


def test_zero_gamma_makes_a_block_its_shortcut():
    net = ready()
    x = mx.nd.abs(mx.nd.random.normal(shape=(1, 16, 8, 8)))
    np.testing.assert_array_equal(net.features[3][0](x).asnumpy(), x.asnumpy())


@pytest.mark.parametrize("name", ["resnet18_v2", "mobilenetv2_0.25"])
def test_zero_gamma_does_not_change_other_networks(name):
    assert all(v.all() for n, v in weights.arrays(ready(name)).items() if n.endswith("gamma"))


def test_finish_infers_shapes_without_changing_values():
    net = ready()
    before = weights.params_sha256(weights.arrays(net))
    zoo.finish(net, (1, 3, 32, 32), CPU)
    assert weights.params_sha256(weights.arrays(net)) == before
    values = weights.arrays(net)
    assert not any(values[n].any() for n in zoo.running_statistics(net) if n.endswith("running_mean"))


# ---------------------------------------------------------------- freezing, decay


@pytest.mark.parametrize("hybrid", [False, True])
def test_frozen_features_do_not_change(hybrid):
    net = ready(hybrid=hybrid, zero_gamma=False)
    trained_step(net, images(count=8))  # statistics other than the initial ones, and a traced graph
    zoo.freeze(net, "features")
    before = weights.arrays(net)
    trained_step(net, images(count=8))
    moved = {n for n, v in weights.arrays(net).items() if (v != before[n]).any()}
    assert moved == {"output.weight", "output.bias"}
    validated = net(images()).asnumpy()
    with mx.autograd.train_mode():
        np.testing.assert_allclose(net(images()).asnumpy(), validated, rtol=1e-5)


def test_freeze_none_changes_nothing():
    net = ready()
    zoo.freeze(net, "none")
    assert all(p.grad_req == "write" for n, p in weights.parameters(net).items() if "running" not in n)


def test_decay_excludes_normalisation_and_biases():
    for net in (ready("squeezenet1.1"), ready()):
        zoo.exclude_norm_bias_from_decay(net)
        for name, parameter in weights.parameters(net).items():
            if "running" not in name:
                assert parameter.wd_mult == (1.0 if name.endswith("weight") else 0.0), name


def test_excluded_gammas_without_gradient_do_not_change():
    values = []
    for exclude in (False, True):
        net = ready(zero_gamma=False)
        if exclude:
            zoo.exclude_norm_bias_from_decay(net)
        trainer = mx.gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.1, "wd": 0.1}, kvstore=None)
        with mx.autograd.record():
            loss = (net(images()) * 0).sum()
        loss.backward()
        trainer.step(1)
        values.append(weights.arrays(net)["features.1.gamma"])
    assert (values[0] < 1).all() and (values[1] == 1).all()


def test_running_statistics_are_named_and_sorted():
    found = zoo.running_statistics(ready())
    assert found[:2] == ["features.1.running_mean", "features.1.running_var"]
    assert len(found) == 2 * 15 and found == sorted(found)
