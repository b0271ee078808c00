"""Parameter servers, and the promise of every synchronous back end: the same shards give the same weights."""

import os
import re
import signal
import time

import mxnet as mx
import numpy as np
import psutil
import pytest
from composed import composed
from conftest import params, wait_for_step

from mxscale import cli as command_line
from mxscale.config import Comm, Config, ConfigError, Optimizer, Schedule, Sizes, from_dict, server_count, unsaved
from mxscale.data import loader
from mxscale.nets import weights, zoo
from mxscale.run import launch, rundir
from mxscale.run.launch import Placement
from mxscale.run.processes import Processes
from mxscale.train import prepare
from mxscale.train.schedule import ByUpdates, learning_rate
from mxscale.train.servers import optimizer_of

# ---------------------------------------------------------------- how many


@pytest.mark.parametrize("asked, ranks, count", [(1, 4, 1), (3, 2, 3), ("1x", 4, 4), ("2x", 3, 6), ("5", 1, 5)])
def test_servers_are_a_number_or_so_many_for_each_rank(asked, ranks, count):
    assert server_count(Comm(backend="parameter_server", servers=asked), ranks) == count
    assert server_count(Comm(backend="horovod"), ranks) == 0


# ---------------------------------------------------------------- the same weights as a plain loop

STEPS = 20
SHARDS = 4
CASE = [
    "data.train_per_class=24", "batch.per_device=4", f"data.shards={SHARDS}", "epochs=4", f"max_steps={STEPS}", "validate_every=4",
    "optimizer=sgd", "optimizer.lr=0.05", "optimizer.momentum=0.9", "optimizer.weight_decay=0.01", "schedule=cosine",
    "schedule.reference_batch=null", "schedule.warmup_epochs=0", "tracking=none", "launch.threads=1", "comm.bucket_mb=0.1",
]  # fmt: skip
LR, MOMENTUM, DECAY, BATCH, EPOCHS = 0.05, 0.9, 0.01, 4, 4


def config_of(data_cache, *overrides):
    return command_line.settle(composed("train", *CASE, f"data.cache={data_cache}", *overrides))


def prepared(path, config, ranks):
    """A run directory as the parent leaves it to its ranks."""
    run = rundir.RunDir(path)
    (path / "ranks").mkdir(parents=True)
    run.write("plan.json", {"pretrained": None, "hosts": []})
    run.write_config(config)
    prepare.prepare(run, config)
    run.write("plan.json", {**run.read("plan.json"), "sizes": {**run.read("plan.json")["sizes"], "ranks": ranks}})
    return run


@pytest.fixture(scope="module")
def plain(data_cache, tmp_path_factory):
    """The weights of one process that adds the shards' gradients up itself and does momentum SGD in numpy."""
    config = config_of(data_cache)
    plan = prepared(tmp_path_factory.mktemp("plain") / "run", config, 1).read("plan.json")
    net = zoo.build("small", plan["classes"])
    zoo.initialise(net, config.seed, mx.cpu(), config.model.zero_gamma, fitted=False)
    zoo.finish(net, (1, 3, 32, 32), mx.cpu())
    trained = {name: p for name, p in weights.parameters(net).items() if p.grad_req != "null"}
    values = {name: p.data().asnumpy().astype("float64") for name, p in trained.items()}
    speed = {name: np.zeros_like(value) for name, value in values.items()}
    steps_per_epoch = plan["sizes"]["train_images"] // (SHARDS * BATCH)
    records = loader.Records(**plan["splits"]["train"])
    shards = list(range(SHARDS))
    batches = loader.TrainData(records, config.data, BATCH, shards, SHARDS, 1, steps_per_epoch, config.seed, mx.cpu())
    objective = mx.gluon.loss.SoftmaxCrossEntropyLoss()
    for step in range(STEPS):
        total = {name: np.zeros_like(value) for name, value in values.items()}
        for micro in batches.step(step):
            with mx.autograd.record():
                loss = objective(net(micro.images), micro.labels)
            loss.backward()
            for name, parameter in trained.items():
                total[name] += parameter.grad().asnumpy()
        lr = LR / 2 * (1 + np.cos(np.pi * step / (EPOCHS * steps_per_epoch)))
        for name, parameter in trained.items():
            decay = DECAY if name.endswith(".weight") else 0.0
            speed[name] = MOMENTUM * speed[name] - lr * (total[name] / (SHARDS * BATCH) + decay * values[name])
            values[name] += speed[name]
            parameter.set_data(mx.nd.array(values[name]))
    return values


