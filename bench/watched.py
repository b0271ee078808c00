"""A training run as a user starts it: its rate, and what its ranks take of the CPU meanwhile."""

import statistics
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import measure
import psutil

from mxscale.run.rundir import RunDir

RATE = "throughput/images_per_s"


@dataclass
class Reading:
    """What a run's ranks did while they trained."""

    rate: float  # images/s of all ranks
    cores: float = 0.0  # that their processes take
    kernel: float = 0.0  # share of that
    others: float = 0.0  # cores that all else on this machine takes
    threads: list = field(default_factory=list)  # cores of each thread of one rank, largest first


class Training:
    """An entry script that is running; `read` waits for its end."""

    def __init__(self, settings, folder: str, env: dict, before=()):
        """before: words put before the command, such as `ip netns exec NAME`."""
        self.argv = [*before, sys.executable, "train.py", f"runs={folder}", "tracking=none", *settings]
        self.folder, self.log, self.marks = Path(folder, "train"), tempfile.TemporaryFile("w+"), []
        self.process = subprocess.Popen(
            self.argv, cwd=measure.ROOT, env=env, stdin=subprocess.DEVNULL, stdout=self.log, stderr=subprocess.STDOUT
        )
        self.watching = threading.Thread(target=self._watch, daemon=True)
        self.watching.start()

    def read(self) -> Reading:
        try:
            self.process.wait()
        finally:
            self.process.terminate()  # where a bench is told to end; a run that has ended hears nothing
            self.process.wait()
            self.watching.join()
        if self.process.returncode:
            self.log.seek(0)
            raise SystemExit(f"{' '.join(self.argv)} ended with {self.process.returncode}:\n{self.log.read()}")
        # The first interval is warm-up
        return Reading(statistics.median(self._rates()[1:]), *self._cpu())

    def _rates(self) -> list:
        found = list(self.folder.glob("*/metrics.jsonl"))
        lines = RunDir(found[0].parent).history() if found else []
        return [line["metrics"][RATE] for line in lines if RATE in line["metrics"]]

    def _watch(self) -> None:
        """Notes the CPU times of the ranks at each line of metrics, from the first with a rate on."""
        pids = []
        while self.process.poll() is None:
            time.sleep(0.1)
            if len(self._rates()) > len(self.marks):
                pids = pids or self._ranks()
                self.marks.append((time.perf_counter(), [cpu_times(pid) for pid in pids], busy()))

    def _ranks(self) -> list:
        found = []
        for child in psutil.Process(self.process.pid).children(recursive=True):
            with suppress(psutil.NoSuchProcess):
                if child.cmdline()[1:3] == ["-m", "mxscale.train.engine"]:
                    found.append(child.pid)
        return found

    def _cpu(self) -> tuple:
        """(cores, the kernel's share, others, cores of each thread of one rank) from the first mark to the last."""
        marks = [mark for mark in self.marks if mark[1] and all(mark[1])]  # ranks that are gone have no times
        if len(marks) < 2:
            return ()
        (began, first, all_before), (ended, last, all_after) = marks[0], marks[-1]
        taken = [since(then, now) for then, now in zip(first, last)]
        user, kernel = (sum(times[part] for rank in taken for times in rank.values()) for part in (0, 1))
        seconds = ended - began
        threads = sorted((sum(times) / seconds for times in taken[0].values()), reverse=True)
        cores, everything = (user + kernel) / seconds, (all_after - all_before) / seconds
        return cores, kernel / (user + kernel), everything - cores, [round(own, 3) for own in threads[:6]]


def busy() -> float:
    """Seconds that the machine's cores have been busy, or were kept from it by other guests of their host."""
    times = psutil.cpu_times()
    return sum(times[:8]) - times.idle - times.iowait


def cpu_times(pid: int) -> dict:
    """thread -> (user, kernel) seconds; {} of a process that is gone."""
    try:
        return {thread.id: (thread.user_time, thread.system_time) for thread in psutil.Process(pid).threads()}
    except psutil.NoSuchProcess:
        return {}


def since(then: dict, now: dict) -> dict:
    """thread -> (user, kernel) seconds between two calls of `cpu_times`."""
    return {thread: tuple(b - a for a, b in zip(then.get(thread, (0, 0)), times)) for thread, times in now.items()}
