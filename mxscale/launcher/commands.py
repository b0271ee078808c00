"""The commands that start a run's processes. No I/O."""

import math
import re
import shlex
import signal
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Dict, List, Mapping, NamedTuple, Optional, Sequence

from mxscale.config.schema import Comm, Config, Launch
from mxscale.config.sizes import server_count
from mxscale.environment.description import ROOT
from mxscale.environment.hosts import SSH, Host
from mxscale.environment.placement import Placement, threads_per_rank
from mxscale.environment.variables import inherited

HOROVODRUN = [sys.executable, "-m", "mxscale.launcher.horovodrun"]


@dataclass(frozen=True)
class Command:
    """One process to start. The first command of a run starts the ranks; the others are its servers."""

    argv: List[str]
    env: Dict[str, str]
    name: str = "ranks"  # or "scheduler", "server 0", ...; errors name it


def commands(
    config: Config, run_dir: str, attempt: int, placed: Placement, environ: Mapping[str, str],
    what: Sequence[str] = ("mxscale.train.rank",),
) -> List[Command]:  # fmt: skip
    """Return the commands to start: the ranks' first, then those of the servers.

    The attempt is an argument, not read from a file: a rank that starts late, after its parent was killed, must not
    join the next attempt.

    Args:
        placed: Where the ranks run.
        what: The module that a rank runs, and further arguments of its command.
    """
    rank = [sys.executable, "-m", what[0], str(run_dir), str(attempt), *what[1:]]
    env = rank_environment(config, placed, environ)
    servers = server_commands(config.comm, run_dir, attempt, placed, env, environ)
    if servers:
        env = {**env, **ps_lite_environment(config.comm, placed), "DMLC_ROLE": "worker"}
    ranks = placed.processes(config.comm)
    # horovodrun starts a rank in every slot of -H, regardless of -np
    occupied = replace(placed, ranks=ranks, hosts=placed.hosts_of_ranks(config.comm)).occupied
    connects = config.comm.entry.connects(ranks)
    if len(occupied) == 1 and not occupied[0].here and not (connects and config.comm.transport == "mpi"):
        started = Command((_gloo(config.launch, ranks, env, "") if connects else []) + rank, env)
        return [_over_ssh(occupied[0], started, environ), *servers]
    if connects:
        where = ",".join(f"{host.address}:{host.slots}" for host in occupied)
        rank = LAUNCHERS[config.comm.transport](config.launch, ranks, env, where) + rank
    return [Command(rank, env), *servers]


def server_commands(comm: Comm, run_dir: str, attempt: int, placed: Placement, env: Dict[str, str], environ):
    """Return the commands of the scheduler and the parameter servers; [] if the back end has none.

    The scheduler runs on the first host. Servers are distributed over the hosts without ranks, or over all hosts if
    each has ranks.
    """
    count = server_count(comm, placed.processes(comm))
    if not count:
        return []
    free = placed.hosts[len(placed.occupied) :] or placed.hosts
    places = [("scheduler", 0, placed.hosts)] + [("server", number, free) for number in range(count)]
    built = []
    for role, number, among in places:
        name = role if role == "scheduler" else f"{role} {number}"
        module = ["-m", "mxscale.distributed.parameter_server"]
        argv = [sys.executable, *module, str(run_dir), str(attempt), name.replace(" ", ".")]
        command = Command(argv, {**env, **ps_lite_environment(comm, placed), "DMLC_ROLE": role}, name)
        host = among[number % len(among)] if among else None
        built.append(command if host is None or host.here else _over_ssh(host, command, environ))
    return built


def ps_lite_environment(comm: Comm, placed: Placement) -> Dict[str, str]:
    """Return the variables of ps-lite, MXNet's implementation of servers, that are the same for all processes."""
    workers = placed.processes(comm)
    return {
        "DMLC_PS_ROOT_URI": placed.scheduler.address,
        "DMLC_PS_ROOT_PORT": str(placed.scheduler.port),
        "DMLC_NUM_WORKER": str(workers),
        "DMLC_NUM_SERVER": str(server_count(comm, workers)),
    }


def _over_ssh(host: Host, command: Command, environ: Mapping[str, str]) -> Command:
    """Return the command as run on another host through ssh.

    With a single remote host, horovodrun runs there too. From here it would search for a network that the host shares
    with itself, and often choose the loopback.
    """
    remote = ["env", *(f"{name}={value}" for name, value in sorted(command.env.items())), *command.argv]
    local = {name: environ[name] for name in ("HOME", "PATH", "SSH_AUTH_SOCK") if name in environ}
    return replace(command, argv=[*SSH, host.address, shlex.join(remote)], env=local)


