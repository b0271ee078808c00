"""Parameter servers; every synchronous back end gives the weights of a plain loop."""

import os
import signal
import time
from dataclasses import replace

import pytest
from faults import server_pids
from in_process import prepared, trained
from plain_loop import CASE, commands, distance
from refusals import contains, error_of
from run_files import wait_for_step
from verbs import with_script

from mxscale.config.schema import Comm, from_dict
from mxscale.config.sizes import server_count
from mxscale.config.validation import validate
from mxscale.distributed import backend_checks
from mxscale.environment.hosts import Host, rendezvous_point
from mxscale.environment.placement import Placement
from mxscale.launcher import commands as launch
from mxscale.launcher.processes import Processes
from mxscale.util.errors import ConfigError

# ---------------------------------------------------------------- number of servers


@pytest.mark.parametrize("asked, ranks, count", [(1, 4, 1), (3, 2, 3), ("1x", 4, 4), ("2x", 3, 6), ("5", 1, 5)])
def test_servers_are_a_number_or_a_multiple_of_ranks(asked, ranks, count):
    assert server_count(Comm(backend="parameter_server", servers=asked), ranks) == count
    assert server_count(Comm(backend="horovod"), ranks) == 0


# ---------------------------------------------------------------- placement

HOSTS = (Host("10.0.0.2", 2, "a"), Host("10.0.0.3", 2, "b", here=True), Host("10.0.0.4", 2, "c"))


def test_scheduler_and_servers_have_own_commands():
    found = commands(2, servers="1x")
    roles = {command.name: command.env["DMLC_ROLE"] for command in found}
    assert roles == {"ranks": "worker", "scheduler": "scheduler", "server 0": "server", "server 1": "server"}
    assert found[0].argv[:3] == launch.HOROVODRUN and found[0].argv[-4:] == [
        "-m",
        "mxscale.train.rank",
        "/runs/a",
        "3",
    ]
    assert [command.argv[1:] for command in found[1:]] == [
        ["-m", "mxscale.distributed.parameter_server", "/runs/a", "3", role]
        for role in ("scheduler", "server.0", "server.1")
    ]
    for command in found:
        dmlc = {name: value for name, value in command.env.items() if name.startswith("DMLC_")}
        assert dmlc.pop("DMLC_ROLE") and dmlc == {
            "DMLC_PS_ROOT_URI": "10.0.0.2",
            "DMLC_PS_ROOT_PORT": "12345",
            "DMLC_NUM_WORKER": "2",
            "DMLC_NUM_SERVER": "2",
        }


def test_ranks_without_servers_get_no_dmlc_variables():
    (found,) = commands(2, backend="horovod")
    assert not [name for name in found.env if name.startswith("DMLC_")]


def where(found):
    """Return name -> the host of its ssh command, or "here"."""
    return {c.name: c.argv[-2] if c.argv[0] == "ssh" else "here" for c in found[1:]}


def test_servers_are_distributed_over_hosts_after_the_scheduler():
    found = commands(6, HOSTS, servers=4)
    assert [*where(found).items()] == [
        ("scheduler", "10.0.0.2"),
        ("server 0", "10.0.0.2"),
        ("server 1", "here"),
        ("server 2", "10.0.0.4"),
        ("server 3", "10.0.0.2"),
    ]
    remote = found[2].argv[-1]
    assert "DMLC_ROLE=server" in remote
    assert remote.endswith("-m mxscale.distributed.parameter_server /runs/a 3 server.0")


def test_hosts_without_ranks_run_the_servers():
    assert where(commands(2, HOSTS, servers=3)) == {
        "scheduler": "10.0.0.2", "server 0": "here", "server 1": "10.0.0.4", "server 2": "here",
    }  # fmt: skip


def test_rendezvous_is_a_free_port_of_the_first_host():
    here = Host("127.0.0.1", 2, "a", here=True)
    assert rendezvous_point([]).address == rendezvous_point([here]).address == "127.0.0.1"
    assert rendezvous_point([Host("10.0.0.2", 1, "a"), here]).address == "10.0.0.2"
    assert 10000 <= rendezvous_point([]).port < 30000


def test_unreachable_first_host_is_refused():
    with pytest.raises(ConfigError, match=r"launch.hosts: a has no address that b can reach"):
        rendezvous_point([Host("127.0.0.1", 1, "a"), Host("127.0.0.2", 1, "b")])


# ---------------------------------------------------------------- validation


@pytest.mark.parametrize(
    "values, words",
    [
        ({"comm": {"backend": "dist_sync"}}, ["comm.backend=dist_sync", "use comm=parameter_server"]),
        ({"comm": {"backend": "dist_async_device"}}, ["comm.backend=dist_async_device", "use comm=parameter_server"]),
        ({"comm": {"backend": "p3"}}, ["comm.backend=p3", "use comm=parameter_server"]),
        ({"comm": {"backend": "parameter_server", "servers": 0}}, ["comm.servers=0: expected at least 1"]),
        ({"comm": {"backend": "parameter_server", "servers": "x"}}, ["comm.servers=x", "1x, 2x"]),
        ({"comm": {"backend": "parameter_server", "servers": "0x"}}, ["comm.servers=0x", "1x, 2x"]),
        ({"comm": {"backend": "parameter_server", "servers": 1.5}}, ["comm.servers=1.5", "1x, 2x"]),
        ({"comm": {"backend": "parameter_server", "servers": True}}, ["comm.servers=True", "1x, 2x"]),
        ({"comm": {"servers": 2}}, ["comm.servers=2 with comm=horovod", "use comm=parameter_server"]),
        ({"comm": {"update_on": "server"}}, ["comm.update_on was removed: use comm=parameter_server"]),
        ({"comm": {"compression": "2bit"}}, ["comm.compression=2bit: expected one of", "fp16"]),
        ({"comm": {"threshold": 1}}, ["comm.threshold was removed", "use comm.compression=fp16"]),
        (
            {"comm": {"double_buffering": True}, "precision": "amp"},
            ["precision=amp", "use precision=float16 or float32"],
        ),
    ],
)
def test_invalid_combinations_are_refused_in_one_line(values, words):
    contains(error_of(lambda: validate(from_dict(values))), *words)


