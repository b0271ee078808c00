"""Running statistics of batch normalisation: by virtual shard, their average, and those of the last batch."""

import re

import classic
import mxnet as mx
import numpy as np
import pytest
from composed import composed
from mxnet.gluon import nn

from mxscale.distributed.communicators import Local
from mxscale.models import symbol, weights, zoo
from mxscale.train.shard_statistics import ShardStatistics
from mxscale.util.errors import ConfigError


@pytest.fixture
def net():
    """Return one layer over 3 channels; its running mean is 0.9 x the old one + 0.1 x the batch's."""
    net = mx.gluon.nn.BatchNorm(in_channels=3)
    net.initialize()
    net.hybridize(static_alloc=True, static_shape=True)
    return net


def running(net):
    return [net.running_mean, net.running_var]


def train(net, level, spread=0.0):
    """Run a training pass over images of this mean and standard deviation in each channel."""
    images = mx.nd.array([[level - spread] * 3, [level + spread] * 3])
    with mx.autograd.record():
        out = net(images)
    out.backward()


def mean_of(net):
    return net.running_mean.data().asnumpy().tolist()


def test_each_shard_has_its_own_statistics(net):
    statistics = ShardStatistics(running(net), [0, 1], 2)
    for level in (10, 20):
        for shard in (0, 1):
            statistics.use(shard)
            train(net, level * (1 + shard))
    table = statistics.gather(Local())
    # 0.9 x (0.1 x 10) + 0.1 x 20 = 2.9, and twice that.
    assert table[:, :3] == pytest.approx(np.array([[2.9] * 3, [5.8] * 3]))
    assert table[:, 3:] == pytest.approx(np.full((2, 3), 0.81))  # the batches have variance 0


def test_two_shards_on_one_rank_equal_two_ranks(net):
    levels = {0: [3, 5, 7], 1: [2, 9, 4]}
    together = ShardStatistics(running(net), [0, 1], 2)
    for step in range(3):
        for shard in (0, 1):
            together.use(shard)
            train(net, levels[shard][step], spread=shard + 1)
    table = together.gather(Local())
    for shard in (0, 1):
        alone = mx.gluon.nn.BatchNorm(in_channels=3)
        alone.initialize()
        statistics = ShardStatistics(running(alone), [shard], 2)
        for step in range(3):
            statistics.use(shard)
            train(alone, levels[shard][step], spread=shard + 1)
        assert np.array_equal(statistics.gather(Local())[shard], table[shard])


def test_shards_of_other_ranks_are_zero_until_summed(net):
    statistics = ShardStatistics(running(net), [1], 3)
    table = statistics.gather(Local())
    assert table.shape == (3, 6) and table.dtype == np.float32
    assert table[1].tolist() == [0, 0, 0, 1, 1, 1]
    assert not table[0].any() and not table[2].any()


def test_average_leaves_shards_unchanged(net):
    statistics = ShardStatistics(running(net), [0, 1], 2)
    train(net, 10)
    statistics.use(1)
    train(net, 30)
    table = statistics.gather(Local())
    mean, variance = statistics.average(table)
    assert mean.asnumpy() == pytest.approx([2, 2, 2]) and variance.asnumpy() == pytest.approx([0.9] * 3)
    assert mean_of(net) == pytest.approx([3, 3, 3])
    statistics.use(0)
    assert mean_of(net) == pytest.approx([1, 1, 1])
    assert np.array_equal(statistics.gather(Local()), table)


def test_table_is_restored_bit_by_bit(net):
    table = np.random.RandomState(0).rand(4, 6).astype("float32")
    statistics = ShardStatistics(running(net), [1, 3], 4)
    statistics.restore(table)
    assert net.running_mean.data().asnumpy().tolist() == table[1, :3].tolist()
    statistics.use(3)
    assert net.running_var.data().asnumpy().tolist() == table[3, 3:].tolist()
    again = statistics.gather(Local())
    assert np.array_equal(again[[1, 3]], table[[1, 3]])


def test_network_without_batch_norm_has_an_empty_table():
    net = mx.gluon.nn.Dense(2, in_units=2)
    net.initialize()
    before = weights.params_sha256(weights.arrays(net))
    statistics = ShardStatistics([], [0, 1], 2)
    statistics.use(1)
    table = statistics.gather(Local())
    assert table.shape == (2, 0) and statistics.average(table) == []
    statistics.restore(table)
    assert weights.params_sha256(weights.arrays(net)) == before


def ready(name="small", side=16, what="last_batch", freeze="none"):
    net = zoo.build(name, 5)
    zoo.initialise(net, 1, mx.cpu(), True)
    zoo.finish(net, (1, 3, side, side), mx.cpu())
    zoo.freeze(net, freeze)
    zoo.choose_statistics(net, what)
    return net


def running_parameters(net):
    found = weights.parameters(net)
    return {name: found[name] for name in zoo.running_statistics(net)}


def passed(net, seed, side=16):
    """Return the running statistics after a training pass over images of this seed, without an update."""
    images = mx.nd.array(np.random.RandomState(seed).normal(seed, 1 + seed, size=(4, 3, side, side)))
    with mx.autograd.record():
        loss = net(images).sum()
    loss.backward()
    mx.nd.waitall()
    return {name: parameter.data().asnumpy() for name, parameter in running_parameters(net).items()}


