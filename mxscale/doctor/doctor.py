"""Checks of the machine, the software and the network before a run: `mxscale doctor`; `examine` for every run.

The facts come from environment/description.py, environment/machine.py and, by child processes, facts.py. Each check is
a function of the facts alone and gives one line of the table. Checks that use the network are in connectivity.py.

A result is `fail` if a run of this configuration would not work. It is `warn` if the run would be slow, if it would
fail under some condition, or if a fact is unknown.
"""

import json
import re
from dataclasses import asdict
from typing import List

from mxscale.config.schema import Config
from mxscale.config.sizes import auto_ranks
from mxscale.doctor import connectivity
from mxscale.doctor import facts as child_facts
from mxscale.doctor.check_result import FAIL, OK, WARN, CheckResult, PlannedRun, count, table
from mxscale.doctor.gpu_checks import architecture, cuda, gpu, nccl, on_cpu
from mxscale.environment import description, hosts
from mxscale.environment.machine import SHM_NOT_WRITABLE, UNLIMITED
from mxscale.environment.placement import Placement
from mxscale.launcher.context import Hook, RunContext
from mxscale.launcher.progress import echo
from mxscale.rundir.plan import Plan


def examine(facts: dict, run: PlannedRun) -> List[CheckResult]:
    """Return the results of all checks in a fixed order. Never raises, does no I/O."""
    results = []
    for name, check in CHECKS.items():
        try:
            outcome = check(facts, run)
        except Exception as error:  # a missing or unexpected fact must neither hide other results nor end a run
            outcome = WARN, f"check failed ({type(error).__name__}: {error})"
        if outcome is not None:
            results.append(CheckResult(name, *outcome))
    return results


class RecordFindings(Hook):
    """Adds the findings of each attempt to the run's environment.json."""

    def before_ranks(self, context: RunContext, plan: Plan) -> None:
        facts, placed = context.run.read("environment.json"), Placement.of(plan)
        comm = context.config.comm
        planned = PlannedRun(plan.device, plan.sizes.ranks, placed.per_host, comm.transport, comm.entry.uses_horovod)
        findings = [asdict(result) for result in examine(facts, planned)]
        context.run.write("environment.json", {**facts, "doctor": findings})


# A check returns (state, cause[, fix]), or None if it does not apply.


def code(facts: dict, run: PlannedRun):
    git, image = facts["git"], facts["image"]
    build = image.get("build", "checkout")
    if git["commit"] is None:
        return WARN, f"{build}, commit unknown", "clone the repository, or build the image inside a clone"
    return OK, f"{build}, commit {git['commit'][:12]}{' with changes' if git['dirty'] else ''}"


