"""A slow network on one machine: each node is a network namespace with a link of a given rate.

    with Network(2, "2gbit") as network:
        measure.train(f"launch.hosts={network.hosts}", "launch.threads=1", env=network.env())

    python bench/emulated_network.py --rate 400mbit --nodes 6 --machines 2 mxscale replay all scale=small \
      'slow_hosts={hosts}'          # runs a command, in which {hosts} is replaced

Each node has an address and its own link to one switch. The switch is a bridge in another namespace, where this
machine's firewall does not filter. `tc tbf` limits a link both ways. This machine has a link without limit, because
horovodrun's rendezvous runs here. An `ssh` first on PATH runs commands in the node whose address they name, so that
ranks start as on real hosts. Unlike real ssh it makes them children of this machine's processes, where tests find them.

Needs root, `ip` and `tc` (iproute2). All names begin with mx and this process's number. A process removes the networks
of processes that no longer exist.
"""

import argparse
import fcntl
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from string import ascii_lowercase
from typing import Dict, List, Mapping, Optional

import psutil

OURS = re.compile(r"(mx(\d+)[a-z])-\w+")  # name of a namespace: network, process number
SUBNETS = [f"10.77.{number}" for number in range(256)]
NAMESPACES = "/run/netns"
OWN_FILES = Path("/etc/netns")  # NAMESPACE/hosts replaces /etc/hosts inside: ip-netns(8)
OWN = 254  # last number of this machine's address in a subnet

# Options with an argument are skipped; horovodrun puts options after the host too
SSH = r"""#!/bin/bash
# ssh [options] ADDRESS [options] COMMAND...: in the namespace of the node that has the address
host=
while [ $# -gt 0 ]; do
  case "$1" in
    -[opliFJLRbcEeImOQSWw]) shift 2 ;;
    -*) shift ;;
    *) [ -n "$host" ] && break; host=$1; shift ;;
  esac
done
if [ ! -e "{folder}/$host" ] || [ -e "{folder}/$host.cut" ]; then
  echo "ssh: connect to host $host port 22: No route to host" >&2
  exit 255
fi
cd "$HOME"
exec $(cat "{folder}/$host") env -i HOME="$HOME" USER="$USER" PATH=/usr/local/bin:/usr/bin:/bin \
  sh -c "$*"
"""


