"""Several devices in one process: comm=device over CPU contexts, and its validation."""

import itertools

import in_process
import mxnet as mx
import numpy as np
import pytest

from mxscale.config.schema import Comm, from_dict
from mxscale.config.schema import Optimizer as OptimizerConfig
from mxscale.config.validation import validate
from mxscale.distributed import backend_checks
from mxscale.distributed.communicators import Local, OneProcess, open_communicator
from mxscale.distributed.exchange import make_exchange
from mxscale.environment.placement import Placement
from mxscale.launcher import commands
from mxscale.models import weights
from mxscale.train import builders
from mxscale.train.metrics import Accumulator
from mxscale.train.optim import states
from mxscale.train.optim.optimizer import make_trainer
from mxscale.train.shard_statistics import ShardStatistics
from mxscale.util.errors import ConfigError

TWO = [mx.cpu(1), mx.cpu(2)]  # neither is the default context, like GPUs


class OtherDevices(OneProcess):
    """As on GPUs: none of the devices is MXNet's default device."""

    def devices(self, kind):
        return [mx.cpu(number + 1) for number in range(self.count)]


def random_replicas(devices, dtype="float32", shapes=((3, 4), (5,), (1000,))):
    values = [[np.random.RandomState([i, n]).normal(size=shape).astype(dtype) for n, shape in enumerate(shapes)]
              for i in range(len(devices))]  # fmt: skip
    replicas = [[mx.nd.array(v, ctx=device, dtype=dtype) for v in own] for device, own in zip(devices, values)]
    return replicas, values


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("count", [2, 3])
@pytest.mark.parametrize("backend", ["device", "kvstore_local"])
def test_every_device_gets_the_sum(backend, count, dtype):
    comm = OtherDevices(Comm(backend=backend), count)
    replicas, values = random_replicas(comm.devices("cpu"), dtype)
    exchange = make_exchange(comm, replicas, Comm(bucket_mb=2**-10))
    assert len(exchange.buckets) > 1 and exchange()
    for place in range(3):
        wanted = sum(own[place].astype("float64") for own in values)
        for replica in exchange.replicas:
            found = replica[place].asnumpy().astype("float64") * exchange.divisor
            assert found == pytest.approx(wanted, abs=1e-6 if dtype == "float32" else 1e-2)


def test_ordered_sums_equal_those_of_one_device():
    comm = OtherDevices(Comm(backend="device"), 4)
    replicas, values = random_replicas(comm.devices("cpu"))
    together = make_exchange(comm, replicas, Comm(), ordered=True)
    together()
    exchange = make_exchange(Local(), [[mx.nd.zeros(v.shape) for v in values[0]]], Comm(), 4, passes=4)
    [alone] = exchange.replicas
    for own in values:
        for grad, value in zip(alone, own):
            grad[:] = mx.nd.array(value)
        exchange.pass_done()
    exchange()
    for replica in together.replicas:
        assert all(np.array_equal(a.asnumpy(), b.asnumpy()) for a, b in zip(replica, alone))


def test_float16_and_double_buffering_between_devices():
    comm = OtherDevices(Comm(backend="device"), 2)
    replicas, values = random_replicas(TWO)
    exchange = make_exchange(comm, replicas, Comm(compression="fp16", double_buffering=True))
    assert not exchange()
    for grad in itertools.chain(*exchange.replicas):
        grad[:] = 7
    assert exchange()
    for replica in exchange.replicas:
        for place, grad in enumerate(replica):
            assert grad.asnumpy() == pytest.approx(values[0][place] + values[1][place], abs=5e-3)


def test_the_accumulator_sums_over_devices():
    sums = Accumulator(TWO)
    for device, loss in zip(TWO, (1.0, 2.0)):
        sums.add(mx.nd.full(3, loss, ctx=device), mx.nd.array([[1, 0]] * 3, ctx=device), mx.nd.zeros(3, ctx=device))
    assert sums.take()().tolist() == [9.0, 6.0, 6.0] and sums.take()().tolist() == [0.0, 0.0, 0.0]


