"""The gradient exchange: buckets in this process, sums on real ranks."""

import json
import os
import subprocess
import sys
from pathlib import Path

import mxnet as mx
import numpy as np
import pytest
from repository import ROOT

from mxscale.config.schema import Comm
from mxscale.config.sizes import bucket_bytes
from mxscale.distributed.communicators import Local
from mxscale.distributed.exchange import fill, make_exchange, pairwise
from mxscale.models import weights, zoo
from mxscale.train import builders


def arrays(*sizes, dtype="float32"):
    return [mx.nd.array(np.arange(size) + 1, dtype=dtype) for size in sizes]


class TwoEqualRanks(Local):
    """Two ranks with the same arrays, one of which is simulated."""

    size = 2

    def __init__(self):
        self.sent = []

    def all_reduce(self, arrays, name):
        for array in arrays:
            self.sent.append((name, array.dtype, array.size))
            array *= 2


def exchange_and_gradients(comm, like, bucket_bytes=2**20, shards=1, images=1, micro_batches=1, **options):
    """Return the exchange and the arrays of its gradients, initialised with the values of `like`."""
    exchange = make_exchange(
        comm, [like], Comm(bucket_mb=bucket_bytes / 2**20, **options), images, shards * micro_batches
    )
    return exchange, exchange.replicas[0]


def sizes_of(groups, grads):
    return [[grads[place].size for place in group] for group in groups]


# ---------------------------------------------------------------- buckets


def test_neighbours_share_a_bucket_from_the_last_layer_on():
    grads = arrays(1, 5, 2, 3, 3)  # of 4 bytes: 4, 20, 8, 12, 12
    assert sizes_of(fill(grads, 24), grads) == [[3, 3], [2], [1, 5]]
    assert sizes_of(fill(grads, 1000), grads) == [[1, 5, 2, 3, 3]]
    assert fill([], 1000) == []
    grads = arrays(1, 100, 1)  # one is larger than a bucket
    assert sizes_of(fill(grads, 8), grads) == [[1], [100], [1]]


@pytest.mark.parametrize("name", ["mobilenet0.25", "squeezenet1.0"])
def test_gradients_are_in_the_order_of_the_forward_pass(name):
    """Not in that of the names, in which features.10 precedes features.9."""
    net = zoo.build(name, 5)
    names = {parameter: structural for structural, parameter in net._collect_params_with_prefix().items()}
    by_name = {parameter.name: parameter for parameter in names}
    arguments = net(mx.sym.var("data")).list_arguments()
    forward = [names[by_name[argument]] for argument in arguments if argument in by_name]
    assert [names[parameter] for parameter in weights.trained_in_forward_order(net)] == forward != sorted(forward)


def test_each_type_has_its_own_buckets():
    grads = arrays(2, 2) + arrays(2, dtype="float16") + arrays(4)
    assert fill(grads, 1000) == [[2], [0, 1, 3]]
    assert fill(grads, 20) == [[3], [2], [0, 1]]
    assert [len(group) for group in fill(arrays(1, 1, 1, 1, dtype="float16"), 4)] == [2, 2]  # twice as many


def test_the_default_bucket_is_a_share_of_all_gradients():
    mib = 2**20
    assert [bucket_bytes(Comm(), total * mib) for total in (0.5, 16, 1600)] == [mib / 4, 4 * mib, 32 * mib]
    assert bucket_bytes(Comm(double_buffering=True), 16 * mib) == 8 * mib
    assert bucket_bytes(Comm(bucket_mb=3.0), 16 * mib) == 3 * mib


def test_sums_keep_position_and_shape_of_gradients():
    shapes = [(2, 3), (4,), (1, 2, 2, 2), (5,)]
    values = [np.random.RandomState(i).rand(*shape).astype("float32") for i, shape in enumerate(shapes)]
    comm = TwoEqualRanks()
    exchange, grads = exchange_and_gradients(comm, [mx.nd.array(value) for value in values], bucket_bytes=44)
    assert exchange()
    assert comm.sent == [("grads.0", np.float32, 5), ("grads.1", np.float32, 8), ("grads.2", np.float32, 10)]
    for grad, value in zip(grads, values, strict=True):
        assert np.array_equal(grad.asnumpy(), 2 * value)
    exchange()
    assert np.array_equal(grads[2].asnumpy(), 4 * values[2])


