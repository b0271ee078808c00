"""What a run ran in: code, machine, packages.  MXNet's own part is written by the preparation."""

import os
import platform
import subprocess
from importlib import metadata
from pathlib import Path
from typing import Optional

from mxscale.run.processes import available_cores

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("mxnet", "numpy", "horovod", "hydra-core", "mlflow", "pillow")


def describe() -> dict:
    """Facts of this machine and checkout, for environment.json."""
    commit, dirty = git_state()
    return {
        "git": {"commit": commit, "dirty": dirty},
        "python": platform.python_version(),
        "versions": versions(),
        "machine": {"host": platform.node(), "cpu": cpu_model(), "cores": available_cores(), "memory_gb": memory_gb(),
                    "system": platform.platform()},
    }  # fmt: skip


def tags(environment: dict, plan: dict, signature: str) -> dict:
    """The tags of a run, as texts."""
    mxnet, machine = environment.get("mxnet", {}), environment["machine"]
    known = {
        "git.commit": environment["git"]["commit"],
        "git.dirty": environment["git"]["dirty"],
        "build": os.environ.get("MXSCALE_BUILD", "wheel"),
        "mxnet.features": " ".join(mxnet.get("features", [])),
        "versions": " ".join(f"{name}={version}" for name, version in environment["versions"].items()),
        "machine": f"{machine['cpu']}, {machine['cores']} cores, {mxnet.get('gpus', 0)} GPUs",
        "signature": signature,
        "data.digest": plan["data_digest"],
    }
    return {name: str(value) for name, value in known.items() if value is not None}


def git_state() -> tuple:
    """(commit, whether the tree differs from it); (None, None) outside a checkout."""
    commit = _git("rev-parse", "HEAD")
    status = _git("status", "--porcelain") if commit else None
    return commit, None if status is None else bool(status)


def _git(*arguments) -> Optional[str]:
    try:
        done = subprocess.run(["git", "-C", str(ROOT), *arguments], capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def versions() -> dict:
    found = {}
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def cpu_model() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def memory_gb() -> float:
    return round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1)
