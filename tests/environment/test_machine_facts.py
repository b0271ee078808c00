"""Facts of MXNet, the machine, its GPUs and the image: real child processes, literal files, libraries built here."""

import json
import os
import subprocess
import sys
from importlib import metadata

import pytest
from compiled import compiled, needs_cc
from repository import ROOT

from mxscale.doctor import doctor
from mxscale.environment import container_limits, description, gpus, machine
from mxscale.replay import inputs
from mxscale.rundir.plan import Plan
from mxscale.train import build_facts


@pytest.mark.slow
def test_child_reports_this_mxnet():
    facts = doctor.of_mxnet()
    assert (facts["version"], facts["numpy"]) == (metadata.version("mxnet"), "1.23.5")
    assert "OPENCV" in facts["features"]
    assert facts["library"].endswith("libmxnet.so") and facts["horovod"]["gloo"] is True
    if "CUDA" not in facts["features"]:
        assert (facts["gpus"], facts["linked"]) == (0, {})


def child_with(folder, text):
    """Return the facts of a child whose `import mxnet` runs `text`."""
    (folder / "mxnet").mkdir()
    (folder / "mxnet" / "__init__.py").write_text(text)
    env = {**os.environ, "PYTHONPATH": f"{folder}:{ROOT}"}
    return doctor.of_mxnet(env)


def test_incompatible_numpy_fails(tmp_path):
    advice = "`np.bool` was a deprecated alias for the builtin `bool`.\\n    https://numpy.org/devdocs/release"
    raising = f"raise AttributeError(\"module 'numpy' has no attribute 'bool'.\\n{advice}\")"
    facts = child_with(tmp_path, raising)
    assert facts == {"error": "AttributeError: module 'numpy' has no attribute 'bool'."}


@pytest.mark.parametrize(
    "text, error",
    [
        ("import os, signal; os.kill(os.getpid(), signal.SIGILL)", "import mxnet was killed by SIGILL"),
        ("import os; os.kill(os.getpid(), 40)", "import mxnet was killed by signal 40"),
        ("raise SystemExit('no licence')", "no licence"),
    ],
)
def test_child_that_ends_is_an_error(tmp_path, text, error):
    assert child_with(tmp_path, text) == {"error": error}


FAKE = """
import sys, types
class MXNetError(Exception): pass
def ones(shape, ctx):
    raise MXNetError("Traceback (most recent call last):\\n  [bt] f()\\nCUDA: no kernel image is available")
nd, gpu = types.SimpleNamespace(ones=ones), lambda: None
"""


def test_failed_operation_on_a_gpu_is_reported(tmp_path, monkeypatch):
    (tmp_path / "mxnet.py").write_text(FAKE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "mxnet", raising=False)
    assert build_facts.operation() == "MXNetError: CUDA: no kernel image is available"


def test_child_that_hangs_times_out(tmp_path, monkeypatch):
    monkeypatch.setattr(doctor, "TIMEOUT_S", 0.5)
    assert child_with(tmp_path, "import time; time.sleep(60)") == {
        "error": "import mxnet, or an operation on a GPU, timed out after 0.5 s"
    }


def test_generated_photograph_has_the_size_of_imagenets():
    for seed in range(2):
        assert 90_000 < len(inputs.jpeg(seed)) < 130_000


def test_facts_of_this_machine(tmp_path):
    facts = machine.describe(tmp_path / "not" / "there")
    assert facts["disk"]["path"] == str(tmp_path) and facts["disk"]["writable"] and facts["disk"]["free_gb"] > 0
    assert set(facts["limits"]) == {"open_files", "locked_memory"}
    assert facts["shm"] is None or facts["shm"]["total_mb"] >= facts["shm"]["free_mb"]
    json.dumps(facts)
    (tmp_path / "file").write_text("")
    assert machine.disk(tmp_path / "file" / "runs")["writable"] is False


