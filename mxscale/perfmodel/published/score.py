"""Errors of the model against published throughputs, beside those of linear scaling: values, tables, figure."""

from pathlib import Path
from typing import Dict, List, Optional, Sequence

import numpy as np

from mxscale.perfmodel import hardware
from mxscale.perfmodel.published import fitting, published_parse
from mxscale.perfmodel.published import rows as published
from mxscale.perfmodel.published.fitting import Pairs, Rows
from mxscale.perfmodel.published.rows import Point, grouped
from mxscale.util import text_table
from mxscale.util.errors import ConfigError


def score(path: str, leave_out: str = "source") -> Dict:
    """Return the object that `json=true` prints: overall, linear, sources, left_out, rows, flagged, skipped, unknown.

    Args:
        leave_out: A key of LABELS: constants are also fitted without each source, or without each framework.

    Raises:
        ConfigError: The table is invalid, or nothing in it can be predicted.
    """
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
        "leave_out": leave_out,
        "left_out": left_out(pairs, leave_out),
        "rows": trusted,
        "flagged": [row for row in scored if row["flag"]],
        "skipped": [vars(row) for row in sorted([*unreadable, *alone], key=lambda row: row.line)],
        "unknown": unknown([point for pair in pairs for point in pair]),
    }


def predict(pairs: Pairs, constants: Optional[fitting.Constants] = None) -> List[Dict]:
    """Return each row predicted from its base, with errors in percent; constants: None for those of hardware.csv."""
    rows = Rows.of(pairs)
    predicted = fitting.rates(rows, constants or hardware.constants())
    both = zip(pairs, predicted.tolist(), fitting.linear(rows).tolist(), strict=True)
    return [_row(base, point, rate, as_linear) for (base, point), rate, as_linear in both]


def _row(base: Point, point: Point, predicted: float, linear: float) -> Dict:
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
    found: Dict = {"rows": len(rows)}
    for prefix, key in (("", "error"), ("linear_", "linear_error")):
        errors = [row[key] for row in rows]
        found[f"{prefix}median"] = float(np.median(errors)) if rows else None
        found[f"{prefix}mean"] = float(np.mean(errors)) if rows else None
    return found


def unknown(points: Sequence[Point]) -> List[Dict]:
    """Return the networks and devices that no table lists, their rows, and the defaults used."""
    found: Dict = {}
    for point in points:
        if not hardware.network(point.model):
            size = f"{published_parse.UNKNOWN.parameters / 1e6:g} million gradients"
            found.setdefault(("model", point.model, size), set()).add(point.line)
        if not hardware.device(point.gpu):
            link, gbps = hardware.usual_link(point.gpu), hardware.usual_gbps(point.gpu)
            links = f"{link}, {gbps:g} Gbit/s unless the row states another"
            found.setdefault(("gpu", point.gpu, links), set()).add(point.line)
    return [
        {"column": column, "value": value, "taken": taken, "lines": sorted(lines)}
        for (column, value, taken), lines in found.items()
    ]


LABELS = {"source": lambda point: point.source, "framework": lambda point: family(point.framework)}


def family(framework: str) -> str:
    """Return the name without its version: MXNet for MXNet NGC 20.12."""
    return framework.split()[0] if framework.strip() else "unnamed"


def left_out(pairs: Pairs, leave_out: str) -> Dict[str, Dict]:
    """Return, by source or framework, the errors of its rows with constants fitted without it.

    The fit uses the unflagged rows of this file and, for other sources, those of the package.
    """
    label = LABELS[leave_out]
    usable = published.unflagged(pairs)
    named = {target.source for _, target in usable}
    others = [pair for pair in evidence() if pair[1].source not in named]
    found, all_scored = {}, []
    for name, group in grouped(usable, lambda pair: label(pair[1])).items():
        rest = [pair for pair in [*usable, *others] if label(pair[1]) != name]
        if rest:
            constants = fitting.fit(Rows.of(rest), hardware.priors())
            scored = predict(group, constants)
            found[name] = {**summary(scored), "constants": constants}
            all_scored.extend(scored)
    return {**found, "all": summary(all_scored)}


def evidence(tables: Sequence[str] = published.TABLES) -> Pairs:
    """Return the unflagged pairs of the package's tables, to which the constants are fitted."""
    return [pair for name in tables for pair in published.unflagged(published.pairs(published.of_package(name))[0])]


def show(found: Dict) -> str:
    """Return the tables: rows, then sources, then the total."""
    lines = text_table.columns([HEADINGS, *map(_cells, found["rows"])], RIGHT)
    if found["flagged"]:
        lines += ["", "flagged, not counted below"]
        lines += text_table.columns([[*_cells(row), row["flag"]] for row in found["flagged"]], RIGHT)
    if found["skipped"]:
        lines += ["", "skipped", *_skipped(found["skipped"])]
    if found["unknown"]:
        lines += ["", "not in any table, and the default used", *(_default(row) for row in found["unknown"])]
    total = {**found["overall"], **{f"linear_{key}": value for key, value in found["linear"].items()}}
    summaries = [_summary(name, values) for name, values in {**found["sources"], "all": total}.items()]
    fitted = [_summary(name, values) for name, values in found["left_out"].items()]
    table = text_table.columns([SUMMARY_HEADINGS, *summaries, *fitted], range(1, 6))
    lines += ["", *table[: 1 + len(summaries)], "", f"with constants fitted without the {found['leave_out']}"]
    return "\n".join([*lines, *table[1 + len(summaries) :]])


