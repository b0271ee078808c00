"""Published throughputs: a table's rows, the series that they form, what is known of each.  Pure: standard library.

A series is the rows that differ in nodes and devices alone; its smallest number of devices is its base.
Where the batch of a device differs from row to row too, the series scales strongly.
"""

import csv
import io
import math
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Dict, List, Optional, Sequence, Tuple

from mxscale.config import ConfigError
from mxscale.scale import tables

TABLES = ("published_scaling", "published_elsewhere")  # the package's own
SAME = ("source", "framework", "model", "gpu", "comm", "precision")  # in all rows of a series
COLUMNS = (*SAME, "nodes", "gpus", "batch_per_gpu", "network_gbps", "img_per_s", "flag")

MOST_DEVICES = 1_000_000
PER_NODE = 8  # devices of a node where the table does not say how many nodes there were


@dataclass(frozen=True)
class Point:
    """A row that can be predicted or be a base."""

    line: int
    source: str
    framework: str
    model: str
    gpu: str
    comm: str
    precision: str
    nodes: int
    devices: int
    batch: Optional[float]
    network_gbps: Optional[float]
    rate: float  # images/s of all devices
    flag: str
    note: str

    @property
    def per_node(self) -> float:
        return self.devices / self.nodes


@dataclass(frozen=True)
class Skipped:
    line: int
    source: str
    why: str


def read(path: str) -> Tuple[List[Point], List[Skipped]]:
    """The rows of a file with a rate and a number of devices, and those without.  Raises ConfigError."""
    try:
        text = Path(path).read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"points={path}: {getattr(error, 'strerror', None) or error}") from error
    reader = csv.DictReader(io.StringIO(text, newline=""))
    try:
        points, skipped = _rows(path, reader)
    except csv.Error as error:
        raise ConfigError(f"points={path} line {reader.line_num}: {error}") from error
    if not points:
        raise ConfigError(f"points={path}: no row has both gpus and img_per_s: there is nothing to predict")
    return points, skipped


def of_package(name: str) -> List[Point]:
    """The rows with a rate of one of TABLES."""
    return read(str(tables.FOLDER / f"{name}.csv"))[0]


def _rows(path: str, reader: csv.DictReader) -> Tuple[List[Point], List[Skipped]]:
    missing = [name for name in COLUMNS if name not in (reader.fieldnames or [])]
    if missing:
        raise ConfigError(f"points={path}: columns are missing: {', '.join(missing)}")
    points, skipped = [], []
    for row in reader:
        found = _point(path, reader.line_num, {key: (row.get(key) or "").strip() for key in (*COLUMNS, "note")})
        (points if isinstance(found, Point) else skipped).append(found)
    return points, skipped


def _point(path: str, line: int, row: Dict[str, str]):
    numbers = {key: _number(path, line, key, row[key]) for key in ("nodes", "gpus", "network_gbps", "img_per_s")}
    for key in ("nodes", "gpus"):
        if numbers[key] is not None and numbers[key] % 1:
            raise ConfigError(f"points={path} line {line}: {key}={row[key]}: expected a whole number, or nothing")
    rate, gpus, nodes = numbers["img_per_s"], numbers["gpus"], numbers["nodes"]
    devices = gpus or nodes  # 0 is how the tables write processors without GPUs: a node is the device
    if rate is None:
        return Skipped(line, row["source"], "no img_per_s")
    if not devices:
        return Skipped(line, row["source"], "no gpus")
    if not 1e-6 < rate < 1e12:
        raise ConfigError(
            f"points={path} line {line}: img_per_s={row['img_per_s']}: expected a rate above 0, or nothing"
        )
    nodes = nodes or math.ceil(devices / PER_NODE)
    if nodes > devices:
        return Skipped(line, row["source"], f"{nodes:g} nodes for {devices:g} gpus")
    named = {key: row[key] for key in (*SAME, "flag", "note")}
    # A range, "unstated": not known, as an empty cell.
    try:
        batch = float(row["batch_per_gpu"])
    except ValueError:
        batch = None
    if batch is not None and not 0 < batch < 1e9:
        told = f"batch_per_gpu={row['batch_per_gpu']}: expected a number above 0, or nothing"
        raise ConfigError(f"points={path} line {line}: {told}")
    if devices > MOST_DEVICES:
        raise ConfigError(f"points={path} line {line}: {devices:g} devices: expected {MOST_DEVICES:,} at most")
    return Point(
        line,
        nodes=int(nodes),
        devices=int(devices),
        batch=batch,
        network_gbps=numbers["network_gbps"],
        rate=rate,
        **named,
    )


def _number(path: str, line: int, key: str, text: str) -> Optional[float]:
    if not text:
        return None
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value) or value < 0:
        raise ConfigError(f"points={path} line {line}: {key}={text}: expected a number, or nothing")
    return value


# ---------------------------------------------------------------- series


def pairs(points: List[Point]) -> Tuple[List[Tuple[Point, Point]], List[Skipped]]:
    """(base, row to predict) of all series, and the rows that have no base or nothing to be a base of."""
    found, alone = {}, []
    for series in _series(points):
        base = min(series, key=lambda point: point.devices)
        others = [point for point in series if point.devices > base.devices]
        if others:
            found.update({point.line: (base, point) for point in others if point.line not in found})
        else:
            alone.extend(series)
    used = {point.line for pair in found.values() for point in pair}
    why = "a series of one number of devices"
    skipped = {point.line: Skipped(point.line, point.source, why) for point in alone if point.line not in used}
    return [found[line] for line in sorted(found)], [skipped[line] for line in sorted(skipped)]


def unflagged(found: Sequence[Tuple[Point, Point]]) -> List[Tuple[Point, Point]]:
    """Those of `pairs` that are to be trusted: a flag of the base is one of the row."""
    return [(base, point) for base, point in found if not (base.flag or point.flag)]


def _series(points: List[Point]) -> List[List[Point]]:
    series = []
    for group in _grouped(points, lambda point: tuple(getattr(point, key).lower() for key in SAME)):
        # Two rows of one size are two experiments, which the note tells apart.
        several = len({(point.devices, point.batch, point.network_gbps) for point in group}) < len(group)
        for part in _grouped(group, lambda point: point.note) if several else [group]:
            series.extend(kept for wired in _by_network(part) for kept in _by_batch(wired))
    return series


def _by_network(points: List[Point]) -> List[List[Point]]:
    """Rows of one node belong to every network that the rest of the rows was measured on."""
    networks = sorted({point.network_gbps for point in points if point.network_gbps is not None})
    if len(networks) < 2:
        return [points]
    return [[point for point in points if point.network_gbps in (None, network)] for network in networks]


def _by_batch(points: List[Point]) -> List[List[Point]]:
    """Weak scaling: the rows of a batch, where there are several sizes.  Strong: the rest, with the smallest of all."""
    weak, left = [], []
    for group in _grouped(points, lambda point: point.batch):
        (weak if len({point.devices for point in group}) > 1 else left).append(group)
    strong = [point for group in left for point in group]
    if strong and weak:
        smallest = min(points, key=lambda point: point.devices)
        strong = [point for point in strong if point is not smallest] + [smallest]
    return weak + ([strong] if strong else [])


def _grouped(points: List[Point], key) -> List[List[Point]]:
    groups = defaultdict(list)
    for point in points:
        groups[key(point)].append(point)
    return list(groups.values())
