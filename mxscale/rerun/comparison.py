"""Compare a rerun with its record: what differs before it starts, and then the results.

If the weights differ, the question is whether the rerun could have been one more seed. The range of n seeds does not
answer it: it contains a further seed with probability (n - 1) / (n + 1), 50 % for n = 3. The prediction interval of a
normal distribution, mean +- t(n - 1) s sqrt(1 + 1/n), contains 95 % of further seeds.
"""

import math
import statistics
from typing import Dict, List, NamedTuple, Optional, Sequence

from mxscale.records.recorded import versions
from mxscale.rundir.directory import RunDir

IDENTICAL, WITHIN, DIFFERENT = "identical", "within spread", "different"
FIGURES = ("test/top1", "best/val_top1")  # in percent
OTHER_SEEDS = 2  # besides that of the recorded run: fewer give no spread

# Student's t, 97.5 %, by degrees of freedom; between two entries the wider one applies
T = {2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571, 6: 2.447, 7: 2.365, 8: 2.306, 9: 2.262, 10: 2.228, 15: 2.131, 20: 2.086,
     30: 2.042, 60: 2.000, 120: 1.980}  # fmt: skip


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


class Outcome(NamedTuple):
    """The result of a finished run."""

    sha: Optional[str]  # params_sha256
    figures: Dict[str, float]
    losses: Dict[int, float]  # step -> train/loss


class Verdict(NamedTuple):
    kind: str
    why: str
    first_difference: Optional[dict]  # {"step", "since", "was", "is"} of the first loss that differs


def judge(first: Outcome, again: Outcome, seeds: Sequence[Dict[str, float]], images: Dict[str, int]) -> Verdict:
    """Compare a rerun with the recorded run.

    Args:
        seeds: Figures of runs that differ from the recorded one in the seed alone.
        images: For each figure the number of images that it is measured on.
    """
    if first.sha and first.sha == again.sha:
        return Verdict(IDENTICAL, f"the same weights to the last bit (params_sha256 {first.sha[:12]})", None)
    differs = first_difference(first.losses, again.losses)
    known = "the weights differ" if first.sha and again.sha else "params_sha256 is not recorded for both runs"
    compared = [name for name in FIGURES if name in first.figures and name in again.figures]
    figures = ", ".join(f"{name} {first.figures[name]:.2f} -> {again.figures[name]:.2f} %" for name in compared)
    reasons = [known, figures, _describe(differs)]
    values = {name: [seed[name] for seed in seeds if name in seed] for name in compared}
    spreads = {
        name: spread([first.figures[name], *values[name]], 100 / images[name] if images.get(name) else 0.0)
        for name in compared
        if len(values[name]) >= OTHER_SEEDS
    }
    if not spreads:
        number = f"{len(seeds)} other seed{'s' * (len(seeds) != 1)} recorded, {OTHER_SEEDS} needed"
        return Verdict(DIFFERENT, _join([*reasons, f"the spread of the seeds is unknown ({number})"]), differs)
    inside = all(low <= again.figures[name] <= high for name, (low, high, _) in spreads.items())
    reasons += [f"{name} of {text}" for name, (_, _, text) in spreads.items()]
    return Verdict(WITHIN if inside else DIFFERENT, _join(reasons), differs)


def _join(reasons: List[str]) -> str:
    return "; ".join(filter(None, reasons))


def spread(values: List[float], resolution: float) -> tuple:
    """Return (lowest, highest, text) of what one more seed reaches in 95 % of cases.

    Args:
        values: Percent, one per seed.
        resolution: One image of the set, in percent: the least width, for seeds that agree by chance.
    """
    n, mean = len(values), statistics.mean(values)
    t = T[max(degrees for degrees in T if degrees <= max(2, n - 1))]
    width = max(t * statistics.stdev(values) * math.sqrt(1 + 1 / n), resolution)
    low, high = min(mean - width, *values), max(mean + width, *values)
    low, high = max(0.0, low), min(100.0, high)
    text = (
        f"one more seed is expected within {low:.2f} to {high:.2f} % ({n} seeds recorded: median "
        f"{statistics.median(values):.2f}, {min(values):.2f} to {max(values):.2f})"
    )
    return low, high, text


def first_difference(first: Dict[int, float], again: Dict[int, float]) -> Optional[dict]:
    """Return the first step whose losses differ, of the steps that both runs recorded; None if all are equal."""
    before = 0
    for step in sorted(first.keys() & again.keys()):
        was, now = first[step], again[step]
        if was != now and not (math.isnan(was) and math.isnan(now)):
            return {"step": step, "since": before + 1, "was": was, "is": now}
        before = step
    return None


def _describe(differs: Optional[dict]) -> str:
    if differs is None:
        return "no recorded loss differs"
    step, since = differs["step"], differs["since"]
    mean = f" (the mean of steps {since} to {step})" if since < step else ""
    return f"the first loss that differs is that of step {step}{mean}, {differs['was']:.9g} -> {differs['is']:.9g}"
