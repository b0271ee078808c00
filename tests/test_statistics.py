"""BN's running statistics of each virtual shard, and their average."""

import mxnet as mx
import numpy as np
import pytest

from mxscale.distributed.communicators import Local
from mxscale.models import weights
from mxscale.train.shard_statistics import ShardStatistics


@pytest.fixture
def net():
    """One BN layer over 3 channels; its running mean is 0.9 x the old one + 0.1 x the batch's."""
    net = mx.gluon.nn.BatchNorm(in_channels=3)
    net.initialize()
    net.hybridize(static_alloc=True, static_shape=True)
    return net


def running(net):
    return [net.running_mean, net.running_var]


def train(net, level, spread=0.0):
    """A training pass over images of this mean in each channel (and this standard deviation)."""
    images = mx.nd.array([[level - spread] * 3, [level + spread] * 3])
    with mx.autograd.record():
        out = net(images)
    out.backward()


def mean_of(net):
    return net.running_mean.data().asnumpy().tolist()


def test_each_shard_goes_on_with_its_own(net):
    statistics = ShardStatistics(running(net), [0, 1], 2)
    for level in (10, 20):
        for shard in (0, 1):
            statistics.use(shard)
            train(net, level * (1 + shard))
    table = statistics.gather(Local())
    # 0.9 x (0.1 x 10) + 0.1 x 20 = 2.9, and twice that.
    assert table[:, :3] == pytest.approx(np.array([[2.9] * 3, [5.8] * 3]))
    assert table[:, 3:] == pytest.approx(np.full((2, 3), 0.81))  # the batches have no variance


def test_a_shard_does_not_see_what_another_has_done(net):
    statistics = ShardStatistics(running(net), [0, 1], 2)
    train(net, 10)
    statistics.use(1)
    assert mean_of(net) == [0, 0, 0]
    statistics.use(0)
    assert mean_of(net) == pytest.approx([1, 1, 1])
    statistics.use(0)
    assert mean_of(net) == pytest.approx([1, 1, 1])


def test_two_shards_on_one_rank_are_as_each_on_a_rank_of_its_own(net):
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


def test_the_average_is_of_all_shards_and_leaves_them_alone(net):
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


def test_a_table_is_restored_to_the_last_bit_in_other_ranks_too(net):
    table = np.random.RandomState(0).rand(4, 6).astype("float32")
    statistics = ShardStatistics(running(net), [1, 3], 4)
    statistics.restore(table)
    assert net.running_mean.data().asnumpy().tolist() == table[1, :3].tolist()
    statistics.use(3)
    assert net.running_var.data().asnumpy().tolist() == table[3, 3:].tolist()
    again = statistics.gather(Local())
    assert np.array_equal(again[[1, 3]], table[[1, 3]])


def test_a_network_without_such_layers_has_an_empty_table():
    net = mx.gluon.nn.Dense(2, in_units=2)
    net.initialize()
    before = weights.params_sha256(weights.arrays(net))
    statistics = ShardStatistics([], [0, 1], 2)
    statistics.use(1)
    table = statistics.gather(Local())
    assert table.shape == (2, 0) and statistics.average(table) == []
    statistics.restore(table)
    assert weights.params_sha256(weights.arrays(net)) == before
