"""Claims: published figures (tables/claims.csv) and the runs that measure them.

tables/claim_conditions.csv holds, per claim, the conditions that a run must meet to count as a measurement, the
tolerance (our choice: the works give none), and the command that would measure it. A run with the tag of a claim that
does not meet the conditions is no measurement.
"""

import re
import statistics
from dataclasses import dataclass, field
from typing import Callable, Dict, List, NamedTuple, Optional, Sequence, Tuple

from mxscale.records.recorded import FINISHED, Recorded
from mxscale.records.recorded import known as is_known
from mxscale.util import csv_tables
from mxscale.util.errors import ConfigError, nearest

MEASURED, MODELLED, NEITHER = "measured", "modelled", "not reproducible here"

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
# ways to measure that use several runs, or none
SPREAD, PAIR, FASTER, RATIO, PER_DEVICE = "spread", "pair", "faster", "ratio", "per device"
MODEL, TOOL = "model", "tool"


def known() -> Dict[str, Dict[str, str]]:
    """Return id -> row of all claims."""
    return {row["id"]: row for row in csv_tables.read("claims")}


def check(ids: Sequence[str]) -> List[str]:
    """Return the ids. Raises ConfigError if one is unknown."""
    claims = known()
    for name in ids:
        if name not in claims:
            raise ConfigError(f"claims: no published figure is called {name}{nearest(name, claims)}")
    return list(ids)


class Modelled(NamedTuple):
    """The value of a claim by a model."""

    value: Optional[float]  # in the claim's unit; None if it is no number
    says: str
    error: str  # known error of such a model


@dataclass(frozen=True)
class Outcome:
    """A claim and its measured or modelled value."""

    row: Dict[str, str]
    conditions: Dict[str, str]
    value: Optional[float] = None  # measured, in the claim's unit
    runs: List[str] = field(default_factory=list)  # ids of the runs that measured it
    other: List[Tuple[str, str]] = field(default_factory=list)  # (run id, why it is no measurement)
    modelled: Optional[Modelled] = None

    @property
    def state(self) -> str:
        return MEASURED if self.runs else MODELLED if self.modelled else NEITHER

    @property
    def within(self) -> Optional[bool]:
        """Return whether the measured (else modelled) value matches the published one within the tolerance."""
        value = self.value if self.runs else self.modelled and self.modelled.value
        return verdict(self.row, self.conditions["tolerance"], value)


def outcomes(runs: Sequence[Recorded], models: Dict[str, Callable[[], Optional[Modelled]]]) -> List[Outcome]:
    """Return the outcome of every claim, in the table's order.

    Args:
        models: Id -> function that returns the modelled value, or None if it lacks data.
    """
    conditions = {row["id"]: row for row in csv_tables.read("claim_conditions")}
    return [outcome(row, conditions[name], runs, models.get(name, lambda: None)()) for name, row in known().items()]


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


# ---------------------------------------------------------------- conditions


def differences(run: Recorded, wanted: Dict[str, str]) -> List[str]:
    """Return the conditions of a claim that a run does not meet; [] if it meets all."""
    if run.status != FINISHED:
        return [f"it is {run.status}"]
    found = [_gpu(run, wanted["gpu"]), _devices(run, wanted["devices"]), _images(run, wanted["images"])]
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
    """Return the difference in images per epoch if it exceeds 2 %, which a partial batch or another split explains."""
    if not wanted:
        return None
    sizes = [run.param(key) for key in ("steps/total", "batch/global", "epochs")]
    if None in sizes:
        return "images per epoch unknown"
    steps, batch, epochs = map(int, sizes)
    images = steps * batch / epochs
    return None if abs(images / int(wanted) - 1) <= 0.02 else f"{images:.0f} images an epoch, not {wanted}"


def _setting(run: Recorded, condition: str) -> Optional[str]:
    """Return the difference from a condition: `key=a|b` (one of these) or `key~a` (contains a)."""
    key, sign, wanted = re.match(r"([^=~]+)([=~])(.*)", condition).groups()
    value = run.param(key)
    fits = value is not None and (wanted in value if sign == "~" else value in wanted.split("|"))
    return None if fits else f"{key}={value}, not {wanted.replace('|', ' or ')}"


# ---------------------------------------------------------------- measured values


def measured(row: dict, wanted: dict, runs: Sequence[Recorded]) -> Tuple[Optional[float], List[Recorded], str]:
    """Return (value in the claim's unit, its runs, why there is no value)."""
    way, _, rest = wanted["how"].partition(" ")
    if way in (MODEL, TOOL):
        return None, [], "no run measures it"
    if way in (PAIR, FASTER, RATIO):
        return compared(way, rest.split(), runs)
    name, factor = MEASURES[row["metric"]]
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
    """Compare the throughput of two groups of runs: percent slower, percent faster, or ratio."""
    key, first, second = names
    rated = [run for run in runs if is_known(run.metrics.get("throughput/median"))]
    sides = [[run for run in rated if _of(run, key) in side.split("|")] for side in (first, second)]
    if not all(sides):
        return None, [], f"no run of {key}={first} beside one of {second}"
    one, two = (statistics.median(run.metrics["throughput/median"] for run in side) for side in sides)
    value = {PAIR: 100 * (1 - one / two), FASTER: 100 * (one / two - 1), RATIO: one / two}[way]
    return value, sides[0] + sides[1], ""


def _of(run: Recorded, keys: str) -> str:
    """Return the values of tags and settings (names joined by +), joined by +."""
    return "+".join(str(run.tags.get(key, run.param(key))) for key in keys.split("+"))


def verdict(row: Dict[str, str], tolerance: str, value: Optional[float]) -> Optional[bool]:
    """Return whether `value` matches the published figure; None if either is no number."""
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
    if not tolerance:  # no tolerance is defined
        return None
    return abs(value - low) <= float(tolerance)


# ---------------------------------------------------------------- texts


def published(row: Dict[str, str]) -> str:
    """Return text such as `about 86.5 %` or `83.0 to 83.4 %`; the statement of the work if it is no number."""
    unit = f" {row['unit']}" if row["unit"] else ""
    low, high = row["low"], row["high"]
    if not low and not high:
        return f"{row['op']}{unit}"
    if row["op"] == "between" or (low and high and low != high):
        return f"{low} to {high}{unit}"
    prefixes = {"<": "under ", "<=": "at most ", ">": "over ", ">=": "at least ", "~": "about ", "=": ""}
    return f"{prefixes[row['op']]}{low or high}{unit}"


def in_unit(row: Dict[str, str], value: float) -> str:
    return f"{value:,.4g} {row['unit']}".rstrip() if abs(value) < 10000 else f"{value:,.0f} {row['unit']}"


def judged(found: Outcome) -> str:
    """Return `within tolerance (± 2)` or `not within ...`; "" if there is nothing to compare."""
    if found.within is None:
        return ""
    tolerance = found.conditions["tolerance"]
    room = f" (± {tolerance})" if found.row["op"] in ("~", "=") and tolerance else ""
    return f"{'within' if found.within else 'not within'} tolerance{room}"
