"""The machines that ranks are spread over: found, reached by ssh, and seen to share the run directory.

`launch.hosts` is a list of `NAME` or `NAME:SLOTS` (ranks that it takes, one without a number), or the
word `compose`: the workers of docker-compose.yml's cluster profile.  How ssh gets there (user, port, key)
is said in ssh's own configuration.
"""

import re
import secrets
import shlex
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import List, Optional, Sequence

import psutil

from mxscale.config.schema import Config
from mxscale.rundir.directory import RunDir
from mxscale.rundir.plan import Address, Host
from mxscale.util.errors import ConfigError

WORKER = "worker"  # the service's name in docker-compose.yml
CONNECT_S = 5
LOOPBACK = "127.0.0.1"
SSH = ["ssh", "-o", "BatchMode=yes", "-o", f"ConnectTimeout={CONNECT_S}", "-o", "StrictHostKeyChecking=accept-new"]


def find(config: Config) -> List[Host]:
    """The hosts of `launch.hosts`; [] where the ranks run on this machine.  Raises ConfigError."""
    asked = config.launch.hosts
    if not asked:
        return []
    found = _workers() if asked == "compose" else listed(config)
    found = [replace(host, here=is_here(host)) for host in found]
    _check_apart(found)
    return found


def _check_apart(hosts: List[Host]) -> None:
    """Raises ConfigError where two of them are one machine by two names."""
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
    """Those that `launch.hosts` lists; nobody is asked about them."""
    return [_host(text) for text in config.launch.hosts] if isinstance(config.launch.hosts, list) else []


def _host(text: str) -> Host:
    name, _, slots = text.partition(":")
    return Host(name, int(slots or 1), name)


def setting(hosts: List[Host]) -> str:
    """`hosts` as a command line gives them; find() reads it back."""
    return f"launch.hosts=[{','.join(f'{host.address}:{host.slots}' for host in hosts)}]"


def _workers() -> List[Host]:
    try:
        found = {info[4][0] for info in socket.getaddrinfo(WORKER, None, socket.AF_INET)}
    except OSError:
        raise ConfigError(
            "launch.hosts=compose: no worker is up; start some with: "
            "docker compose --profile cluster up -d --scale worker=2"
        ) from None
    return sorted((Host(address, 1, _name(address)) for address in found), key=lambda host: _natural(host.name))


def _name(address: str) -> str:
    """mxscale-worker-1, of 172.18.0.3."""
    try:
        return socket.gethostbyaddr(address)[0].partition(".")[0]
    except OSError:
        return address


def _natural(name: str) -> list:
    """worker-2 comes before worker-10."""
    return [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", name)]


def of_rank(hosts: Sequence[Host], rank: int) -> Optional[Host]:
    """Where a rank runs: the launchers fill the first host's slots, then the next one's."""
    for host in hosts:
        if rank < host.slots:
            return host
        rank -= host.slots
    return None


# ---------------------------------------------------------------- are they there


def check(hosts: List[Host], run: RunDir) -> None:
    """Every other host answers, has this Python, and sees what was just written to the run directory.

    Raises ConfigError naming the first that does not.
    """
    hosts = [host for host in hosts if not host.here]
    if not hosts:
        return
    nonce = secrets.token_hex(8)
    (run.path / "nonce").write_text(nonce)
    try:
        _compare(hosts, run, nonce)
    finally:
        (run.path / "nonce").unlink()


def _compare(hosts: List[Host], run: RunDir, nonce: str) -> None:
    question = f"cat {shlex.quote(f'{run.path}/nonce')}; test -x {shlex.quote(sys.executable)} && echo +"
    for host, answer in zip(hosts, _ask_all(hosts, question)):
        if answer.returncode == 255:
            raise ConfigError(f"launch.hosts: {host.name} can't be reached by ssh ({_reason(answer)})")
        if nonce not in answer.stdout:  # after whatever the host's shell greets with
            raise ConfigError(
                f"launch.hosts: {host.name} does not see {run.path}: set runs=DIR to storage that all hosts share"
            )
        if not answer.stdout.endswith("+\n"):
            raise ConfigError(
                f"launch.hosts: {host.name} has no {sys.executable}: install mxscale at the same place on every host"
            )


def unreachable(hosts: List[Host]) -> List[Host]:
    """Those that do not answer any more."""
    hosts = [host for host in hosts if not host.here]
    return [host for host, answer in zip(hosts, _ask_all(hosts, "true")) if answer.returncode]


def of_own_name(host: Host) -> str:
    """The address that a host's own name stands for, as it sees it itself; "" where there is none."""
    question = 'getent ahostsv4 "$(hostname)"'
    if host.here:
        answer = subprocess.run(["sh", "-c", question], capture_output=True, text=True, stdin=subprocess.DEVNULL)
    else:
        answer = ask(host, question)
    return next(iter(re.findall(r"^(\d+\.\d+\.\d+\.\d+)\s", answer.stdout, re.MULTILINE)), "")


def own_address(towards: str) -> str:
    """This machine's address on the way to another one.  Raises OSError where there is no way."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as unsent:
        unsent.connect((towards, 9))
        return unsent.getsockname()[0]


def meeting_point(hosts: Sequence[Host]) -> Address:
    """Return where servers and ranks find each other: on the first host, as the others see it. Raises ConfigError."""
    if len(hosts) < 2:
        return Address(LOOPBACK, _free_port())
    first, other = hosts[0], hosts[1]
    try:
        address = own_address(other.address) if first.here else _address(first) or LOOPBACK
    except (OSError, UnicodeError):  # names that ssh's configuration alone knows
        address = LOOPBACK
    if address.startswith("127."):
        raise ConfigError(
            f"launch.hosts: {first.name} is not known by an address that {other.name} could reach: give IP addresses"
        )
    return Address(address, _free_port())


def _free_port() -> int:
    """A port that nobody has, below those that a kernel gives to whoever asks for any (32768 and up)."""
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
    """Whether it is this machine, as horovodrun and mpirun see it: they start ranks here without ssh."""
    own = {one.address for interface in psutil.net_if_addrs().values() for one in interface}
    return _address(host) in own


def _address(host: Host) -> Optional[str]:
    try:
        return socket.gethostbyname(host.address)
    except (OSError, UnicodeError):  # a name that ssh's configuration alone knows, or that is no name at all
        return None


def _ask_all(hosts: List[Host], command: str) -> list:
    return ask_each(hosts, [command] * len(hosts))


def ask_each(hosts: List[Host], commands: List[str]) -> list:
    """What each host answers to its command, all at once."""
    with ThreadPoolExecutor(max(1, min(32, len(hosts)))) as threads:
        return list(threads.map(ask, hosts, commands))


def ask(host: Host, command: str) -> subprocess.CompletedProcess:
    """Run a command on a host; returncode 255 where it can't be reached."""
    argv = [*SSH, host.address, command]
    try:
        return subprocess.run(argv, capture_output=True, text=True, timeout=2 * CONNECT_S, stdin=subprocess.DEVNULL)
    except FileNotFoundError:
        raise ConfigError("launch.hosts needs ssh: install openssh-client") from None
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess(argv, 255, "", f"no answer in {2 * CONNECT_S} s")


def _reason(answer: subprocess.CompletedProcess) -> str:
    lines = [line for line in answer.stderr.splitlines() if line.strip() and "Permanently added" not in line]
    return lines[-1].strip() if lines else "no reason given"
