"""Checks of the machine and the software before a run. Each is a function of the facts alone.

A result is `fail` if a run of this configuration would not work. It is `warn` if the run would be slow, if it would
fail under some condition, or if a fact is unknown.
"""

import re
from dataclasses import dataclass
from typing import List

from mxscale.environment.machine import SHM_NOT_WRITABLE, UNLIMITED, allocated_gpus

OK, WARN, FAIL = "ok", "warn", "fail"


@dataclass(frozen=True)
class CheckResult:
    """One line of the doctor's table."""

    name: str
    state: str  # ok | warn | fail
    cause: str  # what the check found
    fix: str = ""  # what to do


@dataclass(frozen=True)
class PlannedRun:
    """The run that the checks are made for."""

    device: str = "auto"  # auto | cpu | gpu
    ranks: int = 1  # on all machines
    ranks_here: int = 1  # on one machine
    transport: str = "gloo"  # gloo | mpi
    over_horovod: bool = True  # which starts the ranks; else one process drives all devices

    @property
    def needs_horovod(self) -> bool:
        return self.over_horovod and self.ranks > 1


def examine(facts: dict, run: PlannedRun) -> List[CheckResult]:
    """Return the results of all checks in a fixed order. Never raises, does no I/O."""
    results = []
    for check in CHECKS:
        try:
            outcome = check(facts, run)
        except Exception as error:  # a missing or unexpected fact must neither hide other results nor end a run
            outcome = WARN, f"check failed ({type(error).__name__}: {error})"
        if outcome is not None:
            results.append(CheckResult(check.__name__.replace("_", " "), *outcome))
    return results


# A check returns (state, cause[, fix]), or None if it does not apply.


# error of MXNet's import -> fix
IMPORT_FIXES = (
    (r"module 'numpy' has no attribute|numpy\.dtype size changed|_ARRAY_API", "install numpy==1.23.5"),
    (r"No module named 'mxnet'", "make setup"),
    (r"No module named", "make setup installs all packages"),
    (r"libcuda\.so", "this MXNet needs the NVIDIA driver: add -f compose.gpu.yml, or use an image or a wheel for CPUs"),
    (r"lib(cu|nccl|nv)\w{0,50}\.so", "MXNet needs those CUDA libraries: use the image with BUILD=wheel-gpu or source"),
    (r"\.so\S{0,50} cannot open shared object", "install that library (in Debian, apt-file search finds its package)"),
    (r"SIGILL", "this processor lacks instructions that MXNet was built with: build it from source"),
)


def mxnet(facts: dict, run: PlannedRun):
    build = facts["mxnet"]
    if "error" not in build:
        return OK, f"{build['version']} with numpy {build['numpy']}"
    fixes = [fix for pattern, fix in IMPORT_FIXES if re.search(pattern, build["error"])]
    numpy = facts["versions"].get("numpy", "none")
    return FAIL, f"{build['error']} (numpy: {numpy})", fixes[0] if fixes else "make setup, or use one of the images"


SHOWN_FEATURES = ("CUDA", "CUDNN", "NCCL", "TENSORRT", "MKLDNN", "ONEDNN", "BLAS_OPEN", "BLAS_MKL", "OPENMP", "OPENCV",
                  "DIST_KVSTORE")  # fmt: skip


def features(facts: dict, run: PlannedRun):
    enabled = facts["mxnet"].get("features")
    if enabled is None:
        return None
    if "OPENCV" not in enabled:
        return FAIL, "MXNet was built without OpenCV, which decodes images", "use the wheel or one of the images"
    if on_cpu(facts, run) and not {"MKLDNN", "ONEDNN"} & set(enabled):
        return WARN, "MXNet was built without oneDNN: slow on a CPU", "build it with USE_ONEDNN or USE_MKLDNN"
    return OK, " ".join(name for name in SHOWN_FEATURES if name in enabled)