HEADINGS = ("line", "source", "model, device, exchange", "devices", "published", "predicted", "error", "linear")
RIGHT = {0, *range(3, 8)}  # right-aligned columns
SUMMARY_HEADINGS = ("absolute error, %", "rows", "median", "mean", "linear: median", "mean")


def _cells(row: Dict) -> List[str]:
    job = f"{row['model']} {row['gpu']} {row['comm']}, {row['precision']}"
    rates = (f"{row['img_per_s']:.0f}", f"{row['predicted']:.0f}")
    errors = (f"{row['error']:.1f}", f"{row['linear_error']:.1f}")
    devices = f"{row['base_devices']} -> {row['devices']}"
    return [str(row["line"]), row["source"][:18], job[:58], devices, *rates, *errors]


def _skipped(rows: Sequence[Dict]) -> List[str]:
    """Return a line for each source and reason."""
    groups = grouped(rows, lambda row: (row["source"], row["why"]))
    return [
        f"  {source}: {why} (line {_lines([row['line'] for row in group])})" for (source, why), group in groups.items()
    ]


def _default(row: Dict) -> str:
    return f"  {row['column']} {row['value'] or '(empty)'}: {row['taken']} (line {_lines(row['lines'])})"


def _lines(lines: Sequence[int]) -> str:
    """Return line numbers as ranges, such as `2-5, 7`."""
    parts: List[List[int]] = []
    for line in sorted(lines):
        if parts and line == parts[-1][1] + 1:
            parts[-1][1] = line
        else:
            parts.append([line, line])
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in parts)


def _summary(name: str, values: Dict) -> List[str]:
    errors = [values[key] for key in ("median", "mean", "linear_median", "linear_mean")]
    return [name[:26], str(values["rows"]), *("-" if error is None else f"{error:.1f}" for error in errors)]


BLUE, GREY, RED = "#1f5fa8", "#9a9a9a", "#b3412f"


def draw(found: Dict, path: str) -> None:
    """Draw published and predicted efficiency of each row, and the share of rows within an error.

    Raises:
        ConfigError: All rows are flagged.
        OSError: The file can't be written.
    """
    if not found["rows"]:
        raise ConfigError(f"figure={path}: all rows that can be predicted are flagged, so there is nothing to draw")
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 4.8), layout="constrained")
    left, right = figure.subplots(1, 2)
    _efficiencies(left, found)
    _within(right, found)
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)


def _efficiencies(axes, found: Dict) -> None:
    markers = "os^Dv<>pPX*hd"
    for index, source in enumerate(found["sources"]):
        rows = [row for row in found["rows"] if row["source"] == source]
        published = [100 * row["img_per_s"] / row["linear"] for row in rows]
        predicted = [100 * row["predicted"] / row["linear"] for row in rows]
        axes.plot(
            published, predicted, markers[index % len(markers)], ms=5, alpha=0.65, label=f"{source} ({len(rows)})"
        )
    low = min(100 * min(row["img_per_s"], row["predicted"]) / row["linear"] for row in found["rows"])
    ends = [max(low - 5, 0), 105]
    axes.plot(ends, ends, color=GREY, lw=1)
    axes.fill_between(ends, [0.9 * end for end in ends], [1.1 * end for end in ends], color=GREY, alpha=0.15, lw=0)
    axes.set(
        xlim=ends, ylim=ends, xlabel="published rate, % of linear scaling", ylabel="predicted rate, % of linear scaling"
    )
    axes.set_title("Predicted against published (band: 10 %)", fontsize=11)
    axes.legend(fontsize=8, frameon=False, loc="upper left")


def _within(axes, found: Dict) -> None:
    rows = found["rows"]
    for key, name, colour, values in (
        ("error", "model", BLUE, found["overall"]),
        ("linear_error", "linear scaling", RED, found["linear"]),
    ):
        errors = sorted(row[key] for row in rows)
        shares = [100 * (index + 1) / len(errors) for index in range(len(errors))]
        label = f"{name}: median {values['median']:.1f} %, mean {values['mean']:.1f} %"
        axes.step([0, *errors], [0, *shares], where="post", color=colour, label=label)
    axes.set(xlim=(0, 50), ylim=(0, 101), xlabel="absolute error, % of the published rate", ylabel="share of rows, %")
    axes.set_title("Rows within an error", fontsize=11)
    axes.grid(alpha=0.3)
    axes.legend(fontsize=9, frameon=False, loc="lower right")
