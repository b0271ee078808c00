"""Training jobs that take turns, and the throughput and CPU use of each one in its turn.

A shared machine changes its speed within seconds, so runs one after another cannot be compared. Here all jobs start and
warm up. Then each one continues for a few seconds (SIGCONT) and is stopped (SIGSTOP) before the next. The first lines
of a turn are excluded: a line is written two steps after its interval, so one of them includes the stop, and the
messages in flight arrive meanwhile.
"""

import math
import statistics
import subprocess
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass, field
from signal import SIGCONT, SIGKILL, SIGSTOP
from typing import Callable, List

import measure
import psutil

POLL_S = 0.2
# Arguments after the interpreter that identify ranks and parameter servers: of a run, of bench/stock.py
RANKS = (["-m", "mxscale.train.rank"], [str(measure.ROOT / "bench/stock.py")])
SERVERS = (["-m", "mxscale.distributed.parameter_server"], ["-c", "import mxnet"])


@dataclass
class Reading:
    """Throughput and CPU use of a job in a turn."""

    rate: float  # images/s of all ranks
    cores: float  # used by their processes
    kernel: float  # of these in the kernel
    serving: float  # cores used by parameter servers
    others: float  # cores used by all other processes of the machine
    threads: list = field(default_factory=list)  # cores of each thread of one rank, largest first


class Training:
    """Processes that train between `turn` and `stop`, and are stopped otherwise.

    Args:
        argvs: commands to start together.
        rates: returns the images/s of each interval so far.
        interval: steps of an interval.
    """

    def __init__(self, argvs: List[list], env: dict, rates: Callable[[], list], interval: int):
        self.rates, self.log = rates, tempfile.TemporaryFile("w+")
        self.excluded = 1 + math.ceil(4 / interval)  # lines of a turn
        into = {"stdin": subprocess.DEVNULL, "stdout": self.log, "stderr": subprocess.STDOUT}
        self.processes = []
        try:
            for argv in argvs:
                self.processes.append(subprocess.Popen(list(map(str, argv)), cwd=measure.ROOT, env=env, **into))
            self._until(2)  # the first interval is warm-up
            self.ranks, self.servers = self._found(RANKS), self._found(SERVERS)
            self.stop()
        except BaseException:
            self.end()
            raise

    def turn(self, seconds: float) -> Reading:
        """Continue until lines of `seconds` are counted, at least two; the job still runs afterwards."""
        first = len(self.rates()) + self.excluded
        self._signal(SIGCONT)
        self._until(first)
        before, began = self._taken(), time.perf_counter()
        self._until(first + 2)
        while time.perf_counter() - began < seconds:
            self._until(len(self.rates()) + 1)
        after, ended = self._taken(), time.perf_counter()
        rates = self.rates()[first:]
        return reading(statistics.harmonic_mean(rates), before, after, ended - began)

    def stop(self) -> None:
        self._signal(SIGSTOP)

    def end(self) -> None:
        """Kill all processes of the job."""
        for pid in [*self._found(RANKS), *self._found(SERVERS)]:
            send(pid, SIGKILL)
        for process in self.processes:
            process.terminate()
        for process in self.processes:
            process.wait()

    def _signal(self, number: int) -> None:
        for pid in [*self.servers, *self.ranks]:
            send(pid, number)

    def _until(self, lines: int) -> None:
        while len(self.rates()) < lines:
            if any(process.poll() is not None for process in self.processes):
                self.log.seek(0)
                raise SystemExit(f"{' '.join(self.processes[0].args)} exited:\n{self.log.read()}")
            time.sleep(POLL_S)

    def _taken(self) -> tuple:
        return [cpu_times(pid) for pid in self.ranks], [cpu_times(pid) for pid in self.servers], busy()

    def _found(self, prefixes) -> list:
        found = []
        for process in self.processes:
            with suppress(psutil.NoSuchProcess):
                parent = psutil.Process(process.pid)
                for one in (parent, *parent.children(recursive=True)):
                    with suppress(psutil.NoSuchProcess):
                        argv = one.cmdline()[1:]
                        found += [one.pid] * any(argv[: len(prefix)] == prefix for prefix in prefixes)
        return found


def reading(rate: float, before: tuple, after: tuple, seconds: float) -> Reading:
    """Return the reading between two results of `_taken`."""
    ranks, servers = ([since(*ends) for ends in zip(before[kind], after[kind])] for kind in (0, 1))
    threads = sorted((sum(times) / seconds for times in ranks[0].values()), reverse=True)
    cores, serving = (sum(sum(times) for one in all_of for times in one.values()) for all_of in (ranks, servers))
    kernel = sum(times[1] for one in ranks for times in one.values())
    others = after[2] - before[2] - cores - serving
    each = (cores, kernel, serving, others)
    return Reading(rate, *(one / seconds for one in each), [round(own, 3) for own in threads[:6]])


def send(pid: int, number: int) -> None:
    with suppress(psutil.NoSuchProcess):
        psutil.Process(pid).send_signal(number)


def busy() -> float:
    """Return the busy seconds of the machine's cores, time stolen by other guests of the host included."""
    times = psutil.cpu_times()
    return sum(times[:8]) - times.idle - times.iowait


def cpu_times(pid: int) -> dict:
    """Return {thread: (user, kernel) seconds}."""
    return {thread.id: (thread.user_time, thread.system_time) for thread in psutil.Process(pid).threads()}


def since(then: dict, now: dict) -> dict:
    """Return {thread: (user, kernel) seconds} between two results of `cpu_times`."""
    return {thread: tuple(b - a for a, b in zip(then.get(thread, (0, 0)), times)) for thread, times in now.items()}
