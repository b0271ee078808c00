"""The parts of a step's time, computed from the times of probes.

A probe is a short run. Each adds one part to the previous one; the difference of their steps is the time of that part:

    compute       one rank, synthetic images                    compute
    side_by_side  the same ranks at once, without exchange      + sharing the cores of a machine (on a CPU)
    exchange      the run's ranks, synthetic images             + the exchange that compute does not hide
    all           the run itself                                + the input that the rest does not hide

The differences add up to the step, so the shares add up to 1. A share below 0 is noise: its interval is shown, and the
verdict names only parts that are larger.
"""

from typing import Dict, List, NamedTuple

import numpy as np

from mxscale.util import text_table

# probe -> part that it adds to a step
LEVELS = {"compute": "compute", "side_by_side": "cores", "exchange": "exchange", "all": "input"}
TITLES = {
    "compute": "compute alone",
    "side_by_side": "ranks side by side",
    "exchange": "compute and exchange",
    "all": "all",
    "other_precision": "compute, other precision",  # a probe of its own, which adds no part
}

NAMED = 0.10  # least share of a part that the verdict names
MOSTLY = 0.75  # least share of compute, with 95 % confidence, in a compute-bound step
CONFIDENCE, DRAWS = 0.95, 2000  # of the bootstrap

Times = Dict[str, List[List[float]]]  # probe -> seconds of a step: a list of intervals for each repetition


class Estimate(NamedTuple):
    """A median with its 95 % bootstrap interval."""

    value: float
    low: float
    high: float

    @property
    def is_significant(self) -> bool:
        """Whether the interval is above 0."""
        return self.low > 0


class Diagnosis(NamedTuple):
    """The parts of a step, and the bottleneck."""

    steps: Dict[str, Estimate]  # probe -> seconds of a step
    shares: Dict[str, Estimate]  # part of a step -> its share of it
    kind: str  # input | exchange | cores | compute | none
    verdict: str  # a sentence


def diagnose(times: Times) -> Diagnosis:
    """Return the diagnosis; `times` lacks the probes that do not apply, such as the exchange of one rank."""
    levels = [name for name in LEVELS if name in times]
    drawn = draw({name: times[name] for name in levels})
    steps = {name: _estimate(drawn[name]) for name in levels}
    step, previous, shares = drawn[levels[-1]], 0.0, {}
    for name in levels:
        shares[LEVELS[name]] = _estimate((drawn[name] - previous) / step)
        previous = drawn[name]
    return Diagnosis(steps, shares, *judge(shares))


def draw(times: Times) -> Dict[str, np.ndarray]:
    """Return, by probe, its median and the medians of `DRAWS` resamples of repetitions and of intervals within each.

    A draw uses the same repetitions of all probes. Probes run in turn, so that a change of the machine's speed affects
    all probes of a repetition.
    """
    random = np.random.default_rng(0)
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
    outside = 100 * (1 - CONFIDENCE) / 2
    low, high = np.percentile(drawn[1:], [outside, 100 - outside])
    value = float(drawn[0])
    return Estimate(value, min(float(low), value), max(float(high), value))


def judge(shares: Dict[str, Estimate]) -> tuple:
    """Return the kind and the verdict; a named part is at least a tenth of the step and larger than the noise."""
    others = {part: share for part, share in shares.items() if part != "compute"}
    ranked = sorted(others, key=lambda part: -others[part].value)
    noise = max([0.0, *(-share.value for share in others.values())])
    named = [part for part in ranked if others[part].value >= NAMED and others[part].low > noise]
    if named:
        first = named[0]
        sentence = SENTENCES[first].format(value=percent(others[first].value), bounds=bounds(others[first]))
        also = [part for part in ranked if part != first and others[part].is_significant]
        return first, "; ".join([sentence, *(f"{part} {percent(others[part].value)}" for part in also)])
    if noise >= NAMED:
        return "none", (
            f"no bottleneck: {ranked[-1]} was measured as {percent(-noise)} of a step, so the machine's "
            "speed changed between probes"
        )
    compute = shares["compute"]
    small = "".join(f", {part} {percent(others[part].value)} {bounds(others[part])}" for part in ranked)
    if compute.low >= MOSTLY:
        return "compute", f"compute-bound: {percent(compute.value)} of a step is compute {bounds(compute)}{small}"
    return "none", f"no bottleneck: compute {percent(compute.value)} {bounds(compute)}{small}"


# The share of the input is 1 - real / synthetic, as in the published gaps
SENTENCES = {
    "input": "input-bound: {value} slower than synthetic images {bounds}",
    "exchange": "exchange-bound: {value} of a step is exchange that compute does not hide {bounds}",
    "cores": "short of cores: ranks without exchange lose {value} of a step to each other on one machine {bounds}",
}


def percent(share: float) -> str:
    return f"{round(100 * share)} %"


def bounds(share: Estimate) -> str:
    return f"({round(100 * share.low)} to {round(100 * share.high)})"


# ---------------------------------------------------------------- diagnosis.json as text


def text(result: dict) -> str:
    """Return the rates of the probes and the parts of a step with their 95 % intervals, the verdict, the advice."""
    ranks, rates = result["facts"]["ranks"], [["", "images/s", "", "ms per step"]]
    for name, step in result["steps_s"].items():
        title = f"compute alone, 1 rank x {ranks}" if name == "compute" and ranks > 1 else TITLES[name]
        rate = result["images_per_s"][name]
        interval = f"({rate['low']:,.1f} to {rate['high']:,.1f})"
        rates.append([title, f"{rate['value']:,.1f}", interval, f"{1000 * step['value']:.2f}"])
    parts = [["part of a step", "share", "", "ms"]]
    for part, share in result["shares"].items():
        interval = f"({100 * share['low']:.1f} to {100 * share['high']:.1f})"
        ms = 1000 * share["value"] * step["value"]  # of the last probe, the run itself
        negative = share["value"] < 0  # the machine's speed changed
        parts.append([part, *(("not measurable here", interval, "") if negative else
                              (f"{100 * share['value']:.1f} %", interval, f"{ms:.2f}"))])  # fmt: skip
    if result["data_wait"] is not None:
        parts.append(["data wait", f"{100 * result['data_wait']:.1f} %", "(devices idle)", ""])
    tables = ["", *text_table.columns(rates, (1, 3), "  "), "", *text_table.columns(parts, (1, 3), "  ")]
    return "\n".join([*tables, "", result["verdict"], "", *_advice(result["advice"])])


def _advice(suggestions: List[dict]) -> List[str]:
    if not suggestions:
        return ["  no setting is predicted to gain 1 % or more"]
    rows = [[one["setting"], f"{100 * one['gain']:+.0f} % images/s at most", one["why"]] for one in suggestions]
    return ["  settings with the largest predicted gain:", *text_table.columns(rows, indent="  ")]
