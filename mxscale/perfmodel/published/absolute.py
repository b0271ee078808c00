"""Errors of absolute predictions: each published source is predicted from the rates of the other ones.

`score` starts from the first rate of a published series, which a user without a measurement lacks. Here the rate of
one device comes from `rates.tabled` without the row's source, as for a plan.
"""

import functools
from dataclasses import dataclass, replace
from typing import Callable, Dict, List, Optional, Sequence

import numpy as np

from mxscale.perfmodel import hardware, layers, rates
from mxscale.perfmodel.published import fitting, published_parse
from mxscale.perfmodel.published import rows as published
from mxscale.perfmodel.published.fitting import Rows
from mxscale.perfmodel.published.rows import Point

KINDS = ("published", "computed")  # of a rate
PRECISION = {"fp32": "float32", "tf32": "float32", "fp16": "float16", "amp": "amp"}  # published -> configured


@dataclass(frozen=True)
class Prediction:
    """A published row, and its prediction without its source."""

    point: Point
    kind: str  # one of KINDS
    source: str  # of the device's rate
    images_per_s: float

    @property
    def error(self) -> float:
        """Return the absolute error in percent of the published rate."""
        return 100 * abs(self.images_per_s / self.point.rate - 1)


def predict(
    points: Sequence[Point], constants_of: Optional[Callable[[str], fitting.Constants]] = None
) -> List[Prediction]:
    """Return the predictions of the rows whose network, device and precision the tables know.

    Args:
        constants_of: Source -> constants of the model that were fitted without it; None: those of hardware.csv.
    """
    based = [(point, base) for point in points if not point.flag and (base := _base(point))]
    found = []
    for source, group in published.grouped(based, lambda one: one[0].source).items():
        pairs = [(replace(point, devices=1, nodes=1, rate=base.images_per_s), point) for point, base in group]
        predicted = fitting.rates(Rows.of(pairs), constants_of(source) if constants_of else hardware.constants())
        for (point, base), rate in zip(group, predicted.tolist(), strict=True):
            # A row of one device has no exchange and no stragglers
            alone = base.images_per_s if point.devices == 1 else rate
            found.append(Prediction(point, base.kind, base.source, alone))
    return found


def _base(point: Point) -> Optional[rates.Rate]:
    """Return the rate of one device without the row's source, at the row's batch or the default one."""
    wanted, precision = hardware.network(point.model), PRECISION.get(point.precision)
    network = _networks().get(wanted.name) if wanted else None
    if network is None or precision is None:
        return None
    batch = point.batch or published_parse.BATCH[2 if precision != "float32" else 4]
    return rates.tabled(network, point.gpu, batch, precision, without=point.source)


@functools.cache
def _networks() -> Dict[str, layers.Network]:
    """Return the networks with known FLOPs, by their published name."""
    found: Dict[str, layers.Network] = {}
    for name in layers.names():
        if known := hardware.network(name):
            found.setdefault(known.name, layers.network(name))
    return found


@functools.cache
def errors() -> Dict[str, Dict]:
    """Return {kind of the rate: summary of the errors} over the package's tables."""
    found = predict([point for name in published.TABLES for point in published.of_package(name)])
    return {kind: summary([one.error for one in found if one.kind == kind]) for kind in KINDS}


def summary(percent: Sequence[float]) -> Dict:
    """Return {"rows", "median", "p90"} of errors in percent; None without rows."""
    known = len(percent) > 0
    return {
        "rows": len(percent),
        "median": float(np.median(percent)) if known else None,
        "p90": float(np.percentile(percent, 90)) if known else None,
    }


def describe(kind: str) -> str:
    """Return the error of absolute figures whose base rate is of that kind; "" for a given or measured one."""
    if kind not in KINDS:
        return ""
    off = errors()[kind]
    return (
        f"absolute error with a {kind} rate: median {off['median']:.0f} %, 90 % within {off['p90']:.0f} % "
        f"({off['rows']} rows, each without its source)"
    )