def test_one_rank_exchanges_nothing():
    exchange, grads = exchange_and_gradients(Local(), arrays(3, 4))
    assert exchange.buckets == []
    assert exchange() and grads[0].asnumpy().tolist() == [1, 2, 3]


@pytest.mark.parametrize("options", [{}, {"compression": "fp16"}, {"double_buffering": True}])
def test_backward_writes_or_adds_into_the_buckets(options):
    for grad_req, times in (("write", 1), ("add", 2)):
        net = mx.gluon.nn.Dense(3, in_units=4)
        net.initialize(mx.init.One())
        trained = list(net.collect_params().values())
        for parameter in trained:
            parameter.grad_req = grad_req
        exchange = make_exchange(TwoEqualRanks(), builders.gradients(trained, [mx.cpu()]), Comm(**options))
        replicas = exchange.replicas
        builders.move_gradients(trained, replicas)
        for _ in range(2):
            with mx.autograd.record():
                total = net(mx.nd.ones((2, 4))).sum()
            total.backward()
        assert np.array_equal(replicas[0][0].asnumpy(), np.full((3, 4), 2.0 * times))
        exchange(), exchange()
        sums = 2 if options.get("double_buffering") else 4  # the first sum is applied late
        assert np.array_equal(trained[0].grad().asnumpy(), np.full((3, 4), 2.0 * times * sums))
        assert np.array_equal(trained[1].grad().asnumpy(), np.full(3, 2.0 * times * sums))


# ---------------------------------------------------------------- compression=fp16


def test_fp16_sends_scaled_float16_and_returns_float32():
    values = np.random.RandomState(0).normal(size=1000).astype("float32") * 3000
    comm = TwoEqualRanks()
    exchange, grads = exchange_and_gradients(comm, [mx.nd.array(values)], images=100, compression="fp16")
    exchange()
    assert comm.sent == [("grads.0", np.float16, 1000)]
    as_sent = (values / 128).astype("float16") * np.float16(2)  # 128: the power of two nearest to 100
    assert np.array_equal(grads[0].asnumpy(), as_sent.astype("float32") * 128)
    assert grads[0].dtype == np.float32


def test_fp16_sums_may_exceed_the_range_of_float16():
    exchange, grads = exchange_and_gradients(
        TwoEqualRanks(), [mx.nd.array([1e6, -2e6])], images=256, compression="fp16"
    )
    exchange()
    assert grads[0].asnumpy() == pytest.approx(np.array([2e6, -4e6]), rel=1e-3)


# ---------------------------------------------------------------- float16 networks


class Emulated(Local):
    """All ranks in this process: after `send` of each rank's exchange, `add` sums in the order of ranks."""

    def __init__(self, size):
        self.size, self.sent = size, {}

    def all_reduce(self, arrays, name):
        self.sent.setdefault(name, []).append(arrays[0])

    def add(self):
        for arrays in self.sent.values():
            total = arrays[0].copy()
            for array in arrays[1:]:
                total += array
            for array in arrays:
                total.copyto(array)


def sums(exchange):
    return [(grad.asnumpy().astype("float64") * exchange.divisor).tolist() for grad in exchange.replicas[0]]


def half_means(values, compression):
    """Return what rank 0 has after the exchange of float16 values (ranks, n), as float64, and the exchange."""
    comm, exchanges = Emulated(len(values)), []
    for own in values:
        like = [mx.nd.array(own, dtype="float16"), mx.nd.ones(2)]  # normalisation layers keep float32
        exchanges.append(exchange_and_gradients(comm, like, images=32, compression=compression)[0])
        exchanges[-1].send()
    comm.add()
    exchanges[0].receive()
    half, single = exchanges[0].replicas[0]
    assert half.dtype == np.float16 and np.array_equal(single.asnumpy() * exchanges[0].divisor, [len(values)] * 2)
    return half.asnumpy().astype("float64"), exchanges[0]