# The ranks: the runs that they are given, one after the other, in the same processes.
RANKS = """
import os, sys
import mxnet as mx
from mxscale.run.rundir import RunDir
from mxscale.train import engine
from mxscale.train.comm import open_communicator

for path in sys.argv[1:]:
    run = RunDir(path)
    comm = open_communicator(run.config().comm)
    engine.train(run, run.config(), run.read("plan.json"), comm, attempt=1)
if "servers" in path:  # what a bucket may hold besides: half precision, few numbers, more than are split over servers
    for name, dtype, size in [("half", "float16", 7), ("few", "float32", 3), ("many", "float32", 100_001)]:
        array = mx.nd.arange(size, dtype=dtype) % 97 + comm.rank
        for turn in range(2):  # sums do not pile up on the servers
            given = array.copy()
            comm.all_reduce([given], name)
            wanted = comm.size * (mx.nd.arange(size, dtype=dtype) % 97) + sum(range(comm.size))
            assert (given == wanted).asnumpy().all(), (name, given, wanted)
comm.close()
sys.stdout.flush()
os._exit(0)
"""


def started(script, folder, ranks, *runs):
    """Start `script` as ranks, with the servers of the last of `runs`; wait for the end of all."""
    (folder / "ranks.py").write_text(script)
    config = runs[-1].config()
    placed = Placement(ranks, 2, scheduler={"address": "127.0.0.1", "port": free_port()})
    first, *serving = launch.commands(config, str(runs[-1]), 1, placed, os.environ)
    argv = [*first.argv[: first.argv.index("-m")], str(folder / "ranks.py"), *map(str, runs)]
    with open(folder / "launch.log", "wb") as log:
        processes = Processes([launch.replace(first, argv=argv), *serving], log)
        try:
            deadline = time.monotonic() + 120
            while processes.ended() is None and time.monotonic() < deadline:
                assert not processes.lost(), log_of(folder)
                time.sleep(0.05)
            assert processes.ended() == 0, log_of(folder)
            left = [process.wait(10) for process in processes.running]  # servers end by themselves
        finally:
            processes.stop()
    assert set(left) == {0}, left


def log_of(folder):
    return "\n".join(path.read_text() for path in [folder / "launch.log", *folder.glob("*.log")])


def free_port():
    from mxscale.run.hosts import meeting_point

    return meeting_point([])["port"]


def distance(run, plain):
    """The largest difference of a trained weight."""
    found = params(run)
    return max(np.abs(found[name] - value).max() for name, value in plain.items())


@pytest.mark.slow
@pytest.mark.parametrize("ranks, servers", [(1, 0), (2, 1), (4, 2)])
def test_after_20_steps_sums_by_horovod_and_by_servers_are_a_plain_loops(
    ranks, servers, plain, data_cache, tmp_path
):
    runs = [prepared(tmp_path / "horovod", config_of(data_cache, "comm=horovod"), ranks)]
    if servers:
        config = config_of(data_cache, "comm=parameter_server", f"comm.servers={servers}")
        runs.append(prepared(tmp_path / "servers", config, ranks))
    started(RANKS, tmp_path, ranks, *runs)
    assert [distance(run, plain) < 1e-5 for run in runs] == [True] * len(runs), [distance(run, plain) for run in runs]


@pytest.mark.slow
@pytest.mark.parametrize("ranks, servers", [(2, 2), (4, 1)])
def test_after_20_steps_updates_on_servers_are_a_plain_loops(ranks, servers, plain, data_cache, tmp_path, monkeypatch):
    monkeypatch.setenv("MXNET_KVSTORE_BIGARRAY_BOUND", "1000")  # so that a part of the arrays is split
    config = config_of(data_cache, "comm=parameter_server", "comm.update_on=server", f"comm.servers={servers}")
    run = prepared(tmp_path / "update", config, ranks)
    started(RANKS, tmp_path, ranks, run)
    assert distance(run, plain) < 1e-5
