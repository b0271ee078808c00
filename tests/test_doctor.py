"""What stands in the way of a run: findings over literal facts, then real children, servers, ssh and the command."""

import copy
import http.server
import json
import os
import shutil
import socket
import struct
import subprocess
import sys
import threading
import time
from importlib import metadata

import pytest
from conftest import ROOT

from mxscale.config.schema import from_dict
from mxscale.doctor import connectivity, doctor, gpu_checks
from mxscale.doctor.check_result import Finding, Wish, table
from mxscale.environment import description, gpus, machine
from mxscale.train import build_facts

CPU = {
    "git": {"commit": "39263d7ed519a704", "dirty": False},
    "image": {},
    "versions": {"numpy": "1.23.5"},
    "machine": {
        "cores": 8, "memory_gb": 16.0, "memory_limit_gb": None, "driver": None, "infiniband": [],
        "mpirun": "/usr/bin/mpirun", "shm": {"total_mb": 8192, "free_mb": 8192, "writable": True},
        "limits": {"open_files": 65536, "stack": 8 * 2**20, "locked_memory": 8 * 2**20},
        "disk": {"path": "/runs", "free_gb": 50.0, "writable": True},
    },
    "mxnet": {
        "version": "1.9.1", "numpy": "1.23.5", "features": ["MKLDNN", "OPENCV"], "gpus": 0, "driver": {},
        "linked": {}, "architectures": None,
        "horovod": {"version": "0.28.1", "gloo": True, "mpi": True, "nccl": None},
    },
}  # fmt: skip
V100 = {"name": "Tesla V100", "capability": "7.0"}
WHEEL = {"cubin": ["5.0", "6.0", "7.0", "8.0", "8.6"], "ptx": []}  # what gpus.architectures reads in mxnet-cu112 1.9.1
GPU = copy.deepcopy(CPU)
GPU["machine"]["driver"] = "550.54.15"
GPU["mxnet"].update(
    features=["CUDA", "CUDNN", "NCCL", "OPENCV"], gpus=4, driver={"cuda": "12.4", "gpus": [V100] * 4},
    linked={"cuda": "11.2", "cudnn": "8.1.1", "nccl": "2.8.3"}, architectures=WHEEL,
    horovod={"version": "0.28.1", "gloo": True, "mpi": True, "nccl": "2.8.4"},
)  # fmt: skip


def with_(facts, **changed):
    """A copy of `facts` with other values: machine__driver="1" for facts["machine"]["driver"]."""
    facts = copy.deepcopy(facts)
    for path, value in changed.items():
        *groups, last = path.split("__")
        node = facts
        for group in groups:
            node = node[group]
        node[last] = value
    return facts


def found(facts, name, **wish):
    return next((f for f in doctor.examine(facts, Wish(**wish)) if f.name == name), None)


# ---------------------------------------------------------------- findings


def test_a_machine_without_gpus_is_fine():
    findings = doctor.examine(CPU, Wish(ranks=2, ranks_here=2))
    assert {f.state for f in findings} == {"ok"}
    assert [f.name for f in findings] == [
        "code", "mxnet", "features", "horovod", "gpu", "/dev/shm", "open files", "stack", "locked memory", "cores",
        "memory", "disk",
    ]  # fmt: skip


def test_a_machine_with_gpus_is_fine():
    findings = {f.name: f for f in doctor.examine(GPU, Wish(ranks=4, ranks_here=4))}
    assert {f.state for f in findings.values()} == {"ok"}
    assert findings["gpu"].cause == "4 x Tesla V100 (7.0)"
    assert findings["cuda"].cause == "MXNet's 11.2 (cuDNN 8.1.1), the driver's 12.4 (550.54.15)"
    assert findings["nccl"].cause == "2.8.4"


NO_GPU = {"mxnet__gpus": 0, "mxnet__driver": {}, "machine__driver": None}
LINKED = {"cuda": "12.1", "cudnn": "9.1.0"}


