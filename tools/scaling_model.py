"""Fits the constants of the performance model to the published tables, and measures its errors.

    python tools/scaling_model.py                       # the rows `fitted` and `error` of mxscale/tables/hardware.csv
    python tools/scaling_model.py docs/figures/scaling-model.png        # and the figure of docs/scaling-model.md

The fit starts from the rows `prior`. Takes two minutes.
"""

import functools
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Callable, Dict, List, Optional, Sequence

import numpy as np

from mxscale.perfmodel import hardware, layers, rates, roofline
from mxscale.perfmodel.published import jobs, score
from mxscale.perfmodel.published import rows as published
from mxscale.perfmodel.published.jobs import BATCH, Constants, Jobs
from mxscale.perfmodel.published.rows import Point, grouped
from mxscale.perfmodel.published.score import Pairs
from mxscale.perfmodel.roofline import Step
from mxscale.rendering import canvas
from mxscale.util import csv_tables

# At most 1
SHARES = ("rdma_share", "tcp_share", "nvlink_share", "overlap", "overlap_served", "peak_share", "memory_share")
LARGEST = 0.5  # limit of an error in the loss, so that rows which no constants explain do not dominate
STAY = 0.008  # penalty per constant and squared logarithm of its change
GAIN = 1e-5  # least gain of an accepted step
STEPS = (0.3, 0.1, 0.03)  # relative changes, one constant at a time

LABELS: Dict[str, Callable[[Point], str]] = {
    "source": lambda point: point.source,
    "framework": lambda point: point.framework.split()[0] if point.framework.strip() else "unnamed",
}


# ---------------------------------------------------------------- the fit


def evidence(tables: Sequence[str] = published.TABLES) -> Pairs:
    """Return the pairs of the package's tables without a flag, to which the constants are fitted."""
    pairs = [pair for name in tables for pair in published.pairs(published.of_package(name))[0]]
    return [(base, point) for base, point in pairs if not (base.flag or point.flag)]


def priors(alone: bool) -> Constants:
    """Return the constants before any fit, of one device alone or of scaling: known values of the hardware."""
    values = {row["name"]: float(row["value"]) for row in csv_tables.read("hardware") if row["kind"] == "prior"}
    return {name: value for name, value in values.items() if (name in roofline.CONSTANTS) == alone}


def fit(pairs: Pairs) -> Constants:
    """Return the constants of scaling that fit the pairs."""
    bases, targets = map(Jobs.of, zip(*pairs, strict=True))
    sources = [target.source for _, target in pairs]
    return search(priors(alone=False), lambda k: jobs.predict(bases, targets, k) / targets.rate, sources)


def fit_alone(points: Sequence[Point]) -> Constants:
    """Return the constants of one device alone that fit its published rates."""
    steps = [(step, point) for point in points if (step := step_of(point)) and roofline.step_s(step, point.gpu)]

    def ratios(constants: Constants) -> np.ndarray:
        return np.array([step.batch / sum(roofline.step_s(step, one.gpu, constants)) / one.rate for step, one in steps])

    return search(priors(alone=True), ratios, [point.source for _, point in steps])


def search(start: Constants, ratios: Callable[[Constants], np.ndarray], sources: Sequence[str]) -> Constants:
    """Return the constants near `start` with the smallest loss, by coordinate search with decreasing steps.

    The loss is the weighted mean error plus the penalty of the distance from `start`.

    Args:
        ratios: Returns predicted over published rates of all rows.
        sources: Of the rows.
    """
    weight = np.array([sources.count(source) ** -0.5 for source in sources])  # of a source: the root of its rows

    def loss(constants: Constants) -> float:
        if any(constants.get(name, 0) > 1 for name in SHARES):
            return np.inf
        off = np.minimum(np.abs(np.log(ratios(constants))), LARGEST)
        moved = sum(np.log(constants[name] / start[name]) ** 2 for name in start)
        return float((weight * off).sum() / weight.sum() + STAY * moved)

    best, least = dict(start), loss(start)
    for step in STEPS:
        improved = True
        while improved:
            improved = False
            for name in start:
                for factor in (1 + step, 1 / (1 + step)):
                    tried = {**best, name: best[name] * factor}
                    value = loss(tried)
                    if value < least - GAIN:
                        best, least, improved = tried, value, True
                        break
    return best


