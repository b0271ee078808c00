"""Differences between a recorded run and its rerun: code, image, libraries, machine, data, weights."""

from typing import List

from mxscale.records.recorded import versions
from mxscale.rundir.directory import RunDir


def between(first: RunDir, run: RunDir) -> List[str]:
    """Return what differs between two prepared run directories, as `NAME: FIRST -> SECOND`."""
    was, now = facts(first), facts(run)
    names = [name for name in {**now, **was} if was.get(name) != now.get(name)]
    if was["code"] is None and not was["uncommitted"]:  # recorded before code had a digest: its commit is compared
        names.remove("code")
    if was["variables"] is None and "variables" in names:  # recorded before variables were
        names.remove("variables")
    lines = [_line(name, was.get(name), now.get(name)) for name in names if name != "uncommitted"]
    attempts = [str(attempt.ranks) for attempt in first.attempts if attempt.ranks]
    if len(set(attempts)) > 1:  # the reduction order changed between attempts
        lines.append(_line("ranks of its attempts", ", then ".join(attempts), now["ranks"]))
    return lines


def facts(run: RunDir) -> dict:
    """Return what may change a result besides the config: name -> value, None if unknown."""
    environment, plan = run.read("environment.json") or {}, run.plan()
    git, machine, mxnet = (environment.get(name) or {} for name in ("git", "machine", "mxnet"))
    tags, sizes = environment.get("tags") or {}, plan.sizes
    # From the tag, where the versions of the ranks replace those of the parent
    libraries = {"python": environment.get("python"), **versions(tags)}
    return {
        "commit": git.get("commit"),
        "code": _short(environment.get("code")),
        "uncommitted": git.get("dirty"),
        "image": tags.get("image.id"),
        "build": tags.get("build"),
        **dict(sorted(libraries.items())),
        "MXNet's features": " ".join(mxnet.get("features") or []) or None,
        "CUDA's libraries": _joined(mxnet.get("linked") or None),
        "variables": _joined(environment.get("variables")),
        "CPU": machine.get("cpu"),
        "cores": machine.get("cores"),
        "GPUs": mxnet.get("gpus"),
        "driver": machine.get("driver"),
        "device": plan.device,
        "ranks": sizes and sizes.ranks,
        "data shards": sizes and sizes.shards,
        "threads": plan.threads,
        "data": _short(plan.data_digest),
        "pretrained weights": _short(plan.pretrained_sha256),
    }


def _joined(values):
    if values is None:
        return None
    return " ".join(f"{name}={value}" for name, value in sorted(values.items())) or "none"


def _short(digest):
    return digest and digest[:16]


def _line(name: str, *values) -> str:
    was, now = ("unknown" if value is None else value for value in values)
    return f"{name}: {was} -> {now}"
