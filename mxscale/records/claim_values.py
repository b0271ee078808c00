"""The value of a claim by recorded runs: under its conditions, or at reduced scale by the trials of a small replay.

Both are calculated alike. `how` of tables/claims.csv is a calculation, a metric and kinds of runs, such as
`slower throughput/median comm.backend=nccl comm.backend=device`; without kinds all runs under the conditions count.
`reduced` has the names of trials in place of kinds, and `same` is the condition under which the result points the same
way as the published one. A result at reduced scale is no reproduction: hardware, network and data are others.
"""

import math
import operator
import re
import statistics
from dataclasses import dataclass
from typing import Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from mxscale.records.recorded import FINISHED, Recorded, known

SOURCE_FACT = "source"  # value of `how`: a price, or a row of another team, which the work only quotes
SPREAD = "spread"
TAG, TRIAL = "replay", "sweep.name"  # tags of a run: `NAME small`, and its trial
SMALL = "small"


def slower(first: float, second: float) -> float:
    """Return by how many percent the first rate is below the second."""
    return 100 * (1 - first / second)


# name -> function of the values, one for each kind of run
CALCULATIONS = {
    "value": lambda a: a,
    "percent": lambda a: 100 * a,
    "minutes": lambda a: a / 60,
    "half": lambda a: a / 2,  # of the rate of two processes
    "ratio": lambda a, b: a / b,
    "difference": lambda a, b: a - b,
    "slower": slower,
    "faster": lambda a, b: 100 * (a / b - 1),  # percent
    "growth": lambda a, b, c, d: slower(c, d) - slower(a, b),
    SPREAD: lambda *values: max(values) - min(values),
}
CONDITIONS = {"<": operator.lt, ">": operator.gt, "<=": operator.le, ">=": operator.ge}


def holds(conditions: str, value: float) -> bool:
    """Return whether a value meets conditions such as `>=94 <=98`."""
    return all(CONDITIONS[sign](value, float(bound)) for sign, bound in re.findall(r"([<>]=?)(\S+)", conditions))


class Measured(NamedTuple):
    """What runs with a claim's tag measured."""

    value: Optional[float] = None  # in the claim's unit
    runs: Sequence[str] = ()  # ids of the runs that measured it
    other: Sequence[Tuple[str, str]] = ()  # (run id, why it does not measure the claim)


@dataclass(frozen=True)
class Reduced:
    """The figure of a claim at reduced scale."""

    text: str  # the figure in words
    same: bool  # points the same way as published
    replay: str
    runs: List[str]
    why: str = ""  # reason of a figure that points the other way

    @property
    def direction(self) -> str:
        return "the same way as published" if self.same else "reversed"


def measured(row: Mapping[str, str], runs: Sequence[Recorded]) -> Measured:
    """Return what the runs with the claim's tag measured of it."""
    tagged = [run for run in runs if row["id"] in run.tags.get("claims", "").split()]
    differing = [(run.id, differences(run, row)) for run in tagged]
    other = [(run_id, ", ".join(why)) for run_id, why in differing if why]
    fitting = [run for run, (_, why) in zip(tagged, differing) if not why]
    value, used, unfit = _calculated(row["how"], fitting)
    return Measured(value, [run.id for run in used], other + ([] if used else [(run.id, unfit) for run in fitting]))


def _calculated(how: str, runs: Sequence[Recorded]) -> Tuple[Optional[float], List[Recorded], str]:
    """Return the value, the runs that it is calculated from, and the reason if there is none."""
    if how in ("", SOURCE_FACT):
        return None, [], "no run measures it"
    way, metric, *kinds = how.split()
    runs = [run for run in runs if known(run.metrics.get(metric))]
    groups = [[run for run in runs if _is_of(run, kind)] for kind in kinds] or [runs]
    if not all(groups):
        return None, [], f"no pair of runs with {' and '.join(kinds)}" if kinds else f"it has no {metric}"
    if way == SPREAD:
        groups = [[run] for run in runs]
        if len({(run.devices, run.param("batch.per_device"), run.param("optimizer.lr")) for run in runs}) < 2:
            return None, [], "one case has no spread"
    values = [statistics.median(run.metrics[metric] for run in group) for group in groups]
    return CALCULATIONS[way](*values), [run for group in groups for run in group], ""


def _is_of(run: Recorded, kind: str) -> bool:
    """Return whether a run is of a kind: conditions on its settings and tags, joined by +."""
    return not any(_setting(run, condition) for condition in kind.split("+"))


def differences(run: Recorded, row: Mapping[str, str]) -> List[str]:
    """Return the conditions of a claim that the run does not meet, by its record."""
    if run.status != FINISHED:
        return [f"it is {run.status}"]
    differing = [
        _gpu(run, row["gpu"]), _devices(run, row["devices"]), _images(run, row["images"]),
        _learning_rate(run, row["lr"]), *(_setting(run, condition) for condition in row["settings"].split()),
    ]  # fmt: skip
    return [why for why in differing if why]


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
    fits = any(math.isclose(lr, float(rate), rel_tol=1e-6) for rate in wanted.split())
    return None if fits else f"learning rate {lr:g} per device, not {' or '.join(wanted.split())}"


def _setting(run: Recorded, condition: str) -> Optional[str]:
    """Return how a tag or setting differs from `key=a|b` (one of these values) or `key~a` (a is part of the value)."""
    key, sign, wanted = re.match(r"([^=~]+)([=~])(.*)", condition).groups()
    value = run.tags.get(key, run.param(key))
    fits = value is not None and (wanted in value if sign == "~" else value in wanted.split("|"))
    return None if fits else f"{key}={value}, not {wanted.replace('|', ' or ')}"


def small_trials(runs: Sequence[Recorded]) -> Dict[str, Dict[str, Recorded]]:
    """Return the newest finished run of each trial of each small replay: {replay: {trial: run}}."""
    trials: Dict[str, Dict[str, Recorded]] = {}
    for run in sorted(runs, key=lambda run: run.started_ms or 0):
        name, _, scale = run.tags.get(TAG, "").partition(" ")
        if scale == SMALL and run.status == FINISHED:
            trials.setdefault(name, {})[run.tags[TRIAL]] = run
    return trials


def reduced(row: Mapping[str, str], trials: Mapping[str, Mapping[str, Recorded]]) -> Optional[Reduced]:
    """Return the figure of a claim at reduced scale; None without one or without its trials."""
    runs = trials.get(row["replay"], {})
    if not row["reduced"]:
        return None
    way, metric, *names = row["reduced"].split()
    if not all(name in runs and known(runs[name].metrics.get(metric)) for name in names):
        return None
    value = CALCULATIONS[way](*(runs[name].metrics[metric] for name in names))
    same = holds(row["same"], value)
    ids = [runs[name].id for name in names]
    return Reduced(row["figure"].format(value), same, row["replay"], ids, "" if same else row["why_not"])
