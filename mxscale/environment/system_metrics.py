"""Samples of this machine's use in system.jsonl, by the names and units of MLflow's system metrics.

A thread of the parent takes them, so ranks are not delayed. Of several hosts only the parent's is sampled.
"""

import os
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Dict, Optional, Tuple

import psutil

from mxscale.environment import container_limits
from mxscale.environment.energy import Energy
from mxscale.environment.gpus import Gpus
from mxscale.environment.other_programs import OtherPrograms
from mxscale.rundir import metrics_file
from mxscale.rundir.directory import SYSTEM, RunDir
from mxscale.util.background import background_thread

EVERY_S = 10.0
FIRST_S = 1.0  # before the first sample; the time doubles up to EVERY_S, so that short runs have some
OTHERS, CPU = "other_programs_percentage", "cpu_utilization_percentage"
WAIT_S = 2.0  # for the last sample: a hanging driver must not delay the end


def sampled(run: RunDir, attempt: int):
    """Append a line to system.jsonl every EVERY_S seconds while the block runs; its step is the number of the sample.

    A disk that is full loses samples; the parent reports it where it writes records.
    """

    def sample(ended: threading.Event) -> None:
        usage, wait_s, last = Usage(run.path), FIRST_S, False
        with suppress(OSError), metrics_file.appended(run.path / SYSTEM) as file:
            step = _last(run)
            while not last:
                last = ended.wait(wait_s)
                step, wait_s, metrics = step + 1, min(EVERY_S, 2 * wait_s), usage.sample()
                if last:  # the others are rates, for which the time may be too short
                    metrics = {name: value for name, value in metrics.items() if name.startswith("system/energy_")}
                file.write(metrics_file.entry(attempt, step, time.time(), metrics))
                file.flush()

    return background_thread(sample, "system metrics", WAIT_S)


def _last(run: RunDir) -> int:
    """Return the number of the last sample of earlier attempts; 0 without one."""
    return max((line["step"] for line, _ in run.lines_from(0, SYSTEM)), default=0)


class Usage:
    """Samples the machine, within the limits of a container.

    Utilisation and energy are those since the last call, network traffic that since the start.
    """

    def __init__(self, folder: Path):
        self.folder = folder  # whose disk is sampled
        self._gpus, self._network, self._others = Gpus(), psutil.net_io_counters(), OtherPrograms()
        self._energy, self._cpu = Energy(self._gpus), self._cpu_use()
        psutil.cpu_percent(percpu=True)

    def sample(self) -> Dict[str, float]:
        """Return metric -> value; what is unknown is omitted."""
        metrics = {}
        parts = (self._processor, lambda: {OTHERS: self._others.share()}, self._memory, self._disk, self._traffic,
                 self._gpus.sample, lambda: self._energy.sample(metrics.get(CPU)))  # fmt: skip
        for part in parts:
            with suppress(OSError, ValueError, IndexError, psutil.Error):
                metrics.update(part())
        return {f"system/{name}": round(value, 1) for name, value in metrics.items()}

    def _processor(self) -> Dict[str, float]:
        by_core, before = psutil.cpu_percent(percpu=True), self._cpu
        self._cpu = self._cpu_use()
        if before and self._cpu:
            quota, used_s, at = self._cpu
            return {CPU: 100 * (used_s - before[1]) / (at - before[2]) / quota}
        shares = [by_core[core] for core in os.sched_getaffinity(0)]
        return {CPU: sum(shares) / len(shares)}

    @staticmethod
    def _cpu_use() -> Optional[Tuple[float, float, float]]:
        """Return (quota in cores, CPU seconds used, time); None without a quota."""
        use = container_limits.cpu_use()
        return use and (*use, time.monotonic())

    def _memory(self) -> Dict[str, float]:
        machine = psutil.virtual_memory()
        used, total = machine.used, machine.total
        limit, free = container_limits.memory_room()
        if limit < total:
            used, total = limit - free, limit
        return {"system_memory_usage_megabytes": used / 1e6, "system_memory_usage_percentage": 100 * used / total}

    def _disk(self) -> Dict[str, float]:
        disk = psutil.disk_usage(str(self.folder))
        megabytes = {"disk_usage_megabytes": disk.used / 1e6, "disk_available_megabytes": disk.free / 1e6}
        return {"disk_usage_percentage": disk.percent, **megabytes}

    def _traffic(self) -> Dict[str, float]:
        now, start = psutil.net_io_counters(), self._network
        if now is None or start is None:  # no interface
            return {}
        received, sent = now.bytes_recv - start.bytes_recv, now.bytes_sent - start.bytes_sent
        return {"network_receive_megabytes": received / 1e6, "network_transmit_megabytes": sent / 1e6}
