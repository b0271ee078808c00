"""Where a step's time goes, out of the times of four or five probes.  Pure.

A probe is a short run: each adds one thing to the one before it, so that what a step takes longer is that thing's.

    compute       one rank, made-up images                          computing
    side_by_side  as many such ranks at once, which never speak     + sharing one machine's cores (on a CPU)
    exchange      the run's ranks, made-up images                   + the exchange that computing does not hide
    all           the run itself                                    + the input that the rest does not hide

Their differences add up to the step, so the shares add up to 1.  One may come out below 0, which nothing can take: that
is noise, shown as it is, and no part is named that is not larger.
The input alone is a further probe, which says how fast batches could come.
"""

from typing import Dict, List, NamedTuple

import numpy as np

# probe -> what it adds to a step
LEVELS = {"compute": "compute", "side_by_side": "cores", "exchange": "exchange", "all": "input"}
PROBES = ("input", *LEVELS)
TITLES = {
    "input": "input alone",
    "compute": "compute alone",
    "side_by_side": "ranks side by side",
    "exchange": "compute and exchange",
    "all": "all",
}
WORDS = {"compute": "computing", "cores": "sharing cores", "exchange": "the exchange", "input": "the input"}

NAMED = 0.10  # a part of a step from which on the run is named after it
MOSTLY = 0.75  # a step is compute-bound where that much of it, for certain, is computing
CERTAIN, DRAWS = 0.95, 2000  # of the bootstrap

Times = Dict[str, List[List[float]]]  # probe -> seconds of a step: a list of intervals for each repetition


class Estimate(NamedTuple):
    """A median, and what it lies between in 95 % of the bootstrap's draws."""

    value: float
    low: float
    high: float

    @property
    def is_there(self) -> bool:
        """Whether it is above 0 by more than the spread."""
        return self.low > 0


class Diagnosis(NamedTuple):
    steps: Dict[str, Estimate]  # probe -> seconds of a step
    shares: Dict[str, Estimate]  # part of a step -> its share of it
    kind: str  # input | exchange | cores | compute | none
    verdict: str  # a sentence


def diagnose(times: Times) -> Diagnosis:
    """`times` lacks the probes that make no sense: those of an exchange with one rank, of an input with none."""
    drawn = draw(times)
    levels = [name for name in LEVELS if name in times]
    steps = {name: _estimate(drawn[name]) for name in PROBES if name in times}
    whole, before, shares = drawn[levels[-1]], 0.0, {}
    for name in levels:
        shares[LEVELS[name]] = _estimate((drawn[name] - before) / whole)
        before = drawn[name]
    return Diagnosis(steps, shares, *judge(shares))


def draw(times: Times, seed: int = 0) -> Dict[str, np.ndarray]:
    """Probe -> its median (first) and those of `DRAWS` resamplings of repetitions, and of intervals within each.

    A draw takes the same repetitions of all probes: they ran in turn, so that what a machine did in one of them it
    did to all.
    """
    random = np.random.default_rng(seed)
    repeats = min(len(probe) for probe in times.values())
    chosen = np.vstack([np.arange(repeats), random.integers(0, repeats, (DRAWS, repeats))])
    drawn = {}
    for name, probe in times.items():
        medians = np.stack([_medians(np.asarray(intervals), random) for intervals in probe[:repeats]], axis=1)
        drawn[name] = np.median(np.take_along_axis(medians, chosen, axis=1), axis=1)
    return drawn


def _medians(intervals: np.ndarray, random) -> np.ndarray:
    picked = intervals[random.integers(0, len(intervals), (DRAWS, len(intervals)))]
    return np.concatenate([[np.median(intervals)], np.median(picked, axis=1)])


def _estimate(drawn: np.ndarray) -> Estimate:
    outside = 100 * (1 - CERTAIN) / 2
    low, high = np.percentile(drawn[1:], [outside, 100 - outside])
    value = float(drawn[0])
    return Estimate(value, min(float(low), value), max(float(high), value))


# ---------------------------------------------------------------- the verdict


def judge(shares: Dict[str, Estimate]) -> tuple:
    """(kind, sentence).  A part is named where it is a tenth of the step, and larger than the spread."""
    others = {part: share for part, share in shares.items() if part != "compute"}
    ranked = sorted(others, key=lambda part: -others[part].value)
    noise = max([0.0, *(-share.value for share in others.values())])
    named = [part for part in ranked if others[part].value >= NAMED and others[part].low > noise]
    if named:
        first, rest = named[0], [part for part in ranked if part != named[0] and others[part].is_there]
        also = "".join(f"; {WORDS[part]} {percent(others[part].value)}" for part in rest)
        return first, SENTENCES[first](others[first]) + also
    if noise >= NAMED:
        return "none", (
            f"no bottleneck stands out: {WORDS[ranked[-1]]} came out at {percent(-noise)} of a step: the machine's "
            "speed changed meanwhile"
        )
    compute = shares["compute"]
    rest = "".join(f", {WORDS[part]} {percent(others[part].value)} {between(others[part])}" for part in ranked)
    if compute.low >= MOSTLY:
        return "compute", f"compute-bound: {percent(compute.value)} of a step is computing {between(compute)}{rest}"
    return "none", f"no bottleneck stands out: computing {percent(compute.value)} {between(compute)}{rest}"


# The share of the input is 1 - real / synthetic, as the published gaps are
SENTENCES = {
    "input": lambda share: f"input-bound: {percent(share.value)} slower than synthetic {between(share)}",
    "exchange": lambda share: (
        f"exchange-bound: {percent(share.value)} of a step is an exchange that computing does not hide {between(share)}"
    ),
    "cores": lambda share: (
        f"short of cores: ranks that never speak to each other lose {percent(share.value)} of a step to sharing "
        f"a machine {between(share)}"
    ),
}


def percent(share: float) -> str:
    return f"{_whole(share)} %"


def between(share: Estimate) -> str:
    return f"({_whole(share.low)} to {_whole(share.high)})"


def _whole(share: float) -> int:
    return round(100 * share)