def test_too_many_servers_are_refused():
    def check(ranks, servers, backend="parameter_server"):
        backend_checks.check_backend(Comm(backend=backend, servers=servers), "sgd", "cpu", ranks)

    with pytest.raises(ConfigError, match=r"comm.servers=9000x: 18,000 servers on a machine, at most 128"):
        check(2, "9000x")
    check(64, "1x")
    check(100_000, 1, "horovod")


# ---------------------------------------------------------------- weights of a plain loop

# Ranks train and then sum other arrays, twice each, to detect sums that accumulate on servers.
RANKS = """
import os, sys
import mxnet as mx, numpy as np
from mxscale.rundir.directory import RunDir
from mxscale.distributed.communicators import open_communicator
from mxscale.distributed.heartbeat import Heartbeat
from mxscale.train.trainer import Trainer

run = RunDir(sys.argv[1])
comm = open_communicator(run.config().comm, run.plan().sizes.ranks)
Trainer(run, run.config(), run.plan(), comm, 1, Heartbeat(run, comm.rank, 1)).train()

def summed(name, values):
    array = mx.nd.array(values, dtype=values.dtype)
    comm.all_reduce([array], name)
    return array.asnumpy()

if run.config().comm.backend == "parameter_server":
    for name, dtype, size in [("half", "float16", 7), ("few", "float32", 3), ("many", "float32", 100_001)]:
        values = (np.arange(size) % 97).astype(dtype)
        for turn in range(2):
            assert (summed(name, values + comm.rank) == comm.size * values + sum(range(comm.size))).all(), name
comm.close()
open(f"{run}/said.{comm.rank}", "w").write("done")
sys.stdout.flush()
os._exit(0)
"""


def on_ranks(folder, data_cache, ranks, *overrides):
    """Run RANKS with real servers, which must end by themselves; return the run directory."""
    run = prepared(folder / "run", *CASE, f"data.cache={data_cache}", f"launch.ranks={ranks}", *overrides)
    (folder / "ranks.py").write_text(RANKS)
    placed = Placement(ranks, 2, scheduler=rendezvous_point([]))
    first, *servers = launch.commands(run.config(), str(run), 1, placed, os.environ)
    argv = with_script(first.argv, folder / "ranks.py")
    with open(folder / "launch.log", "wb") as log:
        processes = Processes([replace(first, argv=argv), *servers], log)
    try:
        deadline = time.monotonic() + 120
        while processes.ended() is None and not processes.lost() and time.monotonic() < deadline:
            time.sleep(0.05)
        logs = "\n".join(path.read_text() for path in folder.glob("*.log"))
        assert processes.ended() == 0 and not processes.lost(), logs
        assert {process.wait(10) for process in processes.running} == {0}, logs
    finally:
        processes.stop()
    assert len(list(run.path.glob("said.*"))) == ranks
    return run


@pytest.mark.slow
def test_one_rank_equals_a_plain_loop(plain, data_cache, tmp_path):
    """Horovod's 2 and 4 ranks give the same bytes: tests/train/test_train.py."""
    run = prepared(tmp_path, *CASE, f"data.cache={data_cache}", "comm=local", "launch.ranks=1")
    trained(run)
    assert distance(run, plain) < 1e-5


TWO_SERVERS = ["comm=parameter_server", "comm.servers=2"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "ranks, settings",
    [
        (4, ["comm=horovod", "data.shards=null"]),  # ranks of fixed shards gather
        (1, ["comm=parameter_server", "comm.servers=1"]),
        (2, TWO_SERVERS),
    ],
    ids=["ring-4", "server-1", "servers-2"],
)
def test_every_back_end_equals_a_plain_loop(plain, data_cache, tmp_path, ranks, settings):
    assert distance(on_ranks(tmp_path, data_cache, ranks, *settings), plain) < 1e-5


@pytest.mark.slow
def test_run_names_a_killed_server(cli):
    process = cli.start("train", "comm=parameter_server", "launch.ranks=2", "epochs=500")
    run = cli.run_of(process)
    assert "servers   1\n" in [process.stdout.readline() for _ in range(7)]
    wait_for_step(run, 6)  # of 5 in an epoch
    pids = dict(server_pids(run))
    assert sorted(pids) == ["scheduler", "server 0"]
    os.kill(pids["server 0"], signal.SIGKILL)
    killed_at = time.monotonic()
    ended = cli.ended(process, expect=1, timeout=40)
    assert time.monotonic() - killed_at < 30
    errors = [line for line in ended.err.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1 and "server 0 was ended by signal 9" in errors[0]
    assert "resume with: " in ended.out and not server_pids(run)
