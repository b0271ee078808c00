"""What differs between the record of a run and the same run here and now."""

from typing import List, NamedTuple

from mxscale.records.recorded import versions
from mxscale.rundir.directory import RunDir


class Difference(NamedTuple):
    what: str
    was: str
    now: str

    def __str__(self):
        return f"{self.what}: {self.was} -> {self.now}"


def between(first: RunDir, run: RunDir) -> List[Difference]:
    """Of two run directories whose preparation is over: code, image, libraries, machine, threads, data, weights."""
    was, now = facts(first), facts(run)
    names = [name for name in {**now, **was} if was.get(name) != now.get(name)]
    if was["code"] is None and not was["uncommitted"]:  # of before code was digested: its commit has to do
        names.remove("code")
    found = [Difference(name, _text(was.get(name)), _text(now.get(name))) for name in names if name != "uncommitted"]
    attempts = [str(each.ranks) for each in first.attempts if each.ranks]
    if len(set(attempts)) > 1:  # who adds up what changed on its way
        found.append(Difference("ranks of its attempts", ", then ".join(attempts), _text(now["ranks"])))
    return found


def facts(run: RunDir) -> dict:
    """What may move a result, apart from the config: name -> value; None where it is not known."""
    environment, plan = run.read("environment.json") or {}, run.plan()
    git, machine, mxnet = (environment.get(name) or {} for name in ("git", "machine", "mxnet"))
    tags, sizes = environment.get("tags") or {}, plan.sizes
    # The tag's: there those that the ranks found win over the parent's
    libraries = {"python": environment.get("python"), **versions(tags)}
    return {
        "commit": git.get("commit"),
        "code": _short(environment.get("code")),
        "uncommitted": git.get("dirty"),
        "image": tags.get("image.id"),
        "build": tags.get("build"),
        **dict(sorted(libraries.items())),
        "MXNet's features": " ".join(mxnet.get("features") or []) or None,
        "CUDA's libraries": " ".join(f"{name}={its}" for name, its in sorted((mxnet.get("linked") or {}).items()))
        or None,
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


def _short(digest):
    return digest and digest[:16]


def _text(value) -> str:
    return "unknown" if value is None else str(value)