def test_last_batch_statistics_equal_numpy():
    net = ready()
    inputs = {}  # layer -> its last input
    found = weights.parameters(net)
    for name, block in ((n.rpartition(".")[0], b) for n, b in layers(net)):
        block.register_forward_pre_hook(lambda _, given, name=name: inputs.__setitem__(name, given[0].asnumpy()))
    trainer = mx.gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.05}, kvstore=None)
    statistics = ShardStatistics([found[name] for name in running_parameters(net)], [0, 1], 2)
    draw, last = np.random.RandomState(0), {}
    for _ in range(10):
        for shard in (0, 1):
            statistics.use(shard)
            with mx.autograd.record():
                loss = (net(mx.nd.array(draw.normal(shard, 1 + shard, size=(4, 3, 16, 16)))) ** 2).mean()
            loss.backward()
            last[shard] = {name: array.astype(float) for name, array in inputs.items()}
        trainer.update(1)
    averaged = dict(zip(running_parameters(net), statistics.average(statistics.gather(Local()))))
    assert len(inputs) * 2 == len(averaged) == 30
    for layer in inputs:
        mean = np.mean([last[shard][layer].mean(axis=(0, 2, 3)) for shard in (0, 1)], axis=0)
        variance = np.mean([last[shard][layer].var(axis=(0, 2, 3)) for shard in (0, 1)], axis=0)
        np.testing.assert_allclose(averaged[f"{layer}.running_mean"].asnumpy(), mean, rtol=1e-6, atol=1e-6)
        np.testing.assert_allclose(averaged[f"{layer}.running_var"].asnumpy(), variance, rtol=1e-6, atol=1e-6)


def layers(net):
    """Return (structural name of its running mean, layer) of every batch norm layer."""
    by_parameter = {id(parameter): name for name, parameter in weights.parameters(net).items()}
    found = []
    net.apply(lambda b: found.append((by_parameter[id(b.running_mean)], b)) if isinstance(b, nn.BatchNorm) else None)
    return found


def test_last_batch_forgets_earlier_batches():
    for what, same in (("last_batch", True), ("moving", False)):
        net = ready(what=what)
        net.hybridize(static_alloc=True, static_shape=True)
        first, other, again = passed(net, 1), passed(net, 2), passed(net, 1)
        assert all((first[n] != other[n]).any() for n in first)
        assert all((first[n] == again[n]).all() for n in first) is same


def test_moving_statistics_are_the_default():
    config = composed("train")
    assert config.model.bn_statistics == "moving"
    after = passed(ready(what="moving"), 3)["features.1.running_mean"]
    assert after == pytest.approx(0.1 * passed(ready(), 3)["features.1.running_mean"], rel=1e-5, abs=1e-6)


FAMILIES = ["densenet121", "inceptionv3", "mobilenet0.25", "mobilenetv2_0.25", "resnet18_v1", "resnet18_v2",
            "resnet50_v1b", "small", "vgg11_bn"]  # fmt: skip


@pytest.mark.parametrize("name", FAMILIES)
def test_every_layer_of_a_family_forgets_earlier_batches(name):
    net = zoo.build(name, 5)
    zoo.choose_statistics(net, "last_batch")
    forgetful = {name for name, layer in layers(net) if layer._kwargs["momentum"] == 0}
    fixed = {"features.0.running_mean"} if name == "resnet18_v2" else set()  # the input's
    assert forgetful | fixed == {name for name, _ in layers(net)} and not forgetful & fixed


def test_frozen_layers_keep_their_statistics():
    net = ready("resnet18_v1", 32, freeze="stage2")
    before = {name: parameter.data().asnumpy() for name, parameter in running_parameters(net).items()}
    after = passed(net, 2, 32)
    moved = {name for name in before if (before[name] != after[name]).any()}
    assert moved == {name for name in before if re.match(r"features\.[67]\.", name)}


@pytest.mark.parametrize("name, freeze", [("alexnet", "none"), ("squeezenet1.1", "none"), ("small", "features")])
def test_last_batch_without_batch_norm_is_refused(name, freeze):
    wanted = f"^model.bn_statistics=last_batch: model.name={name} has no trained batch normalisation; use moving$"
    with pytest.raises(ConfigError, match=wanted):
        ready(name, 64, freeze=freeze)


@pytest.mark.parametrize("freeze", ["none", "stage2"])
def test_symbol_network_forgets_earlier_batches_unless_frozen(tmp_path, freeze):
    prefix = classic.save(classic.resnet(), tmp_path / "net")
    saved, arrays, _, _ = symbol.read(prefix, f"symbol:{prefix}")
    net = symbol.build(saved, 11)
    net.zoo_name = "symbol"
    zoo.initialise(net, 1, mx.cpu(), True)
    zoo.finish(net, (1, 3, 32, 32), mx.cpu())
    weights.fit(net, arrays, prefix, head="keep")
    zoo.freeze(net, freeze)
    zoo.choose_statistics(net, "last_batch")
    net.hybridize(static_alloc=True, static_shape=True)
    first, other, again = passed(net, 1, 32), passed(net, 2, 32), passed(net, 1, 32)
    assert all((first[n] == again[n]).all() for n in first)
    still = {n for n in first if (first[n] == other[n]).all()}
    frozen = ("features.bn_data.", "features.bn0.", "features.stage1_", "features.stage2_")
    assert still == ({n for n in first if n.startswith(frozen)} if freeze == "stage2" else set())