@pytest.mark.parametrize(
    "name, facts, wish, state, cause",
    [
        ("code", with_(CPU, git__dirty=True), {}, "ok", "checkout, commit 39263d7ed519 with changes"),
        ("code", with_(CPU, image={"build": "source"}), {}, "ok", "source, commit"),
        ("code", with_(CPU, git__commit=None), {}, "warn", "no known commit"),
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
        ("gpu", with_(CPU, mxnet__driver={"gpus": [V100]}), {}, "warn", "Tesla V100 (7.0) is here"),
        ("gpu", with_(CPU, mxnet__driver={"gpus": [V100]}), {"device": "gpu"}, "fail", "Tesla V100 (7.0) is here"),
        ("gpu", with_(GPU, **NO_GPU), {}, "warn", "there is no NVIDIA driver"),
        ("gpu", with_(GPU, **NO_GPU), {"device": "gpu"}, "fail", "there is no NVIDIA driver"),
        ("gpu", with_(GPU, mxnet__gpus=0, mxnet__driver={}), {}, "warn", "libcuda.so.1 is not here"),
        ("gpu", with_(GPU, mxnet__gpus=0, mxnet__driver={"cuda": "12.4", "gpus": []}), {}, "warn", "none is visible"),
        ("gpu", with_(GPU, mxnet__gpus=0, mxnet__driver__error="cuInit answered 803"), {}, "warn", "803"),
        ("gpu", with_(GPU, mxnet__gpus=0), {}, "warn", "older than MXNet's CUDA"),
        ("architecture", GPU, {}, "ok", "5.0 6.0 7.0 8.0 8.6"),
        ("architecture", GPU, {"device": "cpu"}, None, None),
        ("architecture", with_(GPU, mxnet__architectures=None), {}, "warn", "unknown"),
        ("architecture", with_(GPU, mxnet__driver__gpus=[{"name": "H100", "capability": "9.0"}]), {}, "fail", "9.0"),
        ("cuda", with_(GPU, mxnet__linked=LINKED, mxnet__driver__cuda="11.4"), {}, "fail", "MXNet's 12.1"),
        ("cuda", with_(GPU, mxnet__linked=LINKED, mxnet__driver__cuda="12.0"), {}, "ok", "MXNet's 12.1"),
        ("cuda", with_(GPU, mxnet__linked={"cuda": "10.2"}, mxnet__driver__cuda="10.1"), {}, "fail", "10.2"),
        ("cuda", with_(GPU, mxnet__linked={}), {}, "warn", "MXNet's unknown"),
        ("nccl", GPU, {"ranks": 1}, None, None),
        ("nccl", with_(GPU, mxnet__horovod__nccl=None), {"ranks": 2}, "warn", "without NCCL"),
        ("nccl", with_(GPU, mxnet__horovod__nccl="2.12.5"), {"ranks": 2}, "warn", "two in one process"),
        ("open files", with_(CPU, machine__limits__open_files=256), {}, "warn", "256"),
        ("open files", with_(CPU, machine__limits__open_files=1024), {}, "ok", "1024"),
        ("open files", with_(CPU, machine__limits__open_files=4096), {"ranks": 192}, "warn", "may need 65536"),
        ("open files", with_(CPU, machine__limits__open_files="unlimited"), {"ranks": 192}, "ok", "unlimited"),
        ("stack", CPU, {"ranks": 943}, "ok", "8 MB"),
        ("stack", CPU, {"ranks": 944}, "warn", "8 MB"),
        ("locked memory", with_(CPU, machine__infiniband=["mlx5_0"]), {}, "warn", "mlx5_0"),
        ("cores", CPU, {"ranks_here": 9}, "warn", "8 for 9 ranks"),
        ("memory", with_(CPU, machine__memory_limit_gb=0.9), {"ranks_here": 2}, "warn", "0.9 GB for 2 ranks"),
        ("disk", with_(CPU, machine__disk__free_gb=9.9), {}, "warn", "9.9 GB"),
        ("disk", with_(CPU, machine__disk__free_gb=0.9), {}, "fail", "0.9 GB"),
        ("disk", with_(CPU, machine__disk__writable=False), {}, "fail", "can't write to /runs"),
    ],
)  # fmt: skip
def test_a_finding(name, facts, wish, state, cause):
    finding = found(facts, name, **wish)
    if state is None:
        assert finding is None
        return
    assert (finding.state, cause in finding.cause) == (state, True), finding
    if state == "fail":
        assert finding.fix


