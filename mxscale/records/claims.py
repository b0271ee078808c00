"""Published figures (tables/claims.csv), and which recorded runs measure them.

tables/claim_conditions.csv lists, for each figure, the conditions that a run must have recorded to measure it, the
tolerance (our choice: the works state none), and the command that measures it. A run with a claim's tag but other
conditions does not measure it.
"""

import math
import re
import statistics
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from mxscale.records.recorded import FINISHED, Recorded
from mxscale.records.recorded import known as is_known
from mxscale.records.reduced import Reduced
from mxscale.util import csv_tables
from mxscale.util.errors import ConfigError, nearest

MEASURED, REDUCED, MODELLED = "measured", "reduced scale", "modelled"
SOURCE, NEITHER = "source fact", "not reproducible here"
STATES = (MEASURED, REDUCED, MODELLED, SOURCE, NEITHER)

# metric of a claim -> (metric of a run, factor)
MEASURES = {
    "val/top1": ("val/top1", 1),  # the last value: "after N epochs"
    "train/top1": ("train/top1", 1),
    "time": ("time/wall_s", 1 / 60),
    "cost/total_eur": ("cost/total_eur", 1),
    "scaling/efficiency": ("scaling/efficiency", 100),
    "throughput/images_per_s": ("throughput/median", 1),
    "1 - real/synthetic": ("diagnose/gap", 100),
}
# ways to measure with several runs, or with none
SPREAD, PAIR, FASTER, RATIO, PER_DEVICE = "spread", "pair", "faster", "ratio", "per device"
METRIC = "metric"  # of a run, with its name in place of that of MEASURES
MODEL, TOOL = "model", "tool"
FACT = "source"  # a price, or a row of another team, which the work only quotes


def known() -> Dict[str, Dict[str, str]]:
    """Return the claims by id."""
    return {row["id"]: row for row in csv_tables.read("claims")}


def check(ids: Sequence[str]) -> List[str]:
    """Return the ids; raises ConfigError for an unknown one."""
    claims = known()
    for name in ids:
        if name not in claims:
            raise ConfigError(f"claims: no published figure is called {name}{nearest(name, claims)}")
    return list(ids)


class Modelled(NamedTuple):
    """The modelled value of a claim: a row of tables/modelled_claims.csv, which tools/modelled_claims.py makes."""

    value: Optional[float]  # in the claim's unit; None if it is not a number
    text: str
    error: str  # known error of the model


def modelled() -> Dict[str, Modelled]:
    """Return the modelled values by id."""
    rows = csv_tables.read("modelled_claims")
    return {
        row["id"]: Modelled(float(row["value"]) if row["value"] else None, row["text"], row["error"]) for row in rows
    }


@dataclass(frozen=True)
class Outcome:
    """A claim, and its measured or modelled value."""

    row: Dict[str, str]
    conditions: Dict[str, str]
    value: Optional[float] = None  # measured, in the claim's unit
    runs: List[str] = field(default_factory=list)  # ids of the runs that measured it
    other: List[Tuple[str, str]] = field(default_factory=list)  # (run id, why it does not measure the claim)
    modelled: Optional[Modelled] = None
    reduced: Optional[Reduced] = None

    @property
    def state(self) -> str:
        """One of STATES: the first that applies."""
        if self.conditions["how"] == FACT:
            return SOURCE
        return MEASURED if self.runs else REDUCED if self.reduced else MODELLED if self.modelled else NEITHER

    @property
    def within(self) -> Optional[bool]:
        """Whether the measured, else the modelled value agrees with the published one within tolerance."""
        value = self.value if self.runs else self.modelled and self.modelled.value
        return verdict(self.row, self.conditions["tolerance"], value)

    @property
    def within_modelled(self) -> Optional[bool]:
        """Whether the modelled value agrees with the published one within tolerance."""
        return verdict(self.row, self.conditions["tolerance"], self.modelled and self.modelled.value)