@functools.cache
def left_out(leave_out: str) -> List[Dict]:
    """Return the rows of score.predict, each with constants fitted without its source or framework."""
    label, every, found = LABELS[leave_out], evidence(), []
    for name, group in grouped(every, lambda pair: label(pair[1])).items():
        rows = score.predict(group, fit([pair for pair in every if label(pair[1]) != name]))
        found += [{**row, "class": class_of(point)} for row, (_, point) in zip(rows, group, strict=True)]
    return found


def class_of(point: Point) -> str:
    """Return the kind of machines of a row, as the errors of hardware.csv have it."""
    (rdma,) = Jobs.of([point]).rdma
    found = hardware.scaling_class(point.nodes, point.devices, rdma)
    stated = jobs.network_stated(point) or point.nodes == 1 or point.devices > 500
    return found if stated else "scaling over an unstated network"


# ---------------------------------------------------------------- absolute predictions


@dataclass(frozen=True)
class Prediction:
    """A published row, and its prediction without its source."""

    point: Point
    kind: str  # of the device's rate: published | related | computed
    source: str  # of the device's rate
    images_per_s: float

    @property
    def error(self) -> float:
        """Return the absolute error in percent of the published rate."""
        return 100 * abs(self.images_per_s / self.point.rate - 1)


def absolute(points: Sequence[Point], constants: Optional[Constants] = None) -> List[Prediction]:
    """Return the predictions of the rows whose network, device and precision the tables know.

    `score` starts from the first rate of a published series, which a user without a measurement lacks. Here the rate of
    one device comes from other sources, as for a plan.
    """
    based = [(point, base) for point in points if not point.flag and (base := _base(point))]
    alone = [replace(point, devices=1, nodes=1, rate=base.images_per_s) for point, base in based]
    targets = Jobs.of([point for point, _ in based])
    predicted = jobs.predict(Jobs.of(alone), targets, constants or hardware.constants())
    return [
        # A row of one device has no exchange and no stragglers
        Prediction(point, base.kind, base.source, base.images_per_s if point.devices == 1 else rate)
        for (point, base), rate in zip(based, predicted.tolist(), strict=True)
    ]


def _base(point: Point) -> Optional[rates.Rate]:
    """Return the rate of one device without the row's source, at the row's batch or the default one."""
    step = step_of(point)
    return step and rates.by_tables(step, point.gpu, single_without(point.source), alone_without(point.source))


def single_without(source: str) -> List[Point]:
    """Return the published rates of one device from other sources."""
    return [point for point in rates.single() if point.source != source]


@functools.cache
def alone_without(source: str) -> Constants:
    """Return the constants of one device alone that fit the other sources."""
    others = single_without(source)
    return fit_alone(others) if len(others) < len(rates.single()) else hardware.constants()


def step_of(point: Point) -> Optional[Step]:
    """Return the step of a row on one device; None if the tables lack its network's layers or its precision."""
    wanted, precision = hardware.network(point.model), rates.CONFIGURED.get(point.precision)
    name = next((each for each in layers.names() if wanted and hardware.network(each) == wanted), None)
    if name is None or precision is None:
        return None
    return Step(layers.network(name), point.batch or BATCH[4 if precision == "float32" else 2], precision)


def errors() -> Dict[str, Dict[str, float]]:
    """Return the errors in percent that hardware.csv has: of scaling, and of absolute figures by kind of rate."""
    scored = left_out("source")
    scaling = score.summary(scored)
    found = {"scaling": {key: scaling[key] for key in ("median", "mean", "rows")}}
    for kind, rows in sorted(grouped(scored, lambda row: row["class"]).items()):
        found[kind] = _spread([row["error"] for row in rows])
    predicted = absolute([point for name in published.TABLES for point in published.of_package(name)])
    for kind in ("published", "related", "computed"):
        found[kind] = _spread([each.error for each in predicted if each.kind == kind])
    return found