def bn(devices):
    net = mx.gluon.nn.BatchNorm(in_channels=3)
    net.initialize(ctx=devices)
    net.hybridize(static_alloc=True, static_shape=True)
    return net


def statistics_after_three_steps(devices):
    """Return network, statistics and their table for four shards with different images."""
    net = bn(devices)
    statistics = ShardStatistics([net.running_mean, net.running_var], range(4), 4)
    for step in range(3):
        for shard in range(4):
            statistics.use(shard)
            images = np.random.RandomState([step, shard]).normal(shard, 1 + shard, (8, 3))
            with mx.autograd.record():
                out = net(mx.nd.array(images, ctx=devices[shard % len(devices)]))
            out.backward()
    return net, statistics, statistics.gather(Local())


def test_running_statistics_of_shards_do_not_depend_on_devices():
    tables = [statistics_after_three_steps([mx.cpu(i) for i in range(count)])[2] for count in (1, 2, 4)]
    assert len(np.unique(tables[0], axis=0)) == 4
    assert np.array_equal(tables[0], tables[1]) and np.array_equal(tables[0], tables[2])


def test_restored_statistics_are_on_the_shards_device():
    table = np.random.RandomState(0).rand(4, 6).astype("float32")
    net, statistics, _ = statistics_after_three_steps(TWO)  # they end at shards 2 and 3
    statistics.restore(table)
    means = [replica.asnumpy().tolist() for replica in net.running_mean.list_data()]
    assert means == table[2:, :3].tolist()
    assert np.array_equal(statistics.gather(Local()), table)


def updated(devices, state=None, steps=1):
    """Return trainer and weights after some steps of Adam, whose size depends on their number."""
    parameter = mx.gluon.Parameter("weight", shape=(2,))
    parameter.initialize(mx.init.One(), ctx=devices)
    trainer = make_trainer([parameter], OptimizerConfig(name="adam", momentum=None), multi_precision=False)
    if state:
        state.restore(trainer)
    for step in range(steps):
        for device in devices:
            with mx.autograd.record():
                loss = parameter.data(device) * (step + 1)
            loss.backward()
        trainer.update(1)
    return trainer, [replica.asnumpy().tolist() for replica in parameter.list_data()]


def test_adam_resumes_identically_on_more_devices(tmp_path):
    trainer, _ = updated([mx.cpu(2)], steps=5)
    text, arrays = states.encoded(states.of_trainer(trainer))
    (tmp_path / "optimizer.json").write_text(text)
    weights.save(tmp_path / "optimizer", arrays)
    saved = weights.load(tmp_path / "optimizer")
    assert {array.context for array in saved.values()} == {mx.cpu(0)}  # not that of a GPU
    state = states.read(tmp_path / "optimizer.json", saved)
    (alone,) = updated([mx.cpu(0)], state, steps=2)[1]
    assert updated([mx.cpu(0), mx.cpu(1), mx.cpu(2)], state, steps=2)[1] == [alone] * 3
    assert updated([mx.cpu(3)], state, steps=2)[1] == [alone]


TINY = ["data.train_per_class=24", "batch.per_device=4", "max_steps=6", "data.image_size=16", "log_every=3"]


@pytest.fixture
def trained(tmp_path, data_cache, monkeypatch):
    """trained(name, ...) -> rank 0's status and the weights on each device. The same name again resumes the run."""
    made = []
    build = builders.network
    monkeypatch.setattr(builders, "network", lambda *given: made.append(build(*given)) or made[-1])

    def train(name, *overrides, stop=False, comm=None):
        run = in_process.prepared(tmp_path / name, f"data.cache={data_cache}", *TINY, *overrides)
        run.stop_file.write_text("a test") if stop else run.stop_file.unlink(missing_ok=True)
        comm = comm or open_communicator(run.config().comm, run.plan().sizes.ranks)
        status = in_process.trained(run, comm=comm)
        parameters = weights.parameters(made[-1])
        count = len(parameters["output.weight"].list_ctx())
        return status, [{n: p.list_data()[i].asnumpy() for n, p in parameters.items()} for i in range(count)]

    return train


