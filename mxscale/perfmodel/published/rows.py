"""Published throughputs: the rows of a table, and the series that they form.

A series is a set of rows that differ only in nodes and devices; the row with the fewest devices is its base. A series
in which each batch has several sizes scales weakly. If the batch of the smallest size occurs only there, it scales
strongly.
"""

import math
import re
from collections import defaultdict
from dataclasses import dataclass, replace
from typing import Callable, Dict, Iterable, List, Mapping, Optional, Tuple, Union

from mxscale.perfmodel import hardware
from mxscale.util import csv_tables
from mxscale.util.errors import ConfigError, nearest

TABLES = ("published_scaling", "published_elsewhere")  # of the package
SAME = ("source", "framework", "model", "gpu", "comm", "precision")  # equal in all rows of a series
COLUMNS = (*SAME, "nodes", "gpus", "batch_per_gpu", "network_gbps", "img_per_s", "flag")  # and note, details
# word of the column `details`, WORD or WORD=VALUE -> pattern of its value (docs/scaling-model.md)
DETAILS = {
    "exchange": "ring|kvstore|servers",
    "servers": r"[1-9]\d*",  # dedicated machines
    "push": "device",  # to the servers; else of a node
    "link": "|".join(hardware.links()),  # in a node
    "gbps": r"[1-9]\d*(\.\d+)?",  # between nodes, if network_gbps is empty
    "rdma": "yes|no",
    "bytes": "2|4",  # of a gradient
    "overlap": "none|perfect",
    **dict.fromkeys(("unsplit", "layerwise", "host", "processors", "double_buffering"), ""),
}

MOST_DEVICES = 1_000_000
PER_NODE = 8  # devices per node if the table has no number of nodes


@dataclass(frozen=True)
class Point:
    """A row that can be predicted or used as a base."""

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
    stated: Mapping[str, str]  # the words of `details` and their values

    @property
    def per_node(self) -> float:
        return self.devices / self.nodes


@dataclass(frozen=True)
class Skipped:
    """A row that is neither predicted nor a base."""

    line: int
    source: str
    why: str


def read(path: str) -> Tuple[List[Point], List[Skipped]]:
    """Return the rows of a file with a rate and a number of devices, and those without. Raises ConfigError."""
    points, skipped = [], []
    for line, row in csv_tables.of_user(path, f"points={path}", COLUMNS):
        entry = _entry(f"points={path}, line {line}", line, row)
        (points if isinstance(entry, Point) else skipped).append(entry)
    if not points:
        raise ConfigError(f"points={path}: no row has both gpus and img_per_s, so nothing can be predicted")
    return points, skipped


def of_package(name: str) -> List[Point]:
    """Return the rows of one of TABLES that have a rate."""
    return read(str(csv_tables.FOLDER / f"{name}.csv"))[0]


def _entry(where: str, line: int, row: Dict[str, str]) -> Union[Point, Skipped]:
    rate, network_gbps, gpus, nodes = (
        _number(where, row, key) for key in ("img_per_s", "network_gbps", "gpus", "nodes")
    )
    devices = gpus or nodes  # the tables write 0 for machines without GPUs: the node is the device
    if rate is None:
        return Skipped(line, row["source"], "no img_per_s")
    if not devices:
        return Skipped(line, row["source"], "no gpus")
    if not 1e-6 < rate < 1e12:
        raise ConfigError(f"{where}: img_per_s={row['img_per_s']}: expected a rate above 0, or nothing")
    nodes = nodes or math.ceil(devices / PER_NODE)
    if nodes > devices:
        return Skipped(line, row["source"], f"{nodes:g} nodes for {devices:g} gpus")
    if devices > MOST_DEVICES:
        raise ConfigError(f"{where}: {devices:g} devices: expected at most {MOST_DEVICES:,}")
    return Point(
        line,
        **{key: row[key] for key in (*SAME, "flag")},
        note=row.get("note", ""),
        nodes=int(nodes),
        devices=int(devices),
        batch=_batch(where, row["batch_per_gpu"]),
        network_gbps=network_gbps or None,  # 0: no network was used
        rate=rate,
        stated=_stated(where, row.get("details", "")),
    )


def _batch(where: str, text: str) -> Optional[float]:
    try:
        batch = float(text)
    except ValueError:  # empty, a range or "unstated": unknown
        return None
    if not 0 < batch < 1e9:
        raise ConfigError(f"{where}: batch_per_gpu={text}: expected a number above 0, or nothing")
    return batch


def _stated(where: str, details: str) -> Dict[str, str]:
    stated = {}
    for word in details.split():
        name, _, value = word.partition("=")
        if name not in DETAILS:
            raise ConfigError(f"{where}: details={word}{nearest(name, DETAILS)}")
        if not re.fullmatch(DETAILS[name], value):
            raise ConfigError(f"{where}: details={word}: expected {name}={DETAILS[name]}".rstrip("="))
        stated[name] = value
    return stated


