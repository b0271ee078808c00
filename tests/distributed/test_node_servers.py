"""comm=dist_device_sync: one process of each machine sums its devices and pushes once to the servers."""

import re
import subprocess
from pathlib import Path

import pytest
from plain_loop import CASE, commands, distance
from refusals import error_of

from bench import emulated_network as network
from bench.emulated_network import Network
from mxscale.config.schema import Comm
from mxscale.distributed import backend_checks
from mxscale.environment.hosts import Host
from mxscale.environment.placement import Placement

NODES = (Host("10.0.0.2", 2, "a", here=True), Host("10.0.0.3", 2, "b"), Host("10.0.0.4", 1, "c"))
SAME = {"backend": "dist_device_sync"}


def test_each_machine_has_one_process_and_ratios_are_per_machine():
    ranks, *servers = commands(4, NODES, **SAME, servers="2x")
    assert ranks.argv[ranks.argv.index("-np") :][:4] == ["-np", "2", "-H", "10.0.0.2:1,10.0.0.3:1"]
    assert (ranks.env["DMLC_NUM_WORKER"], ranks.env["DMLC_NUM_SERVER"]) == ("2", "4")
    assert [each.name for each in servers] == ["scheduler", "server 0", "server 1", "server 2", "server 3"]


def test_one_machine_has_one_process():
    ranks, *servers = commands(4, **SAME)
    assert ranks.argv[ranks.argv.index("-np") :][:4] == ["-np", "1", "-H", "localhost:1"]
    assert Placement(4, 8).processes(Comm(**SAME)) == 1 and len(servers) == 2


def test_machines_with_unequal_devices_are_refused():
    message = error_of(backend_checks.check_backend, Comm(**SAME), "sgd", "cpu", 3, NODES)
    assert "10.0.0.2:2, 10.0.0.3:1" in message
    backend_checks.check_backend(Comm(**SAME), "sgd", "cpu", 4, NODES)


@pytest.fixture
def nodes():
    if reason := network.possible():
        pytest.skip(reason)
    with Network(3) as made:
        yield made


def received(nodes, node: int) -> int:
    """Return the bytes that a node has received."""
    shown = subprocess.run(nodes.inside(node, "cat", "/proc/net/dev"), capture_output=True, text=True, check=True)
    return int(re.search(rf"{nodes.name}: *(\d+)", shown.stdout)[1])


def trained(cli, nodes, comm: str) -> tuple:
    """Train on two machines of two devices, with the server on a third; return the run and its received bytes."""
    first, second, third = nodes.addresses
    hosts = f"launch.hosts=[{first}:2,{second}:2,{third}:1]"
    before = received(nodes, 3)
    ended = cli("train", *CASE, f"comm={comm}", "comm.servers=1", hosts, "launch.ranks=4", "launch.device=cpu",
                small=False, env=nodes.env())  # fmt: skip
    return ended.run, received(nodes, 3) - before


@pytest.mark.slow
def test_two_machines_of_two_devices_equal_a_plain_loop_with_half_the_bytes(cli, nodes, plain):
    run, bytes_of_nodes = trained(cli, nodes, "dist_device_sync")
    assert distance(run, plain) < 1e-5
    assert sorted(path.name for path in Path(run.path, "ranks").glob("[0-9]*.json")) == ["0.json", "1.json"]
    assert run.plan().sizes.ranks == 4
    _, bytes_of_devices = trained(cli, nodes, "parameter_server")
    assert bytes_of_nodes == pytest.approx(bytes_of_devices / 2, rel=0.1)