@pytest.mark.parametrize(
    "flags, model",
    [
        ("fma avx avx2", "AMD EPYC (AVX2)"),
        ("avx avx2 avx512f", "AMD EPYC (AVX-512)"),
        ("sse4_2", "AMD EPYC"),
    ],
)
def test_cpu_model_has_the_widest_vector_instructions(tmp_path, flags, model):
    (tmp_path / "cpuinfo").write_text(f"model name\t: AMD EPYC\nflags\t\t: fpu {flags}\n\nmodel name\t: other\n")
    assert machine.cpu_model(tmp_path / "cpuinfo") == model
    assert machine.cpu_model(tmp_path / "none")  # a system without /proc


@pytest.mark.parametrize("flags, expected", [("avx512f avx512_bf16", True), ("avx2 avx512f", False)])
def test_instructions_for_bfloat16_are_read_from_the_flags(tmp_path, flags, expected):
    (tmp_path / "cpuinfo").write_text(f"model name\t: AMD EPYC\nflags\t\t: fpu {flags}\n")
    assert machine.multiplies_bf16(tmp_path / "cpuinfo") is expected
    assert machine.multiplies_bf16(tmp_path / "none") is False


@pytest.mark.parametrize(
    "text, version",
    [
        ("NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat Aug 19 01:15:15 UTC 2023", "535.104.05"),
        ("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  550.54.15  Release Build", "550.54.15"),
        ("NVRM version: NVIDIA UNIX x86_64 Kernel Module  384.81  Sat Sep  2 02:43:11 PDT 2017", "384.81"),
        ("nothing of the kind", None),
    ],
)
def test_driver_version_is_read(tmp_path, text, version):
    (tmp_path / "version").write_text(f"{text}\nGCC version:  gcc version 12.2.0\n")
    assert machine.driver_version(tmp_path / "version") == version


@pytest.fixture
def system(tmp_path):
    """system(available_kb, cgroup, files) -> arguments for container_limits: a /proc and a tree of cgroups."""

    def write(available_kb=2000, cgroup="0::/", files=()):
        folder = tmp_path / str(len(list(tmp_path.iterdir())))
        written = {f"cgroup/{name}": text for name, text in dict(files).items()}
        written["proc/meminfo"] = f"MemTotal: 99999999 kB\nMemAvailable:   {available_kb} kB\n"
        written["proc/self/cgroup"] = f"{cgroup}\n"
        for name, text in written.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(text)
        return folder / "proc", folder / "cgroup"

    return write


def memory_v2(limit, used=400_000, inactive=100_000, folder=""):
    return {f"{folder}memory.max": f"{limit}\n", f"{folder}memory.current": f"{used}\n",
            f"{folder}memory.stat": f"anon 9\ninactive_file {inactive}\n"}  # fmt: skip


V1 = {"memory/memory.limit_in_bytes": "1000000\n", "memory/memory.usage_in_bytes": "400000\n",
      "memory/memory.stat": "total_inactive_file 50000\n"}  # fmt: skip
NESTED = {**memory_v2(500_000, 100_000, 0, "slice/"), **memory_v2(900_000, 100_000, 0, "slice/job/")}


@pytest.mark.parametrize(
    "cgroup, files, limit, available",
    [
        ("0::/", {}, None, 2_048_000),
        ("0::/x", memory_v2("max", folder="x/"), None, 2_048_000),
        ("0::/", memory_v2(1_000_000), 1_000_000, 700_000),
        ("9:memory:/docker/abc\n3:cpu:/", V1, 1_000_000, 650_000),
        ("0::/slice/job", NESTED, 500_000, 400_000),
    ],
    ids=["none", "unlimited", "v2", "v1", "nested"],
)
def test_memory_limits_of_cgroups(system, cgroup, files, limit, available):
    where = system(2000, cgroup, files)
    assert container_limits.memory_room(*where)[0] == (limit or container_limits.UNLIMITED)
    assert container_limits.available_memory(*where) == available


