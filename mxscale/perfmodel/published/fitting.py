"""Predictions of published rows from the base of their series, and the fit of the model's constants."""

import dataclasses
from dataclasses import dataclass
from typing import Dict, Sequence, Tuple

import numpy as np

from mxscale.perfmodel import hardware, step_time
from mxscale.perfmodel.published import published_parse
from mxscale.perfmodel.published.published_parse import Jobs
from mxscale.perfmodel.published.rows import Point
from mxscale.perfmodel.step_time import overlapped, stragglers, transfers

Pairs = Sequence[Tuple[Point, Point]]  # (base, row to predict)
Constants = Dict[str, float]

SHARES = ("rdma_share", "tcp_share", "nvlink_share", "overlap", "overlap_served")  # at most 1
MOST_OF_LINEAR = 1.1  # largest ratio of a prediction to linear scaling
LARGEST = 0.5  # limit of an error in the loss, so that rows which no constants explain do not dominate
LEAST_COMPUTE = 0.2  # share of compute in the step of a base, at least
STAY = 0.008  # penalty per constant and squared logarithm of its change
GAIN = 1e-5  # least gain of an accepted step
STEPS = (0.3, 0.1, 0.03)  # relative changes, one constant at a time


@dataclass(frozen=True)
class Rows:
    """Pairs as arrays."""

    base: Jobs
    target: Jobs
    weight: np.ndarray  # the total weight of a source is the root of its rows

    @classmethod
    def of(cls, pairs: Pairs) -> "Rows":
        sources = [target.source for _, target in pairs]
        weight = np.array([sources.count(source) ** -0.5 for source in sources])
        first, second = zip(*pairs, strict=True)
        return cls(published_parse.parse(first), published_parse.parse(second), weight / weight.sum())


def rates(rows: Rows, constants: Constants) -> np.ndarray:
    """Return the predicted images/s of the rows, from the rates of their bases."""
    compute = at_batch(compute_s(rows.base, constants), rows, constants["launch"])
    job = published_parse.job(rows.target, constants, compute)
    predicted = rows.target.batch * rows.target.devices / (compute + overlapped(job, transfers(job)) + stragglers(job))
    longest = at_batch(rows.base.step_s, rows, constants["launch"])  # as if all of the base's step were compute
    return np.minimum(predicted, MOST_OF_LINEAR * rows.target.batch * rows.target.devices / longest)


def compute_s(rows: Jobs, constants: Constants) -> np.ndarray:
    """Return the seconds of compute in a published step: the step without exchange and stragglers.

    Both depend on the compute, so that the value is iterated with damping.
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
    """Return the seconds of the target's batch, given those of the base's."""
    launches_s = hardware.launches_s(rows.target.tensors, launch_s)
    return step_time.at_batch(compute, rows.target.batch, rows.base.batch, launches_s)


def linear(rows: Rows) -> np.ndarray:
    """Return the images/s of linear scaling: each device as fast as in the base, for any batch."""
    return rows.base.rate / rows.base.devices * rows.target.devices


def fit(rows: Rows, start: Constants) -> Constants:
    """Return the constants near `start` with the smallest loss, by coordinate search with decreasing steps."""
    best, least = dict(start), loss(rows, start, start)
    for step in STEPS:
        improved = True
        while improved:
            improved = False
            for name in start:
                for factor in (1 + step, 1 / (1 + step)):
                    tried = {**best, name: best[name] * factor}
                    value = loss(rows, tried, start)
                    if value < least - GAIN:
                        best, least, improved = tried, value, True
                        break
    return best


def loss(rows: Rows, constants: Constants, start: Constants) -> float:
    """Return the weighted mean error plus the penalty of the distance from `start`."""
    if any(constants[name] > 1 for name in SHARES):
        return np.inf
    off = np.minimum(np.abs(np.log(rates(rows, constants) / rows.target.rate)), LARGEST)
    moved = sum(np.log(constants[name] / start[name]) ** 2 for name in start)
    return float((rows.weight * off).sum() + STAY * moved)
