"""The model held against published throughputs: errors by row, source and over all, beside linear scaling's.  Pure."""

from dataclasses import dataclass
from typing import Dict, List, Optional, Sequence

import numpy as np

from mxscale.perfmodel import hardware
from mxscale.perfmodel.published import fitting, published_parse
from mxscale.perfmodel.published import rows as published
from mxscale.perfmodel.published.fitting import Pairs, Rows
from mxscale.perfmodel.published.rows import Point
from mxscale.util.errors import ConfigError


@dataclass(frozen=True)
class Scored:
    """A predicted row.  Errors in percent of the published rate."""

    base: Point
    point: Point
    predicted: float
    linear: float

    @property
    def error(self) -> float:
        return 100 * abs(self.predicted / self.point.rate - 1)

    @property
    def linear_error(self) -> float:
        return 100 * abs(self.linear / self.point.rate - 1)

    @property
    def flag(self) -> str:
        """A base that is not to be trusted makes its row so."""
        return self.point.flag or self.base.flag


def score(path: str, leave_out: str = "source") -> Dict:
    """What `json=true` prints: overall, linear, sources, left_out, rows, flagged, skipped, unknown.

    Raises ConfigError.
    """
    points, unreadable = published.read(path)
    pairs, alone = published.pairs(points)
    if not pairs:
        raise ConfigError(f"points={path}: no series has two numbers of devices: there is nothing to predict")
    scored = predict(pairs)
    kept = [row for row in scored if not row.flag]
    by_source = {name: summary(rows) for name, rows in _by(kept, lambda row: row.point.source).items()}
    return {
        "points": path,
        "overall": {key: value for key, value in summary(kept).items() if not key.startswith("linear")},
        "linear": linear_summary(kept),
        "sources": by_source,
        "leave_out": leave_out,
        "left_out": left_out(pairs, leave_out),
        "rows": [_as_dict(row) for row in kept],
        "flagged": [_as_dict(row) for row in scored if row.flag],
        "skipped": [vars(row) for row in sorted([*unreadable, *alone], key=lambda row: row.line)],
        "unknown": unknown([point for pair in pairs for point in pair]),
    }


def predict(pairs: Pairs, constants: Optional[fitting.Constants] = None) -> List[Scored]:
    """Each row predicted from its base; constants: those of hardware.csv."""
    rows = Rows.of(pairs)
    predicted = fitting.rates(rows, constants or hardware.constants())
    both = zip(pairs, predicted.tolist(), fitting.linear(rows).tolist(), strict=True)
    return [Scored(base, point, rate, as_linear) for (base, point), rate, as_linear in both]


def summary(rows: Sequence[Scored]) -> Dict:
    """Median and mean of the errors, in percent; None without rows."""
    if not rows:
        return {"rows": 0, "median": None, "mean": None, "linear_median": None, "linear_mean": None}
    errors, as_linear = [row.error for row in rows], [row.linear_error for row in rows]
    return {
        "rows": len(rows),
        "median": float(np.median(errors)),
        "mean": float(np.mean(errors)),
        "linear_median": float(np.median(as_linear)),
        "linear_mean": float(np.mean(as_linear)),
    }


def linear_summary(rows: Sequence[Scored]) -> Dict:
    found = summary(rows)
    return {"median": found["linear_median"], "mean": found["linear_mean"]}


def unknown(points: Sequence[Point]) -> List[Dict]:
    """The networks and devices that no table knows, the rows that have them and what they are taken for."""
    found: Dict = {}
    for point in points:
        if not hardware.network(point.model):
            size = f"{published_parse.UNKNOWN.parameters / 1e6:g} million gradients"
            found.setdefault(("model", point.model, size), set()).add(point.line)
        if not hardware.device(point.gpu):
            link, gbps = hardware.usual_link(point.gpu), hardware.usual_gbps(point.gpu)
            links = f"{link}, {gbps:g} Gbit/s if the row has no other"
            found.setdefault(("gpu", point.gpu, links), set()).add(point.line)
    return [
        {"column": column, "value": value, "taken": taken, "lines": sorted(lines)}
        for (column, value, taken), lines in found.items()
    ]


def _as_dict(row: Scored) -> Dict:
    point = row.point
    return {
        "line": point.line,
        "source": point.source,
        "framework": point.framework,
        "model": point.model,
        "gpu": point.gpu,
        "comm": point.comm,
        "precision": point.precision,
        "nodes": point.nodes,
        "devices": point.devices,
        "base_line": row.base.line,
        "base_devices": row.base.devices,
        "img_per_s": point.rate,
        "predicted": row.predicted,
        "error": row.error,
        "linear": row.linear,
        "linear_error": row.linear_error,
        "flag": row.flag,
    }


