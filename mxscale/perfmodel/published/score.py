"""Errors of the model against published throughputs, beside those of linear scaling: `mxscale score`."""

from typing import Dict, List, Optional, Sequence, Tuple

import numpy as np

from mxscale.perfmodel import hardware
from mxscale.perfmodel.published import jobs
from mxscale.perfmodel.published import rows as published
from mxscale.perfmodel.published.jobs import Constants, Jobs
from mxscale.perfmodel.published.rows import SAME, Point, grouped
from mxscale.util import text_table
from mxscale.util.errors import ConfigError

Pairs = Sequence[Tuple[Point, Point]]  # (base, row to predict)


def score(path: str) -> Dict:
    """Return the object that `json=true` prints. Raises ConfigError if nothing in the table can be predicted."""
    points, unreadable = published.read(path)
    pairs, alone = published.pairs(points)
    if not pairs:
        raise ConfigError(f"points={path}: no series has two numbers of devices, so nothing can be predicted")
    scored = predict(pairs)
    trusted = [row for row in scored if not row["flag"]]
    total = summary(trusted)
    by_source = grouped(trusted, lambda row: row["source"])
    return {
        "points": path,
        "overall": {key: total[key] for key in ("rows", "median", "mean")},
        "linear": {key: total[f"linear_{key}"] for key in ("median", "mean")},
        "sources": {name: summary(rows) for name, rows in by_source.items()},
        "rows": trusted,
        "flagged": [row for row in scored if row["flag"]],
        "skipped": [vars(row) for row in sorted([*unreadable, *alone], key=lambda row: row.line)],
        "unknown": unknown([point for pair in pairs for point in pair]),
    }


def predict(pairs: Pairs, constants: Optional[Constants] = None) -> List[Dict]:
    """Return each row predicted from its base, with errors in percent; constants: None for those of hardware.csv."""
    bases, targets = map(Jobs.of, zip(*pairs, strict=True))
    predicted = jobs.predict(bases, targets, constants or hardware.constants())
    linear = bases.rate / bases.devices * targets.devices  # each device as fast as in the base, for any batch
    rows = zip(pairs, predicted.tolist(), linear.tolist(), strict=True)
    return [_row(base, point, rate, as_linear) for (base, point), rate, as_linear in rows]


def _row(base: Point, point: Point, predicted: float, linear: float) -> Dict:
    return {
        **{name: getattr(point, name) for name in ("line", *SAME, "nodes", "devices")},
        "base_line": base.line,
        "base_devices": base.devices,
        "img_per_s": point.rate,
        "predicted": predicted,
        "error": 100 * abs(predicted / point.rate - 1),
        "linear": linear,
        "linear_error": 100 * abs(linear / point.rate - 1),
        "flag": point.flag or base.flag,
    }


def summary(rows: Sequence[Dict]) -> Dict:
    """Return median and mean of the errors of `predict`, in percent; None without rows."""
    totals: Dict = {"rows": len(rows)}
    for prefix, key in (("", "error"), ("linear_", "linear_error")):
        errors = [row[key] for row in rows]
        totals[f"{prefix}median"] = float(np.median(errors)) if rows else None
        totals[f"{prefix}mean"] = float(np.mean(errors)) if rows else None
    return totals


def unknown(points: Sequence[Point]) -> List[Dict]:
    """Return the networks and devices that no table lists, their rows, and the defaults used."""
    defaults: Dict = {}
    for point in points:
        if not hardware.network(point.model):
            size = f"{jobs.RESNET_50.parameters / 1e6:g} million gradients"
            defaults.setdefault(("model", point.model, size), set()).add(point.line)
        if not hardware.device(point.gpu):
            link, gbps = hardware.usual_link(point.gpu), hardware.usual_gbps(point.gpu)
            links = f"{link}, {gbps:g} Gbit/s unless the row states another"
            defaults.setdefault(("gpu", point.gpu, links), set()).add(point.line)
        elif point.nodes > 1 and not jobs.network_stated(point):
            usual = f"{hardware.usual_gbps(point.gpu):g} Gbit/s, as such devices usually have"
            defaults.setdefault(("network_gbps", f"of {point.gpu}", usual), set()).add(point.line)
    return [
        {"column": column, "value": value, "taken": taken, "lines": sorted(lines)}
        for (column, value, taken), lines in defaults.items()
    ]


def show(result: Dict) -> str:
    """Return the tables: rows, then sources, then the total."""
    lines = text_table.columns([HEADINGS, *map(_cells, result["rows"])], RIGHT)
    if result["flagged"]:
        lines += ["", "flagged, not counted below"]
        lines += text_table.columns([[*_cells(row), row["flag"]] for row in result["flagged"]], RIGHT)
    if result["skipped"]:
        lines += ["", "skipped"]
        for (source, why), rows in grouped(result["skipped"], lambda row: (row["source"], row["why"])).items():
            lines.append(f"  {source}: {why} {_count([row['line'] for row in rows])}")
    if result["unknown"]:
        lines += ["", "not in any table or not stated, and the default used"]
        for row in result["unknown"]:
            lines.append(f"  {row['column']} {row['value'] or '(empty)'}: {row['taken']} {_count(row['lines'])}")
    total = {**result["overall"], **{f"linear_{key}": value for key, value in result["linear"].items()}}
    summaries = [_summary(name, values) for name, values in {**result["sources"], "all": total}.items()]
    return "\n".join([*lines, "", *text_table.columns([SUMMARY_HEADINGS, *summaries], range(1, 6))])


HEADINGS = ("line", "source", "model, device, exchange", "devices", "published", "predicted", "error", "linear")
RIGHT = {0, *range(3, 8)}  # right-aligned columns
SUMMARY_HEADINGS = ("absolute error, %", "rows", "median", "mean", "linear: median", "mean")


def _cells(row: Dict) -> List[str]:
    job = f"{row['model']} {row['gpu']} {row['comm']}, {row['precision']}"
    rates = (f"{row['img_per_s']:.0f}", f"{row['predicted']:.0f}")
    errors = (f"{row['error']:.1f}", f"{row['linear_error']:.1f}")
    devices = f"{row['base_devices']} -> {row['devices']}"
    return [str(row["line"]), row["source"][:18], job[:58], devices, *rates, *errors]


def _count(lines: Sequence[int]) -> str:
    return f"(rows: {len(lines)}, from line {min(lines)} on)"


def _summary(name: str, values: Dict) -> List[str]:
    errors = [values[key] for key in ("median", "mean", "linear_median", "linear_mean")]
    return [name[:26], str(values["rows"]), *("-" if error is None else f"{error:.1f}" for error in errors)]