def outcomes(
    runs: Sequence[Recorded],
    models: Mapping[str, Modelled],
    reduced: Mapping[str, Reduced] = MappingProxyType({}),
    ids: Optional[Sequence[str]] = None,
) -> List[Outcome]:
    """Return the outcome of every claim, in the order of the table.

    Args:
        models: By id.
        reduced: The figures at reduced scale, by id.
        ids: The claims; all by default.
    """
    conditions = {row["id"]: row for row in csv_tables.read("claim_conditions")}
    found = []
    for name, row in known().items():
        if ids is None or name in ids:
            one = outcome(row, conditions[name], runs, models.get(name))
            found.append(replace(one, reduced=reduced.get(name)))
    return found


def outcome(row: dict, wanted: dict, runs: Sequence[Recorded], modelled: Optional[Modelled] = None) -> Outcome:
    """Return the outcome of a claim from the runs with its tag."""
    tagged = [run for run in runs if row["id"] in run.tags.get("claims", "").split()]
    differing = [(run, differences(run, wanted)) for run in tagged]
    fitting = [run for run, why in differing if not why]
    value, used, unfit = measured(row, wanted, fitting)
    other = [(run.id, ", ".join(why)) for run, why in differing if why] + [
        (run.id, unfit) for run in fitting if not used
    ]
    return Outcome(row, wanted, value, [run.id for run in used], other, modelled)


def differences(run: Recorded, wanted: Dict[str, str]) -> List[str]:
    """Return the conditions of a claim that the run does not meet, by its record."""
    if run.status != FINISHED:
        return [f"it is {run.status}"]
    found = [_gpu(run, wanted["gpu"]), _devices(run, wanted["devices"]), _images(run, wanted["images"])]
    found.append(_learning_rate(run, wanted["lr"]))
    found += [_setting(run, condition) for condition in wanted["settings"].split()]
    return [why for why in found if why]


def _gpu(run: Recorded, wanted: str) -> Optional[str]:
    used = None if run.param("launch.device") == "cpu" else run.tags.get("gpu")
    if not wanted or (wanted in used or wanted == "any" if used else wanted == "none"):
        return None
    return f"{used or 'a CPU'}, not {({'none': 'a CPU', 'any': 'a GPU'}).get(wanted, wanted)}"


def _devices(run: Recorded, wanted: str) -> Optional[str]:
    if not wanted or str(run.devices) in wanted.split():
        return None
    return f"{run.devices or 'an unknown number of'} devices, not {' or '.join(wanted.split())}"


def _images(run: Recorded, wanted: str) -> Optional[str]:
    """Return how the images per epoch differ by over 2 %: an epoch drops its last partial batch, and splits differ."""
    if not wanted:
        return None
    sizes = [run.param(key) for key in ("steps/total", "batch/global", "epochs")]
    if None in sizes:
        return "images per epoch not recorded"
    steps, batch, epochs = map(int, sizes)
    images = steps * batch / epochs
    return None if abs(images / int(wanted) - 1) <= 0.02 else f"{images:.0f} images per epoch, not {wanted}"


def _learning_rate(run: Recorded, wanted: str) -> Optional[str]:
    """Return how the learning rate divided by the number of devices differs from each of those wanted."""
    effective = run.param("lr/effective")
    if not wanted or not run.devices:
        return None
    if effective is None:
        return "learning rate not recorded"
    lr = float(effective) / run.devices
    fits = any(math.isclose(lr, float(each), rel_tol=1e-6) for each in wanted.split())
    return None if fits else f"learning rate {lr:g} per device, not {' or '.join(wanted.split())}"


def _setting(run: Recorded, condition: str) -> Optional[str]:
    """Return how a setting differs from `key=a|b` (one of these values) or `key~a` (a is part of the value)."""
    key, sign, wanted = re.match(r"([^=~]+)([=~])(.*)", condition).groups()
    value = run.param(key)
    fits = value is not None and (wanted in value if sign == "~" else value in wanted.split("|"))
    return None if fits else f"{key}={value}, not {wanted.replace('|', ' or ')}"


