"""Back end -> the commands that start its ranks.  A pure function, tested as text."""

import math
import re
import shlex
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Dict, List, Mapping, Optional, Sequence

from mxscale.config.schema import Config
from mxscale.config.sizes import server_count
from mxscale.environment.hosts import SSH, Host
from mxscale.environment.placement import Placement, threads_per_rank

ROOT = Path(__file__).resolve().parents[2]  # where `import mxscale` works

# What ranks inherit.  horovodrun repeats its whole environment in a command line that every user of
# the machine can read, so nothing else, a credential least of all, is passed on.
INHERITED = ("PATH", "HOME", "USER", "LANG", "LC_ALL", "TMPDIR", "LD_LIBRARY_PATH", "CUDA_VISIBLE_DEVICES",
             "NVIDIA_VISIBLE_DEVICES", "VIRTUAL_ENV")  # fmt: skip
INHERITED_PREFIXES = ("MXNET_", "HOROVOD_", "NCCL_", "OMPI_MCA_", "OMP_", "KMP_")


@dataclass(frozen=True)
class Command:
    """One process to start.  The first of a run's commands is the ranks'; the others serve it, each under its name."""

    argv: List[str]
    env: Dict[str, str]
    name: str = "ranks"  # or "scheduler", "server 0", ...: what an error calls it


def commands(
    config: Config, run_dir: str, attempt: int, placed: Placement, surroundings: Mapping[str, str],
    what: Sequence[str] = ("mxscale.train.rank",),
) -> List[Command]:  # fmt: skip
    """The processes to start for the ranks of `placed`: what starts the ranks, then what serves them.

    what: the module that a rank runs, and what its command ends with.

    The attempt stands in the command, not in a file: a rank that starts late, of a parent that was
    killed meanwhile, must not take itself for one of the next attempt.
    """
    rank = [python(config), "-m", what[0], str(run_dir), str(attempt), *what[1:]]
    env = environment(config, placed, surroundings)
    if config.comm.timeline:
        env["HOROVOD_TIMELINE"] = f"{run_dir}/timeline_{attempt}.json"  # rank 0's
    if config.comm.hierarchical:
        env["HOROVOD_HIERARCHICAL_ALLREDUCE"] = "1"
    serving = servers(config, run_dir, attempt, placed, env, surroundings)
    if serving:
        env = {**env, **meeting(config, placed), "DMLC_ROLE": "worker"}
    taken = placed.occupied  # horovodrun starts a rank in every slot that it is told of, whatever -np says
    if config.comm.transport == "gloo" and len(taken) == 1 and not taken[0].here:
        started = Command(_gloo(config, placed.ranks, env, "") + rank, env)
        return [_over_there(taken[0], started, surroundings), *serving]
    if config.comm.entry.uses_horovod:
        where = ",".join(f"{host.address}:{host.slots}" for host in taken)
        rank = LAUNCHERS[config.comm.transport](config, placed.ranks, env, where) + rank
    return [boxed(config, run_dir, Command(rank, env), surroundings), *serving]


def servers(config: Config, run_dir: str, attempt: int, placed: Placement, env: Dict[str, str], surroundings):
    """The commands of the parameter servers, their scheduler first; [] where the back end has none.

    The scheduler is on the first host.  Servers are dealt out over the hosts that have no rank, or, where every
    host has one, over all of them.
    """
    count = server_count(config.comm, placed.ranks)
    if not count:
        return []
    free = placed.hosts[len(placed.occupied) :] or placed.hosts
    places = [("scheduler", 0, placed.hosts)] + [("server", number, free) for number in range(count)]
    found = []
    for role, number, among in places:
        name = role if role == "scheduler" else f"{role} {number}"
        argv = [
            python(config),
            "-m",
            "mxscale.distributed.parameter_server",
            str(run_dir),
            str(attempt),
            name.replace(" ", "."),
        ]
        command = Command(argv, {**env, **meeting(config, placed), "DMLC_ROLE": role}, name)
        host = among[number % len(among)] if among else None
        found.append(command if host is None or host.here else _over_there(host, command, surroundings))
    return found


def meeting(config: Config, placed: Placement) -> Dict[str, str]:
    """What ps-lite, which MXNet's servers are made of, wants to be told of all of them."""
    return {
        "DMLC_PS_ROOT_URI": placed.scheduler.address,
        "DMLC_PS_ROOT_PORT": str(placed.scheduler.port),
        "DMLC_NUM_WORKER": str(placed.ranks),
        "DMLC_NUM_SERVER": str(server_count(config.comm, placed.ranks)),
    }