# error of MXNet's import -> fix
IMPORT_FIXES = (
    (r"module 'numpy' has no attribute|numpy\.dtype size changed|_ARRAY_API", "install numpy==1.23.5"),
    (r"No module named 'mxnet'", "make setup"),
    (r"No module named", "make setup installs all packages"),
    (r"libcuda\.so", "this MXNet needs the NVIDIA driver: add -f compose.gpu.yml, or use an image or a wheel for CPUs"),
    (r"lib(cu|nccl|nv)\w{0,50}\.so", "this MXNet needs those CUDA libraries: use the image with BUILD=source or ngc"),
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
        return FAIL if run.needs_horovod else WARN, "not installed: only one rank, with comm=local", "make setup"
    if not build["gloo"] and not build["mpi"]:
        return FAIL, "built with neither Gloo nor MPI", "rebuild it with HOROVOD_WITH_GLOO=1 (make setup)"
    transports = ", ".join(name for name in ("gloo", "mpi", "nccl") if build[name])
    if build["mpi"] and not facts["machine"]["mpirun"]:
        return WARN, f"{build['version']} ({transports}), but no mpirun", "install openmpi-bin, or use Gloo"
    return OK, f"{build['version']} ({transports})"


# ---------------------------------------------------------------- the machine

# Docker's default is 64 MB. Gloo on a CPU trains with 1 MB. Open MPI takes 4 MB per rank (btl_vader_segment_size): two
# ranks train with 16 MB and hang at start with 1 MB. NCCL takes about 10 MB per channel to a neighbour (the error of a
# failed attach names `size 9637888`).
SHM_WARN_MB, SHM_RANK_MB, SHM_REST_MB = 256, 4, 8


def host_name(facts: dict, run: PlannedRun):
    if facts["machine"].get("name_resolves", True):  # older facts lack it
        return OK, "resolves to an address"
    host, version = facts["machine"]["host"], (facts["mxnet"].get("horovod") or {}).get("version", "")
    if not hosts.needs_own_name(version):
        return OK, f"{host} does not resolve; Horovod {version} works without its address"
    cause, fix = hosts.without_address(host)
    return FAIL if run.needs_horovod and run.transport == "gloo" else WARN, cause, fix


def home(facts: dict, run: PlannedRun):
    if facts["machine"].get("home_writable", True):
        return OK, "writable"
    cause = "not writable: each run uses a directory of its own instead, so downloads are not kept"
    return WARN, cause, "set HOME to a writable directory"


def shared_memory(facts: dict, run: PlannedRun):
    shm = facts["machine"]["shm"]
    needed = run.ranks_here > 1 and (run.transport == "mpi" or not on_cpu(facts, run))
    if shm is None or not shm["writable"]:
        return FAIL if run.needs_horovod or needed else WARN, *SHM_NOT_WRITABLE
    text = f"{_size(shm['free_mb'])} free of {_size(shm['total_mb'])}"
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


def stack(facts: dict, run: PlannedRun):
    """Check the limit of the stack: NCCL exceeded it from 944 ranks (ChainerMN 2018, 1,024 GPUs)."""
    soft = facts["machine"]["limits"]["stack"]
    text = soft if soft == UNLIMITED else f"{soft // 2**20} MB"
    if run.ranks >= 944 and soft != UNLIMITED:
        return WARN, f"{text}: NCCL needs more from 944 ranks", "ulimit -s unlimited"
    return OK, text


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


CHECKS = {
    "code": code,
    "mxnet": mxnet,
    "features": features,
    "horovod": horovod,
    "gpu": gpu,
    "architecture": architecture,
    "cuda": cuda,
    "nccl": nccl,
    "host name": host_name,
    "home": home,
    "/dev/shm": shared_memory,
    "open files": open_files,
    "stack": stack,
    "locked memory": locked_memory,
    "cores": cores,
    "memory": memory,
    "disk": disk,
}


# ---------------------------------------------------------------- the command


def main(config: Config, as_json: bool) -> int:
    """Print the results and return the exit status: 1 if a check fails. Raises ConfigError."""
    facts = {**description.describe(config.runs), "mxnet": child_facts.of_mxnet()}
    results = examine(facts, planned_run(config, facts))
    results += [*connectivity.check_hosts(config), connectivity.check_mlflow(config)]
    if as_json:
        counts = {state: count(results, state) for state in (OK, WARN, FAIL)}
        echo(json.dumps({**counts, "findings": [asdict(result) for result in results], "environment": facts}, indent=1))
    else:
        echo(table(results))
    return int(count(results, FAIL) > 0)


def planned_run(config: Config, facts: dict) -> PlannedRun:
    """Return the run that `config` would start, its ranks chosen as the preparation does."""
    slots = [host.slots for host in hosts.listed(config)]
    gpus = 0 if config.launch.device == "cpu" else facts["mxnet"].get("gpus", 0)
    ranks = config.launch.ranks
    if ranks == "auto":
        ranks = auto_ranks(config, sum(slots), gpus, facts["machine"]["cores"])
    here, comm = min(ranks, max(slots, default=ranks)), config.comm
    return PlannedRun(config.launch.device, ranks, here, comm.transport, comm.entry.uses_horovod)
