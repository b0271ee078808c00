"""The energy that this machine uses: NVML's for GPUs, RAPL's for processors, else estimated from their TDP and use."""

import os
import re
import time
from contextlib import suppress
from pathlib import Path
from typing import Dict, Optional

from mxscale.environment.container_limits import available_cores
from mxscale.environment.gpus import Gpus

POWERCAP = Path("/sys/class/powercap")  # https://docs.kernel.org/power/powercap/powercap.html
NVML, RAPL, TDP = (f"energy_{source}_joules" for source in ("nvml", "rapl", "tdp"))


class Energy:
    """Measures energy from its creation on.

    That of processors counts by the share of the cores that this process may use. Virtual machines show none.
    """

    def __init__(self, gpus: Gpus, powercap: Path = POWERCAP):
        self._gpus, self._share = gpus, min(1.0, available_cores() / (os.cpu_count() or 1))
        self._tdp_watts, self._ranges, self._counters = 0.0, {}, {}
        names = {file.parent: file.read_text() for file in powercap.glob("intel-rapl:*/name")}
        # The other zones are parts of a package, or contain it
        zones = [zone for zone, name in names.items() if re.match("package|dram", name)]
        with suppress(OSError):  # only root may read the counters
            self._counters = {zone: _number(zone / "energy_uj") for zone in zones}
            self._ranges = {zone: _number(zone / "max_energy_range_uj") for zone in zones}
        with suppress(OSError):  # processors of AMD do not state it
            packages = [zone for zone in zones if names[zone].startswith("package")]
            self._tdp_watts = sum(_number(zone / "constraint_0_max_power_uw") for zone in packages) / 1e6
        self._at = time.monotonic()
        gpus.joules(0)

    def sample(self, cpu_percent: Optional[float]) -> Dict[str, float]:
        """Return the joules since the last call, with the use of the cores since then, by source; omit unknown ones."""
        before, self._at = self._at, time.monotonic()
        joules = {NVML: self._gpus.joules(self._at - before)}
        if self._ranges:
            joules[RAPL] = self._share * self._rapl_joules()
        elif self._tdp_watts and cpu_percent is not None:
            joules[TDP] = self._share * self._tdp_watts * cpu_percent / 100 * (self._at - before)
        return {source: value for source, value in joules.items() if value is not None}

    def _rapl_joules(self) -> float:
        before, self._counters = self._counters, {zone: _number(zone / "energy_uj") for zone in self._ranges}
        # A counter restarts at 0 beyond its range
        return sum((count - before[zone]) % self._ranges[zone] for zone, count in self._counters.items()) / 1e6


def _number(file: Path) -> int:
    return int(file.read_text())
