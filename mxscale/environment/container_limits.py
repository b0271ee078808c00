"""CPU and memory limits of the cgroups, version 1 or 2, that this process runs in, and what they leave."""

import os
from pathlib import Path
from typing import Iterator, Optional, Tuple

PROC, CGROUPS = Path("/proc"), Path("/sys/fs/cgroup")
UNLIMITED = 2**60  # bytes; version 1 writes a number near 2^63 for no limit

# version -> (files of the limit and of the usage, key of the reclaimable part of the usage)
MEMORY = {1: ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
          2: ("memory.max", "memory.current", "inactive_file")}  # fmt: skip


def available_cores(proc: Path = PROC, cgroups: Path = CGROUPS) -> int:
    """Return the number of cores that this process may use: its affinity and the CPU quotas of its cgroups."""
    quotas = [quota for version, folder in _groups("cpu", proc, cgroups) for quota in _quota(version, folder)]
    return min([len(os.sched_getaffinity(0)), *(max(1, round(quota)) for quota in quotas)])


def cpu_use(proc: Path = PROC, cgroups: Path = CGROUPS) -> Optional[Tuple[float, float]]:
    """Return the smallest CPU quota of the cgroups in cores, and the CPU seconds that its cgroup has used.

    Returns None without a quota. Raises OSError or ValueError if the CPU seconds are unknown.
    """
    groups = _groups("cpu", proc, cgroups)
    quotas = [(quota, version, folder) for version, folder in groups for quota in _quota(version, folder)]
    if not quotas:
        return None
    quota, version, folder = min(quotas)
    if version == 1:
        return quota, int((folder / "cpuacct.usage").read_text()) / 1e9
    statistics = dict(line.split() for line in (folder / "cpu.stat").read_text().splitlines())
    return quota, int(statistics.get("usage_usec", "")) / 1e6


def memory_room(proc: Path = PROC, cgroups: Path = CGROUPS) -> Tuple[int, int]:
    """Return the smallest memory limit in bytes and the bytes free within it; UNLIMITED or more without a limit."""
    return min(_memory(proc, cgroups), default=(UNLIMITED, UNLIMITED))


def available_memory(proc: Path = PROC, cgroups: Path = CGROUPS) -> int:
    """Return the bytes that can still be allocated, on the machine and within the limits of all cgroups."""
    meminfo = dict(line.split(":") for line in (proc / "meminfo").read_text().splitlines())
    return min([1024 * int(meminfo["MemAvailable"].split()[0]), *(free for _, free in _memory(proc, cgroups))])


def _groups(controller: str, proc: Path, cgroups: Path) -> Iterator[Tuple[int, Path]]:
    """Yield (version, folder) of the controller's cgroups of this process: the root, its own and those between."""
    try:
        lines = (proc / "self" / "cgroup").read_text().splitlines()
    except OSError:  # no cgroups
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        version, root = (1, cgroups / controller) if controllers else (2, cgroups)
        group = root / path.lstrip("/")
        # In a container the path is the host's and does not exist: the root is the container's own group
        for folder in [root, *(folder for folder in (group, *group.parents) if root in folder.parents)]:
            yield version, folder


def _quota(version: int, folder: Path) -> Iterator[float]:
    """Yield the CPU quota of one cgroup in cores, if it has one."""
    try:
        if version == 2:
            quota, period = (folder / "cpu.max").read_text().split()
        else:
            quota, period = ((folder / f"cpu.cfs_{name}_us").read_text() for name in ("quota", "period"))
        if int(quota) > 0:  # version 1 writes -1 for no quota
            yield int(quota) / int(period)
    except (OSError, ValueError):  # no such file; "max": no quota
        pass


def _memory(proc: Path, cgroups: Path) -> Iterator[Tuple[int, int]]:
    """Yield (limit, free bytes within it) of each cgroup that limits memory."""
    for version, folder in _groups("memory", proc, cgroups):
        limit_file, usage_file, reclaimable = MEMORY[version]
        try:
            limit, used = int((folder / limit_file).read_text()), int((folder / usage_file).read_text())
            statistics = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
        except (OSError, ValueError):  # no such file; "max": no limit
            continue
        yield limit, max(0, limit - used + int(statistics.get(reclaimable, 0)))
