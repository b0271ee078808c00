"""Published throughputs: the rows of a table, and the series that they form.

A series is a set of rows that differ only in nodes, devices and batch. A row is predicted from the one with the fewest
devices: of its batch (weak scaling), or of any batch if its own was measured at one size alone (strong scaling).
"""

import math
import re
from collections import defaultdict
from dataclasses import dataclass, replace
from typing import Callable, Dict, Iterable, List, Mapping, Optional, Tuple, Union

from mxscale.perfmodel import hardware
from mxscale.util import csv_tables
from mxscale.util.errors import ConfigError, nearest

TABLES = ("published_scaling", "published_elsewhere", "published_scaling_2")  # of the package
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
    **dict.fromkeys(("unsplit", "layerwise", "host", "processors", "staged", "double_buffering"), ""),
}

PER_NODE = 8  # devices per node if the table has no number of nodes
SMALLEST, LARGEST = 1e-6, 1e9  # numbers of a table, besides 0


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
    numbers = ("img_per_s", "network_gbps", "batch_per_gpu", "gpus", "nodes")
    rate, network_gbps, batch, gpus, nodes = (_number(where, row, key) for key in numbers)
    devices = gpus or nodes  # the tables write 0 for machines without GPUs: the node is the device
    if not (rate and devices):
        return Skipped(line, row["source"], "no gpus" if rate else "no img_per_s")
    nodes = nodes or math.ceil(devices / PER_NODE)
    if nodes > devices:
        return Skipped(line, row["source"], f"{nodes:g} nodes for {devices:g} gpus")
    return Point(
        line,
        **{key: row[key] for key in (*SAME, "flag")},
        note=row.get("note", ""),
        nodes=int(nodes),
        devices=int(devices),
        batch=batch,
        network_gbps=network_gbps,
        rate=rate,
        stated=_stated(where, row.get("details", "")),
    )


def _number(where: str, row: Dict[str, str], key: str) -> Optional[float]:
    """Return the number in a cell; None if it is empty or 0. Raises ConfigError."""
    text, whole = row[key], key in ("nodes", "gpus")
    try:
        value = float(text or 0)
    except ValueError:
        if key == "batch_per_gpu":  # a range, or "unstated"
            return None
        value = math.nan
    if not (value == 0 or SMALLEST <= value <= LARGEST) or (whole and value % 1):
        raise ConfigError(f"{where}: {key}={text}: expected a {'whole ' if whole else ''}number above 0, or nothing")
    return value or None


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


def pairs(points: List[Point]) -> Tuple[List[Tuple[Point, Point]], List[Skipped]]:
    """Return (base, row to predict) of each row with a smaller one in its series, and the rows that are in no pair."""
    paired, alone = [], []
    for series in grouped(points, lambda point: tuple(getattr(point, key).lower() for key in SAME)).values():
        for point in series:
            base = min(_comparable(point, series), key=lambda other: (_size(other), _distance(other, point)))
            if _size(point) > _size(base):
                paired.append(_filled(base, point))
            else:
                alone.append(Skipped(point.line, point.source, "no smaller row in its series"))
    used = {point.line for pair in paired for point in pair}
    by_line = sorted(paired, key=lambda pair: pair[1].line)
    return by_line, sorted((row for row in alone if row.line not in used), key=lambda row: row.line)


def _comparable(point: Point, series: List[Point]) -> List[Point]:
    """Return the rows of a series among which a row has its base.

    They have its note, if the series repeats a size, and its batch (an unknown one matches all). Each condition holds
    only if several sizes fulfil it: a note of one size is a remark, a batch of one size scales strongly.
    """
    alike = series
    if len({(_size(other), other.batch, other.network_gbps) for other in series}) < len(series):
        alike = _of_several_sizes([other for other in alike if other.note == point.note], alike)
    same_batch = [other for other in alike if point.batch is None or other.batch in (None, point.batch)]
    return _of_several_sizes(same_batch, alike)


def _of_several_sizes(points: List[Point], otherwise: List[Point]) -> List[Point]:
    return points if len(set(map(_size, points))) > 1 else otherwise


def _filled(base: Point, point: Point) -> Tuple[Point, Point]:
    """Return both rows with the batch and network that only one of them states."""
    batch, gbps = base.batch or point.batch, base.network_gbps or point.network_gbps
    return (
        replace(base, batch=batch, network_gbps=gbps),
        replace(point, batch=point.batch or batch, network_gbps=point.network_gbps or gbps),
    )


def _size(point: Point) -> Tuple[int, int]:
    return point.devices, point.nodes


def _distance(base: Point, point: Point) -> Tuple:
    """Return a sort key of bases: not flagged, the nearest batch, the same network."""
    batches = (base.batch or point.batch or 1, point.batch or base.batch or 1)
    return bool(base.flag), abs(math.log(batches[0] / batches[1])), base.network_gbps != point.network_gbps


def grouped(items: Iterable, key: Callable) -> Dict:
    """Return {key(item): items}, in the order of first occurrence."""
    groups = defaultdict(list)
    for item in items:
        groups[key(item)].append(item)
    return groups