def _by(rows, key) -> Dict:
    groups: Dict = {}
    for row in rows:
        groups.setdefault(key(row), []).append(row)
    return groups


# ---------------------------------------------------------------- leaving one out


LABELS = {"source": lambda point: point.source, "framework": lambda point: family(point.framework)}


def family(framework: str) -> str:
    """MXNet NGC 20.12 -> MXNet."""
    return framework.split()[0] if framework.strip() else "unnamed"


def left_out(pairs: Pairs, leave_out: str) -> Dict[str, Dict]:
    """Source (or framework) -> the errors of its rows by constants fitted without it.

    They are fitted to the unflagged rows of this file and of the package's, those of other sources alone.
    """
    label = LABELS[leave_out]
    usable = published.unflagged(pairs)
    named = {target.source for _, target in usable}
    others = [pair for pair in evidence() if pair[1].source not in named]
    found, all_of_them = {}, []
    for name, mine in _by(usable, lambda pair: label(pair[1])).items():
        rest = [pair for pair in [*usable, *others] if label(pair[1]) != name]
        if rest:
            constants = fitting.fit(Rows.of(rest), hardware.priors())
            fitted = {key: constants[key] for key in hardware.fitted()}
            scored = predict(mine, constants)
            found[name] = {**summary(scored), "constants": fitted}
            all_of_them.extend(scored)
    return {**found, "all": summary(all_of_them)}


def evidence(tables: Sequence[str] = published.TABLES) -> Pairs:
    """The unflagged pairs of the package's published rows: what the constants are fitted to, leaving one out."""
    return [pair for name in tables for pair in published.unflagged(published.pairs(published.of_package(name))[0])]


# ---------------------------------------------------------------- for the terminal


def show(found: Dict) -> str:
    """The table: rows, then sources, then all."""
    lines = [_row("line", "source", "model, device, exchange", "devices", "published", "predicted", "error", "linear")]
    lines += [_line(row) for row in found["rows"]]
    if found["flagged"]:
        lines += ["", "flagged, in none of the figures below"]
        lines += [f"{_line(row)}  {row['flag']}" for row in found["flagged"]]
    if found["skipped"]:
        lines += ["", "skipped", *_skipped(found["skipped"])]
    if found["unknown"]:
        lines += ["", "in no table, and what was taken", *(_taken(row) for row in found["unknown"])]
    lines += [
        "",
        f"{'absolute error, %':26} {'rows':>5} {'median':>7} {'mean':>7}   {'linear: median':>14} {'mean':>7}",
    ]
    lines += [_summary(name, values) for name, values in found["sources"].items()]
    total = {"rows": found["overall"]["rows"], **found["overall"]}
    total.update({f"linear_{key}": value for key, value in found["linear"].items()})
    lines += [_summary("all", total)]
    lines += ["", f"with constants fitted without the {found['leave_out']}"]
    lines += [_summary(name, values) for name, values in found["left_out"].items()]
    return "\n".join(lines)


def _row(line, source, what, devices, published_rate, predicted, error, as_linear) -> str:
    return (
        f"{line:>5} {source[:18]:18} {what[:58]:58} {devices:>12} {published_rate:>10} {predicted:>10} "
        f"{error:>6} {as_linear:>6}"
    )


def _line(row: Dict) -> str:
    what = f"{row['model']} {row['gpu']} {row['comm']}, {row['precision']}"
    devices = f"{row['base_devices']} -> {row['devices']}"
    rates = (f"{row['img_per_s']:.0f}", f"{row['predicted']:.0f}")
    return _row(row["line"], row["source"], what, devices, *rates, f"{row['error']:.1f}", f"{row['linear_error']:.1f}")


def _skipped(rows: Sequence[Dict]) -> List[str]:
    """One line for each source and reason."""
    groups = _by(rows, lambda row: (row["source"], row["why"]))
    return [
        f"  {source}: {why} (line {_lines([row['line'] for row in held])})" for (source, why), held in groups.items()
    ]


def _taken(row: Dict) -> str:
    return f"  {row['column']} {row['value'] or '(empty)'}: {row['taken']} (line {_lines(row['lines'])})"


def _lines(lines: Sequence[int]) -> str:
    """2-5, 7"""
    parts: List[List[int]] = []
    for line in sorted(lines):
        if parts and line == parts[-1][1] + 1:
            parts[-1][1] = line
        else:
            parts.append([line, line])
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in parts)


def _summary(name: str, values: Dict) -> str:
    if not values["rows"]:
        return f"{name:26} {0:5} {'-':>7} {'-':>7}   {'-':>14} {'-':>7}"
    return (
        f"{name[:26]:26} {values['rows']:5} {values['median']:7.1f} {values['mean']:7.1f}   "
        f"{values['linear_median']:14.1f} {values['linear_mean']:7.1f}"
    )