@pytest.mark.parametrize(
    "free_mb, wish, state",
    [
        (1, {"ranks_here": 2}, "ok"),  # Gloo on a CPU makes no use of it
        (8, {"ranks_here": 2, "transport": "mpi"}, "fail"),
        (16, {"ranks_here": 2, "transport": "mpi"}, "warn"),
        (64, {"ranks_here": 16, "transport": "mpi"}, "fail"),  # 8 + 16 x 4 MB
        (255, {"ranks_here": 2, "transport": "mpi"}, "warn"),
        (256, {"ranks_here": 2, "transport": "mpi"}, "ok"),
        (1, {"ranks_here": 1, "transport": "mpi"}, "ok"),
    ],
)
def test_shared_memory_matters_to_several_ranks_that_use_it(free_mb, wish, state):
    assert found(with_(CPU, machine__shm__free_mb=free_mb), "/dev/shm", **wish).state == state


def test_shared_memory_of_docker_is_little_for_gpus():
    few = with_(GPU, machine__shm={"total_mb": 64, "free_mb": 64, "writable": True})
    assert found(few, "/dev/shm", ranks_here=4).state == "warn"
    assert "--shm-size" in found(few, "/dev/shm", ranks_here=4).fix
    none = with_(GPU, machine__shm=None)
    assert [found(none, "/dev/shm", ranks_here=n).state for n in (1, 4)] == ["warn", "fail"]


@pytest.mark.parametrize(
    "error, fix",
    [
        ("AttributeError: module 'numpy' has no attribute 'bool'.", "numpy==1.23.5"),
        ("ModuleNotFoundError: No module named 'mxnet'", "make setup"),
        ("OSError: libcuda.so.1: cannot open shared object file", "driver"),
        ("OSError: libcudnn.so.8: cannot open shared object file", "CUDA libraries"),
        ("OSError: libnccl.so.2: cannot open shared object file", "CUDA libraries"),
        ("OSError: libopenblas.so.0: cannot open shared object file", "that library"),
        ("import mxnet died of SIGILL", "instructions"),
        ("something else", "make setup"),
    ],
)
def test_an_import_that_fails_says_what_to_do(error, fix):
    finding = found(with_(CPU, mxnet={"error": error}), "mxnet")
    assert (finding.state, finding.cause) == ("fail", f"{error} (numpy: 1.23.5)")
    assert fix in finding.fix


@pytest.mark.parametrize(
    "built, capability, covered",
    [
        (WHEEL, "8.6", True),
        (WHEEL, "8.9", True),  # 8.6's code runs on later GPUs of the same major version
        (WHEEL, "7.5", True),
        (WHEEL, "9.0", False),
        (WHEEL, "3.7", False),
        ({"cubin": ["8.6"], "ptx": []}, "8.0", False),
        ({"cubin": ["7.0"], "ptx": ["8.0"]}, "9.0", True),
        ({"cubin": ["7.0"], "ptx": ["9.0"]}, "8.0", False),
        ({"cubin": ["9.0"], "ptx": []}, "10.0", False),
    ],
)
def test_which_gpus_a_build_covers(built, capability, covered):
    assert gpu_checks.covers(built, capability) is covered


def test_a_missing_fact_is_a_warning_and_hides_nothing():
    facts = copy.deepcopy(CPU)
    del facts["machine"]["limits"], facts["mxnet"]["horovod"]
    findings = {f.name: f for f in doctor.examine(facts, Wish())}
    assert {name for name, f in findings.items() if f.state == "warn"} == {"horovod", "open files", "stack",
                                                                          "locked memory"}  # fmt: skip
    assert "KeyError" in findings["stack"].cause
    assert {f.state for f in doctor.examine({}, Wish())} == {"warn"}


def test_the_table_is_aligned_and_counted():
    lines = table([Finding("a", "ok", "fine"), Finding("bcd", "warn", "so", "do"), Finding("e", "fail", "no", "do")])
    assert lines.splitlines() == ["ok    a    fine", "warn  bcd  so; do", "fail  e    no; do",
                                  "1 ok, 1 warning, 1 failure"]  # fmt: skip


# ---------------------------------------------------------------- facts


def test_the_child_answers_for_this_mxnet():
    facts = doctor.ask_mxnet()
    assert (
        facts["version"] == metadata.version("mxnet") and facts["numpy"] == "1.23.5" and "OPENCV" in facts["features"]
    )
    assert facts["library"].endswith("libmxnet.so") and facts["horovod"]["gloo"] is True
    if "CUDA" not in facts["features"]:
        assert (facts["gpus"], facts["linked"], facts["architectures"]) == (0, {}, None)


def child_with(folder, text):
    """Facts of a child whose `import mxnet` runs `text`."""
    (folder / "mxnet").mkdir()
    (folder / "mxnet" / "__init__.py").write_text(text)
    return doctor.ask_mxnet({**os.environ, "PYTHONPATH": f"{folder}:{ROOT}"})


