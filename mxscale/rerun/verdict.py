"""Whether a run that was run again gave the same: identical, within the spread of the seeds, or different.  Pure.

Two runs whose weights differ in one bit are told apart by nothing but the figures that people quote, and those move
from seed to seed.  So the question is whether the second run could have been one more seed.  The range of n runs does
not answer it: it holds a further one only (n - 1) / (n + 1) of the time, half of the time with three.  The interval
that holds 95 % of further ones is mean +- t(n - 1) s sqrt(1 + 1/n), the prediction interval of a normal distribution.
"""

import math
import statistics
from typing import Dict, List, NamedTuple, Optional, Sequence

IDENTICAL, WITHIN, DIFFERENT = "identical", "within spread", "different"
FIGURES = ("test/top1", "best/val_top1")  # in percent
OTHER_SEEDS = 2  # beside the first run's own: fewer say nothing of a spread

# Student's t, 97.5 %, by degrees of freedom; between two rows the wider one holds
T = {2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571, 6: 2.447, 7: 2.365, 8: 2.306, 9: 2.262, 10: 2.228, 15: 2.131, 20: 2.086,
     30: 2.042, 60: 2.000, 120: 1.980}  # fmt: skip


class Outcome(NamedTuple):
    """What a finished run ended with."""

    sha: Optional[str]  # params_sha256
    figures: Dict[str, float]
    losses: Dict[int, float]  # step -> train/loss


class Verdict(NamedTuple):
    kind: str
    why: str
    first_difference: Optional[dict]  # {"step", "since", "was", "is"} of the first loss that differs

    def __str__(self):
        return f"{self.kind}: {self.why}"


def judge(first: Outcome, again: Outcome, seeds: Sequence[Dict[str, float]], images: Dict[str, int]) -> Verdict:
    """seeds: the figures of runs that are the first one but for their seed.  images: figure -> size of its set."""
    if first.sha and first.sha == again.sha:
        return Verdict(IDENTICAL, f"the same weights to the last bit (params_sha256 {first.sha[:12]})", None)
    differs = first_difference(first.losses, again.losses)
    known = "the weights differ" if first.sha and again.sha else "params_sha256 is not on record of both"
    compared = [name for name in FIGURES if name in first.figures and name in again.figures]
    figures = ", ".join(f"{name} {first.figures[name]:.2f} -> {again.figures[name]:.2f} %" for name in compared)
    told = "; ".join(filter(None, [known, figures, _told(differs)]))
    spreads = {}
    for name in compared:
        values = [its[name] for its in seeds if name in its]
        if len(values) >= OTHER_SEEDS:
            spreads[name] = spread([first.figures[name], *values], 100 / images[name] if images.get(name) else 0.0)
    if not spreads:
        lacking = f"{len(seeds)} other seed{'s' * (len(seeds) != 1)} on record, it takes {OTHER_SEEDS}"
        return Verdict(DIFFERENT, f"{told}; the spread of the seeds is not known ({lacking})", differs)
    inside = all(low <= again.figures[name] <= high for name, (low, high, _) in spreads.items())
    told += "".join(f"; {name} of {said}" for name, (_, _, said) in spreads.items())
    return Verdict(WITHIN if inside else DIFFERENT, told, differs)


def spread(values: List[float], resolution: float) -> tuple:
    """(lowest, highest, in words) that one more seed is expected to have in 95 % of cases.

    resolution: one image of the set, in percent.  Seeds that happen to agree do not make the next one a miss.
    """
    n, mean = len(values), statistics.mean(values)
    t = T[max(degrees for degrees in T if degrees <= max(2, n - 1))]
    width = max(t * statistics.stdev(values) * math.sqrt(1 + 1 / n), resolution)
    low, high = min(mean - width, *values), max(mean + width, *values)
    low, high = max(0.0, low), min(100.0, high)
    said = (
        f"one more seed is expected within {low:.2f} to {high:.2f} % ({n} seeds on record: median "
        f"{statistics.median(values):.2f}, {min(values):.2f} to {max(values):.2f})"
    )
    return low, high, said


def first_difference(first: Dict[int, float], again: Dict[int, float]) -> Optional[dict]:
    """The first step that both have a loss of, and not the same one; None where there is none."""
    before = 0
    for step in sorted(first.keys() & again.keys()):
        was, now = first[step], again[step]
        if was != now and not (math.isnan(was) and math.isnan(now)):
            return {"step": step, "since": before + 1, "was": was, "is": now}
        before = step
    return None


def _told(differs: Optional[dict]) -> str:
    if differs is None:
        return "no loss on record differs"
    step, since = differs["step"], differs["since"]
    mean = f" (the mean of steps {since} to {step})" if since < step else ""
    return f"the first loss that differs is that of step {step}{mean}, {differs['was']:.9g} -> {differs['is']:.9g}"
