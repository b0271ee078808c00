"""What a cell needs that this machine lacks, in words that say what to do."""

import os
import shutil
from dataclasses import dataclass
from typing import List, Optional, Sequence

from mxscale.environment import description
from mxscale.environment.hosts import Host
from mxscale.replay.entry import Cell, Grid

# A requirement is KIND:REST
GPUS, NCCL, MPI, BUILD, FILE, SET = "gpus", "nccl", "mpi", "build", "file", "set"


@dataclass(frozen=True)
class Here:
    """What this machine and this command line have."""

    gpus: Sequence[str] = ()  # names
    hosts: Sequence[Host] = ()  # launch.hosts
    slow_hosts: Sequence[str] = ()  # hosts with slow links, ADDRESS:SLOTS
    given: Sequence[str] = ()  # keys that the command line sets


def missing(cell: Cell, found: Here) -> List[str]:
    """Return why a cell can't run, one reason for each unmet requirement."""
    reasons = [reason for need in cell.needs if (reason := _unmet(need, found))]
    if cell.nodes is not None and len(found.hosts) < cell.nodes:
        hosts = "name it" if cell.nodes == 1 else f"name {cell.nodes}"
        reasons.append(f"{cell.nodes} machine{'s' * (cell.nodes > 1)}: {hosts} in launch.hosts")
    if 0 < len(found.slow_hosts) < cell.slow_hosts:
        reasons.append(f"{cell.slow_hosts} hosts with slow links: name {cell.slow_hosts} in slow_hosts")
    return reasons


def lacking(grid: Grid, found: Here) -> List[str]:
    """Return the reasons of all cells of a grid, without repetition."""
    return list(dict.fromkeys(reason for cell in grid.cells for reason in missing(cell, found)))


def _unmet(need: str, found: Here) -> Optional[str]:
    kind, _, rest = need.partition(":")
    return {GPUS: _gpus, NCCL: _nccl, MPI: _mpi, BUILD: _build, FILE: _file, SET: _set}[kind](rest, found)


def _gpus(rest: str, found: Here) -> Optional[str]:
    name, count = rest.split(":")
    if found.hosts or sum(name in each for each in found.gpus) >= int(count):
        return None
    here = f"{len(found.gpus)} x {found.gpus[0]}" if found.gpus else "no GPU"
    return f"{count} {name or 'GPU'}{'' if name else 's' * (count != '1')} (this machine has {here})"


def _nccl(_: str, found: Here) -> Optional[str]:
    return None if found.gpus else "NCCL, which exchanges between GPUs (this machine has none)"


def _mpi(_: str, __: Here) -> Optional[str]:
    return None if shutil.which("mpirun") else "mpirun: install Open MPI, then remove .venv and run make setup"


def _build(name: str, _: Here) -> Optional[str]:
    here = description.identity().get("build", "wheel")
    return None if here == name else f"MXNet of the build {name} (this is {here}): run the replay in its image"


def _file(path: str, _: Here) -> Optional[str]:
    return None if os.path.exists(path) else f"{path}, to be placed there"


def _set(key: str, found: Here) -> Optional[str]:
    return None if key in found.given else f"{key}=PATH"