def test_numpy_that_mxnet_does_not_know_is_a_failure(tmp_path):
    advice = "`np.bool` was a deprecated alias for the builtin `bool`.\\n    https://numpy.org/devdocs/release"
    raising = f"raise AttributeError(\"module 'numpy' has no attribute 'bool'.\\n{advice}\")"
    facts = child_with(tmp_path, raising)
    assert facts == {"error": "AttributeError: module 'numpy' has no attribute 'bool'."}
    assert "numpy==1.23.5" in found(with_(CPU, mxnet=facts), "mxnet").fix


def test_a_child_that_dies_is_a_failure(tmp_path):
    facts = child_with(tmp_path, "import os, signal; os.kill(os.getpid(), signal.SIGILL)")
    assert facts == {"error": "import mxnet died of SIGILL"}


def test_a_child_that_exits_is_a_failure(tmp_path):
    assert child_with(tmp_path, "raise SystemExit('no licence')") == {"error": "no licence"}


def test_a_child_that_hangs_is_a_failure(tmp_path, monkeypatch):
    monkeypatch.setattr(doctor, "IMPORT_S", 0.5)
    assert child_with(tmp_path, "import time; time.sleep(60)") == {"error": "import mxnet did not end in 0.5 s"}


def test_this_machine(tmp_path):
    facts = machine.describe(tmp_path / "not" / "there")
    assert facts["disk"]["path"] == str(tmp_path) and facts["disk"]["writable"] and facts["disk"]["free_gb"] > 0
    assert set(facts["limits"]) == {"open_files", "stack", "locked_memory"}
    assert facts["shm"] is None or facts["shm"]["total_mb"] >= facts["shm"]["free_mb"]
    json.dumps(facts)
    (tmp_path / "file").write_text("")
    assert machine.disk(tmp_path / "file" / "runs")["writable"] is False


@pytest.mark.parametrize(
    "text, version",
    [
        ("NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat Aug 19 01:15:15 UTC 2023", "535.104.05"),
        ("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  550.54.15  Release Build", "550.54.15"),
        ("NVRM version: NVIDIA UNIX x86_64 Kernel Module  384.81  Sat Sep  2 02:43:11 PDT 2017", "384.81"),
        ("nothing of the kind", None),
    ],
)
def test_the_drivers_version(tmp_path, text, version):
    (tmp_path / "version").write_text(f"{text}\nGCC version:  gcc version 12.2.0\n")
    assert machine.driver_version(tmp_path / "version") == version


def test_a_containers_memory_limit(tmp_path, monkeypatch):
    limits = tmp_path / "max", tmp_path / "v1"
    monkeypatch.setattr(machine, "MEMORY_LIMITS", limits)
    assert machine.memory_limit_gb() is None
    for text, expected in (("max\n", None), (f"{3 * 2**29}\n", 1.5), ("9223372036854771712\n", None)):
        limits[0].write_text(text)
        assert machine.memory_limit_gb() == expected
    limits[0].unlink()
    limits[1].write_text(f"{2**30}")
    assert machine.memory_limit_gb() == 1.0


def test_versions_as_libraries_number_them():
    assert [gpus.cuda_version(n) for n in (9000, 11020, 12040, 0)] == ["9.0", "11.2", "12.4", None]
    assert [gpus.cudnn_version(n) for n in (7605, 8101, 90100, 0)] == ["7.6.5", "8.1.1", "9.1.0", None]
    assert [gpus.nccl_version(n) for n in (2408, 2804, 21205, 0)] == ["2.4.8", "2.8.4", "2.12.5", None]


def fat_binary(*pieces) -> bytes:
    """A container as nvcc writes it, of (kind, architecture, bytes of code)."""
    body = b"".join(
        struct.pack("<HHIQIIHHI", kind, 0x101, 64, size, 0, 0, 7, 1, architecture) + bytes(32) + b"\xee" * size
        for kind, architecture, size in pieces
    )
    return struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(body)) + body


