"""What stands in the way of a run here, and what to do about it.  `python doctor.py`; `examine` for every run.

Facts come first (description.json: environment/description.py, environment/machine.py, and MXNet's part from
train/build_facts.py, which a child answers for), then findings: functions of the facts alone, each of them
one line of the table.  What has to be asked for over a network is in reach.py.

A state is `fail` where a run of this configuration would not work, `warn` where it would be slow, or
would end under some condition, or where something can't be known.
"""

import json
import os
import re
import signal
import subprocess
import sys
from dataclasses import asdict
from typing import List, Mapping, Optional

from mxscale.config.schema import Config
from mxscale.config.sizes import auto_ranks
from mxscale.doctor import connectivity
from mxscale.doctor.check_result import FAIL, OK, WARN, Finding, Wish, count, table
from mxscale.doctor.gpu_checks import architecture, cuda, gpu, nccl, on_cpu
from mxscale.environment import description, hosts
from mxscale.environment.machine import UNLIMITED
from mxscale.launcher import container
from mxscale.launcher.commands import Placement
from mxscale.launcher.context import Hook, RunContext
from mxscale.launcher.processes import available_cores
from mxscale.util.errors import ConfigError


def examine(facts: dict, wish: Wish) -> List[Finding]:
    """What description.json says of `wish`, in a fixed order.  Pure; never raises."""
    findings = []
    for name, check in CHECKS.items():
        try:
            found = check(facts, wish)
        except Exception as error:  # one fact that is odd or missing hides no other, and ends no run
            found = WARN, f"could not be looked at ({type(error).__name__}: {error})"
        if found is not None:
            findings.append(Finding(name, *found))
    return findings


def of_run(facts: dict, config: Config, plan: dict, ranks_here: int) -> List[dict]:
    """The findings for a run's description.json, as plain values.  Never raises, asks nobody, takes a millisecond."""
    wish = Wish(plan["device"], plan["sizes"]["ranks"], ranks_here, config.comm.transport)
    return [asdict(finding) for finding in examine(facts, wish)]


class RecordFindings(Hook):
    """Adds the findings of each attempt to the run's environment.json."""

    def before_ranks(self, context: RunContext, plan: dict) -> None:
        facts, placed = context.run.read("environment.json"), Placement.of(plan, available_cores())
        findings = of_run(facts, context.config, plan, placed.per_host)
        context.run.write("environment.json", {**facts, "doctor": findings})


# A check answers (state, cause[, fix]), or None where there is nothing to look at.


def code(facts: dict, wish: Wish):
    git, image = facts["git"], facts["mxnet"].get("image") or facts["image"]
    build = image.get("build", "checkout")
    if git["commit"] is None:
        return WARN, f"{build}, of no known commit", "clone the repository, or build the image inside a clone"
    return OK, f"{build}, commit {git['commit'][:12]}{' with changes' if git['dirty'] else ''}"


# What importing MXNet says -> what to do
IMPORT_FIXES = (
    (r"module 'numpy' has no attribute|numpy\.dtype size changed|_ARRAY_API", "install numpy==1.23.5"),
    (r"No module named 'mxnet'", "make setup"),
    (r"No module named", "make setup installs all packages"),
    (r"libcuda\.so", "this MXNet needs NVIDIA's driver: add -f compose.gpu.yml, or take an image or a wheel for CPUs"),
    (r"lib(cu|nccl|nv)\w*\.so", "this MXNet needs those CUDA libraries: take the image with BUILD=source or ngc"),
    (r"\.so.*cannot open shared object", "install that library (in Debian, apt-file search finds its package)"),
    (r"SIGILL", "this processor lacks instructions that MXNet was built with: build it from source"),
)


def mxnet(facts: dict, wish: Wish):
    found = facts["mxnet"]
    if "error" not in found:
        return OK, f"{found['version']} with numpy {found['numpy']}"
    if found["error"].startswith("launch"):  # no engine, no image: it says itself what to do
        return FAIL, found["error"]
    fixes = [fix for pattern, fix in IMPORT_FIXES if re.search(pattern, found["error"])]
    numpy = facts["versions"].get("numpy", "none")
    return FAIL, f"{found['error']} (numpy: {numpy})", fixes[0] if fixes else "make setup, or take one of the images"


NOTED = ("CUDA", "CUDNN", "NCCL", "TENSORRT", "MKLDNN", "ONEDNN", "BLAS_OPEN", "BLAS_MKL", "OPENMP", "OPENCV",
         "DIST_KVSTORE")  # fmt: skip


