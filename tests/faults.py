"""What can be done to a run while it trains, and what it then has to do.  Used by test_faults.py and bench/faults.py.

A fault strikes at a step.  Whatever it was, the attempt ends within 30 s, names what failed, leaves no process
behind, and goes on from its last good checkpoint: by itself, or by `resume=`.
"""

import os
import random
import re
import signal
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Callable, List, Optional

import psutil
from conftest import ROOT, rank_pids

from mxscale.run.rundir import RunDir
from mxscale.train import checkpoint

LIMIT_S = 30.0


@dataclass(frozen=True)
class Fault:
    """strike(job): does it, returns a pattern that the error has to match.

    outside: a failure after which `launch.restarts` goes on; False: `resume=` does.
    """

    strike: Callable[["Job"], str]
    outside: bool = True
    settings: tuple = ()  # that it needs


class Job:
    """A run that was just started, and where to strike it."""

    def __init__(self, process, run: RunDir, dice: random.Random, network=None):
        self.process, self.run, self.dice, self.network = process, run, dice, network

    def a_rank(self) -> tuple:
        """(rank, pid) of any."""
        return self.dice.choice(sorted(rank_pids(self.run).items()))


def signal_a_rank(number) -> Callable[[Job], str]:
    def strike(job):
        rank, pid = job.a_rank()
        os.kill(pid, number)
        return rf"^rank {rank} (ended without a word|says nothing for)"

    return strike


def kill_a_server(role: str) -> Callable[[Job], str]:
    """role: as in the command `python -m mxscale.train.server RUN_DIR ATTEMPT ROLE`."""

    def strike(job):
        name, pid = job.dice.choice([(name, pid) for name, pid in server_pids(job.run) if name.startswith(role)])
        os.kill(pid, signal.SIGKILL)
        return rf"^{name.replace('_', ' ')} was ended by signal 9"

    return strike


def server_pids(run: RunDir) -> List[tuple]:
    """(role, pid) of the servers and the scheduler of a run, from the process table."""
    words = [(process.info["cmdline"] or [], process.pid) for process in psutil.process_iter(["cmdline"])]
    mine = [(argv, pid) for argv, pid in words if argv[1:4] == ["-m", "mxscale.train.server", str(run)]]
    return [("_".join(argv[5:]), pid) for argv, pid in mine]


def cut_a_link(job: Job) -> str:
    """Of the host of the last rank: it goes on, and reaches nobody."""
    node = job.network.nodes
    job.network.cut(node)
    return rf"^{re.escape(job.network.address(node))} \(rank \d+\) can't be reached any more"


def spoil_the_newest_checkpoint(job: Job) -> str:
    """And kill a rank, so that somebody reads it.  The parent is held up meanwhile: it may want to go on at once."""
    job.process.send_signal(signal.SIGSTOP)
    pattern = signal_a_rank(signal.SIGKILL)(job)
    until(lambda: not rank_pids(job.run), 20)
    newest = job.run.checkpoints / f"{checkpoint.steps(job.run.checkpoints)[-1]:09d}"
    file = newest / job.dice.choice(checkpoint.FILES)
    content = bytearray(file.read_bytes())
    content[job.dice.randrange(len(content))] ^= 1 << job.dice.randrange(8)
    file.write_bytes(content)
    job.process.send_signal(signal.SIGCONT)
    return pattern


def fill_the_disk(job: Job) -> str:
    """The run has to be on a disk of its own."""
    with open(job.run.path.parent / "filler", "wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(4096))
        except OSError:
            return r"not written|No space left"


def make_room(job: Job) -> None:
    (job.run.path.parent / "filler").unlink(missing_ok=True)


def kill_the_parent(job: Job) -> str:
    os.killpg(job.process.pid, signal.SIGKILL)
    return ""


FAULTS = {
    "a rank killed": Fault(signal_a_rank(signal.SIGKILL)),
    "a rank stopped": Fault(signal_a_rank(signal.SIGSTOP)),
    "a server killed": Fault(kill_a_server("server"), settings=("comm=parameter_server",)),
    "the scheduler killed": Fault(kill_a_server("scheduler"), settings=("comm=parameter_server",)),
    "a link cut": Fault(cut_a_link),
    "the newest checkpoint spoilt": Fault(spoil_the_newest_checkpoint),
    "the disk full": Fault(fill_the_disk, outside=False),
    "the parent killed": Fault(kill_the_parent, outside=False),
}


def possible(name: str) -> bool:
    """Whether this checkout and this machine have what a fault strikes."""
    if "comm=parameter_server" in FAULTS[name].settings:
        return (ROOT / "mxscale/train/server.py").exists()
    if name == "a link cut":
        return (ROOT / "bench/network.py").exists() and os.getuid() == 0
    return name != "the disk full" or os.getuid() == 0


# ---------------------------------------------------------------- what has to be true afterwards


def until(condition, timeout_s: float) -> float:
    """Seconds until `condition()`; fails after `timeout_s`."""
    began = time.monotonic()
    while not condition():
        assert time.monotonic() - began < timeout_s, f"not within {timeout_s:.0f} s"
        time.sleep(0.02)
    return time.monotonic() - began


def processes_of(run: RunDir) -> List[str]:
    """The command lines that name the run's directory, of processes that are not yet reaped by whoever started them."""
    lines = []
    for process in psutil.process_iter(["cmdline", "status"]):
        argv = process.info["cmdline"] or []
        if str(run) in argv and process.info["status"] != psutil.STATUS_ZOMBIE:
            lines.append(" ".join(argv))
    return lines


def whole_checkpoints(run: RunDir) -> List[int]:
    return [step for step in checkpoint.steps(run.checkpoints) if checkpoint.whole(run.checkpoints / f"{step:09d}")]


def first_end_s(run: RunDir, struck: float) -> Optional[float]:
    """Seconds from `struck` (of time.time) to the end of the first attempt; None while it goes on."""
    ended = (run.read("status.json") or {"attempts": [{}]})["attempts"][0].get("ended_ms")
    return ended and ended / 1000 - struck


def disk(folder: Path, megabytes: int = 12) -> bool:
    """Mount a small disk there; False where that is not allowed."""
    import subprocess

    folder.mkdir(parents=True, exist_ok=True)
    argv = ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "none", str(folder)]
    return subprocess.run(argv, capture_output=True).returncode == 0
