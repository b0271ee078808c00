"""Energy of this machine: RAPL as files, a GPU library built here."""

import json
import os
import subprocess
import sys
import time

import pytest
from compiled import compiled, needs_cc
from repository import ROOT

from mxscale.environment import energy
from mxscale.environment.energy import NVML, RAPL, TDP, Energy


class NoGpus:
    def joules(self, seconds):
        return None


@pytest.fixture
def powercap(tmp_path, monkeypatch):
    """Two processors, one with a counter of its memory, and zones that are part of one or contain all."""
    clock = iter(range(0, 1000, 10))
    monkeypatch.setattr(time, "monotonic", lambda: next(clock))
    monkeypatch.setattr(energy, "available_cores", lambda: 4)
    monkeypatch.setattr(os, "cpu_count", lambda: 4)
    names = {"0": "package-0", "0:0": "core", "0:1": "dram", "1": "package-1", "2": "psys"}
    for zone, name in names.items():
        write(tmp_path, zone, name=name, energy_uj=0, max_energy_range_uj=262_000_000)
        if name.startswith("package"):
            write(tmp_path, zone, constraint_0_max_power_uw=95_000_000)
    return tmp_path


def write(folder, zone, **files):
    (folder / f"intel-rapl:{zone}").mkdir(exist_ok=True)
    for name, content in files.items():
        (folder / f"intel-rapl:{zone}" / name).write_text(f"{content}\n")


def count(folder, **joules):
    for zone, value in joules.items():
        write(folder, zone[1:].replace("_", ":"), energy_uj=int(value * 1e6))


def hide_counters(folder):
    """Make the counters unreadable, as they are for other users than root, also where the tests run as root."""
    for counter in folder.glob("*/energy_uj"):
        counter.unlink()
        counter.mkdir()


def test_rapl_counts_processors_and_their_memory_once(powercap):
    measured = Energy(NoGpus(), powercap)
    count(powercap, z0=100, z0_0=60, z0_1=20, z1=50, z2=999)
    assert measured.sample(50.0) == {RAPL: pytest.approx(170.0)}
    assert measured.sample(50.0) == {RAPL: 0.0}


def test_a_rapl_counter_wraps_around_at_its_range(powercap):
    count(powercap, z0=260)
    measured = Energy(NoGpus(), powercap)
    count(powercap, z0=1)
    assert measured.sample(50.0) == {RAPL: pytest.approx(3.0)}


def test_energy_is_estimated_where_only_root_may_read_it(powercap):
    hide_counters(powercap)
    measured = Energy(NoGpus(), powercap)
    assert measured.sample(80.0) == {TDP: pytest.approx(2 * 95 * 0.8 * 10)}
    assert measured.sample(None) == {}


def test_a_container_counts_its_share_of_the_processors(powercap, monkeypatch):
    monkeypatch.setattr(energy, "available_cores", lambda: 1)
    measured = Energy(NoGpus(), powercap)
    count(powercap, z0=100)
    assert measured.sample(50.0) == {RAPL: pytest.approx(25.0)}


def test_an_unknown_power_is_not_estimated(powercap):
    hide_counters(powercap)
    (powercap / "intel-rapl:1/constraint_0_max_power_uw").unlink()
    assert Energy(NoGpus(), powercap).sample(80.0) == {}


def test_a_virtual_machine_without_rapl_has_no_energy(tmp_path):
    assert Energy(NoGpus(), tmp_path / "missing").sample(100.0) == {}


def test_links_to_nothing_are_no_counters(tmp_path):
    (tmp_path / "intel-rapl:0").symlink_to(tmp_path / "masked")
    assert Energy(NoGpus(), tmp_path).sample(100.0) == {}


def test_gpus_and_processors_are_recorded_apart(powercap):
    class Gpus:
        def joules(self, seconds):
            return 300.0 * seconds

    measured = Energy(Gpus(), powercap)
    count(powercap, z1=50)
    assert measured.sample(50.0) == {NVML: 3000.0, RAPL: pytest.approx(50.0)}


LIBRARY = """
int nvmlInit_v2(void) { return 0; }
int nvmlDeviceGetCount_v2(unsigned *n) { *n = GPUS; return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned i, void **handle) { *handle = (void *)(unsigned long)(i + 1); return 0; }
int nvmlDeviceGetTotalEnergyConsumption(void *h, unsigned long long *mj) {
    static unsigned long long total = 5000000; *mj = total += 700000; return h == (void *)1 ? 0 : 3; }
int nvmlDeviceGetPowerUsage(void *h, unsigned *mw) { *mw = 350000; return POWER; }
"""


@needs_cc
@pytest.mark.parametrize(
    "gpus, power, expected",
    [(1, 3, 700.0), (2, 0, 2 * 700.0 + 350.0 * 2), (2, 3, None), (0, 0, None)],
    ids=["counter", "power of an older GPU", "one unknown", "none"],
)
def test_gpus_report_their_energy_or_nothing(tmp_path, gpus, power, expected):
    compiled(tmp_path, "libnvidia-ml.so.1", LIBRARY.replace("GPUS", str(gpus)).replace("POWER", str(power)))
    code = """
import json
from mxscale.environment.gpus import Gpus
gpus = Gpus()
gpus.joules(0)
print(json.dumps(gpus.joules(2)))
"""
    env = {**os.environ, "LD_LIBRARY_PATH": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=env, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == expected