def features(facts: dict, wish: Wish):
    found = facts["mxnet"].get("features")
    if found is None:
        return None
    if "OPENCV" not in found:
        return FAIL, "MXNet was built without OpenCV, which decodes images", "take the wheel or one of the images"
    if on_cpu(facts, wish) and not {"MKLDNN", "ONEDNN"} & set(found):
        return WARN, "MXNet was built without oneDNN: slow on a CPU", "build it with USE_ONEDNN or USE_MKLDNN"
    return OK, " ".join(name for name in NOTED if name in found)


def horovod(facts: dict, wish: Wish):
    if "error" in facts["mxnet"]:
        return None
    found = facts["mxnet"]["horovod"]
    if not found:
        return (FAIL if wish.ranks > 1 else WARN), "not installed: one rank alone, with comm=local", "make setup"
    if not found["gloo"] and not found["mpi"]:
        return FAIL, "was built with neither Gloo nor MPI", "HOROVOD_WITH_GLOO=1, and build it again (make setup)"
    transports = ", ".join(name for name in ("gloo", "mpi", "nccl") if found[name])
    if found["mpi"] and not facts["machine"]["mpirun"]:
        return WARN, f"{found['version']} ({transports}), and no mpirun", "install openmpi-bin, or stay with Gloo"
    return OK, f"{found['version']} ({transports})"


# ---------------------------------------------------------------- the machine

# Docker gives a container 64 MB.  Gloo on a CPU trains with 1 MB; two ranks over Open MPI, which takes 4 MB
# a rank (btl_vader_segment_size), train with 16 MB and hang at their start with 1 MB.  NCCL takes some 10 MB
# for each channel to a neighbour (a segment that it can't attach is of `size 9637888`).
SHM_WARN_MB, SHM_RANK_MB, SHM_REST_MB = 256, 4, 8


def shared_memory(facts: dict, wish: Wish):
    found = facts["machine"]["shm"]
    needed = wish.ranks_here > 1 and (wish.transport == "mpi" or not on_cpu(facts, wish))
    if found is None or not found["writable"]:
        why = "can't be written to: MPI and NCCL exchange through it"
        return FAIL if needed else WARN, why, "mount a tmpfs there"
    text = f"{_size(found['free_mb'])} free of {_size(found['total_mb'])}"
    fix = "docker run --shm-size=1g, or shm_size in docker-compose.yml"
    if needed and found["free_mb"] < SHM_REST_MB + SHM_RANK_MB * wish.ranks_here:
        return FAIL, f"{text}: {wish.ranks_here} ranks over MPI or NCCL hang or end in an error", fix
    if needed and found["free_mb"] < SHM_WARN_MB:
        return WARN, f"{text}: NCCL takes 10 MB for each channel between two GPUs, Open MPI 4 MB a rank", fix
    return OK, text


def _size(mb: int) -> str:
    return f"{mb / 1024:.1f} GB" if mb >= 1024 else f"{mb} MB"


def open_files(facts: dict, wish: Wish):
    """ChainerMN on 1,024 GPUs (2018): from 192 on, NCCL ran out of file descriptors."""
    soft = facts["machine"]["limits"]["open_files"]
    wanted = 65536 if wish.ranks >= 192 else 1024
    if not _at_least(soft, wanted):
        return WARN, f"{soft}: {wish.ranks} ranks may need {wanted}", f"ulimit -n {wanted}"
    return OK, f"{soft}"


def stack(facts: dict, wish: Wish):
    """The same source: from 944 on, it ran out of stack."""
    soft = facts["machine"]["limits"]["stack"]
    text = soft if soft == UNLIMITED else f"{soft // 2**20} MB"
    if wish.ranks >= 944 and soft != UNLIMITED:
        return WARN, f"{text}: NCCL needed more from 944 ranks on", "ulimit -s unlimited"
    return OK, text


def locked_memory(facts: dict, wish: Wish):
    soft, cards = facts["machine"]["limits"]["locked_memory"], facts["machine"]["infiniband"]
    text = soft if soft == UNLIMITED else f"{soft // 2**10} kB"
    if cards and soft != UNLIMITED:
        return WARN, f"{text}: InfiniBand ({', '.join(cards)}) pins what it sends", "ulimit -l unlimited"
    return OK, text