@pytest.mark.parametrize("compression", ["none", "fp16"])
@pytest.mark.parametrize("ranks", [2, 3, 64])
def test_sums_of_large_float16_gradients_are_finite(ranks, compression):
    for value in (40_000, -65_504):
        means, exchange = half_means(np.full((ranks, 5), value, "float16"), compression)
        assert means * exchange.divisor == pytest.approx(np.full(5, float(value) * ranks), rel=2**-11 * ranks)


@pytest.mark.parametrize("scale", [1e4, 1.0, 1e-4, 1e-6])  # at 1e-6 float16 has steps of 6 %
@pytest.mark.parametrize("ranks", [2, 8, 64])
def test_means_of_float16_gradients_are_rounded_once(ranks, scale):
    values = np.clip(np.random.RandomState(ranks).normal(size=(ranks, 1000)) * scale, -6e4, 6e4).astype("float16")
    exact = values.astype("float64").sum(axis=0) / ranks
    means, exchange = half_means(values, "none")
    assert exchange.divisor == ranks
    half_a_place = np.maximum(np.abs(exact) * 2**-11, 2**-25)
    assert (np.abs(means - exact) <= half_a_place * 1.001).all()


def test_compressed_means_of_float16_gradients_are_rounded_by_each_rank():
    values = np.random.RandomState(0).normal(size=(64, 1000)).astype("float16")
    exact = values.astype("float64").mean(axis=0)
    means, exchange = half_means(values, "fp16")
    assert {array.dtype for wire in exchange.wires for array in wire.arrays} == {np.float16}
    assert 2e-4 < np.linalg.norm(means - exact) / np.linalg.norm(exact) < 4e-3


@pytest.mark.parametrize("passes", [{"shards": 4}, {"micro_batches": 4}, {"shards": 2, "micro_batches": 2}])
def test_passes_of_a_float16_network_add_up_in_float32(passes):
    like = [mx.nd.zeros(2, dtype="float16")]
    exchange, grads = exchange_and_gradients(Local(), like, **passes)
    for number in range(4):
        grads[0][:] = mx.nd.array([40_000, 2**-24 * number], dtype="float16")  # the smallest float16 is 2**-24
        exchange.pass_done(micro_batch=number % passes.get("micro_batches", 1))
    exchange()
    assert sums(exchange) == [[160_000, 8 * 2**-24]]  # of 6, in steps of 4


def test_float16_sums_under_way_resume_on_other_ranks():
    like = [mx.nd.array([40_000, 3], dtype="float16"), mx.nd.array([5])]
    before, _ = exchange_and_gradients(TwoEqualRanks(), like, double_buffering=True)
    before()
    state = before.state()
    assert {name: array.asnumpy().tolist() for name, array in state.items()} == {"0": [80_000, 6], "1": [10]}
    after, _ = exchange_and_gradients(Emulated(64), like, double_buffering=True)
    after.restore(state)
    assert after() and after.divisor == 64 and sums(after) == [[80_000, 6], [10]]


# ---------------------------------------------------------------- double buffering


def quadratic(weight, step):
    """Return a gradient that depends on weight and step, in numpy's float32."""
    return (weight - np.float32(step)) * np.float32(0.25)


LR = np.float32(0.5)


def stale_sgd(weight, steps):
    """Return the reference w(t+1) = w(t) - lr g(t-1) with g(t) computed at w(t); the first step updates nothing."""
    before, path = None, []
    for step in range(steps):
        gradient = quadratic(weight, step) + quadratic(weight, step)  # two equal ranks
        if before is not None:
            weight = weight - LR * before
        before = gradient
        path.append(weight)
    return path


