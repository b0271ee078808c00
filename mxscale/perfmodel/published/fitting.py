"""Published rows predicted from their series' base, and the constants that fit them.  Pure: numpy."""

import dataclasses
from dataclasses import dataclass
from typing import Dict, List, Sequence, Tuple

import numpy as np

from mxscale.perfmodel import hardware, step_time
from mxscale.perfmodel.published import published_parse
from mxscale.perfmodel.published.published_parse import Described
from mxscale.perfmodel.published.rows import Point
from mxscale.perfmodel.step_time import overlapped, stragglers, transfers

Pairs = Sequence[Tuple[Point, Point]]  # (base, row to predict)
Constants = Dict[str, float]

SHARES = ("rdma_share", "tcp_share", "nvlink_share", "overlap", "overlap_served")  # at most 1
MOST_OF_LINEAR = 1.1  # what is faster than linear scaling is a base that the model takes for worse than it was
LARGEST = 0.5  # errors above this count as this: a row that no constants explain must not pull them
LEAST_COMPUTE = 0.2  # of a published base step: less would be a base that the model does not understand
STAY = 0.008  # for each constant and squared factor of e that it leaves its start by
GAIN = 1e-5  # a step has to gain, or it is not taken
STEPS = (0.3, 0.1, 0.03)  # relative changes that are tried, one constant at a time


@dataclass(frozen=True)
class Rows:
    """Pairs as arrays."""

    base: Described
    target: Described
    weight: np.ndarray  # a source counts as the root of its rows

    @classmethod
    def of(cls, pairs: Pairs) -> "Rows":
        sources = [target.source for _, target in pairs]
        weight = np.array([sources.count(source) ** -0.5 for source in sources])
        first, second = zip(*pairs, strict=True)
        return cls(published_parse.describe(first), published_parse.describe(second), weight / weight.sum())


def rates(rows: Rows, constants: Constants) -> np.ndarray:
    """Images/s of the rows to predict, from their bases' rates."""
    compute = at_batch(compute_s(rows.base, constants), rows, constants["launch"])
    job = published_parse.job(rows.target, constants, compute)
    predicted = rows.target.batch * rows.target.devices / (compute + overlapped(job, transfers(job)) + stragglers(job))
    whole = at_batch(rows.base.step_s, rows, constants["launch"])  # as if all of the base's step were computing
    return np.minimum(predicted, MOST_OF_LINEAR * rows.target.batch * rows.target.devices / whole)


def compute_s(rows: Described, constants: Constants) -> np.ndarray:
    """Seconds that a device computes, given the step's: what is left of it without exchange and stragglers.

    Both grow with the compute they are beside, so that halving the way each time comes close.
    """
    step = compute = rows.step_s
    job = published_parse.job(rows, constants, compute)
    sent = transfers(job)
    for _ in range(8):
        job = dataclasses.replace(job, compute_s=compute)
        left = step - overlapped(job, sent) - stragglers(job)
        compute = (compute + np.maximum(left, LEAST_COMPUTE * step)) / 2
    return compute


def at_batch(compute: np.ndarray, rows: Rows, launch_s: float) -> np.ndarray:
    """The time of the target's batch, given that of the base's."""
    launches_s = hardware.launches_s(rows.target.tensors, launch_s)
    return step_time.at_batch(compute, rows.target.batch, rows.base.batch, launches_s)


def linear(rows: Rows) -> np.ndarray:
    """Images/s if each device were as fast as in the base, whatever its batch."""
    return rows.base.rate / rows.base.devices * rows.target.devices


# ---------------------------------------------------------------- fitting


def fit(rows: Rows, start: Constants, steps: Sequence[float] = STEPS) -> Constants:
    """The constants near `start` with the smallest mean error: one is moved at a time, in ever smaller steps."""
    best, least = dict(start), loss(rows, start, start)
    for step in steps:
        improved = True
        while improved:
            improved = False
            for name in hardware.fitted():
                for factor in (1 + step, 1 / (1 + step)):
                    tried = {**best, name: best[name] * factor}
                    value = loss(rows, tried, start)
                    if value < least - GAIN:
                        best, least, improved = tried, value, True
                        break
    return best


def loss(rows: Rows, constants: Constants, start: Constants) -> float:
    if any(constants[name] > 1 for name in SHARES):
        return np.inf
    off = np.minimum(np.abs(np.log(rates(rows, constants) / rows.target.rate)), LARGEST)
    moved = sum(np.log(constants[name] / start[name]) ** 2 for name in hardware.fitted())
    return float((rows.weight * off).sum() + STAY * moved)


def without(pairs: Pairs, label, start: Constants) -> Dict[str, Tuple[Constants, List[int]]]:
    """Label -> (constants fitted to the rows that have another label, indices of those that have it)."""
    labels = [label(target) for _, target in pairs]
    found = {}
    for name in dict.fromkeys(labels):
        rest = [pair for pair, other in zip(pairs, labels, strict=True) if other != name]
        if rest:
            found[name] = fit(Rows.of(rest), start), [i for i, other in enumerate(labels) if other == name]
    return found