def horovod(facts: dict, run: PlannedRun):
    if "error" in facts["mxnet"]:
        return None
    build = facts["mxnet"]["horovod"]
    if not build:
        return FAIL if run.needs_horovod else WARN, "not installed: only one rank", "make setup"
    if not build["gloo"] and not build["mpi"]:
        return FAIL, "built with neither Gloo nor MPI", "rebuild it with HOROVOD_WITH_GLOO=1 (make setup)"
    transports = ", ".join(name for name in ("gloo", "mpi", "nccl") if build[name])
    if build["mpi"] and not facts["machine"]["mpirun"]:
        return WARN, f"{build['version']} ({transports}), but no mpirun", "install openmpi-bin, or use Gloo"
    return OK, f"{build['version']} ({transports})"


# ---------------------------------------------------------------- GPUs


def on_cpu(facts: dict, run: PlannedRun) -> bool:
    return run.device == "cpu" or not facts["mxnet"].get("gpus")


def gpu(facts: dict, run: PlannedRun):
    mxnet = facts["mxnet"]
    if "error" in mxnet:
        return None
    names = [f"{gpu['name']} ({gpu['capability']})" for gpu in mxnet["driver"].get("gpus", [])]
    if run.device == "cpu":
        return OK, "launch.device=cpu"
    if 0 < mxnet["gpus"] < run.ranks_here:
        few = f"{run.ranks_here} ranks on a machine, which has {mxnet['gpus']}: one rank drives one GPU"
        return FAIL, few, "set launch.ranks, or launch.device=cpu"
    if mxnet["gpus"]:
        return OK, f"{mxnet['gpus']} x {' + '.join(sorted(set(names))) or 'unknown'}"
    missing = FAIL if run.device == "gpu" or allocated_gpus() else WARN
    if "CUDA" not in mxnet["features"]:
        fix = "use the image with BUILD=wheel-gpu, source or ngc, or set launch.device=cpu"
        if names:
            return missing, f"{names[0]} is present, but this MXNet was built for CPUs", fix
        return (FAIL, "none, and this MXNet was built for CPUs", fix) if missing == FAIL else (OK, "none")
    why, fix = _why_no_gpu(facts)
    return missing, f"MXNet was built for GPUs but finds none: {why}", f"{fix}, or set launch.device=cpu"


def _why_no_gpu(facts: dict):
    driver = facts["mxnet"]["driver"]
    if "error" in driver:
        return f"the driver does not start ({driver['error']})", "restart the machine after a driver update"
    if driver.get("gpus"):
        return "the driver is older than MXNet's CUDA", "update the driver"
    if driver:
        return "none is visible to this process", "check CUDA_VISIBLE_DEVICES"
    if facts["machine"]["driver"]:
        return "the driver's libcuda.so.1 is missing", "start the container with -f compose.gpu.yml (or --gpus all)"
    return "there is no NVIDIA driver", "install it; in a container add -f compose.gpu.yml (or --gpus all)"


def kernels(facts: dict, run: PlannedRun):
    """Report the operation that the doctor ran on a GPU: it fails if MXNet has no code for the GPU's architecture."""
    mxnet = facts["mxnet"]
    if on_cpu(facts, run) or "operation" not in mxnet:
        return None
    if mxnet["operation"] == OK:
        return OK, "an operation ran on a GPU"
    fix = "use the image with BUILD=source and --build-arg MXNET_CUDA_ARCH for these GPUs"
    return FAIL, f"an operation on a GPU failed: {mxnet['operation']}", fix


def _numbers(version: str) -> tuple:
    return tuple(int(part) for part in version.split("."))


def nccl(facts: dict, run: PlannedRun):
    if on_cpu(facts, run) or run.ranks < 2:
        return None
    linked, built = facts["mxnet"]["linked"].get("nccl"), facts["mxnet"]["horovod"].get("nccl")
    if not built:
        fix = "build Horovod with HOROVOD_GPU_OPERATIONS=NCCL: the images with BUILD=wheel-gpu, source or ngc"
        return WARN, "Horovod was built without NCCL: gradients pass through the CPU", fix
    if linked and _numbers(linked)[:2] != _numbers(built)[:2]:
        cause = f"MXNet has {linked} and Horovod {built}: two versions in one process"
        return WARN, cause, "build both with the same version"
    return OK, f"{built}"


# ---------------------------------------------------------------- the machine

