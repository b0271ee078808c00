"""Gradients summed over ranks: the buckets here, the sums on real ranks."""

import json
import os
import subprocess
import sys
from pathlib import Path

import mxnet as mx
import numpy as np
import pytest

from mxscale.train.comm import Local
from mxscale.train.exchange import Exchange, fill, pairwise

ROOT = Path(__file__).resolve().parents[1]


def arrays(*sizes, dtype="float32"):
    return [mx.nd.array(np.arange(size) + 1, dtype=dtype) for size in sizes]


class AnotherAlike(Local):
    """A second rank whose arrays are the same as ours."""

    size = 2

    def __init__(self):
        self.sent = []

    def all_reduce(self, array, name):
        self.sent.append((name, array.dtype, array.size))
        array *= 2
        return array


# ---------------------------------------------------------------- buckets


def test_neighbours_share_a_bucket_up_to_its_size():
    grads = arrays(3, 3, 2, 5, 1)  # of 4 bytes: 12, 12, 8, 20, 4
    assert [[g.size for g in group] for group in fill(grads, 24)] == [[3, 3], [2], [5, 1]]
    assert [[g.size for g in group] for group in fill(grads, 1000)] == [[3, 3, 2, 5, 1]]


def test_a_gradient_larger_than_a_bucket_is_alone():
    assert [[g.size for g in group] for group in fill(arrays(1, 100, 1), 8)] == [[1], [100], [1]]


def test_each_type_has_its_buckets_and_the_order_is_kept():
    grads = arrays(2, 2) + arrays(2, dtype="float16") + arrays(4)
    groups = fill(grads, 1000)
    assert [[g.size for g in group] for group in groups] == [[2, 2], [2], [4]]
    assert [group[0].dtype for group in groups] == [np.float32, np.float16, np.float32]
    assert all(a is b for a, b in zip([g for group in groups for g in group], grads, strict=True))


def test_half_the_bytes_is_twice_the_numbers():
    assert [len(group) for group in fill(arrays(1, 1, 1, 1, dtype="float16"), 4)] == [2, 2]
    assert [len(group) for group in fill(arrays(1, 1, 1, 1), 4)] == [1, 1, 1, 1]


def test_no_gradients_are_no_buckets():
    assert fill([], 100) == []


def test_every_gradient_comes_back_in_its_own_place_and_shape():
    shapes = [(2, 3), (4,), (1, 2, 2, 2), (5,)]
    values = [np.random.RandomState(i).rand(*shape).astype("float32") for i, shape in enumerate(shapes)]
    grads = [mx.nd.array(value) for value in values]
    comm = AnotherAlike()
    exchange = Exchange(comm, grads, bucket_bytes=44)
    back = exchange(grads)
    assert comm.sent == [("grads.0", np.float32, 10), ("grads.1", np.float32, 8), ("grads.2", np.float32, 5)]
    for given, value, found in zip(grads, values, back, strict=True):
        assert found is given
        assert np.array_equal(found.asnumpy(), 2 * value)
    exchange(grads)
    assert np.array_equal(grads[2].asnumpy(), 4 * values[2])


def test_one_rank_exchanges_nothing():
    grads = arrays(3, 4)
    exchange = Exchange(Local(), grads, 100)
    assert exchange.buckets == []
    assert exchange(grads) is grads and grads[0].asnumpy().tolist() == [1, 2, 3]


# ---------------------------------------------------------------- alone


def test_alone_a_sum_is_the_value_and_a_vote_the_wish():
    comm = Local()
    assert comm.total([1, 2.5]).tolist() == [1.0, 2.5]
    assert (comm.vote(True)(), comm.vote(False)()) == (True, False)


# ---------------------------------------------------------------- real ranks

