"""Use of this machine by the names and units of MLflow's system metrics, within the limits of a container."""

import os
import time
from contextlib import suppress
from pathlib import Path
from typing import Dict, Optional, Tuple

import psutil

from mxscale.environment import container_limits
from mxscale.environment.nvml import Gpus


class Usage:
    """Samples the machine. Utilisation is that since the last call, network traffic that since the start."""

    def __init__(self, folder: Path):
        self.folder = folder  # whose disk is sampled
        self._gpus, self._network = Gpus(), psutil.net_io_counters()
        self._cpu = self._cpu_use()
        psutil.cpu_percent(percpu=True)

    def sample(self) -> Dict[str, float]:
        """Return metric -> value; what is unknown is omitted."""
        metrics = {}
        for part in (self._processor, self._memory, self._disk, self._traffic, self._gpus.sample):
            with suppress(OSError, ValueError, IndexError, psutil.Error):
                metrics.update(part())
        return {f"system/{name}": round(value, 1) for name, value in metrics.items()}

    def _processor(self) -> Dict[str, float]:
        by_core, before = psutil.cpu_percent(percpu=True), self._cpu
        self._cpu = self._cpu_use()
        if before and self._cpu:
            quota, used_s, at = self._cpu
            return {"cpu_utilization_percentage": 100 * (used_s - before[1]) / (at - before[2]) / quota}
        shares = [by_core[core] for core in os.sched_getaffinity(0)]
        return {"cpu_utilization_percentage": sum(shares) / len(shares)}

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
