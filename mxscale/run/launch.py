"""Back end -> the commands that start its ranks.  A pure function, tested as text."""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Dict, List, Mapping

from mxscale.config import Config

ROOT = Path(__file__).resolve().parents[2]  # where `import mxscale` works

# What ranks inherit.  horovodrun repeats its whole environment in a command line that every user of
# the machine can read, so nothing else, a credential least of all, is passed on.
INHERITED = ("PATH", "HOME", "USER", "LANG", "LC_ALL", "TMPDIR", "LD_LIBRARY_PATH", "CUDA_VISIBLE_DEVICES",
             "NVIDIA_VISIBLE_DEVICES", "VIRTUAL_ENV")  # fmt: skip
INHERITED_PREFIXES = ("MXNET_", "HOROVOD_", "NCCL_", "OMPI_MCA_", "OMP_", "KMP_")


@dataclass(frozen=True)
class Command:
    argv: List[str]
    env: Dict[str, str]


def commands(config: Config, run_dir: str, ranks: int, cores: int, surroundings: Mapping[str, str]) -> List[Command]:
    """The processes to start for `ranks` ranks on this machine of `cores` cores."""
    rank = [sys.executable, "-m", "mxscale.train.engine", str(run_dir)]
    env = environment(config, ranks, cores, surroundings)
    if config.comm.backend == "local":
        return [Command(rank, env)]
    return [Command(LAUNCHERS[config.comm.transport](ranks, env) + rank, env)]


def environment(config: Config, ranks: int, cores: int, surroundings: Mapping[str, str]) -> Dict[str, str]:
    """The clean environment of the ranks."""
    env = {k: v for k, v in surroundings.items() if k in INHERITED or k.startswith(INHERITED_PREFIXES)}
    env["PATH"] = f"{Path(sys.executable).parent}:{env.get('PATH', '/usr/bin:/bin')}"
    env["PYTHONPATH"] = str(ROOT)
    env["PYTHONUNBUFFERED"] = "1"
    env["OMP_NUM_THREADS"] = str(threads_per_rank(config, ranks, cores))
    env.setdefault("HOROVOD_FUSION_THRESHOLD", "0")  # buckets are ours: see train/exchange.py
    return env


def threads_per_rank(config: Config, ranks: int, cores: int) -> int:
    """OMP threads are divided among the ranks of a machine: more threads than cores slow every one down.

    With `data.shards` given, among the shards: the last bit depends on the threads too, and the same
    weights from any number of ranks are what the shards are fixed for.
    """
    return config.launch.threads or max(1, cores // (config.data.shards or ranks))


def _gloo(ranks: int, env) -> List[str]:
    return ["horovodrun", "--gloo", "-np", str(ranks), "-H", f"localhost:{ranks}"]


def _mpi(ranks: int, env) -> List[str]:
    passed = [word for name in sorted(env) for word in ("-x", name)]
    return [
        "mpirun",
        "--allow-run-as-root",
        "--oversubscribe",
        "-np",
        str(ranks),
        "-bind-to",
        "none",
        "-map-by",
        "slot",
        *passed,
    ]


LAUNCHERS = {"gloo": _gloo, "mpi": _mpi}
