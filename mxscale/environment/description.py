"""The environment of a run: code, machine, packages. The preparation adds MXNet's part."""

import hashlib
import json
import os
import platform
import subprocess
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import Optional, Sequence

from mxscale.environment import machine, variables
from mxscale.rundir.plan import Plan

ROOT = Path(__file__).resolve().parents[2]  # where `import mxscale` works
PACKAGES = ("mxnet", "mxnet-cu90", "numpy", "horovod", "hydra-core", "mlflow", "mlflow-skinny", "pillow")


def describe(runs) -> dict:
    """Return the facts of this machine and checkout for environment.json. `runs` is the folder of runs."""
    commit, dirty = git_state()
    image = identity()
    if (ROOT / "build.json").exists():  # else the code is a checkout, which only the interpreter of an image executes
        commit = commit or image.get("commit")
    return {
        "git": {"commit": commit, "dirty": dirty},
        "code": code(),
        "image": image,
        "python": platform.python_version(),
        "versions": versions(),
        "variables": variables.recorded(os.environ),
        "machine": machine.describe(runs),
    }


def identity() -> dict:
    """Return the image's build.json (build, commit, image.id), written at its build; {} outside an image."""
    try:
        facts = json.loads(Path(os.environ.get("MXSCALE_IDENTITY", ROOT / "build.json")).read_text())
    except (OSError, ValueError):
        return {}
    return facts if isinstance(facts, dict) else {}


def tags(environment: dict, plan: Plan, signature: str, claims: Sequence[str] = ()) -> dict:
    """Return the tags of a run as texts; those without a value are omitted."""
    mxnet, here = environment.get("mxnet", {}), environment["machine"]
    image = environment.get("image", {})
    of_ranks = {
        "mxnet": mxnet.get("version"),
        "numpy": mxnet.get("numpy"),
        "horovod": mxnet.get("horovod", {}).get("version"),
    }
    known_versions = {**environment["versions"], **{name: value for name, value in of_ranks.items() if value}}
    known = {
        "git.commit": environment["git"]["commit"],
        "git.dirty": environment["git"]["dirty"],
        "build": image.get("build", "wheel"),
        "image.id": image.get("image.id"),
        "mxnet.features": " ".join(mxnet.get("features", [])),
        "versions": " ".join(f"{name}={version}" for name, version in known_versions.items()),
        "machine": f"{here['cpu']}, {here['cores']} cores, {mxnet.get('gpus', 0)} GPUs",
        "gpu": gpu_names(mxnet),
        "ranks": plan.sizes and plan.sizes.ranks,  # the values of launch.* that may be auto or null
        "device": plan.device,
        "threads": plan.threads,
        "signature": signature,
        "data.digest": plan.data_digest,
        "claims": " ".join(claims) or None,
        **pretrained_tags(plan),
    }
    return {name: str(value) for name, value in known.items() if value is not None}


def gpu_names(mxnet: dict) -> Optional[str]:
    """Return the kinds of GPU that MXNet can use on the machine of the preparation; None if it has none."""
    gpus = (mxnet.get("driver") or {}).get("gpus", []) if mxnet.get("gpus") else []
    return " + ".join(sorted({gpu["name"] for gpu in gpus})) or None


def pretrained_tags(plan: Plan) -> dict:
    """Return the tags of the pretrained weights: origin, revision, and the input settings taken from them."""
    origin, taken = plan.origin, plan.input.taken
    if not origin:
        return {}
    return {
        "pretrained.kind": origin.kind,
        "pretrained.sha256": " ".join(origin.files.values()),
        "pretrained.revision": origin.revision,
        "pretrained.input": json.dumps(taken, sort_keys=True) if taken else None,
    }


def git_state() -> tuple:
    """Return (commit, whether the tree differs from it); (None, None) outside a checkout."""
    commit = _git("rev-parse", "HEAD")
    status = _git("status", "--porcelain") if commit else None
    return commit, None if status is None else bool(status)


def _git(*arguments) -> Optional[str]:
    try:
        done = subprocess.run(["git", "-C", str(ROOT), *arguments], capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def code() -> str:
    """Return the SHA-256 of this package's files, which identifies a tree that differs from its commit."""
    files = sorted(path for path in (ROOT / "mxscale").rglob("*") if path.suffix in (".py", ".csv", ".yaml"))
    digest = hashlib.sha256()
    for path in files:
        content = path.read_bytes()
        digest.update(f"{path.relative_to(ROOT)}\0{len(content)}\0".encode() + content)
    return digest.hexdigest()


def versions() -> dict:
    versions = {}
    for name in PACKAGES:
        with suppress(metadata.PackageNotFoundError):
            versions[name] = metadata.version(name)
    return versions