class Network:
    """Nodes 1, 2 ... of one switch, which exist within the `with` block.

    Args:
        rate: of each link and direction in the notation of tc (2gbit); None: no limit.
        machines: number of nodes that divide this machine's cores; further nodes share those of the first ones. None: a
            process runs on any core.
    """

    def __init__(self, nodes: int, rate: Optional[str] = None, machines: Optional[int] = None):
        self.nodes, self.rate, self.machines = nodes, rate, machines

    def __enter__(self):
        with open("/run/lock/mxscale-network", "w") as lock:  # two processes may choose a subnet at the same time
            fcntl.flock(lock, fcntl.LOCK_EX)
            _remove_abandoned()
            # Also the name of each node's interface: horovodrun needs one that all hosts have
            names = (f"mx{os.getpid()}{letter}" for letter in ascii_lowercase)
            self.name = next(name for name in names if name not in _networks())
            self.folder = Path(tempfile.mkdtemp(prefix=f"{self.name}-"))
            try:
                self._set_up()
            except BaseException:
                self.__exit__()
                raise
        return self

    def __exit__(self, *_):
        remove(self.name)
        shutil.rmtree(self.folder, ignore_errors=True)

    # ------------------------------------------------------------ settings of a run

    @property
    def addresses(self) -> List[str]:
        return [f"{self.subnet}.{node}" for node in range(1, self.nodes + 1)]

    @property
    def hosts(self) -> str:
        """Return the value of `launch.hosts` with one rank on each node."""
        return f"[{','.join(f'{address}:1' for address in self.addresses)}]"

    def env(self, base: Mapping[str, str] = os.environ) -> dict:
        """Return environment variables with which `ssh` reaches the nodes."""
        return {**base, "PATH": f"{self.folder}:{base['PATH']}", "HOME": str(self.folder / "home")}

    def inside(self, node: int, *argv) -> List[str]:
        """Return the command that runs `argv` in a node."""
        return [*self._entrance(node), *map(str, argv)]

    def _entrance(self, node: int) -> List[str]:
        there = ["ip", "netns", "exec", f"{self.name}-{node}"]
        if self.machines is None:
            return there
        own = share(sorted(os.sched_getaffinity(0)), node - 1, self.machines)
        return ["taskset", "-c", ",".join(map(str, own)), *there]

    # ------------------------------------------------------------ faults of a link

    def cut(self, node: int) -> None:
        """Disconnect the link of a node."""
        (self.folder / f"{self.addresses[node - 1]}.cut").touch()
        _ip("-n", f"{self.name}-switch", "link", "set", f"port{node}", "down")

    def mend(self, node: int) -> None:
        _ip("-n", f"{self.name}-switch", "link", "set", f"port{node}", "up")
        (self.folder / f"{self.addresses[node - 1]}.cut").unlink()

    def mend_all(self) -> None:
        for node, address in enumerate(self.addresses, 1):
            if (self.folder / f"{address}.cut").exists():
                self.mend(node)

    # ------------------------------------------------------------ set-up

    def _set_up(self) -> None:
        taken = {address.address for addresses in psutil.net_if_addrs().values() for address in addresses}
        self.subnet = next(subnet for subnet in SUBNETS if f"{subnet}.{OWN}" not in taken)
        switch = f"{self.name}-switch"
        _ip("netns", "add", switch)
        _ip("-n", switch, "link", "add", "switch", "type", "bridge")
        _ip("-n", switch, "link", "set", "switch", "up")
        _ip("link", "add", self.name, "type", "veth", "peer", "name", "port0", "netns", switch)
        _ip("-n", switch, "link", "set", "port0", "master", "switch", "up")
        _ip("address", "add", f"{self.subnet}.{OWN}/24", "dev", self.name)
        _ip("link", "set", self.name, "up")
        for node, address in enumerate(self.addresses, 1):
            self._set_up_node(node, address, switch)
        (self.folder / "home").mkdir()  # horovodrun and others cache facts about hosts there
        (self.folder / "ssh").write_text(SSH.replace("{folder}", str(self.folder)))
        (self.folder / "ssh").chmod(0o755)

    def _set_up_node(self, node: int, address: str, switch: str) -> None:
        inside, port = f"{self.name}-{node}", f"port{node}"
        _ip("netns", "add", inside)
        _ip("link", "add", self.name, "netns", inside, "type", "veth", "peer", "name", port, "netns", switch)
        _ip("-n", inside, "link", "set", "lo", "up")
        _ip("-n", inside, "address", "add", f"{address}/24", "dev", self.name)
        _ip("-n", inside, "link", "set", self.name, "up")
        _ip("-n", switch, "link", "set", port, "master", "switch", "up")
        (OWN_FILES / inside).mkdir(parents=True)  # a name of its own, as Debian's installer writes it
        (OWN_FILES / inside / "hosts").write_text(f"127.0.0.1 localhost\n127.0.1.1 {socket.gethostname()}\n")
        if self.rate:
            _limit(inside, self.name, self.rate)
            _limit(switch, port, self.rate)
        (self.folder / address).write_text(" ".join(self._entrance(node)))


