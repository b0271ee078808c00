"""Checks of the doctor: literal facts, real child processes, and the command."""

import copy
import json
import os
import subprocess
import sys
from importlib import metadata

import pytest
from refusals import command_error
from repository import ROOT

from mxscale.config.schema import from_dict
from mxscale.doctor import doctor
from mxscale.doctor.checks import PlannedRun, examine

CPU = {
    "versions": {"numpy": "1.23.5"},
    "machine": {
        "host": "a", "cores": 8, "memory_gb": 16.0, "memory_limit_gb": None, "driver": None, "infiniband": [],
        "mpirun": "/usr/bin/mpirun", "shm": {"total_mb": 8192, "free_mb": 8192, "writable": True},
        "limits": {"open_files": 65536, "locked_memory": 8 * 2**20},
        "disk": {"path": "/runs", "free_gb": 50.0, "writable": True},
    },
    "mxnet": {
        "version": "1.9.1", "numpy": "1.23.5", "features": ["MKLDNN", "OPENCV"], "gpus": 0, "driver": {},
        "linked": {},
        "horovod": {"version": "0.28.1", "gloo": True, "mpi": True, "nccl": None},
    },
}  # fmt: skip
V100 = {"name": "Tesla V100", "capability": "7.0"}
GPU = copy.deepcopy(CPU)
GPU["machine"]["driver"] = "550.54.15"
GPU["mxnet"].update(
    features=["CUDA", "CUDNN", "NCCL", "OPENCV"], gpus=4, driver={"cuda": "12.4", "gpus": [V100] * 4},
    linked={"cuda": "11.2", "cudnn": "8.1.1", "nccl": "2.8.3"}, operation="ok",
    horovod={"version": "0.28.1", "gloo": True, "mpi": True, "nccl": "2.8.4"},
)  # fmt: skip


def with_(facts, **changed):
    """Return a copy of `facts` with other values: machine__driver="1" for facts["machine"]["driver"]."""
    facts = copy.deepcopy(facts)
    for path, value in changed.items():
        *groups, last = path.split("__")
        node = facts
        for group in groups:
            node = node[group]
        node[last] = value
    return facts


def result_of(facts, name, **run):
    return next((each for each in examine(facts, PlannedRun(**run)) if each.name == name), None)


def test_machine_without_gpus_passes():
    results = examine(CPU, PlannedRun(ranks=2, ranks_here=2))
    assert {each.state for each in results} == {"ok"}
    assert [each.name for each in results] == [
        "mxnet", "features", "horovod", "gpu", "shared memory", "open files",
        "locked memory", "cores", "memory", "disk",
    ]  # fmt: skip


def test_machine_with_gpus_passes():
    results = {each.name: each for each in examine(GPU, PlannedRun(ranks=4, ranks_here=4))}
    assert {each.state for each in results.values()} == {"ok"}
    assert results["gpu"].cause == "4 x Tesla V100 (7.0)"
    assert results["nccl"].cause == "2.8.4"


@pytest.mark.parametrize("facts, state", [(CPU, "fail"), (GPU, "ok")])
def test_gpus_of_a_slurm_job_must_be_usable(monkeypatch, facts, state):
    monkeypatch.setenv("SLURM_GPUS_ON_NODE", "2")
    assert result_of(facts, "gpu").state == state
    assert result_of(facts, "gpu", device="cpu").state == "ok"


NO_GPU = {"mxnet__gpus": 0, "mxnet__driver": {}, "machine__driver": None}


