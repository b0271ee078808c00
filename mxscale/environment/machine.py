"""Facts of this machine or container: processors, memory, disk, limits, driver."""

import os
import platform
import re
import resource
import shutil
from pathlib import Path
from typing import Optional

from mxscale.environment import container_limits

UNLIMITED = "unlimited"
SHM_NOT_WRITABLE = ("/dev/shm is not writable, and horovodrun, MPI and NCCL use it",
                    "mount a tmpfs there, or use launch.ranks=1")  # fmt: skip
LIMITS = {"open_files": resource.RLIMIT_NOFILE, "locked_memory": resource.RLIMIT_MEMLOCK}
# Flag of /proc/cpuinfo -> vector instructions, the widest first
VECTORS = {"avx512f": "AVX-512", "avx2": "AVX2", "avx": "AVX"}


def describe(runs) -> dict:
    """Return the facts for environment.json. `runs` is the folder of runs, which need not exist."""
    return {
        "host": platform.node(),
        "cpu": cpu_model(),
        "cores": container_limits.available_cores(),
        "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "memory_limit_gb": memory_limit_gb(),
        "system": platform.platform(),
        "driver": driver_version(),
        "shm": shared_memory(),
        "limits": {name: soft_limit(limit) for name, limit in LIMITS.items()},
        "infiniband": infiniband(),
        "mpirun": shutil.which("mpirun"),
        "disk": disk(Path(runs)),
    }


def cpu_model(path="/proc/cpuinfo") -> str:
    """Return the processor's name and its widest vector instructions, such as "AMD EPYC (AVX2)".

    The name that a virtual machine shows can hide the generation: a network that trained at 390 images/s on one
    "AMD EPYC" trained at 120 on another, with AVX2 (docs/experiments/cifar10.md).
    """
    try:
        lines = Path(path).read_text().splitlines()
    except OSError:
        lines = []
    first = {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in reversed(lines))}
    name = first.get("model name") or platform.processor() or platform.machine()
    flags = first.get("flags", "").split()
    widest = next((text for flag, text in VECTORS.items() if flag in flags), None)
    return f"{name} ({widest})" if widest else name


def multiplies_bf16(path="/proc/cpuinfo") -> bool:
    """Return whether the processor has instructions that multiply bfloat16; oneDNN emulates them on others."""
    return Path(path).exists() and "avx512_bf16" in Path(path).read_text().split()


def memory_limit_gb() -> Optional[float]:
    """Return a container's memory limit; None without a limit."""
    limit, _ = container_limits.memory_room()
    return round(limit / 2**30, 1) if limit < container_limits.UNLIMITED else None


def driver_version(path="/proc/driver/nvidia/version") -> Optional[str]:
    """Return the version of NVIDIA's kernel driver; None if not installed."""
    try:
        line = Path(path).read_text().partition("Kernel Module")[2].partition("\n")[0]
    except OSError:
        return None
    version = re.search(r"\s(\d+\.[\d.]+)(?!\S)", line)
    return version[1] if version else None


def shared_memory(path="/dev/shm") -> Optional[dict]:
    """Return {'total_mb', 'free_mb', 'writable'}; None if the directory does not exist."""
    try:
        usage = shutil.disk_usage(path)
    except OSError:
        return None
    return {"total_mb": usage.total // 2**20, "free_mb": usage.free // 2**20, "writable": os.access(path, os.W_OK)}


def soft_limit(limit: int):
    """Return the soft limit that child processes inherit: a number (files, bytes) or `unlimited`."""
    soft = resource.getrlimit(limit)[0]
    return UNLIMITED if soft == resource.RLIM_INFINITY else soft


def infiniband() -> list:
    try:
        return sorted(os.listdir("/sys/class/infiniband"))
    except OSError:
        return []


def disk(folder: Path) -> dict:
    """Return {'path', 'free_gb', 'writable'} of `folder` or its nearest existing parent."""
    folder = folder.absolute()
    present = next(path for path in [folder, *folder.parents] if os.path.exists(path))
    return {
        "path": str(present),
        "free_gb": round(shutil.disk_usage(present).free / 2**30, 1),
        "writable": present.is_dir() and os.access(present, os.W_OK | os.X_OK),
    }


def allocated_gpus() -> int:
    """Return the GPUs of this node that Slurm allocated to the job; 0 outside a job."""
    return int(os.environ.get("SLURM_GPUS_ON_NODE") or 0)
