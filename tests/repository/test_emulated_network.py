"""The emulated network of the benches: nodes in namespaces of this machine (bench/emulated_network.py)."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from repository import ROOT

sys.path.append(str(ROOT / "bench"))
import exchange

from bench import emulated_network as network
from bench.emulated_network import Network


@pytest.fixture(scope="module")
def allowed():
    reason = network.possible()
    if reason:
        pytest.skip(reason)


def test_a_missing_command_is_named(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["emulated_network.py", "--nodes", "2"])
    with pytest.raises(SystemExit, match="2"):
        network.main()
    assert "the command to run is missing" in capsys.readouterr().err


def test_a_command_gets_the_hosts_and_its_status_is_returned(allowed, capfd):
    command = [sys.executable, ROOT / "bench/emulated_network.py", "--nodes", "2", "sh", "-c", "echo {hosts}; exit 3"]
    assert subprocess.run(command).returncode == 3
    assert re.match(r"\[10\.77\.\d+\.1:1,10\.77\.\d+\.2:1\]\n", capfd.readouterr().out)


RECEIVE = """
import socket, time
server = socket.create_server(("", 7000))
print("listening", flush=True)
peer, _ = server.accept()
received, began = 0, None
while piece := peer.recv(2**20):
    began = began or time.perf_counter()
    received += len(piece)
print(received * 8 / (time.perf_counter() - began))
"""
SEND = "import socket; socket.create_connection(('{}', 7000)).sendall(bytes({}))"


def ssh(nodes, node, command):
    argv = ["ssh", "-o", "BatchMode=yes", nodes.addresses[node - 1], "-p", "22", command]
    return subprocess.run(argv, env=nodes.env(), capture_output=True, text=True)


def test_link_has_the_requested_rate(allowed):
    with Network(2, "50mbit") as nodes:
        receiver = subprocess.Popen(nodes.inside(1, sys.executable, "-c", RECEIVE), stdout=subprocess.PIPE, text=True)
        receiver.stdout.readline()
        send = SEND.format(nodes.addresses[0], 3_000_000)
        subprocess.run(nodes.inside(2, sys.executable, "-c", send), check=True)
        rate = float(receiver.communicate()[0])
    # Less by TCP's and Ethernet's headers; a busy machine may be slower, never faster
    assert 10e6 < rate < 52.5e6


def test_ssh_reaches_nodes_with_an_intact_link(allowed):
    with Network(2) as nodes, Network(1) as other:
        answer = ssh(nodes, 2, "ip -o -4 address; exit 3")
        assert answer.returncode == 3 and f"inet {nodes.addresses[1]}/24" in answer.stdout
        assert nodes.addresses[0] != other.addresses[0]
        nodes.cut(2)
        assert ssh(nodes, 2, "true").returncode == 255
        assert ssh(nodes, 1, "true").returncode == 0
        nodes.mend(2)
        assert ssh(nodes, 2, "true").returncode == 0


def test_next_network_removes_the_remains_of_a_killed_one(allowed):
    code = "import os; from bench.emulated_network import Network; print(Network(1).__enter__().name); os._exit(0)"
    left = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    name = left.stdout.strip()
    assert Path(network.NAMESPACES, f"{name}-1").exists()
    with Network(1):
        assert not [found for found in os.listdir(network.NAMESPACES) if found.startswith(name)]


def test_worker_nodes_share_the_cores_with_servers():
    assert [network.share([0, 1, 2, 3], place, 2) for place in range(3)] == [[0, 1], [2, 3], [0, 1]]
    assert [network.share([4, 5], place, 4) for place in range(4)] == [[4], [5], [4], [5]]


def test_node_as_machine_has_its_own_cores(allowed):
    cores = sorted(os.sched_getaffinity(0))
    with Network(1, machines=len(cores)) as nodes:
        code = "import os; print(*os.sched_getaffinity(0))"
        inside = subprocess.check_output(nodes.inside(1, sys.executable, "-c", code), text=True)
        assert inside.split() == [str(cores[0])]
        assert ssh(nodes, 1, "cat /proc/self/status").stdout.split("Cpus_allowed_list:")[1].split()[0] == str(cores[0])


@pytest.mark.slow
def test_two_nodes_train_the_weights_of_one_machine(allowed, cli):
    with Network(2, "1gbit") as nodes:
        remote = cli("train", "launch.threads=1", "launch.ranks=2", f"launch.hosts={nodes.hosts}", env=nodes.env())
        assert f"ranks     2 on {', '.join(nodes.addresses)} on cpu" in remote.out
        sent = int(subprocess.check_output(nodes.inside(1, "cat", "/proc/net/dev"), text=True).split()[-8])
    here = cli("train", "launch.threads=1", "launch.ranks=2")
    assert remote.sha == here.sha
    assert sent > 10**5  # the gradients used the link


def test_overlap_is_bound_by_the_longer_part():
    """Compute takes 0.1 s; an exchange after backward takes 0.2 s, with half the bytes 0.05 s."""
    took = {exchange.PLAIN: 0.2, exchange.PLAIN_FP16: 0.05}
    assert exchange.bound_of([exchange.DOUBLE], 0.1, took) == pytest.approx(0.5)
    assert exchange.bound_of([exchange.DOUBLE, exchange.FP16], 0.1, took) == 1.0
    assert exchange.bound_of([exchange.AFTER], 0.1, took) is None