@pytest.mark.parametrize(
    "cgroup, files, cores",
    [
        ("0::/", {}, 8),
        ("0::/", {"cpu.max": "max 100000\n"}, 8),
        ("0::/", {"cpu.max": "250000 100000\n"}, 2),
        ("0::/", {"cpu.max": "10000 100000\n"}, 1),
        ("4:cpu,cpuacct:/", {"cpu/cpu.cfs_quota_us": "300000\n", "cpu/cpu.cfs_period_us": "100000\n"}, 3),
        ("4:cpu,cpuacct:/", {"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, 8),
    ],
)
def test_available_cores_respect_cpu_quotas(system, monkeypatch, cgroup, files, cores):
    monkeypatch.setattr("os.sched_getaffinity", lambda process: set(range(8)))
    assert container_limits.available_cores(*system(2000, cgroup, files)) == cores


def test_version_numbers_of_cuda_libraries():
    assert [gpus.cuda_version(n) for n in (9000, 11020, 12040, 0)] == ["9.0", "11.2", "12.4", None]
    numbers = {7605: "7.6.5", 8101: "8.1.1", 90100: "9.1.0", 2408: "2.4.8", 21205: "2.12.5", 0: None}
    assert {n: gpus.library_version(n) for n in numbers} == numbers


@needs_cc
def test_versions_come_from_the_library_and_its_links(tmp_path):
    cudart = compiled(tmp_path, "libcudart.so", "int cudaRuntimeGetVersion(int *n) { *n = 11020; return 0; }")
    own = """unsigned long cudnnGetVersion(void) { return 8101; }
             int cudaRuntimeGetVersion(int *);
             int use(int *n) { return cudaRuntimeGetVersion(n); }"""
    assert build_facts.linked(compiled(tmp_path, "libmxnet.so", own, cudart)) == {"cuda": "11.2", "cudnn": "8.1.1"}


DRIVER = """
#include <string.h>
int cuDriverGetVersion(int *n) { *n = 12040; return 0; }
int cuInit(unsigned flags) { return STATUS; }
int cuDeviceGetCount(int *n) { *n = 2; return 0; }
int cuDeviceGetName(char *name, int size, int device) { strncpy(name, device ? "B" : "A", size); return 0; }
int cuDeviceGetAttribute(int *n, int which, int device) { *n = which == 75 ? 8 + device : 6 * !device; return 0; }
"""


@needs_cc
@pytest.mark.parametrize(
    "status, expected",
    [
        (0, {"cuda": "12.4", "gpus": [{"name": "A", "capability": "8.6"}, {"name": "B", "capability": "9.0"}]}),
        (100, {"cuda": "12.4", "gpus": []}),
        (803, {"cuda": "12.4", "gpus": [], "error": "cuInit answered 803"}),
    ],
)
def test_driver_lists_its_gpus(tmp_path, status, expected):
    compiled(tmp_path, "libcuda.so.1", DRIVER.replace("STATUS", str(status)))
    code = "import json; from mxscale.environment import gpus; print(json.dumps(gpus.driver()))"
    env = {**os.environ, "LD_LIBRARY_PATH": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=env, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == expected


def test_image_build_is_tagged(tmp_path, monkeypatch):
    (tmp_path / "build.json").write_text('{"build": "source", "commit": "abc", "image.id": "sha256:1"}')
    monkeypatch.setenv("MXSCALE_IDENTITY", str(tmp_path / "build.json"))
    monkeypatch.setattr(description, "git_state", lambda: (None, None))
    monkeypatch.setattr(description, "ROOT", tmp_path / "checkout")
    tags = description.tags(description.describe(tmp_path), Plan(data_digest="d"), "s")
    assert "git.commit" not in tags  # the code is a checkout, not that of the image
    monkeypatch.setattr(description, "ROOT", tmp_path)
    tags = description.tags(description.describe(tmp_path), Plan(data_digest="d"), "s")
    assert (tags["build"], tags["image.id"], tags["git.commit"]) == ("source", "sha256:1", "abc")
    assert "git.dirty" not in tags
    (tmp_path / "build.json").write_text("[torn")
    assert description.identity() == {}


def test_checkout_is_tagged_as_wheel(tmp_path, monkeypatch):
    monkeypatch.setenv("MXSCALE_IDENTITY", str(tmp_path / "none"))
    tags = description.tags(description.describe(tmp_path), Plan(data_digest="d"), "s")
    assert tags["build"] == "wheel" and "image.id" not in tags