def with_double_buffering(weight, exchange, grads, steps):
    path = []
    for step in steps:
        grads[0][:] = mx.nd.array(quadratic(weight, step))
        if exchange():
            weight = weight - LR * grads[0].asnumpy()
        path.append(weight)
    return path


@pytest.mark.parametrize("overlap", [True, False])
def test_double_buffering_equals_one_step_stale_sgd(overlap):
    start = np.random.RandomState(3).normal(size=7).astype("float32")
    exchange, grads = exchange_and_gradients(TwoEqualRanks(), [mx.nd.zeros(7)], double_buffering=True, overlap=overlap)
    found = with_double_buffering(start, exchange, grads, range(20))
    assert np.array_equal(found, stale_sgd(start, 20))


@pytest.mark.parametrize("compression", ["none", "fp16"])
def test_double_buffering_resumes_from_a_checkpoint_identically(compression):
    options = {"double_buffering": True, "compression": compression, "images": 8}
    start, like = np.random.RandomState(4).normal(size=7).astype("float32"), [mx.nd.zeros(7)]
    exchange, grads = exchange_and_gradients(TwoEqualRanks(), like, **options)
    uninterrupted = with_double_buffering(start, exchange, grads, range(20))

    exchange, grads = exchange_and_gradients(TwoEqualRanks(), like, **options)
    half = with_double_buffering(start, exchange, grads, range(9))
    state = exchange.state()
    resumed, grads = exchange_and_gradients(TwoEqualRanks(), like, bucket_bytes=8, **options)
    resumed.restore(state)
    assert np.array_equal(half + with_double_buffering(half[-1], resumed, grads, range(9, 20)), uninterrupted)


def test_double_buffering_delays_one_rank_too():
    exchange, grads = exchange_and_gradients(Local(), arrays(2), double_buffering=True)
    assert exchange.state() == {}
    exchange.restore({})
    assert not exchange()
    grads[0][:] = 7
    assert exchange() and grads[0].asnumpy().tolist() == [1, 2]


def test_double_buffering_sums_shards_of_the_same_step():
    exchange, grads = exchange_and_gradients(Local(), [mx.nd.zeros(2)], shards=2, double_buffering=True)
    sums = []
    for step in range(3):
        for shard in range(2):
            grads[0][:] = 10 * step + shard
            exchange.pass_done()
        if exchange():
            sums.append(grads[0].asnumpy().tolist())
    assert sums == [[1, 1], [21, 21]]


# ---------------------------------------------------------------- real ranks

