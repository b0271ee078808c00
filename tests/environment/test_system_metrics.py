"""Use of the machine: real samples, cgroups as files, a GPU library built here."""

import json
import os
import subprocess
import sys
import time

import pytest
from compiled import compiled, needs_cc
from machine import until
from repository import ROOT
from tracked_runs import CPU, add_lines, add_sample, end, make_run, points_in, points_of, runs_in

from mxscale.environment import container_limits, system_metrics
from mxscale.environment.system_metrics import Usage
from mxscale.rundir.directory import SYSTEM
from mxscale.tracking import tracker

MEMORY = "system/system_memory_usage_megabytes"


def test_names_and_units_are_those_of_mlflow(tmp_path):
    from mlflow.system_metrics.metrics.cpu_monitor import CPUMonitor
    from mlflow.system_metrics.metrics.disk_monitor import DiskMonitor
    from mlflow.system_metrics.metrics.network_monitor import NetworkMonitor

    usage, expected = Usage("/"), {}
    for monitor in (CPUMonitor(), DiskMonitor(), NetworkMonitor()):
        monitor.collect_metrics()
        expected.update({f"system/{name}": value for name, value in monitor.aggregate_metrics().items()})
    found = {
        name: value for name, value in usage.sample().items() if not name.startswith(("system/gpu_", "system/energy_"))
    }
    assert set(found) - {f"system/{system_metrics.OTHERS}"} == set(expected)
    if container_limits.memory_room()[0] >= container_limits.UNLIMITED:
        assert found[MEMORY] == pytest.approx(expected[MEMORY], rel=0.5)
    assert found["system/disk_available_megabytes"] == pytest.approx(
        expected["system/disk_available_megabytes"], rel=0.1
    )


@pytest.mark.parametrize("version", [1, 2])
def test_use_within_a_container_is_that_of_its_limits(tmp_path, monkeypatch, version):
    def write(cpu_s):
        if version == 2:
            files = {"cpu.max": "150000 100000", "cpu.stat": f"usage_usec {int(cpu_s * 1e6)}\nuser_usec 1\n"}
            files.update({"memory.max": str(10**9), "memory.current": str(4 * 10**8)})
            files["memory.stat"] = "inactive_file 100000000\n"
        else:
            files = {"cpu/cpu.cfs_quota_us": "150000", "cpu/cpu.cfs_period_us": "100000"}
            files.update({"cpu/cpuacct.usage": str(int(cpu_s * 1e9)), "memory/memory.limit_in_bytes": str(10**9)})
            files["memory/memory.usage_in_bytes"] = str(4 * 10**8)
            files["memory/memory.stat"] = "total_inactive_file 100000000\n"
        for name, text in files.items():
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_text(text)

    (tmp_path / "self").mkdir()
    (tmp_path / "self/cgroup").write_text("0::/\n" if version == 2 else "3:cpu,cpuacct:/\n2:memory:/\n")
    write(7.0)
    assert container_limits.cpu_use(tmp_path, tmp_path) == (1.5, 7.0)
    for name in ("cpu_use", "memory_room"):
        real = getattr(container_limits, name)
        monkeypatch.setattr(container_limits, name, lambda real=real: real(tmp_path, tmp_path))
    usage = Usage(tmp_path)
    write(7.0 + 1.5)  # all of the quota for one second
    clock = usage._cpu[2]
    monkeypatch.setattr(time, "monotonic", lambda: clock + 1.0)
    found = usage.sample()
    assert (found[CPU], found[MEMORY], found["system/system_memory_usage_percentage"]) == (100.0, 300.0, 30.0)


NVML = """
typedef struct { unsigned long long total, free, used; } memory;
typedef struct { unsigned gpu, memory; } use;
int nvmlInit_v2(void) { return STATUS; }
int nvmlDeviceGetCount_v2(unsigned *n) { *n = 2; return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned i, void **handle) { *handle = (void *)(unsigned long)(i + 1); return 0; }
int nvmlDeviceGetUtilizationRates(void *h, use *u) { u->gpu = 75; return 0; }
int nvmlDeviceGetMemoryInfo(void *h, memory *m) { m->total = 80000000000; m->used = 20000000000; return 0; }
int nvmlDeviceGetPowerUsage(void *h, unsigned *mw) { *mw = 350000; return h == (void *)1 ? 0 : 3; }
int nvmlDeviceGetEnforcedPowerLimit(void *h, unsigned *mw) { *mw = 700000; return 0; }
"""
EACH = {"utilization_percentage": 75.0, "memory_usage_megabytes": 20000.0, "memory_usage_percentage": 25.0}
POWER = {"gpu_0_power_usage_watts": 350.0, "gpu_0_power_usage_percentage": 50.0}


@needs_cc
@pytest.mark.parametrize("status", [0, 9])
def test_gpus_report_what_they_know(tmp_path, status):
    compiled(tmp_path, "libnvidia-ml.so.1", NVML.replace("STATUS", str(status)))
    code = "import json; from mxscale.environment import gpus; print(json.dumps(gpus.Gpus().sample()))"
    env = {**os.environ, "LD_LIBRARY_PATH": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=env, capture_output=True, text=True, check=True)
    both = {f"gpu_{number}_{name}": value for number in (0, 1) for name, value in EACH.items()}
    assert json.loads(done.stdout) == ({} if status else {**both, **POWER})  # the second does not report its power


def samples(run):
    return [(line["attempt"], line["step"]) for line, _ in run.lines_from(0, SYSTEM)]


def test_a_resumed_run_continues_its_samples_after_a_torn_line(tmp_path, monkeypatch):
    monkeypatch.setattr(system_metrics, "FIRST_S", 0.02)
    run = make_run(tmp_path)
    with system_metrics.sampled(run, 1):
        until(lambda: len(samples(run)) >= 2)
    first = samples(run)
    with open(run.path / SYSTEM, "a") as file:
        file.write('{"attempt":1,"st')
    with system_metrics.sampled(run, 2):
        until(lambda: len(samples(run)) > len(first))
    assert samples(run)[: len(first) + 1] == [*first, (2, len(first) + 1)] and first[0] == (1, 1)


def test_a_disk_that_cannot_be_written_ends_no_run(tmp_path):
    run = make_run(tmp_path)
    (run.path / SYSTEM).mkdir()
    with system_metrics.sampled(run, 1):
        pass


@pytest.mark.slow
def test_samples_are_sent_once(tmp_path):
    run = make_run(tmp_path)
    add_lines(run, 0, 2)
    for step in (1, 2):
        add_sample(run, step)
    end(run)
    for _ in range(2):
        assert tracker.sync(run) == 0
    uri = f"sqlite:///{tmp_path}/mlflow.db"
    assert points_in(uri, runs_in(uri)[0].info.run_id) == points_of(run)
