"""The machines that run ranks: resolved, reached by ssh, and checked to share the run directory.

`launch.hosts` is a list of `NAME` or `NAME:SLOTS` (the number of ranks, 1 by default). Validation replaces a hostfile
by its list (util/hostfile.py). The user, port and key of ssh belong in ssh's own configuration.
"""

import re
import secrets
import shlex
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import List, Optional, Sequence

import psutil

from mxscale.config.schema import Config
from mxscale.rundir.plan import Address, Host, Plan
from mxscale.util.errors import ConfigError

CONNECT_S = 5
LOOPBACK = "127.0.0.1"
SSH = ["ssh", "-o", "BatchMode=yes", "-o", f"ConnectTimeout={CONNECT_S}", "-o", "StrictHostKeyChecking=accept-new"]


def find(config: Config) -> List[Host]:
    """Return the hosts of `launch.hosts`; [] if the ranks run on this machine. Raises ConfigError."""
    nodes = [replace(host, here=is_here(host)) for host in listed(config)]
    _check_distinct(nodes)
    return nodes


def _check_distinct(hosts: List[Host]) -> None:
    """Raise ConfigError if two hosts are the same machine."""
    known = {}
    for host in hosts:
        machine = "this machine" if host.here else _address(host)
        if machine in known:
            raise ConfigError(
                f"launch.hosts: {known[machine].name} and {host.name} are both {machine}: "
                f"name it once, with its ranks: {host.name}:{known[machine].slots + host.slots}"
            )
        if machine:
            known[machine] = host


def listed(config: Config) -> List[Host]:
    """Return the hosts that `launch.hosts` lists, without resolving their names."""
    parts = (text.partition(":") for text in config.launch.hosts or [])
    return [Host(name, int(slots or 1), name) for name, _, slots in parts]


def of_rank(hosts: Sequence[Host], rank: int) -> Optional[Host]:
    """Return the host of a rank: the launchers fill the slots of one host after the other."""
    for host in hosts:
        if rank < host.slots:
            return host
        rank -= host.slots
    return None


def check(hosts: List[Host], folder: Path) -> None:
    """Check that every other host answers, has this Python, and reads a new file in a folder that they share.

    Raises ConfigError, which names the first host that does not.
    """
    hosts = _others(hosts)
    if not hosts:
        return
    nonce = secrets.token_hex(8)
    file = folder / f".nonce-{nonce}"
    file.write_text(nonce)
    command = f"cat {shlex.quote(str(file))}; test -x {shlex.quote(sys.executable)} && echo +"
    try:
        answers = _answers(hosts, command)
    finally:
        file.unlink()
    for host, answer in zip(hosts, answers):
        if nonce not in answer:  # the host's shell may print a greeting before it
            raise ConfigError(
                f"launch.hosts: {host.name} does not see {folder}: set runs=DIR to storage that all hosts share"
            )
        if not answer.endswith("+\n"):
            raise ConfigError(
                f"launch.hosts: {host.name} has no {sys.executable}: install mxscale in the same path on every host"
            )


def check_inputs(plan: Plan) -> None:
    """Check that every other host reads the packed set and the weights.

    Raises ConfigError, which names the first host that does not, and the file.
    """
    hosts = _others(plan.hosts)
    files = [path for split in plan.splits.values() for path in (split.rec, split.idx)] + [plan.pretrained]
    tests = [f"test -r {path} || echo unreadable: {path}" for path in map(shlex.quote, filter(None, files))]
    if not tests:
        return
    for host, answer in zip(hosts, _answers(hosts, "; ".join(tests))):
        unread = re.search(r"^unreadable: (.*)$", answer, re.MULTILINE)
        if unread:
            raise ConfigError(
                f"launch.hosts: {host.name} can't read {unread[1]}: place it on storage that all hosts share "
                "(packed sets: data.cache=DIR)"
            )


def _others(hosts: Sequence[Host]) -> List[Host]:
    return [host for host in hosts if not host.here]


def _answers(hosts: List[Host], command: str) -> List[str]:
    """Return what a command prints on each host. Raises ConfigError, which names the first that can't be reached."""
    ended = ssh_each(hosts, [command] * len(hosts))
    for host, done in zip(hosts, ended):
        if done.returncode == 255:
            raise ConfigError(f"launch.hosts: {host.name} can't be reached by ssh ({_reason(done)})")
    return [done.stdout for done in ended]


def unreachable(hosts: List[Host]) -> List[Host]:
    """Return the hosts that no longer answer."""
    hosts = _others(hosts)
    return [host for host, done in zip(hosts, ssh_each(hosts, ["true"] * len(hosts))) if done.returncode]


def resolves(name: str) -> bool:
    """Return whether a host name has an address."""
    try:
        return bool(socket.getaddrinfo(name, None))
    except (OSError, UnicodeError):
        return False


def own_address(towards: str) -> str:
    """Return this machine's address on the route to another one. Raises OSError if there is no route."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as unsent:
        unsent.connect((towards, 9))
        return unsent.getsockname()[0]


def rendezvous_point(hosts: Sequence[Host]) -> Address:
    """Return the address of the scheduler on the first host, as the others reach it. Raises ConfigError."""
    if len(hosts) < 2:
        return Address(LOOPBACK, _free_port())
    first, other = hosts[0], hosts[1]
    try:
        address = own_address(other.address) if first.here else _address(first) or LOOPBACK
    except (OSError, UnicodeError):  # a name that only ssh's configuration knows
        address = LOOPBACK
    if address.startswith("127."):
        raise ConfigError(f"launch.hosts: {first.name} has no address that {other.name} can reach: use IP addresses")
    return Address(address, _free_port())


def _free_port() -> int:
    """Return a free port below the kernel's ephemeral ports (32768 and up)."""
    for _ in range(100):
        port = 10000 + secrets.randbelow(20000)
        with socket.socket() as tried:
            try:
                tried.bind(("", port))
            except OSError:
                continue
            return port
    raise ConfigError("no port between 10000 and 30000 is free on this machine")


def is_here(host: Host) -> bool:
    """Return whether it is this machine, as horovodrun and mpirun decide: they start ranks here without ssh."""
    addresses = {address.address for interface in psutil.net_if_addrs().values() for address in interface}
    return _address(host) in addresses


def _address(host: Host) -> Optional[str]:
    try:
        return socket.gethostbyname(host.address)
    except (OSError, UnicodeError):  # a name that only ssh's configuration knows, or an invalid one
        return None


def ssh_each(hosts: List[Host], commands: List[str]) -> List[subprocess.CompletedProcess]:
    """Run a command on each host in parallel."""
    with ThreadPoolExecutor(max(1, min(32, len(hosts)))) as threads:
        return list(threads.map(ssh, hosts, commands))


def ssh(host: Host, command: str) -> subprocess.CompletedProcess:
    """Run a command on a host; its returncode is 255 if the host can't be reached."""
    argv = [*SSH, host.address, command]
    try:
        return subprocess.run(argv, capture_output=True, text=True, timeout=2 * CONNECT_S, stdin=subprocess.DEVNULL)
    except FileNotFoundError:
        raise ConfigError("launch.hosts needs ssh: install openssh-client") from None
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess(argv, 255, "", f"no answer in {2 * CONNECT_S} s")


def _reason(done: subprocess.CompletedProcess) -> str:
    lines = [line for line in done.stderr.splitlines() if line.strip() and "Permanently added" not in line]
    return lines[-1].strip() if lines else "no reason given"
