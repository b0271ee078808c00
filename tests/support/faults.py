"""Faults that strike a run during training, and what the run must then do. For test_faults.py and bench/faults.py.

After every fault the attempt ends within 30 s, names what failed and leaves no process. The run resumes from its last
good checkpoint, either restarted by `launch.restarts` or with `resume=`.
"""

import os
import random
import re
import signal
import time
from dataclasses import dataclass
from itertools import pairwise
from typing import Callable, List

import psutil
from machine import until
from repository import ROOT
from run_files import rank_pids, wait_for_step

from mxscale.rundir import checkpoints
from mxscale.rundir.directory import RunDir

LIMIT_S = 30.0
SEED = int(os.environ.get("FAULT_SEED", "1"))  # of the steps at which tests strike; `make fuzz` draws it


@dataclass(frozen=True)
class Fault:
    """A kind of fault.

    Attributes:
        strike: Causes it and returns a pattern that the error must match.
        retryable: `launch.restarts` restarts the run after it; otherwise only `resume=` resumes it.
        settings: Settings that it needs.
        from_step: First step at which it can strike.
    """

    strike: Callable[["Job"], str]
    retryable: bool = True
    settings: tuple = ()
    from_step: int = 1


@dataclass(frozen=True)
class Strike:
    """One fault of FAULTS at a step; afterwards the run restarts or, if not possible or asked for, is resumed."""

    name: str
    step: int
    restarts: bool = True


class Job:
    """A running run and what a fault needs to strike it."""

    def __init__(self, process, run: RunDir, dice: random.Random, network=None):
        self.process, self.run, self.dice, self.network = process, run, dice, network

    def a_rank(self) -> tuple:
        """Return (rank, pid) of a random rank."""
        return self.dice.choice(sorted(rank_pids(self.run).items()))


def signal_a_rank(number) -> Callable[[Job], str]:
    def strike(job):
        rank, pid = job.a_rank()
        os.kill(pid, number)
        return rf"^(rank {rank} ended without a |no heartbeat of rank {rank} for)"

    return strike


def kill_a_server(role: str) -> Callable[[Job], str]:
    """Kill a random server whose name begins with `role`."""

    def strike(job):
        name, pid = job.dice.choice([(name, pid) for name, pid in server_pids(job.run) if name.startswith(role)])
        os.kill(pid, signal.SIGKILL)
        return rf"^{name} was ended by signal 9"

    return strike


def server_pids(run: RunDir) -> List[tuple]:
    """Return (name, pid) of the servers and the scheduler of a run, from the process table."""
    commands = [(process.info["cmdline"] or [], process.pid) for process in psutil.process_iter(["cmdline"])]
    mine = [
        (argv, pid) for argv, pid in commands if argv[1:4] == ["-m", "mxscale.distributed.parameter_server", str(run)]
    ]
    return [(argv[5].replace(".", " "), pid) for argv, pid in mine]


def cut_a_link(job: Job) -> str:
    """Cut the link of the last rank's host, which keeps running."""
    node = job.network.nodes
    job.network.cut(node)
    return rf"^{re.escape(job.network.addresses[node - 1])} \(rank \d+\) can't be reached any more"


def spoil_the_newest_checkpoint(job: Job) -> str:
    """Corrupt the newest of at least two checkpoints and kill a rank, so that it is read.

    The parent is stopped meanwhile, because it may restart the run at once.
    """
    job.process.send_signal(signal.SIGSTOP)
    pattern = signal_a_rank(signal.SIGKILL)(job)
    until(lambda: not rank_pids(job.run), 20)
    newest = job.run.checkpoint(checkpoints.steps(job.run.checkpoints)[-1])
    file = newest / job.dice.choice(checkpoints.FILES)
    content = bytearray(file.read_bytes())
    content[job.dice.randrange(len(content))] ^= 1 << job.dice.randrange(8)
    file.write_bytes(content)
    job.process.send_signal(signal.SIGCONT)
    return pattern