def measured(row: dict, wanted: dict, runs: Sequence[Recorded]) -> Tuple[Optional[float], List[Recorded], str]:
    """Return the value in the claim's unit, the runs that measured it, and the reason if there is none."""
    way, _, rest = wanted["how"].partition(" ")
    if way in (MODEL, TOOL, FACT):
        return None, [], "no run measures it"
    if way in (PAIR, FASTER, RATIO):
        return compared(way, rest.split(), runs)
    name, factor = (rest, 1) if way == METRIC else MEASURES[row["metric"]]
    values = [(run, factor * run.metrics[name]) for run in runs if is_known(run.metrics.get(name))]
    if way == PER_DEVICE:
        values = [(run, value / run.devices) for run, value in values]
    numbers, used = [value for _, value in values], [run for run, _ in values]
    if way == SPREAD:
        cases = {(run.devices, run.param("batch.per_device"), run.param("optimizer.lr")) for run in used}
        if len(cases) < 2:
            return None, [], "one case has no spread"
        return max(numbers) - min(numbers), used, ""
    return (statistics.median(numbers), used, "") if used else (None, [], f"it has no {name}")


def compared(way: str, names: Sequence[str], runs: Sequence[Recorded]) -> Tuple[Optional[float], List[Recorded], str]:
    """Compare the rates of two kinds of runs: percent slower (PAIR), percent faster (FASTER), or the ratio (RATIO)."""
    key, first, second = names
    rated = [run for run in runs if is_known(run.metrics.get("throughput/median"))]
    sides = [[run for run in rated if _of(run, key) in side.split("|")] for side in (first, second)]
    if not all(sides):
        return None, [], f"no pair of runs with {key}={first} and {second}"
    one, two = (statistics.median(run.metrics["throughput/median"] for run in side) for side in sides)
    value = {PAIR: 100 * (1 - one / two), FASTER: 100 * (one / two - 1), RATIO: one / two}[way]
    return value, sides[0] + sides[1], ""


def _of(run: Recorded, keys: str) -> str:
    """Return the values of tags and settings; keys and values are joined by +."""
    return "+".join(str(run.tags.get(key, run.param(key))) for key in keys.split("+"))


def verdict(row: Dict[str, str], tolerance: str, value: Optional[float]) -> Optional[bool]:
    """Return whether `value` agrees with the published one; None if either is not a number."""
    low, high = (float(row[end]) if row[end] else None for end in ("low", "high"))
    if value is None or (low is None and high is None):
        return None
    bound = high if high is not None else low
    if row["op"] == "between":
        return low <= value <= high
    if row["op"] in ("<", "<="):
        return value < bound or (row["op"] == "<=" and value == bound)
    if row["op"] in (">", ">="):
        return value > low or (row["op"] == ">=" and value == low)
    if not tolerance:
        return None
    return abs(value - low) <= float(tolerance)


def published(row: Dict[str, str]) -> str:
    """Return the published value, such as `about 86.5 %`; as the work states it if it is not a number."""
    unit = f" {row['unit']}" if row["unit"] else ""
    low, high = row["low"], row["high"]
    if not low and not high:
        return f"{row['op']}{unit}"
    if row["op"] == "between" or (low and high and low != high):
        return f"{low} to {high}{unit}"
    qualifiers = {"<": "under ", "<=": "at most ", ">": "over ", ">=": "at least ", "~": "about ", "=": ""}
    return f"{qualifiers[row['op']]}{low or high}{unit}"


def in_unit(row: Dict[str, str], value: float) -> str:
    return f"{value:,.4g} {row['unit']}".rstrip() if abs(value) < 10000 else f"{value:,.0f} {row['unit']}"


def agreement(found: Outcome) -> str:
    """Return `within tolerance (± 2)` or `not within tolerance`; "" if there is nothing to compare."""
    if found.within is None:
        return ""
    tolerance = found.conditions["tolerance"]
    room = f" (± {tolerance})" if found.row["op"] in ("~", "=") and tolerance else ""
    return f"{'within' if found.within else 'not within'} tolerance{room}"