# Docker's default is 64 MB. Gloo on a CPU trains with 1 MB. Open MPI takes 4 MB per rank (btl_vader_segment_size): two
# ranks train with 16 MB and hang at start with 1 MB. NCCL takes about 10 MB per channel to a neighbour (the error of a
# failed attach names `size 9637888`).
SHM_WARN_MB, SHM_RANK_MB, SHM_REST_MB = 256, 4, 8


def shared_memory(facts: dict, run: PlannedRun):
    shm = facts["machine"]["shm"]
    needed = run.ranks_here > 1 and (run.transport == "mpi" or not on_cpu(facts, run))
    if shm is None or not shm["writable"]:
        return FAIL if run.needs_horovod or needed else WARN, *SHM_NOT_WRITABLE
    text = f"{_size(shm['free_mb'])} free of {_size(shm['total_mb'])} in /dev/shm"
    fix = "docker run --shm-size=1g, or shm_size in docker-compose.yml"
    if needed and shm["free_mb"] < SHM_REST_MB + SHM_RANK_MB * run.ranks_here:
        return FAIL, f"{text}: {run.ranks_here} ranks over MPI or NCCL hang or fail", fix
    if needed and shm["free_mb"] < SHM_WARN_MB:
        return WARN, f"{text}: NCCL takes 10 MB per channel between two GPUs, Open MPI 4 MB per rank", fix
    return OK, text


def _size(mb: int) -> str:
    return f"{mb / 1024:.1f} GB" if mb >= 1024 else f"{mb} MB"


def open_files(facts: dict, run: PlannedRun):
    """Check the limit of open files: NCCL exceeded it from 192 ranks (ChainerMN 2018, 1,024 GPUs)."""
    soft = facts["machine"]["limits"]["open_files"]
    wanted = 65536 if run.ranks >= 192 else 1024
    if soft != UNLIMITED and soft < wanted:
        return WARN, f"{soft}: {run.ranks} ranks may need {wanted}", f"ulimit -n {wanted}"
    return OK, f"{soft}"


def locked_memory(facts: dict, run: PlannedRun):
    soft, cards = facts["machine"]["limits"]["locked_memory"], facts["machine"]["infiniband"]
    text = soft if soft == UNLIMITED else f"{soft // 2**10} kB"
    if cards and soft != UNLIMITED:
        return WARN, f"{text}: InfiniBand ({', '.join(cards)}) pins its buffers", "ulimit -l unlimited"
    return OK, text


def cores(facts: dict, run: PlannedRun):
    count = facts["machine"]["cores"]
    if run.ranks_here > count:
        return WARN, f"{count} for {run.ranks_here} ranks: they share cores", f"use at most {count} ranks here"
    return OK, f"{count}"


RANK_GB = 0.5  # at least: MXNet, the small network and the digits take 0.41 GB


def memory(facts: dict, run: PlannedRun):
    machine = facts["machine"]
    available_gb = min(machine["memory_gb"], machine["memory_limit_gb"] or machine["memory_gb"])
    if available_gb < RANK_GB * run.ranks_here:
        cause = f"{available_gb} GB for {run.ranks_here} ranks: each takes at least {RANK_GB} GB"
        return WARN, cause, "use fewer ranks"
    return OK, f"{available_gb} GB"


DISK_WARN_GB, DISK_FAIL_GB = 10, 1


def disk(facts: dict, run: PlannedRun):
    folder = facts["machine"]["disk"]
    text = f"{folder['free_gb']} GB free at {folder['path']}"
    if not folder["writable"]:
        return FAIL, f"{folder['path']} is not writable", "set runs=DIR, or change its owner"
    if folder["free_gb"] < DISK_FAIL_GB:
        return FAIL, f"{text}: a run writes checkpoints there", "free some space, or set runs=DIR"
    if folder["free_gb"] < DISK_WARN_GB:
        return WARN, f"{text}: checkpoints of a large network can fill that", "free some space, or set runs=DIR"
    return OK, text


CHECKS = (mxnet, features, horovod, gpu, kernels, nccl, shared_memory, open_files, locked_memory, cores, memory, disk)