def library(path, code: bytes, section=b".nv_fatbin") -> str:
    """A 64-bit ELF file with one section of `code` beside its names."""
    names = b"\0" + section + b"\0.shstrtab\0"
    table = 64 + len(code) + len(names)
    header = (
        b"\x7fELF\x02\x01\x01" + bytes(9) + struct.pack("<HHIQQQIHHHHHH", 3, 62, 1, 0, 0, table, 0, 64, 0, 0, 64, 3, 2)
    )
    rows = [(0, 0, 0, 0), (1, 1, 64, len(code)), (len(section) + 2, 3, 64 + len(code), len(names))]
    sections = b"".join(struct.pack("<IIQQQQ", n, kind, 0, 0, at, size) + bytes(24) for n, kind, at, size in rows)
    path.write_bytes(header + code + names + sections)
    return str(path)


def test_architectures_are_read_from_the_library(tmp_path):
    code = fat_binary((2, 70, 40), (2, 80, 8), (1, 90, 24)) + bytes(24) + fat_binary((2, 52, 16), (2, 100, 8))
    wanted = {"cubin": ["5.2", "7.0", "8.0", "10.0"], "ptx": ["9.0"]}
    assert gpus.architectures(library(tmp_path / "lib.so", code)) == wanted


def test_a_library_without_gpu_code_has_none(tmp_path):
    assert gpus.architectures(library(tmp_path / "lib.so", fat_binary((2, 70, 8)), b".rodata")) is None
    assert gpus.architectures(library(tmp_path / "lib.so", b"\0" * 64)) is None
    (tmp_path / "text").write_text("no library")
    assert gpus.architectures(str(tmp_path / "text")) is None
    whole = library(tmp_path / "lib.so", fat_binary((2, 70, 8)))
    cut = tmp_path / "cut.so"
    cut.write_bytes(open(whole, "rb").read()[:-70])
    assert gpus.architectures(str(cut)) is None


def compiled(folder, name, source, *links) -> str:
    (folder / "source.c").write_text(source)
    argv = ["cc", "-shared", "-fPIC", "-o", str(folder / name), str(folder / "source.c"), *links]
    subprocess.run([*argv, f"-Wl,-rpath,{folder}"], check=True, capture_output=True)
    return str(folder / name)


needs_cc = pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler here")