RANK = """
import json, os, sys
import mxnet as mx, numpy as np
from mxscale.config.schema import Comm
from mxscale.models import weights, zoo
from mxscale.distributed.stop_consensus import StopConsensus
from mxscale.distributed.communicators import open_communicator
from mxscale.distributed.exchange import make_exchange
from mxscale.train.shard_statistics import ShardStatistics

comm = open_communicator(Comm(), int(os.environ["HOROVOD_SIZE"]))
results = {"rank": comm.rank, "size": comm.size, "local_rank": comm.local_rank}

def of_rank(rank, step):
    shapes = [(64, 32), (7,), (3, 5, 2), (1000,), (1,), (300, 3)]
    random = np.random.RandomState([rank, step])
    return [random.normal(size=s).astype("float16" if i == 1 else "float32") for i, s in enumerate(shapes)]

for compression in ("none", "fp16"):
    grads = [mx.nd.array(a, dtype=a.dtype) for a in of_rank(comm.rank, 0)]
    exchange = make_exchange(comm, [grads], Comm(bucket_mb=6000 / 2**20, compression=compression), 4)
    [grads], worst = exchange.replicas, 0.0
    for step in range(20):
        for grad, value in zip(grads, of_rank(comm.rank, step)):
            grad[:] = mx.nd.array(value, dtype=value.dtype)
        exchange()
        found = [g.asnumpy() for g in grads]
        for i, array in enumerate(found):
            wanted = sum(of_rank(rank, step)[i].astype("float64") for rank in range(comm.size))
            array = array.astype("float64") * exchange.divisor
            worst = max(worst, np.abs(array - wanted).max() / (1000 if i == 1 else 1))
    results[compression] = [float(worst), weights.params_sha256({str(i): f for i, f in enumerate(found)})]

net = zoo.build("small", 5)
zoo.initialise(net, 1 + comm.rank, mx.cpu(), False)
zoo.finish(net, (1, 3, 16, 16), mx.cpu())
parameters = weights.parameters(net)
before = weights.params_sha256(weights.arrays(net))
comm.broadcast(parameters)
results["broadcast"] = [before, weights.params_sha256(weights.arrays(net))]

running = [parameters[name] for name in zoo.running_statistics(net)]
for parameter in running:
    parameter.set_data(parameter.data() + comm.rank)
table = ShardStatistics(running, [comm.rank], comm.size).gather(comm)
results["table"] = [list(table.shape), len({row.tobytes() for row in table}), weights.params_sha256({"t": table})]
results["total"] = comm.total([[comm.rank + 1, 2**53 - 2 if comm.rank == 0 else 1]]).tolist()
results["agree"] = [comm.agree(b"same"), comm.agree(bytes([comm.rank]))]
first, second = (comm.total_later([comm.rank, 1], name) for name in ("one", "other"))
results["later"] = [second().tolist(), first().tolist()]
results["stop"] = []
consensus = StopConsensus(comm, lambda: comm.rank > 0 or step == 2)  # rank 0's request alone counts
for step in range(3):
    consensus.propose(step)
    results["stop"].append(consensus.agreed())
open(f"{sys.argv[1]}/{comm.rank}.json", "w").write(json.dumps(results))
comm.close()
"""


def on_ranks(ranks, folder):
    """Return the results of each rank, in order."""
    (folder / "rank.py").write_text(RANK)
    bin_folder = Path(sys.executable).parent
    env = {
        "PATH": f"{bin_folder}:{os.environ['PATH']}",
        "HOME": os.environ.get("HOME", "/"),
        "PYTHONPATH": str(ROOT),
        "HOROVOD_FUSION_THRESHOLD": "0",
        "OMP_NUM_THREADS": "1",
    }
    launcher = ["horovodrun", "--gloo", "-np", str(ranks), "-H", f"localhost:{ranks}"]
    done = subprocess.run(
        [*launcher, sys.executable, str(folder / "rank.py"), str(folder)],
        env=env, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(ranks)]


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [2, 3])
def test_ranks_get_correct_sums_broadcasts_and_stops(tmp_path, ranks):
    results = on_ranks(ranks, tmp_path)
    assert [one["rank"] for one in results] == [one["local_rank"] for one in results] == list(range(ranks))
    for one in results:
        assert one["size"] == ranks
        assert one["none"][0] < 1e-5 and one["fp16"][0] < 1e-2
        assert one["total"] == [[ranks * (ranks + 1) / 2, 2**53 - 2 + ranks - 1]]
        assert one["agree"] == [True, False]
        assert one["stop"] == [False, False, True]
        assert one["later"] == [[ranks * (ranks - 1) / 2, ranks]] * 2
        assert one["table"][:2] == [[ranks, one["table"][0][1]], ranks]
    for same in ("none", "fp16", "total", "table"):
        assert len({json.dumps(one[same]) for one in results}) == 1, same
    before, after = zip(*[one["broadcast"] for one in results], strict=True)
    assert len(set(before)) == ranks and set(after) == {before[0]}


def test_pairwise_sums_ignore_the_number_of_ranks():
    items = [mx.nd.array(np.random.RandomState(i).randn(1000)) for i in range(8)]
    alone = pairwise(items).asnumpy()
    for ranks in (2, 4, 8):
        per_rank = [pairwise(items[rank::ranks]) for rank in range(ranks)]
        assert np.array_equal(pairwise(per_rank).asnumpy(), alone), f"{ranks} ranks"
    assert np.allclose(alone, sum(item.asnumpy() for item in items), atol=1e-5)
