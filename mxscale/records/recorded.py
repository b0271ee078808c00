"""Recorded runs, and rows of runs that differ only in the seed."""

import itertools
import math
import statistics
from collections import defaultdict
from dataclasses import dataclass
from typing import Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from mxscale.config import removed
from mxscale.config.signature import DATA_PATHS, UNSIGNED, within
from mxscale.rundir.status import FINISHED

NOT_KNOWN = "–"


@dataclass(frozen=True)
class Recorded:
    """One recorded training run."""

    id: str
    name: str
    status: str
    params: Dict[str, str]
    tags: Dict[str, str]
    metrics: Dict[str, float]  # the last value of each
    started_ms: Optional[int] = None

    def param(self, key: str) -> Optional[str]:
        """Return the last value of a param, which a resume can change."""
        return self.tags.get(f"resumed.{key}", self.params.get(key))

    @property
    def current(self) -> Dict[str, str]:
        """Return the last values of the params."""
        return {key: self.param(key) for key in self.params}

    @property
    def devices(self) -> Optional[int]:
        """Number of devices; for older records computed from the global batch."""
        known = self.tags.get("ranks") or self.param("launch.ranks")
        if known and known.isdigit():
            return int(known)
        sizes = [self.param(key) for key in ("batch/global", "batch.per_device", "batch.accumulation")]
        if self.param("data.shards") != "None" or None in sizes:
            return None
        global_batch, per_device, accumulation = map(int, sizes)
        return global_batch // (per_device * accumulation)


# Params that do not separate rows: the seed, weights (compared by digest), derived sizes
SIZES = ("batch/per_device", "batch/global", "lr/effective", "steps/total")
OUTSIDE = ("seed", *UNSIGNED, *DATA_PATHS, "model.pretrained", *SIZES)
TAGS = ("data.digest", "pretrained.sha256", "machine", "gpu", "build")
VERSIONS = ("mxnet", "numpy", "horovod")  # packages of a rank
# Order of the keys in a row's label
FIRST = ("model.name", "data.kind", "launch.ranks", "comm.backend", "batch.per_device", "precision", "optimizer.name",
         "optimizer.lr")  # fmt: skip
OF_DEVICES = ("launch.ranks", "launch.threads", "launch.hosts", "machine.nodes", "machine.instance", "data.shards")


def settings(run: Recorded) -> Dict[str, str]:
    """Return the settings and the environment that separate rows, without the seed."""
    values = {key: text for key, text in run.current.items() if is_setting(key, text) and not within(key, OUTSIDE)}
    values.update({key: run.tags[key] for key in TAGS if key in run.tags})
    installed = versions(run.tags)
    values.update({f"version.{name}": installed[name] for name in VERSIONS if name in installed})
    # The values that auto and null resolved to: a rerun has them in place of auto and null
    settled = {"launch.ranks": run.devices, "launch.device": run.tags.get("device"),
               "launch.threads": run.tags.get("threads")}  # fmt: skip
    values.update({key: str(value) for key, value in settled.items() if value is not None})
    return values


def versions(tags: Mapping[str, Optional[str]]) -> Dict[str, str]:
    """Return the versions by package, from the tag `versions` (`mxnet=1.9.1 numpy=1.23.5`)."""
    return dict(word.split("=", 1) for word in (tags.get("versions") or "").split() if "=" in word)


def is_setting(key: str, text: str) -> bool:
    """Return whether a param is a setting: no forecast of an earlier version, and no setting that it left at default.

    Settings that were removed are in the records of earlier versions only, also where they had no effect.
    """
    without_effect = key in removed.IGNORED or (key in removed.DEFAULTS and text == str(removed.DEFAULTS[key]))
    return not without_effect and not key.startswith("plan/")


class Spread(NamedTuple):
    """Median, minimum and maximum of a metric, and the number of runs."""

    median: float
    low: float
    high: float
    runs: int


@dataclass(frozen=True)
class Row:
    """Runs that differ only in the seed."""

    settings: Dict[str, str]
    runs: List[Recorded]
    label: str = ""

    def values(self, metric: str) -> List[float]:
        return [run.metrics[metric] for run in self.runs if known(run.metrics.get(metric))]

    def spread(self, metric: str) -> Optional[Spread]:
        """Return the spread of the runs that have the metric; None if none has it."""
        values = self.values(metric)
        return Spread(statistics.median(values), min(values), max(values), len(values)) if values else None

    def median(self, metric: str) -> Optional[float]:
        spread = self.spread(metric)
        return spread and spread.median

    @property
    def devices(self) -> Optional[int]:
        return self.runs[0].devices

    @property
    def seeds(self) -> List[str]:
        return sorted({run.params.get("seed", "?") for run in self.runs}, key=sort_key)