@pytest.mark.parametrize(
    "name, facts, run, state, cause",
    [
        ("mxnet", with_(CPU, mxnet={"error": "OSError: libcuda.so.1: cannot open"}), {}, "fail", "libcuda.so.1"),
        ("features", with_(CPU, mxnet__features=["MKLDNN"]), {}, "fail", "OpenCV"),
        ("features", with_(CPU, mxnet__features=["OPENCV"]), {}, "warn", "oneDNN"),
        ("features", with_(CPU, mxnet={"error": "ImportError"}), {}, None, None),
        ("horovod", with_(CPU, mxnet__horovod={}), {"ranks": 2}, "fail", "not installed"),
        ("horovod", with_(CPU, mxnet__horovod={}), {}, "warn", "not installed"),
        ("horovod", with_(CPU, mxnet__horovod={"gloo": False, "mpi": False}), {}, "fail", "neither"),
        ("horovod", with_(CPU, machine__mpirun=None), {}, "warn", "no mpirun"),
        ("gpu", CPU, {"device": "gpu"}, "fail", "none, and this MXNet was built for CPUs"),
        ("gpu", GPU, {"device": "cpu"}, "ok", "launch.device=cpu"),
        ("gpu", GPU, {"ranks_here": 8}, "fail", "8 ranks on a machine, which has 4"),
        ("gpu", with_(CPU, mxnet__driver={"gpus": [V100]}), {}, "warn", "Tesla V100 (7.0) is present"),
        ("gpu", with_(CPU, mxnet__driver={"gpus": [V100]}), {"device": "gpu"}, "fail", "Tesla V100 (7.0) is present"),
        ("gpu", with_(GPU, **NO_GPU), {}, "warn", "there is no NVIDIA driver"),
        ("gpu", with_(GPU, **NO_GPU), {"device": "gpu"}, "fail", "there is no NVIDIA driver"),
        ("gpu", with_(GPU, mxnet__gpus=0, mxnet__driver={}), {}, "warn", "libcuda.so.1 is missing"),
        ("gpu", with_(GPU, mxnet__gpus=0, mxnet__driver={"cuda": "12.4", "gpus": []}), {}, "warn", "none is visible"),
        ("gpu", with_(GPU, mxnet__gpus=0, mxnet__driver__error="cuInit answered 803"), {}, "warn", "803"),
        ("gpu", with_(GPU, mxnet__gpus=0), {}, "warn", "older than MXNet's CUDA"),
        ("kernels", GPU, {"device": "cpu"}, None, None),
        ("kernels", with_(GPU, mxnet__operation="MXNetError: no kernel image"), {}, "fail", "failed: MXNetError: no k"),
        ("nccl", GPU, {"ranks": 1}, None, None),
        ("nccl", with_(GPU, mxnet__horovod__nccl=None), {"ranks": 2}, "warn", "without NCCL"),
        ("nccl", with_(GPU, mxnet__horovod__nccl="2.12.5"), {"ranks": 2}, "warn", "two versions in one process"),
        ("open files", with_(CPU, machine__limits__open_files=256), {}, "warn", "256"),
        ("open files", with_(CPU, machine__limits__open_files=1024), {}, "ok", "1024"),
        ("open files", with_(CPU, machine__limits__open_files=4096), {"ranks": 192}, "warn", "may need 65536"),
        ("open files", with_(CPU, machine__limits__open_files="unlimited"), {"ranks": 192}, "ok", "unlimited"),
        ("locked memory", with_(CPU, machine__infiniband=["mlx5_0"]), {}, "warn", "mlx5_0"),
        ("cores", CPU, {"ranks_here": 9}, "warn", "8 for 9 ranks"),
        ("memory", with_(CPU, machine__memory_limit_gb=0.9), {"ranks_here": 2}, "warn", "0.9 GB for 2 ranks"),
        ("disk", with_(CPU, machine__disk__free_gb=9.9), {}, "warn", "9.9 GB"),
        ("disk", with_(CPU, machine__disk__free_gb=0.9), {}, "fail", "0.9 GB"),
        ("disk", with_(CPU, machine__disk__writable=False), {}, "fail", "/runs is not writable"),
    ],
)  # fmt: skip
def test_check_of_facts(name, facts, run, state, cause):
    result = result_of(facts, name, **run)
    if state is None:
        assert result is None
        return
    assert (result.state, cause in result.cause) == (state, True), result
    if state == "fail":
        assert result.fix


@pytest.mark.parametrize(
    "free_mb, run, state",
    [
        (1, {"ranks_here": 2}, "ok"),  # Gloo on a CPU does not use it
        (8, {"ranks_here": 2, "transport": "mpi"}, "fail"),
        (16, {"ranks_here": 2, "transport": "mpi"}, "warn"),
        (64, {"ranks_here": 16, "transport": "mpi"}, "fail"),  # 8 + 16 x 4 MB
        (255, {"ranks_here": 2, "transport": "mpi"}, "warn"),
        (256, {"ranks_here": 2, "transport": "mpi"}, "ok"),
        (1, {"ranks_here": 1, "transport": "mpi"}, "ok"),
    ],
)
def test_shared_memory_check_depends_on_transport(free_mb, run, state):
    assert result_of(with_(CPU, machine__shm__free_mb=free_mb), "shared memory", **run).state == state


def test_docker_default_shared_memory_warns_for_gpus():
    few = with_(GPU, machine__shm={"total_mb": 64, "free_mb": 64, "writable": True})
    assert result_of(few, "shared memory", ranks_here=4).state == "warn"
    assert "--shm-size" in result_of(few, "shared memory", ranks_here=4).fix
    none = with_(GPU, machine__shm=None)
    assert [result_of(none, "shared memory", ranks=n, ranks_here=n).state for n in (1, 4)] == ["warn", "fail"]
    read_only = with_(CPU, machine__shm__writable=False)  # horovodrun needs it with Gloo as well
    assert result_of(read_only, "shared memory", ranks=2).fix == "mount a tmpfs there, or use launch.ranks=1"