def share(cores: List[int], place: int, machines: int) -> List[int]:
    """Return the cores of one of `machines` machines: adjacent ones; a single one if cores are too few."""
    each = max(1, len(cores) // machines)
    begin = place % machines * each % len(cores)
    return cores[begin : begin + each]


def _limit(namespace: str, link: str, rate: str) -> None:
    # The burst of a millisecond, and at least the largest packet before segmentation (64 KiB)
    burst = max(2**16 + 2**12, int(bits_per_second(rate) / 8 / 1000))
    command = ["-n", namespace, "qdisc", "add", "dev", link, "root", "tbf", "rate", rate, "burst", str(burst)]
    _run(["tc", *command, "latency", "20ms"])


def bits_per_second(rate: str) -> float:
    """Return a rate in the notation of tc as a number: 2gbit -> 2e9."""
    number, unit = re.fullmatch(r"([\d.]+)([kmg]?)bit", rate).groups()
    return float(number) * {"": 1, "k": 1e3, "m": 1e6, "g": 1e9}[unit]


# ---------------------------------------------------------------- removal


def remove(name: str) -> None:
    """Remove the namespaces and the link of a network, and kill the processes in its nodes."""
    namespaces = _networks().get(name, [])
    deadline = time.monotonic() + 5
    while any([_kill_those_in(namespace) for namespace in namespaces]) and time.monotonic() < deadline:
        time.sleep(0.05)
    for namespace in namespaces:
        shutil.rmtree(OWN_FILES / namespace, ignore_errors=True)
        _ip("netns", "delete", namespace)
    # A namespace exists until its last socket closes; the link is removed at once
    if name in psutil.net_if_addrs():
        subprocess.run(["ip", "link", "delete", name], capture_output=True)


def _kill_those_in(namespace: str) -> bool:
    """Kill the processes of a namespace; return whether it had any."""
    pids = _ip("netns", "pids", namespace).split()
    for pid in pids:
        try:
            os.kill(int(pid), signal.SIGKILL)
        except ProcessLookupError:
            pass
    return bool(pids)


def _remove_abandoned() -> None:
    """Remove the networks of processes that no longer exist."""
    for name, namespaces in _networks().items():
        if not psutil.pid_exists(int(OURS.fullmatch(namespaces[0])[2])):
            remove(name)
            for folder in Path(tempfile.gettempdir()).glob(f"{name}-*"):
                shutil.rmtree(folder, ignore_errors=True)


def _networks() -> Dict[str, List[str]]:
    """Return {name: namespaces} of all existing networks."""
    there = sorted(os.listdir(NAMESPACES)) if os.path.isdir(NAMESPACES) else []
    networks = {}
    for found in filter(None, map(OURS.fullmatch, there)):
        networks.setdefault(found[1], []).append(found[0])
    return networks


def possible() -> Optional[str]:
    """Return why this machine cannot have such a network; None if it can."""
    if os.getuid():
        return "only root can create network namespaces"
    for tool in ("ip", "tc"):
        if not shutil.which(tool):
            return f"{tool} is not installed (apt install iproute2)"
    try:
        with Network(1, "1gbit"):
            return None
    except (OSError, RuntimeError) as error:
        return str(error)


def _ip(*words) -> str:
    return _run(["ip", *words])


def _run(argv) -> str:
    done = subprocess.run(argv, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{' '.join(argv)}: {done.stderr.strip() or done.returncode}")
    return done.stdout


def main() -> int:
    """Run a command in which {hosts} stands for the nodes of a network; return its exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--nodes", type=int, default=2, help="number of nodes")
    parser.add_argument("--rate", help="rate of each link and direction in the notation of tc; unlimited by default")
    parser.add_argument("--machines", type=int, help="number of nodes that divide this machine's cores")
    parser.add_argument("command", nargs=argparse.REMAINDER)
    options = parser.parse_args()
    if not options.command:
        parser.error("the command to run is missing")
    if reason := possible():
        parser.error(reason)
    with Network(options.nodes, options.rate, options.machines) as network:
        argv = [word.replace("{hosts}", network.hosts) for word in options.command]
        process = subprocess.Popen(argv, env=network.env())
        for number in (signal.SIGINT, signal.SIGTERM):  # a terminal sends SIGINT to the command itself
            signal.signal(number, lambda number, _: number == signal.SIGTERM and process.terminate())
        return process.wait()


if __name__ == "__main__":
    sys.exit(main())