def _at_least(value, wanted: int) -> bool:
    return value == UNLIMITED or value >= wanted


def cores(facts: dict, wish: Wish):
    found = facts["machine"]["cores"]
    if wish.ranks_here > found:
        return WARN, f"{found} for {wish.ranks_here} ranks: they wait for each other", f"use at most {found} here"
    return OK, f"{found}"


RANK_GB = 0.5  # MXNet, the small network and the digits take 0.41 GB; anything larger more


def memory(facts: dict, wish: Wish):
    here = facts["machine"]
    found = min(here["memory_gb"], here["memory_limit_gb"] or here["memory_gb"])
    if found < RANK_GB * wish.ranks_here:
        return WARN, f"{found} GB for {wish.ranks_here} ranks: each takes {RANK_GB} GB at least", "use fewer ranks"
    return OK, f"{found} GB"


DISK_WARN_GB, DISK_FAIL_GB = 10, 1


def disk(facts: dict, wish: Wish):
    found = facts["machine"]["disk"]
    text = f"{found['free_gb']} GB free at {found['path']}"
    if not found["writable"]:
        return FAIL, f"can't write to {found['path']}", "set runs=DIR, or change who owns it"
    if found["free_gb"] < DISK_FAIL_GB:
        return FAIL, f"{text}: a run keeps checkpoints there", "make room, or set runs=DIR"
    if found["free_gb"] < DISK_WARN_GB:
        return WARN, f"{text}: checkpoints of a large network fill that", "make room, or set runs=DIR"
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
    "/dev/shm": shared_memory,
    "open files": open_files,
    "stack": stack,
    "locked memory": locked_memory,
    "cores": cores,
    "memory": memory,
    "disk": disk,
}


# ---------------------------------------------------------------- the command

IMPORT_S = 120.0  # for MXNet's import, from a disk that is cold or far away
BUILD = ("-m", "mxscale.train.build_facts")


def main(config: Config, as_json: bool) -> int:
    """Look, print; the exit status: 1 where something fails.  Raises ConfigError."""
    if not isinstance(as_json, bool):
        raise ConfigError(f"json={as_json}: expected true or false")
    found = ask_image(config) if config.launch.kind == "docker" else ask_mxnet()
    facts = {**description.describe(config.runs), "mxnet": found}
    findings = [*examine(facts, wish_of(config, facts)), *connectivity.look(config)]
    if as_json:
        counts = {state: count(findings, state) for state in (OK, WARN, FAIL)}
        print(json.dumps({**counts, "findings": [asdict(f) for f in findings], "environment": facts}, indent=1))
    else:
        print(table(findings))
    return int(count(findings, FAIL) > 0)


def ask_mxnet(env: Optional[Mapping[str, str]] = None) -> dict:
    """MXNet's part of the facts, from a child, in the surroundings of ranks; {'error'} where it can't be imported."""
    env = env or {**os.environ, "PYTHONPATH": str(description.ROOT)}
    try:
        done = subprocess.run([sys.executable, *BUILD], env=dict(env), capture_output=True, text=True, timeout=IMPORT_S)
    except subprocess.TimeoutExpired:
        return {"error": f"import mxnet did not end in {IMPORT_S:g} s"}
    lines = done.stdout.splitlines()
    if done.returncode == 0 and lines:
        return json.loads(lines[-1])
    if done.returncode < 0:
        return {"error": f"import mxnet died of {signal.Signals(-done.returncode).name}"}
    return {"error": (done.stderr.strip().splitlines() or [f"import mxnet ended with {done.returncode}"])[-1]}


def ask_image(config: Config) -> dict:
    """The same from inside `launch.image`, where launch=docker starts the ranks."""
    try:
        return json.loads(container.answer(config, "python", *BUILD).splitlines()[-1])
    except Exception as error:  # of the engine, of the image, of what is in it: a finding, whichever
        return {"error": str(error).splitlines()[0][:200]}


def wish_of(config: Config, facts: dict) -> Wish:
    """The ranks that a run of `config` would start, as the preparation chooses them."""
    slots = [host.slots for host in hosts.listed(config)]
    gpus = 0 if config.launch.device == "cpu" else facts["mxnet"].get("gpus", 0)
    ranks = config.launch.ranks
    if ranks == "auto":
        ranks = auto_ranks(config, sum(slots), gpus, facts["machine"]["cores"])
    return Wish(config.launch.device, ranks, min(ranks, max(slots, default=ranks)), config.comm.transport)