@pytest.mark.parametrize(
    "error, fix",
    [
        ("AttributeError: module 'numpy' has no attribute 'bool'.", "numpy==1.23.5"),
        ("ModuleNotFoundError: No module named 'mxnet'", "make setup"),
        ("OSError: libcuda.so.1: cannot open shared object file", "driver"),
        ("OSError: libcudnn.so.8: cannot open shared object file", "CUDA libraries"),
        ("OSError: libnccl.so.2: cannot open shared object file", "CUDA libraries"),
        ("OSError: libopenblas.so.0: cannot open shared object file", "that library"),
        ("import mxnet was killed by SIGILL", "instructions"),
        ("something else", "make setup"),
    ],
)
def test_failed_import_has_a_fix(error, fix):
    result = result_of(with_(CPU, mxnet={"error": error}), "mxnet")
    assert (result.state, result.cause) == ("fail", f"{error} (numpy: 1.23.5)")
    assert fix in result.fix


def test_one_process_of_several_devices_needs_no_horovod():
    facts = with_(CPU, mxnet__horovod=None)
    assert result_of(facts, "horovod", ranks=4).state == "fail"
    assert result_of(facts, "horovod", ranks=4, over_horovod=False).state == "warn"


def test_missing_fact_is_a_warning_of_its_checks_alone():
    facts = copy.deepcopy(CPU)
    del facts["machine"]["limits"], facts["mxnet"]["horovod"]
    results = {each.name: each for each in examine(facts, PlannedRun())}
    warnings = {name for name, each in results.items() if each.state == "warn"}
    assert warnings == {"horovod", "open files", "locked memory"}
    assert "KeyError" in results["open files"].cause
    assert {each.state for each in examine({}, PlannedRun())} == {"warn"}


@pytest.mark.parametrize(
    "groups, gpus_seen, ranks, ranks_here",
    [
        ({}, 0, 2, 2),
        ({}, 4, 4, 4),
        ({"launch": {"device": "cpu"}}, 4, 2, 2),
        ({"launch": {"ranks": 3}}, 0, 3, 3),
        ({"launch": {"hosts": ["a:4", "b:2"]}}, 0, 6, 4),
        ({"launch": {"hosts": ["a:4", "b:4"], "ranks": 3}}, 0, 3, 3),
        ({"comm": {"backend": "local"}}, 0, 1, 1),
        ({"data": {"shards": 2}}, 4, 2, 2),
    ],
)
def test_planned_run_has_the_ranks_of_the_preparation(tmp_path, groups, gpus_seen, ranks, ranks_here):
    run = doctor.planned_run(from_dict({"runs": str(tmp_path), **groups}), with_(CPU, mxnet__gpus=gpus_seen))
    assert (run.ranks, run.ranks_here) == (ranks, ranks_here)


def command(tmp_path, *settings, env=None):
    argv = [sys.executable, "-m", "mxscale", "doctor", f"runs={tmp_path}/runs", *settings]
    clean = {k: v for k, v in os.environ.items() if not k.startswith("MLFLOW_")}
    return subprocess.run(argv, cwd=ROOT, env={**clean, **(env or {})}, capture_output=True, text=True, timeout=120)


@pytest.mark.slow
def test_command_prints_an_aligned_table(tmp_path):
    done = command(tmp_path, "tracking=none")
    lines = done.stdout.splitlines()
    assert done.returncode == 0, done.stdout
    assert lines[0].split()[:2] == ["ok", "mxnet"] and lines[-1].endswith("0 fail")
    assert not (tmp_path / "runs").exists()


@pytest.mark.slow
def test_command_prints_json_and_fails(tmp_path):
    done = command(tmp_path, "json=true", "launch.device=gpu", "tracking=none", env={"CUDA_VISIBLE_DEVICES": ""})
    answer = json.loads(done.stdout)
    assert done.returncode == 1 and answer["fail"] == 1
    assert [f["name"] for f in answer["findings"] if f["state"] == "fail"] == ["gpu"]
    assert answer["environment"]["mxnet"]["version"] == metadata.version("mxnet")


@pytest.mark.parametrize("setting", ["json=maybe", "launch.device=tpu", "launch.hots=[a]", "ranks"])
def test_command_refuses_invalid_settings(capsys, setting):
    assert setting.partition("=")[0] in command_error(capsys, "doctor", setting)