def _over_there(host: Host, command: Command, surroundings: Mapping[str, str]) -> Command:
    """The command on the only host.

    From elsewhere horovodrun would look for a network that one host has in common with itself, and in half of
    the cases take the loopback, where nobody else finds it.
    """
    words = ["env", *(f"{name}={value}" for name, value in sorted(command.env.items())), *command.argv]
    own = {name: surroundings[name] for name in ("HOME", "PATH", "SSH_AUTH_SOCK") if name in surroundings}
    return replace(command, argv=[*SSH, host.address, shlex.join(words)], env=own)


def preparation(config: Config, run_dir: str, attempt: int, cores: int, surroundings: Mapping[str, str]) -> Command:
    """The child that comes before the ranks.  It may fetch data, so it keeps its surroundings."""
    argv = [python(config), "-m", "mxscale.train.prepare", str(run_dir), str(attempt)]
    env = {**surroundings, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": str(cores)}
    return boxed(config, run_dir, Command(argv, env), surroundings)


def python(config: Config) -> str:
    """This interpreter, or the first on the image's PATH."""
    return sys.executable if config.launch.kind == "process" else "python"


def boxed(config: Config, run_dir: str, command: Command, surroundings: Mapping[str, str]) -> Command:
    """The command as it is, or in a container."""
    if config.launch.kind == "process":
        return command
    docker = {name: value for name, value in surroundings.items() if name.startswith("DOCKER_")}
    argv = [sys.executable, "-m", "mxscale.launcher.container", str(run_dir), *command.argv]
    return replace(command, argv=argv, env={**command.env, **docker})


def environment(config: Config, placed: Placement, surroundings: Mapping[str, str]) -> Dict[str, str]:
    """The clean environment of the ranks."""
    env = {k: v for k, v in surroundings.items() if k in INHERITED or k.startswith(INHERITED_PREFIXES)}
    env["PATH"] = f"{Path(sys.executable).parent}:{env.get('PATH', '/usr/bin:/bin')}"
    env["PYTHONPATH"] = str(ROOT)
    env["PYTHONUNBUFFERED"] = "1"
    if placed.hosts and "SSH_AUTH_SOCK" in surroundings:
        env["SSH_AUTH_SOCK"] = surroundings["SSH_AUTH_SOCK"]  # where the agent listens; no secret
    env["OMP_NUM_THREADS"] = str(threads_per_rank(config, placed))
    env.setdefault("HOROVOD_GLOO_TIMEOUT_SECONDS", str(math.ceil(config.launch.stall_s)))  # it waits for a peer
    env.setdefault("HOROVOD_FUSION_THRESHOLD", "0")  # buckets are ours: see distributed/exchange.py
    if config.comm.double_buffering:
        # Horovod's ranks speak to each other in every cycle (1 ms), whether there are gradients or not, and on a CPU
        # that takes time from who computes.  Here nobody waits for an exchange at once: see docs/exchange.md
        env.setdefault("HOROVOD_CYCLE_TIME", "5")
    if config.comm.entry.needs_servers and config.comm.update_on == "worker":
        # Keys are buckets, few and large: all servers share each, where MXNet shares from 1,000,000 numbers on
        env.setdefault("MXNET_KVSTORE_BIGARRAY_BOUND", "16384")
    return env


def _gloo(config: Config, ranks: int, env, where: str) -> List[str]:
    # Its own 30 s are too short for busy hosts, and its cache holds interfaces that are gone
    remote = ["--disable-cache", "--start-timeout", f"{config.launch.start_timeout_s:.0f}"] if where else []
    return ["horovodrun", "--gloo", *remote, "-np", str(ranks), "-H", where or f"localhost:{ranks}"]


def _mpi(config: Config, ranks: int, env, where: str) -> List[str]:
    passed = [word for name in sorted(env) for word in ("-x", name)]
    # docker0 has one address on every host that runs Docker: a rank that takes it for its peer's waits forever
    told = any(name.startswith("OMPI_MCA_btl_tcp_if_") for name in env)
    interfaces = ["-mca", "btl_tcp_if_exclude", "127.0.0.0/8,docker0"] if where and not told else []
    return [
        "mpirun",
        "--allow-run-as-root",
        "--oversubscribe",
        "-np",
        str(ranks),
        "-bind-to",
        "none",
        # Nothing is bound, so that no map of the machine is needed; two daemons that write one at once crash (4.1.4)
        "-mca",
        "rtc_hwloc_vmhole",
        "none",
        "-map-by",
        "slot",
        *(["-H", where] if where else []),
        *interfaces,
        *passed,
    ]


LAUNCHERS = {"gloo": _gloo, "mpi": _mpi}


# What horovodrun (Gloo) and mpirun write when the end of one rank makes them end the others
FIRST_GONE = re.compile(r"after failure of Process (\d+)|process rank (\d+) with PID .* exited on signal")


def first_gone(log: str) -> Optional[int]:
    """The rank whose end came first, where the launcher says so."""
    found = FIRST_GONE.search(log)
    return int(found[1] or found[2]) if found else None