@needs_cc
def test_versions_are_asked_of_the_library_and_what_it_is_linked_to(tmp_path):
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
def test_the_driver_is_asked_for_its_gpus(tmp_path, status, expected):
    compiled(tmp_path, "libcuda.so.1", DRIVER.replace("STATUS", str(status)))
    code = "import json; from mxscale.environment import gpus; print(json.dumps(gpus.driver()))"
    env = {**os.environ, "LD_LIBRARY_PATH": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=env, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == expected


# ---------------------------------------------------------------- the image


def test_an_image_says_what_it_is(tmp_path, monkeypatch):
    (tmp_path / "build.json").write_text('{"build": "source", "commit": "abc", "image.id": "sha256:1"}')
    monkeypatch.setenv("MXSCALE_IDENTITY", str(tmp_path / "build.json"))
    monkeypatch.setattr(description, "git_state", lambda: (None, None))
    facts = description.describe(tmp_path)
    tags = description.tags(facts, {"data_digest": "d"}, "s")
    assert (tags["build"], tags["image.id"], tags["git.commit"]) == ("source", "sha256:1", "abc")
    assert "git.dirty" not in tags
    (tmp_path / "build.json").write_text("[torn")
    assert description.identity() == {}


def test_a_checkout_is_no_image(tmp_path, monkeypatch):
    monkeypatch.setenv("MXSCALE_IDENTITY", str(tmp_path / "none"))
    tags = description.tags(description.describe(tmp_path), {"data_digest": "d"}, "s")
    assert tags["build"] == "wheel" and "image.id" not in tags


def test_ranks_in_another_image_are_recorded_with_that_one(tmp_path):
    facts = {**description.describe(tmp_path), "mxnet": {"image": {"build": "ngc", "image.id": "sha256:2"}}}
    plan = {"data_digest": "d", "image": {"name": "mxscale:ngc", "id": "sha256:3", "digest": ""}}
    tags = description.tags(facts, plan, "s")
    assert (tags["build"], tags["image.id"]) == ("ngc", "sha256:2")
    plan["image"]["digest"] = "mxscale@sha256:4"
    assert description.tags(facts, plan, "s")["image.id"] == "mxscale@sha256:4"


# ---------------------------------------------------------------- what is asked for over a network


def configured(runs, **groups):
    return from_dict({"runs": str(runs), **groups})


@pytest.fixture
def server():
    """A real HTTP server that answers with `server.status` and notes what it was asked."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.server.asked.append((self.path, self.headers.get("Authorization")))
            self.send_response(self.server.status)
            self.end_headers()

        def log_message(self, *arguments):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as running:
        running.status, running.asked = 200, []
        threading.Thread(target=running.serve_forever, daemon=True).start()
        yield running
        running.shutdown()


@pytest.mark.parametrize(
    "status, state, fix",
    [(200, "ok", ""), (401, "warn", "MLFLOW_TRACKING_USERNAME"), (403, "warn", "--allowed-hosts"),
     (404, "warn", "MLflow's address"), (500, "warn", "MLflow's address")],
)  # fmt: skip
def test_mlflow_answers(tmp_path, server, status, state, fix):
    server.status = status
    uri = f"http://me:secret@127.0.0.1:{server.server_port}/"
    finding = connectivity.mlflow(configured(tmp_path, tracking={"uri": uri}))
    assert finding.state == state and fix in finding.fix
    assert "secret" not in finding.cause
    assert server.asked == [("/health", "Basic bWU6c2VjcmV0")]


def closed_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def test_mlflow_is_not_there(tmp_path):
    finding = connectivity.mlflow(configured(tmp_path, tracking={"uri": f"http://127.0.0.1:{closed_port()}"}))
    assert finding.state == "warn" and "Connection refused" in finding.cause and "sent later" in finding.fix


def test_mlflow_does_not_answer(tmp_path):
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        began = time.monotonic()
        uri = f"http://127.0.0.1:{listening.getsockname()[1]}"
        finding = connectivity.mlflow(configured(tmp_path, tracking={"uri": uri}))
        assert time.monotonic() - began < 4
    assert finding.state == "warn" and "does not answer" in finding.cause


def test_mlflow_that_answers_a_byte_at_a_time_is_waited_for_no_longer():
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()

        def drip():
            connection = listening.accept()[0]
            for byte in b"HTTP/1.0 200 OK\r\n":
                time.sleep(0.2)
                connection.sendall(bytes([byte]))

        threading.Thread(target=drip, daemon=True).start()
        assert connectivity.ask(f"http://127.0.0.1:{listening.getsockname()[1]}", 0.5) == "nothing in 0.5 s"


@pytest.mark.parametrize(
    "tracking, state, cause",
    [
        ({"enabled": False}, "ok", "off"),
        ({"uri": "ftp://there"}, "fail", "expected http"),
        ({"uri": "postgresql://me:secret@db/mlflow"}, "ok", "me:***@db/mlflow, not asked"),
        ({"uri": "http://[::bad"}, "warn", "does not answer"),
    ],
)
def test_mlflow_elsewhere(tmp_path, tracking, state, cause):
    finding = connectivity.mlflow(configured(tmp_path, tracking=tracking))
    assert (finding.state, cause in finding.cause) == (state, True), finding


def test_mlflows_file(tmp_path, monkeypatch):
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    assert connectivity.mlflow(configured(tmp_path / "runs")).cause.endswith("mlflow.db, made by the first run")
    (tmp_path / "file").write_text("")
    assert connectivity.mlflow(configured(tmp_path / "file" / "runs")).state == "warn"
    (tmp_path / "runs" / "mlflow.db").mkdir(parents=True)
    assert connectivity.mlflow(configured(tmp_path / "runs")).state == "warn"


def test_the_port_of_the_ui(tmp_path, server, monkeypatch):
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    config = configured(tmp_path)
    assert [f.state for f in connectivity.ui(config, closed_port())] == ["ok"]
    assert [f.cause for f in connectivity.ui(config, server.server_port)] == ["MLflow's UI is there"]
    server.status = 404
    assert [f.state for f in connectivity.ui(config, server.server_port)] == ["warn"]
    assert connectivity.ui(configured(tmp_path, tracking={"uri": "http://mlflow:5000"})) == []


def test_no_hosts_are_asked_for_none(tmp_path):
    finding = connectivity.reach_hosts(configured(tmp_path))[0]
    assert (finding.name, finding.state) == ("hosts", "ok")


@pytest.mark.skipif(shutil.which("ssh") is None, reason="no ssh client here")
def test_hosts_that_are_not_there(tmp_path):
    config = configured(tmp_path / "runs", launch={"hosts": ["no-such-host.invalid:4", "127.0.0.1"]})
    findings = connectivity.reach_hosts(config)
    assert (findings[0].name, findings[0].state) == ("host no-such-host.invalid", "fail")
    assert "by ssh" in findings[0].cause and "without a password" in findings[0].fix
    assert list((tmp_path / "runs").iterdir()) == []  # nothing of the doctor's stays


SSH = '#!/bin/sh\nfor command; do :; done\nexec sh -c "$command"\n'


def test_hosts_that_see_the_runs_folder(tmp_path, monkeypatch):
    (tmp_path / "ssh").write_text(SSH)  # another host that is this one
    (tmp_path / "ssh").chmod(0o755)
    (tmp_path / "getent").write_text("#!/bin/sh\necho $ADDRESS STREAM a\n")
    (tmp_path / "getent").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("ADDRESS", "10.1.2.3")
    config = configured(tmp_path / "runs", launch={"hosts": ["a:4", "b"]})
    findings = connectivity.reach_hosts(config)
    assert [(f.name, f.state, f.cause) for f in findings] == [
        ("host a", "ok", f"4 ranks; sees {tmp_path}/runs"),
        ("host b", "ok", f"1 rank; sees {tmp_path}/runs"),
    ]
    monkeypatch.setenv("ADDRESS", "127.0.1.1")  # as Debian's installer writes it
    first = connectivity.reach_hosts(config)[0]
    assert (first.state, first.cause) == ("fail", "its own name stands for 127.0.1.1, where Gloo would send")
    over_mpi = configured(tmp_path / "runs", launch={"hosts": ["a:4", "b"]}, comm={"transport": "mpi"})
    assert [finding.state for finding in connectivity.reach_hosts(over_mpi)] == ["ok", "ok"]


# ---------------------------------------------------------------- what is to run


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
def test_the_ranks_of_a_run(tmp_path, groups, gpus_seen, ranks, ranks_here):
    wish = doctor.wish_of(configured(tmp_path, **groups), with_(CPU, mxnet__gpus=gpus_seen))
    assert (wish.ranks, wish.ranks_here) == (ranks, ranks_here)


def test_a_run_is_examined_in_no_time(tmp_path):
    plan = {"device": "cpu", "sizes": {"ranks": 2}}
    began = time.perf_counter()
    findings = doctor.of_run(CPU, configured(tmp_path), plan, 2)
    assert time.perf_counter() - began < 0.05
    assert json.loads(json.dumps(findings))[0] == {"name": "code", "state": "ok", "fix": "",
                                                   "cause": "checkout, commit 39263d7ed519"}  # fmt: skip


# ---------------------------------------------------------------- the command


def command(tmp_path, *settings, env=None):
    argv = [sys.executable, "-m", "mxscale", "doctor", f"runs={tmp_path}/runs", *settings]
    clean = {k: v for k, v in os.environ.items() if not k.startswith("MLFLOW_")}
    return subprocess.run(argv, cwd=ROOT, env={**clean, **(env or {})}, capture_output=True, text=True, timeout=120)


def test_the_command_prints_a_table(tmp_path):
    done = command(tmp_path, "tracking=none")
    lines = done.stdout.splitlines()
    assert done.returncode == 0, done.stdout
    assert lines[1].startswith("ok    mxnet") and lines[-1].endswith("0 failures")
    assert not (tmp_path / "runs").exists()


def test_the_command_fails_on_a_failure_and_speaks_json(tmp_path):
    done = command(tmp_path, "json=true", "launch.device=gpu", "tracking=none", env={"CUDA_VISIBLE_DEVICES": ""})
    answer = json.loads(done.stdout)
    assert done.returncode == 1 and answer["fail"] == 1
    assert [f["name"] for f in answer["findings"] if f["state"] == "fail"] == ["gpu"]
    assert answer["environment"]["mxnet"]["version"] == metadata.version("mxnet")


@pytest.mark.parametrize("setting", ["json=maybe", "launch.device=tpu", "launch.hots=[a]", "ranks"])
def test_the_command_refuses_what_is_no_setting(tmp_path, setting):
    done = command(tmp_path, setting)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1), done.stderr


@pytest.mark.slow
def test_a_run_records_its_findings(cli):
    run = cli("train", "launch.ranks=2", "max_steps=1").run
    facts = run.read("environment.json")
    findings = {f["name"]: f for f in facts["doctor"]}
    assert findings["mxnet"]["state"] == "ok" and findings["disk"]["cause"].endswith(str(run))
    assert facts["mxnet"]["horovod"]["version"] and facts["machine"]["limits"]["open_files"]
