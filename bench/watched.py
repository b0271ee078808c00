"""Jobs that train while others are stopped: they take turns, and what each one's ranks do in its turn is noted.

A machine that is shared changes its speed within seconds, so that runs one after another can't be compared.  Here
all are started and warmed up; then each goes on for a few seconds (SIGCONT), is stopped (SIGSTOP), and the next has its
turn.  The first lines of a turn do not count: a line is written two steps after its interval, so that one of these has
the stop in it, and what was under way has arrived meanwhile.
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

POLL_S = 0.2  # each look reads the lines so far
# How the command lines of ranks, and of what serves them, begin behind the interpreter: of a run, of bench/stock.py
RANKS = (["-m", "mxscale.train.rank"], [str(measure.ROOT / "bench/stock.py")])
SERVERS = (["-m", "mxscale.distributed.parameter_server"], ["-c", "import mxnet"])


@dataclass
class Reading:
    """What a job's ranks did in a turn."""

    rate: float  # images/s of all ranks
    cores: float  # that their processes take
    kernel: float  # seconds of these that the kernel has, by second
    serving: float  # cores that parameter servers take
    others: float  # cores that all else on this machine takes
    threads: list = field(default_factory=list)  # cores of each thread of one rank, largest first


class Training:
    """Processes that train; stopped but between `turn` and `stop`.

    argvs: commands to start together.  rates: images/s of each interval so far, a call away; interval: its steps.
    """

    def __init__(self, argvs: List[list], env: dict, rates: Callable[[], list], interval: int):
        self.rates, self.log = rates, tempfile.TemporaryFile("w+")
        self.left_out = 1 + math.ceil(4 / interval)  # lines of a turn
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
        """Go on until `seconds` of lines that count are written, two at least; it still goes on then."""
        first = len(self.rates()) + self.left_out
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
        """Nothing of it is left."""
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
                raise SystemExit(f"{' '.join(self.processes[0].args)} ended:\n{self.log.read()}")
            time.sleep(POLL_S)

    def _taken(self) -> tuple:
        return [cpu_times(pid) for pid in self.ranks], [cpu_times(pid) for pid in self.servers], busy()

    def _found(self, beginnings) -> list:
        found = []
        for process in self.processes:
            with suppress(psutil.NoSuchProcess):
                parent = psutil.Process(process.pid)
                for one in (parent, *parent.children(recursive=True)):
                    with suppress(psutil.NoSuchProcess):
                        words = one.cmdline()[1:]
                        found += [one.pid] * any(words[: len(beginning)] == beginning for beginning in beginnings)
        return found


def reading(rate: float, before: tuple, after: tuple, seconds: float) -> Reading:
    """From what `_taken` said at both ends."""
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
    """Seconds that the machine's cores have been busy, or were kept from it by other guests of their host."""
    times = psutil.cpu_times()
    return sum(times[:8]) - times.idle - times.iowait


def cpu_times(pid: int) -> dict:
    """thread -> (user, kernel) seconds."""
    return {thread.id: (thread.user_time, thread.system_time) for thread in psutil.Process(pid).threads()}


def since(then: dict, now: dict) -> dict:
    """thread -> (user, kernel) seconds between two calls of `cpu_times`."""
    return {thread: tuple(b - a for a, b in zip(then.get(thread, (0, 0)), times)) for thread, times in now.items()}