def fill_the_disk(job: Job) -> str:
    """Fill the disk, which must hold the run alone."""
    with open(job.run.path.parent / "filler", "wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(4096))
        except OSError:
            return r"not written|No space left"


def make_room(run: RunDir) -> None:
    (run.path.parent / "filler").unlink(missing_ok=True)


def kill_the_parent(job: Job) -> str:
    os.killpg(job.process.pid, signal.SIGKILL)
    return ""


FAULTS = {
    "a rank killed": Fault(signal_a_rank(signal.SIGKILL)),
    "a rank stopped": Fault(signal_a_rank(signal.SIGSTOP)),
    "a server killed": Fault(kill_a_server("server"), settings=("comm=parameter_server",)),
    "the scheduler killed": Fault(kill_a_server("scheduler"), settings=("comm=parameter_server",)),
    "a link cut": Fault(cut_a_link),
    "the newest checkpoint spoilt": Fault(spoil_the_newest_checkpoint, from_step=9),
    "the disk full": Fault(fill_the_disk, retryable=False),
    "the parent killed": Fault(kill_the_parent, retryable=False),
}


def possible(name: str) -> bool:
    """Return whether this checkout and this machine support a fault."""
    if "comm=parameter_server" in FAULTS[name].settings:
        return (ROOT / "mxscale/distributed/parameter_server.py").exists()
    if name == "a link cut":
        return (ROOT / "bench/emulated_network.py").exists() and os.getuid() == 0
    return name != "the disk full" or os.getuid() == 0


def survive(cli, strike: Strike, dice: random.Random, settings: tuple, network=None) -> dict:
    """Start a run, strike it, and complete it by `launch.restarts` or by `resume=`.

    Returns:
        {"seconds": from the fault to the attempt's end, "error", "sha", "run", "out"}.

    Raises:
        AssertionError: If a guarantee is broken.
    """
    fault = FAULTS[strike.name]
    restarts = strike.restarts and fault.retryable
    env = network and network.env()
    process = cli.start("train", *settings, *fault.settings, f"launch.restarts={int(restarts)}", env=env)
    try:
        run = cli.run_of(process)
        wait_for_step(run, strike.step)
        before = valid_checkpoints(run)
        struck = time.time()
        pattern = fault.strike(Job(process, run, dice, network))
        seconds, error = _end(process, run, struck, restarts, strike.name == "the parent killed")
        assert seconds < LIMIT_S, f"ended after {seconds:.0f} s"
        assert re.search(pattern, error), f"named {error!r}, not {pattern}"
        assert processes_of(run, 1) == []
        assert not before or valid_checkpoints(run), "no checkpoint is left"
        if restarts:
            out, err = process.communicate(timeout=120)
            assert process.returncode == 0, f"{out}\n{err}"
            assert f"failed: {error}" in out
        else:
            make_room(run)
            if network:  # resuming on the same hosts needs their links
                network.mend_all()
            out = cli("train", f"resume={run}", small=False, env=env).out
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
    status = run.read("status.json")
    assert len(status["attempts"]) == 2 and processes_of(run, 2) == []
    return {"run": run, "seconds": seconds, "error": error, "sha": status["params_sha256"], "out": out}


def _end(process, run: RunDir, struck: float, restarts: bool, killed: bool) -> tuple:
    """Return (seconds until the struck attempt ended, its error)."""
    if killed:
        until(lambda: not processes_of(run, 1), LIMIT_S)
        return time.time() - struck, ""
    if restarts:
        until(lambda: run.read("status.json")["attempts"][0].get("ended_ms"), LIMIT_S)
        first = run.read("status.json")["attempts"][0]
        return first["ended_ms"] / 1000 - struck, first.get("error") or ""
    _, err = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 1, err
    return time.time() - struck, err.splitlines()[-1].removeprefix("error: ")


def processes_of(run: RunDir, attempt: int) -> List[str]:
    """Return the command lines of an attempt's ranks, servers and their launchers."""
    lines = []
    for process in psutil.process_iter(["cmdline", "status"]):
        argv = process.info["cmdline"] or []
        named = any(pair == (str(run), str(attempt)) for pair in pairwise(argv))
        if named and process.info["status"] != psutil.STATUS_ZOMBIE:  # zombies are reaped by their parent
            lines.append(" ".join(argv))
    return lines


def valid_checkpoints(run: RunDir) -> List[int]:
    return [step for step in checkpoints.steps(run.checkpoints) if checkpoints.is_complete(run.checkpoint(step))]
