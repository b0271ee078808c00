"""The share of this machine's cores that other programs use: a rate that is measured beside them is too low."""

import os
import time
from contextlib import suppress
from typing import Tuple

import psutil

BUSY = 25.0  # per cent: from here on a measurement says so


def remark(share: float, use: str = "use") -> str:
    """Return a remark on the share of other programs, in per cent of the cores; empty below BUSY."""
    return f"other programs {use} {share:.0f} % of the cores" if share > BUSY else ""


class OtherPrograms:
    """Measures what programs other than this process and those it started use, from its creation on."""

    def __init__(self):
        self.last = self._times()

    def share(self) -> float:
        """Return the use since the last call, in per cent of the cores this process may use."""
        (busy, own, at), self.last = self.last, self._times()
        now_busy, now_own, now = self.last
        cores_s = max(now - at, 1e-3) * len(os.sched_getaffinity(0))
        return min(max(0.0, 100 * ((now_busy - busy) - (now_own - own)) / cores_s), 100.0)

    @staticmethod
    def _times() -> Tuple[float, float, float]:
        """Return CPU seconds of the cores and of the own processes, ended ones among them, and the time."""
        cores = psutil.cpu_times(percpu=True)
        busy = sum(sum(cores[core][:3]) for core in os.sched_getaffinity(0) if core < len(cores))  # user, nice, system
        own, this = 0.0, psutil.Process()
        for process in [this, *this.children(recursive=True)]:
            with suppress(psutil.Error):
                own += sum(process.cpu_times()[:4])  # with those of its ended children
        return busy, own, time.monotonic()