def _spread(percent: List[float]) -> Dict[str, float]:
    return {"median": np.median(percent), "p90": np.percentile(percent, 90), "rows": len(percent)}


# ---------------------------------------------------------------- output


def draw(found: Dict, path: str) -> None:
    """Draw published and predicted efficiency of each row, and the share of rows within an error."""
    import matplotlib

    with matplotlib.rc_context(canvas.STYLE):
        figure, (left, right) = canvas.axes(11.0, 4.8, 2, shared=False)
        _efficiencies(left, found)
        _within(right, found)
        Path(path).write_bytes(canvas.as_png(figure))


def _efficiencies(axes, found: Dict) -> None:
    markers = "os^Dv<>pPX*hd"
    for index, source in enumerate(found["sources"]):
        rows = [row for row in found["rows"] if row["source"] == source]
        measured = [100 * row["img_per_s"] / row["linear"] for row in rows]
        predicted = [100 * row["predicted"] / row["linear"] for row in rows]
        marker = markers[index % len(markers)]
        axes.plot(measured, predicted, marker, ms=5, alpha=0.75, label=f"{source} ({len(rows)})")
    low = min(100 * min(row["img_per_s"], row["predicted"]) / row["linear"] for row in found["rows"])
    ends = [max(low - 5, 0), 105]
    axes.plot(ends, ends, color=canvas.GREY, lw=1)
    axes.fill_between(
        ends, [0.9 * end for end in ends], [1.1 * end for end in ends], color=canvas.GREY, alpha=0.15, lw=0
    )
    axes.set(xlim=ends, ylim=ends)
    axes.set(xlabel="published rate, % of linear scaling", ylabel="predicted rate, % of linear scaling")
    axes.set_title("Predicted against published (band: 10 %)", fontsize=11)
    axes.legend(fontsize=9, frameon=False, loc="upper left")


def _within(axes, found: Dict) -> None:
    for key, name, colour, values in (
        ("error", "model", canvas.BLUE, found["overall"]),
        ("linear_error", "linear scaling", canvas.VERMILION, found["linear"]),
    ):
        percent = sorted(row[key] for row in found["rows"])
        shares = [100 * (index + 1) / len(percent) for index in range(len(percent))]
        label = f"{name}: median {values['median']:.1f} %, mean {values['mean']:.1f} %"
        axes.step([0, *percent], [0, *shares], where="post", color=colour, label=label)
    axes.set(xlim=(0, 50), ylim=(0, 101), xlabel="absolute error, % of the published rate", ylabel="share of rows, %")
    axes.set_title("Rows within an error", fontsize=11)
    axes.grid()
    axes.legend(fontsize=9, frameon=False, loc="lower right")


def main(figure: Optional[str] = None) -> None:
    fitted = {**fit(evidence()), **fit_alone(rates.single())}
    constants = {name: f"{value:.3g}" for name, value in fitted.items()}
    units = {row["name"]: row["unit"] for row in csv_tables.read("hardware") if row["kind"] == "prior"}
    source = "fitted to the published tables: docs/scaling-model.md"
    table = [("fitted", name, "", "value", value, units[name], source) for name, value in constants.items()]
    table += [
        ("error", name, "", quantity, f"{value:.4g}", "rows" if quantity == "rows" else "%", "tools/scaling_model.py")
        for name, values in errors().items()
        for quantity, value in values.items()
    ]
    print(csv_tables.text(table))
    for name in published.TABLES:
        sources = {point.source for _, point in evidence([name])}
        for leave_out in LABELS:
            off = score.summary([row for row in left_out(leave_out) if row["source"] in sources])
            print(f"{name} without the {leave_out}: median {off['median']:.1f} %, mean {off['mean']:.1f} %")
    if figure:
        draw(score.score(str(Path(csv_tables.FOLDER, "published_scaling.csv"))), figure)


if __name__ == "__main__":
    main(*sys.argv[1:])