# Sums of random gradients, with ranks that arrive at different moments; then a real network's.
RANK = """
import json, sys, time
import mxnet as mx, numpy as np
from mxscale.config import Comm
from mxscale.nets import weights, zoo
from mxscale.train.comm import open_communicator
from mxscale.train.exchange import Exchange
from mxscale.train.statistics import ShardStatistics

comm = open_communicator(Comm())
pause = np.random.RandomState([int(time.time()), comm.rank])  # another at each start
said = {"rank": comm.rank, "size": comm.size, "local_rank": comm.local_rank}

def of_rank(rank, step):
    shapes = [(64, 32), (7,), (3, 5, 2), (1000,), (1,), (300, 3)]
    random = np.random.RandomState([rank, step])
    return [random.normal(size=s).astype("float16" if i == 1 else "float32") for i, s in enumerate(shapes)]

grads = [mx.nd.array(a, dtype=a.dtype) for a in of_rank(comm.rank, 0)]
exchange = Exchange(comm, grads, 6000)
worst, digests = 0.0, []
for step in range(20):
    for grad, value in zip(grads, of_rank(comm.rank, step)):
        grad[:] = mx.nd.array(value, dtype=value.dtype)
    time.sleep(pause.uniform(0, 0.02))
    for bucket in exchange.buckets:  # as in exchange(), each rank in its own time
        bucket.pack()
        mx.nd.waitall()
        time.sleep(pause.uniform(0, 0.003))
        comm.all_reduce(bucket.flat, bucket.name)
    for bucket in exchange.buckets:
        bucket.unpack()
    found = [g.asnumpy() for g in grads]
    wanted = [sum(of_rank(r, step)[i].astype("float64") for r in range(comm.size)) for i in range(len(found))]
    worst = max(worst, max(np.abs(f - w).max() / (1000 if f.dtype == "float16" else 1) for f, w in zip(found, wanted)))
    digests.append(weights.params_sha256({str(i): f for i, f in enumerate(found)}))
said["worst"], said["digest"] = float(worst), digests[-1]
said["all"] = weights.params_sha256({"d": np.frombuffer("".join(digests).encode(), dtype="uint8")})

net = zoo.build("small", 5)
zoo.initialise(net, 1 + comm.rank, mx.cpu(), False)
zoo.finish(net, (1, 3, 16, 16), mx.cpu())
parameters = weights.parameters(net)
before = weights.params_sha256(weights.arrays(net))
comm.broadcast(parameters)
said["broadcast"] = [before, weights.params_sha256(weights.arrays(net))]

net.hybridize(static_alloc=True, static_shape=True)
trained = [p for p in parameters.values() if p.grad_req != "null"]
images = mx.nd.array(np.random.RandomState(comm.rank).normal(size=(4, 3, 16, 16)))
grads = [p.grad() for p in trained]
exchange = Exchange(comm, grads, 2**16)
def backward():
    with mx.autograd.record():
        loss = (net(images) ** 2).sum()
    loss.backward()
backward()
own = [g.asnumpy().astype("float64") for g in grads]
wanted = [comm.total(g) for g in own]
backward()
exchange(grads)
scale = max(np.abs(w).max() for w in wanted)
said["network"] = float(max(np.abs(g.asnumpy() - w).max() for g, w in zip(grads, wanted)) / scale)

table = ShardStatistics([parameters[n] for n in zoo.running_statistics(net)], [comm.rank], comm.size).gather(comm)
said["table"] = [list(table.shape), len({row.tobytes() for row in table}), weights.params_sha256({"t": table})]
said["total"] = comm.total([[comm.rank + 1, 2**53 - 2 if comm.rank == 0 else 1]]).tolist()
said["vote"] = [comm.vote(comm.rank == comm.size - 1)(), comm.vote(False)()]
open(f"{sys.argv[1]}/{comm.rank}.json", "w").write(json.dumps(said))
comm.close()
"""


def on_ranks(ranks, folder):
    """What each rank said, in order of rank."""
    folder.mkdir()
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


def check(said):
    ranks = len(said)
    assert [one["rank"] for one in said] == [one["local_rank"] for one in said] == list(range(ranks))
    for one in said:
        assert one["size"] == ranks
        assert one["worst"] < 1e-5
        assert one["network"] < 1e-5
        assert one["total"] == [[ranks * (ranks + 1) / 2, 2**53 - 2 + ranks - 1]]
        assert one["vote"] == [True, False]
        assert one["table"][:2] == [[ranks, one["table"][0][1]], ranks]
    for same in ("digest", "all", "total", "table"):
        assert len({json.dumps(one[same]) for one in said}) == 1, same
    before, after = zip(*[one["broadcast"] for one in said], strict=True)
    assert len(set(before)) == ranks and set(after) == {before[0]}


@pytest.mark.slow
def test_two_ranks_get_numpys_sums_rank_0s_values_and_one_answer_to_a_vote(tmp_path):
    check(on_ranks(2, tmp_path / "two"))


@pytest.mark.slow
def test_three_ranks_that_arrive_at_random_get_the_same_bits_in_each_run(tmp_path):
    first, second = on_ranks(3, tmp_path / "first"), on_ranks(3, tmp_path / "second")
    check(first)
    assert [one["all"] for one in first] == [one["all"] for one in second]


def test_pairwise_sums_are_the_same_tree_however_the_items_are_dealt_out():
    items = [mx.nd.array(np.random.RandomState(i).randn(1000)) for i in range(8)]
    alone = pairwise(items).asnumpy()
    for ranks in (2, 4, 8):
        dealt = [pairwise(items[rank::ranks]) for rank in range(ranks)]
        assert np.array_equal(pairwise(dealt).asnumpy(), alone), f"{ranks} ranks"
    assert np.allclose(alone, sum(item.asnumpy() for item in items), atol=1e-5)


def test_a_rank_with_several_shards_sums_them():
    grads = [mx.nd.zeros((2, 3)), mx.nd.zeros(4)]
    exchange = Exchange(Local(), grads, bucket_bytes=2**20, shards=3)
    for shard in range(3):
        grads[0][:] = shard + 1
        grads[1][:] = 10 * shard
        exchange.shard_done()
    exchange(grads)
    assert grads[0].asnumpy().tolist() == [[6.0] * 3] * 2
    assert grads[1].asnumpy().tolist() == [30.0] * 4