def known(value: Optional[float]) -> bool:
    """Return whether a metric has a finite value."""
    return value is not None and math.isfinite(value)


def rows(runs: Sequence[Recorded]) -> List[Row]:
    """Return the rows of the finished runs, sorted by the keys that distinguish them."""
    groups: Dict[Tuple, List[Recorded]] = defaultdict(list)
    for run in runs:
        if run.status == FINISHED:
            groups[tuple(sorted(settings(run).items()))].append(run)
    unlabelled = [Row(dict(key), group) for key, group in groups.items()]
    keys = distinguishing(unlabelled)
    unlabelled.sort(key=lambda row: [sort_key(row.settings.get(key)) for key in keys])
    return [Row(row.settings, row.runs, label(row.settings, keys)) for row in unlabelled]


def distinguishing(all_rows: Sequence[Row]) -> List[str]:
    """Return few keys by which each row differs from every other, in the order of FIRST."""
    keys, groups = [], {()}
    for key in varied(all_rows):
        finer = {tuple(row.settings.get(k) for k in [*keys, key]) for row in all_rows}
        if len(finer) > len(groups):
            keys, groups = [*keys, key], finer
    return keys


def varied(all_rows: Sequence[Row]) -> List[str]:
    """Return the keys that differ between rows."""
    keys = dict.fromkeys([*FIRST, *sorted({key for row in all_rows for key in row.settings})])
    return [key for key in keys if len({row.settings.get(key) for row in all_rows}) > 1]


def label(values: Dict[str, str], keys: Sequence[str]) -> str:
    """Return the label of a row, such as `2 ranks lr=0.4`; `all alike` without keys."""
    parts = []
    for key in keys:
        value = values.get(key, NOT_KNOWN)
        value = {"None": "null", "True": "true", "False": "false"}.get(value, value)
        if key in ("data.digest", "pretrained.sha256"):
            value = value[:8]
        if key == "launch.ranks":
            parts.append(f"{value} rank{'s' * (value != '1')}")
        else:
            parts.append(value if key in ("model.name", "data.kind", "comm.backend") else f"{short(key)}={value}")
    return " ".join(parts) or "all alike"


def short(key: str) -> str:
    """Return the name of a setting without its group: lr for optimizer.lr, model for model.name."""
    group, _, name = key.rpartition(".")
    return group if name in ("name", "kind") and group else name


def sort_key(text: Optional[str]) -> Tuple:
    """Return a sort key that places numbers, by value, before text."""
    try:
        return (0, float(text), "")
    except (TypeError, ValueError):
        return (1, 0.0, str(text))


def device_series(all_rows: Sequence[Row]) -> List[Tuple[str, List[Row]]]:
    """Return (label, rows by device count) of rows that differ only in the devices, the longest series first."""
    series: Dict[Tuple, List[Row]] = defaultdict(list)
    for row in all_rows:
        if row.devices is not None and row.median("throughput/median") is not None:
            series[tuple(sorted((k, v) for k, v in row.settings.items() if k not in OF_DEVICES))].append(row)
    for key, group in list(series.items()):
        if separating := _separating(group):
            del series[key]
            for row in group:
                series[(*key, *((name, row.settings.get(name, "")) for name in separating))].append(row)
    keys = distinguishing([Row(dict(key), []) for key in series])
    named = [(label(dict(key), keys), sorted(group, key=lambda row: row.devices)) for key, group in series.items()]
    return sorted(named, key=lambda pair: -len({row.devices for row in pair[1]}))


def _separating(group: Sequence[Row]) -> List[str]:
    """Return the settings of devices in which rows with as many devices differ."""
    alike = [(row, other) for row, other in itertools.combinations(group, 2) if row.devices == other.devices]
    names = [name for name in OF_DEVICES if name != "launch.ranks"]
    return [name for name in names if any(a.settings.get(name) != b.settings.get(name) for a, b in alike)]


def pareto_front(points: Sequence[Tuple[float, float]]) -> List[int]:
    """Return the indices of the (cost, accuracy) pairs that no other pair dominates, by cost; one of equal pairs."""
    order = sorted(range(len(points)), key=lambda i: (points[i][0], -points[i][1]))
    best, front = float("-inf"), []
    for i in order:
        if points[i][1] > best:
            best = points[i][1]
            front.append(i)
    return front