def preparation(run_dir: str, attempt: int, cores: int, environ: Mapping[str, str]) -> Command:
    """Return the command of the preparation. It may download data, so it inherits all environment variables."""
    argv = [sys.executable, "-m", "mxscale.train.preparation", str(run_dir), str(attempt)]
    env = {**environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": str(cores)}
    return Command(argv, env)


def rank_environment(config: Config, placed: Placement, environ: Mapping[str, str]) -> Dict[str, str]:
    """Return the environment variables of the ranks."""
    env = inherited(environ)
    env["PATH"] = f"{Path(sys.executable).parent}:{env.get('PATH') or '/usr/bin:/bin'}"
    env["PYTHONPATH"] = str(ROOT)
    env["PYTHONUNBUFFERED"] = "1"
    if placed.hosts and "SSH_AUTH_SOCK" in environ:
        env["SSH_AUTH_SOCK"] = environ["SSH_AUTH_SOCK"]  # the agent's socket; no secret
    env["OMP_NUM_THREADS"] = str(threads_per_rank(config, placed))
    env.setdefault("HOROVOD_GLOO_TIMEOUT_SECONDS", str(math.ceil(config.launch.stall_s)))  # its wait for a peer
    env.setdefault("HOROVOD_FUSION_THRESHOLD", "0")  # distributed/exchange.py has its own buckets
    if config.comm.transport == "mpi":
        # A thread of each rank polls while it waits for its peers; by default it keeps the core from one that computes
        env.setdefault("OMPI_MCA_mpi_yield_when_idle", "1")
    if config.comm.double_buffering:
        # Horovod's ranks communicate in every cycle (1 ms), even without gradients, and that takes CPU time.
        # With double buffering no rank waits for an exchange at once (docs/exchange.md)
        env.setdefault("HOROVOD_CYCLE_TIME", "5")
    if config.comm.entry.needs_servers:
        # Keys are buckets, few and large: split each over all servers. By default MXNet splits from 1,000,000 numbers
        env.setdefault("MXNET_KVSTORE_BIGARRAY_BOUND", "16384")
    return env


def _gloo(launch: Launch, ranks: int, env, where: str) -> List[str]:
    # Its cache needs a writable HOME and keeps interfaces that no longer exist; 30 s are too short for busy hosts
    remote = ["--start-timeout", f"{launch.start_timeout_s:.0f}"] if where else []
    return [*HOROVODRUN, "--gloo", "--disable-cache", *remote, "-np", str(ranks), "-H", where or f"localhost:{ranks}"]


def _mpi(launch: Launch, ranks: int, env, where: str) -> List[str]:
    exported = [argument for name in sorted(env) for argument in ("-x", name)]
    # docker0 has the same address on every host with Docker: a rank that takes it for that of a peer waits forever
    chosen = any(name.startswith("OMPI_MCA_btl_tcp_if_") for name in env)
    interfaces = ["-mca", "btl_tcp_if_exclude", "127.0.0.0/8,docker0"] if where and not chosen else []
    options = ["--allow-run-as-root", "--oversubscribe", "-np", str(ranks), "-bind-to", "none"]
    # Without binding no map of the machine is needed; two daemons that write one at the same time crash (4.1.4)
    options += ["-mca", "rtc_hwloc_vmhole", "none", "-map-by", "slot"]
    return ["mpirun", *options, *(["-H", where] if where else []), *interfaces, *exported]


LAUNCHERS = {"gloo": _gloo, "mpi": _mpi}


class Gone(NamedTuple):
    """A rank that ended by itself, and the signal that ended it, if one did."""

    rank: int
    signal: Optional[int] = None


# What horovodrun (Gloo) and mpirun write about the end of a rank
OF_HOROVODRUN = re.compile(r"Process (\d+) exit with status code (\d+)")
OF_MPIRUN = re.compile(r"process rank (\d+) with PID \d+ on node \S+ exited on signal (\d+)")


def gone_ranks(log: str) -> List[Gone]:
    """Return the ranks that ended by themselves, in the order in which horovodrun or mpirun noticed it.

    The one that failed is not always the first: a rank that loses its peer may be noticed before the peer.
    """
    if match := OF_MPIRUN.search(log):
        return [Gone(int(match[1]), int(match[2]))]
    ended = [(int(rank), int(status) - 128) for rank, status in OF_HOROVODRUN.findall(log)]  # a shell's exit status
    failed = [(rank, number) for rank, number in ended if number != signal.SIGTERM]
    return [Gone(rank, number if number in set(signal.Signals) else None) for rank, number in failed]
