"""Errors of absolute predictions: published rates, each predicted from the other sources alone.

The rate of one device is that of another source or computed from FLOPs, as for a plan of a machine on which nothing was
measured; the constants of the exchange are fitted without the row's source.
"""

import functools
from dataclasses import dataclass, replace
from typing import List, Optional, Tuple

import numpy as np

from mxscale.perfmodel import hardware, layers, rates
from mxscale.perfmodel.published import fitting, score
from mxscale.perfmodel.published.fitting import Rows
from mxscale.perfmodel.published.rows import Point, grouped
from mxscale.perfmodel.rates import Rate

PRECISIONS = {"fp32": "float32", "tf32": "float32", "fp16": "float16", "amp": "amp"}


@dataclass(frozen=True)
class Prediction:
    """A published rate and its prediction."""

    point: Point
    predicted: float  # images/s
    way: str  # rates.PUBLISHED or rates.COMPUTED: where the rate of one device is from

    @property
    def error(self) -> float:
        """Absolute error in percent of the published rate."""
        return 100 * abs(self.predicted / self.point.rate - 1)


@dataclass(frozen=True)
class Spread:
    """Errors in percent of the published rates."""

    median: float
    most: float  # 90 % of the rows have at most this error
    rows: int

    def __str__(self) -> str:
        return (
            f"error: median {self.median:.0f} %, 9 of 10 within {self.most:.0f} %, on {self.rows} published rows, each "
            f"predicted without its own source"
        )


def base_rate(point: Point) -> Optional[Rate]:
    """Return the rate of one device of a row, from other sources; None if none has it."""
    name, precision = _layers(point.model), PRECISIONS.get(point.precision)
    if name is None or precision is None or not point.batch:
        return None
    network, batch = layers.network(name), round(point.batch)
    others = [each for each in rates.single_devices() if each.source != point.source]
    return rates.reported(network, point.gpu, batch, precision, others) or rates.computed(network, point.gpu, precision)


@functools.cache
def _layers(model: str) -> Optional[str]:
    """Return a network of layers.csv that is the published one."""
    wanted = hardware.network(model)
    return next((name for name in layers.names() if wanted and hardware.network(name) == wanted), None)


@functools.cache
def predictions() -> Tuple[Prediction, ...]:
    """Return the predictions of all unflagged rows of the package's tables that other sources allow."""
    return (*_of_one_device(), *_of_several())


def _of_one_device() -> List[Prediction]:
    found = ((point, base_rate(point)) for point in rates.single_devices())
    return [Prediction(point, rate.images_per_s, rate.way) for point, rate in found if rate]


def _of_several() -> List[Prediction]:
    pairs, found = score.evidence(), []
    for source, group in grouped(pairs, lambda pair: pair[1].source).items():
        based = [(replace(base, rate=rate.images_per_s * base.devices), point, rate.way)
                 for base, point in group if base.devices == 1 and (rate := base_rate(base))]  # fmt: skip
        rest = [pair for pair in pairs if pair[1].source != source]
        if not based or not rest:
            continue
        constants = fitting.fit(Rows.of(rest), hardware.priors())
        predicted = score.predict([(base, point) for base, point, _ in based], constants)
        found += [Prediction(point, row["predicted"], way) for (_, point, way), row in zip(based, predicted)]
    return found


@functools.cache
def error(way: str) -> Spread:
    """Return the errors of the predictions whose rate of one device is rates.PUBLISHED or rates.COMPUTED."""
    alike = [each for each in predictions() if each.way == way]
    errors = [each.error for each in alike]
    return Spread(float(np.median(errors)), float(np.percentile(errors, 90)), len(errors))