def _number(where: str, row: Dict[str, str], key: str) -> Optional[float]:
    text, whole = row[key], key in ("nodes", "gpus")
    try:
        value = float(text or 0)
    except ValueError:
        value = math.nan
    if not math.isfinite(value) or value < 0 or (whole and value % 1):
        raise ConfigError(f"{where}: {key}={text}: expected a {'whole ' if whole else ''}number, or nothing")
    return value if text else None


def pairs(points: List[Point]) -> Tuple[List[Tuple[Point, Point]], List[Skipped]]:
    """Return (base, row to predict) of all series, and the rows that are in no pair."""
    paired, alone = {}, {}
    for series, candidates in _series(points):
        weak = _scales_weakly(candidates)
        for point in series:
            base, several = _base(point, candidates, weak)
            if _size(point) > _size(base):
                paired[point.line] = _filled(base, point)
            else:
                why = "as small as the base of its series" if several else "a series with one number of devices"
                alone[point.line] = Skipped(point.line, point.source, why)
    used = {point.line for pair in paired.values() for point in pair}
    return [paired[line] for line in sorted(paired)], [alone[line] for line in sorted(alone) if line not in used]


def _base(point: Point, candidates: List[Point], weak: bool) -> Tuple[Point, bool]:
    """Return the base of a row, and whether the series has rows of other sizes.

    The base is the smallest of the rows on the same network. It has the same batch if the series scales weakly and the
    batch was measured at several sizes.
    """
    alike = _same_batch(candidates, point.batch)
    alike = alike if weak and _several_sizes(alike) else candidates
    network = _network(point)
    alike = [other for other in alike if network is None or _network(other) in (None, network)]
    return min(alike, key=lambda other: (_size(other), _distance(other, point))), _several_sizes(alike)


def _filled(base: Point, point: Point) -> Tuple[Point, Point]:
    """Return both rows with the batch and network that only one of them states."""
    batch, gbps = base.batch or point.batch, base.network_gbps or point.network_gbps
    return (
        replace(base, batch=batch, network_gbps=gbps),
        replace(point, batch=point.batch or batch, network_gbps=point.network_gbps or gbps),
    )


def _series(points: List[Point]) -> List[Tuple[List[Point], List[Point]]]:
    """Return the rows of each series, and the candidates for its base."""
    series = []
    for group in grouped(points, lambda point: tuple(getattr(point, key).lower() for key in SAME)).values():
        series.extend(_experiments(group))
    return series


def _experiments(group: List[Point]) -> List[Tuple[List[Point], List[Point]]]:
    """Split rows of equal size into experiments by their note, if rows of several sizes share it.

    A note that occurs at one size is a remark; its row belongs to all experiments.
    """
    if len({(_size(point), point.batch, point.network_gbps) for point in group}) == len(group):
        return [(group, group)]
    experiments, rest = [], []
    for noted in grouped(group, lambda point: point.note).values():
        if _several_sizes(noted):
            experiments.append(noted)
        else:
            rest.extend(noted)
    return [*((noted, noted + rest) for noted in experiments), (rest, group)]


def _size(point: Point) -> Tuple[int, int]:
    return point.devices, point.nodes


def _network(point: Point) -> Optional[float]:
    """Return the network of a row; None for one node, which uses none and matches all networks."""
    return point.network_gbps if point.nodes > 1 else None


def _scales_weakly(points: List[Point]) -> bool:
    """Return whether a batch of the smallest size was measured at several sizes; otherwise scaling is strong."""
    least = min(map(_size, points))
    return any(_several_sizes(_same_batch(points, point.batch)) for point in points if _size(point) == least)


def _same_batch(points: List[Point], batch: Optional[float]) -> List[Point]:
    """Return the rows with this batch; an unknown batch matches all."""
    return [point for point in points if batch is None or point.batch in (None, batch)]


def _several_sizes(points: List[Point]) -> bool:
    return len({_size(point) for point in points}) > 1


def _distance(base: Point, point: Point) -> Tuple:
    """Return a sort key of bases: not flagged, the nearest batch, the same network, the same note."""
    batches = (base.batch or point.batch or 1, point.batch or base.batch or 1)
    return (
        bool(base.flag),
        abs(math.log(batches[0] / batches[1])),
        base.network_gbps != point.network_gbps,
        base.note != point.note,
    )


def grouped(items: Iterable, key: Callable) -> Dict:
    """Return {key(item): items}, in the order of first occurrence."""
    groups = defaultdict(list)
    for item in items:
        groups[key(item)].append(item)
    return groups