def without_running(replica):
    return {name: array for name, array in replica.items() if "running" not in name}


@pytest.mark.slow
def test_same_bytes_on_any_number_of_devices(trained):
    shards = ["data.shards=4", "batch.per_device=2"]
    alone, _ = trained("alone", *shards, "comm=local")
    for comm, count in (("device", 2), ("device", 4), ("kvstore_local", 2)):
        status, replicas = trained(f"{comm}{count}", *shards, f"comm={comm}", f"launch.ranks={count}")
        assert status["params_sha256"] == alone["params_sha256"], (comm, count)
        assert len(replicas) == count
        first = weights.params_sha256(without_running(replicas[0]))
        assert all(weights.params_sha256(without_running(other)) == first for other in replicas[1:])


@pytest.mark.slow
@pytest.mark.parametrize(
    "options", [[], ["comm.compression=fp16", "comm.double_buffering=true", "batch.accumulation=2"]], ids=str
)
def test_two_devices_resume_to_the_same_bytes(trained, options):
    case = ["comm=device", "launch.ranks=2", *options]
    uninterrupted, replicas = trained("uninterrupted", *case, comm=OtherDevices(Comm(backend="device"), 2))
    stopped, _ = trained("broken", *case, stop=True, comm=OtherDevices(Comm(backend="device"), 2))
    assert (stopped["state"], stopped["step"]) == ("interrupted", 1)
    resumed, _ = trained("broken", *case, comm=OtherDevices(Comm(backend="device"), 2))
    assert resumed["params_sha256"] == uninterrupted["params_sha256"]
    assert all(np.array_equal(a, b) for a, b in zip(*(without_running(each).values() for each in replicas)))


def test_one_process_gets_the_threads_of_one_device():
    config = from_dict({"comm": {"backend": "device"}})
    (command,) = commands.commands(config, "/runs/a", 1, Placement(4, 8), {"PATH": "/bin"})
    assert command.argv[1:] == ["-m", "mxscale.train.rank", "/runs/a", "1"]
    assert command.env["OMP_NUM_THREADS"] == "2"


def test_horovods_switches_are_inherited():
    switches = {"HOROVOD_TIMELINE": "/runs/a.json", "HOROVOD_HIERARCHICAL_ALLREDUCE": "1"}
    (command,) = commands.commands(from_dict({}), "/runs/a", 3, Placement(2, 8), {"PATH": "/bin", **switches})
    assert switches.items() <= command.env.items()


def check(comm, device, optimizer="sgd", ranks=2):
    backend_checks.check_backend(Comm(**comm), optimizer, device, ranks)


@pytest.mark.parametrize("backend", ["device", "nccl"])
def test_hosts_are_refused(backend):
    with pytest.raises(ConfigError, match=f"launch.hosts with comm={backend}: one process drives all devices"):
        validate(from_dict({"comm": {"backend": backend}, "launch": {"hosts": ["a:2", "b:2"]}}))


def test_nccl_needs_its_build_feature_and_a_gpu(monkeypatch):
    class Features:
        nccl = False

        def is_enabled(self, name):
            return self.nccl and name == "NCCL"

    monkeypatch.setattr(mx.runtime, "Features", Features)
    with pytest.raises(ConfigError, match="this MXNet was built without NCCL; use comm=horovod"):
        check({"backend": "nccl"}, "gpu")
    Features.nccl = True
    with pytest.raises(ConfigError, match="comm=nccl: sums on GPUs only"):
        check({"backend": "nccl"}, "cpu")
    check({"backend": "nccl"}, "gpu")


@pytest.mark.parametrize("optimizer", ["nadam", "lbsgd"])
def test_an_optimizer_with_shared_state_is_refused(optimizer):
    with pytest.raises(ConfigError, match=f"optimizer.name={optimizer} keeps numbers"):
        check({"backend": "device"}, "cpu", optimizer)
    check({"backend": "device"}, "cpu", "adam")
    check({"backend": "device"}, "cpu", optimizer, ranks=1)
