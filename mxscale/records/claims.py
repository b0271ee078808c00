"""Claims: the published figures of tables/claims.csv, and their values by recorded runs.

A row has the published value, which values agree with it (the tolerance is ours, the works state none), what a
measurement needs, and its command. These columns say how runs decide it:

- `settings`: conditions under which a run measures the claim, see UNMET.
- `how`: a calculation, a metric and kinds of runs, such as `slower throughput/median comm.backend=nccl
  comm.backend=device`; without kinds all runs under the conditions count.
- `reduced`: the same with names of trials of a small replay in place of kinds. `same` is the condition under which the
  result points the same way as the published one. Hardware, network and data are others: it is no reproduction.

The modelled values are in tables/modelled_claims.csv, which tools/modelled_claims.py makes.
"""

import operator
import re
import statistics
from dataclasses import dataclass
from typing import Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from mxscale.records.recorded import FINISHED, Recorded
from mxscale.records.recorded import known as is_known
from mxscale.util import csv_tables
from mxscale.util.errors import ConfigError, nearest

MEASURED, REDUCED, MODELLED = "measured", "reduced scale", "modelled"
SOURCE, NEITHER = "source fact", "not reproducible here"
STATES = (MEASURED, REDUCED, MODELLED, SOURCE, NEITHER)

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
BOUNDS = {"<": operator.lt, ">": operator.gt, "<=": operator.le, ">=": operator.ge}


def holds(bounds: str, value: float) -> bool:
    """Return whether a value is within bounds such as `>=94 <=98`."""
    return all(BOUNDS[sign](value, float(bound)) for sign, bound in re.findall(r"([<>]=?)(\S+)", bounds))


class Measured(NamedTuple):
    """What runs with a claim's tag measured."""

    value: Optional[float] = None  # in the claim's unit
    runs: Sequence[str] = ()  # ids of the runs that measured it
    other: Sequence[Tuple[str, str]] = ()  # (run id, why it does not measure the claim)


class Reduced(NamedTuple):
    """The figure of a claim at reduced scale."""

    text: str  # the figure in words
    same: bool  # points the same way as published
    runs: List[str]

    @property
    def direction(self) -> str:
        return "the same way as published" if self.same else "reversed"


class Modelled(NamedTuple):
    """The modelled value of a claim."""

    value: Optional[float]  # in the claim's unit; None if it is not a number
    text: str
    error: str  # known error of the model


@dataclass(frozen=True)
class Outcome:
    """A claim, and its values here."""

    row: Dict[str, str]
    measured: Measured
    reduced: Optional[Reduced] = None
    modelled: Optional[Modelled] = None

    @property
    def state(self) -> str:
        """One of STATES: the first that applies."""
        if self.row["how"] == SOURCE_FACT:
            return SOURCE
        return MEASURED if self.measured.runs else REDUCED if self.reduced else MODELLED if self.modelled else NEITHER

    @property
    def within(self) -> Optional[bool]:
        """Whether the measured, else the modelled value agrees with the published one within tolerance."""
        value = self.measured.value if self.measured.runs else self.modelled and self.modelled.value
        return verdict(self.row, value)


def known() -> Dict[str, Dict[str, str]]:
    """Return the rows of the table of claims by id."""
    return {row["id"]: row for row in csv_tables.read("claims")}


def check(ids: Sequence[str]) -> List[str]:
    """Return the ids; raises ConfigError for an unknown one."""
    claims = known()
    for name in ids:
        if name not in claims:
            raise ConfigError(f"claims: no published figure is called {name}{nearest(name, claims)}")
    return list(ids)


def outcomes(
    runs: Sequence[Recorded],
    models: Mapping[str, Modelled],
    trials: Mapping[str, Mapping[str, Sequence[Recorded]]],
    replay: Optional[str] = None,
) -> List[Outcome]:
    """Return the outcome of every claim, in the order of the table.

    Args:
        runs: Those that may measure a claim.
        models: By id.
        trials: Finished runs of small replays: {replay: {trial: run}}.
        replay: Whose claims; all by default.
    """
    return [
        Outcome(row, measured(row, runs), reduced(row, trials), models.get(name))
        for name, row in known().items()
        if replay in (None, row["replay"])
    ]


def verdict(row: Mapping[str, str], value: Optional[float]) -> Optional[bool]:
    """Return whether `value` agrees with the published one; None if either is not a number."""
    return None if value is None or not row["agrees"] else holds(row["agrees"], value)


def modelled() -> Dict[str, Modelled]:
    """Return the modelled values by id."""
    rows = csv_tables.read("modelled_claims")
    return {
        row["id"]: Modelled(float(row["value"]) if row["value"] else None, row["text"], row["error"]) for row in rows
    }


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
    runs = [run for run in runs if is_known(run.metrics.get(metric))]
    groups = [[run for run in runs if not _unmet(run, kind.split("+"))] for kind in kinds] or [runs]
    if not all(groups):
        return None, [], f"no pair of runs with {' and '.join(kinds)}" if kinds else f"it has no {metric}"
    if way == SPREAD:
        groups = [[run] for run in runs]
        if len({(run.devices, run.param("batch.per_device"), run.param("optimizer.lr")) for run in runs}) < 2:
            return None, [], "one case has no spread"
    values = [statistics.median(run.metrics[metric] for run in group) for group in groups]
    return CALCULATIONS[way](*values), [run for group in groups for run in group], ""


def differences(run: Recorded, row: Mapping[str, str]) -> List[str]:
    """Return the conditions of a claim that the run does not meet, by its record."""
    return _unmet(run, row["settings"].split()) if run.status == FINISHED else [f"it is {run.status}"]


# sign of a condition `KEY SIGN WANTED` -> function of the recorded text and WANTED
SIGNS = {
    "=": lambda text, wanted: text in wanted.split("|"),
    "~": lambda text, wanted: wanted in text,
    ">=": lambda text, wanted: float(text) >= float(wanted),
    "<=": lambda text, wanted: float(text) <= float(wanted),
}
CONDITION = re.compile(r"([^=~<>]+)(=|~|>=|<=)(.*)")


def _unmet(run: Recorded, conditions: Sequence[str]) -> List[str]:
    """Return how the facts of a run differ from conditions such as `data.kind=digits|mnist` and `gpu~K80`."""
    facts, unmet = _facts(run), []
    for key, sign, wanted in (CONDITION.fullmatch(condition).groups() for condition in conditions):
        if key not in facts or not SIGNS[sign](facts[key], wanted):
            bound = sign if sign in BOUNDS else ""
            unmet.append(f"{key}={facts.get(key, 'unknown')}, not {bound}{wanted.replace('|', ' or ')}")
    return unmet


def _facts(run: Recorded) -> Dict[str, str]:
    """Return the settings and tags of a run, and what follows from them."""
    facts = {**run.current, **run.tags}
    if run.param("launch.device") == "cpu" or not facts.get("gpu"):
        facts["gpu"] = "none"
    facts["device"] = "cpu" if facts["gpu"] == "none" else "gpu"
    sizes = [facts.get(key) for key in ("steps/total", "batch/global", "epochs")]
    if None not in sizes:
        steps, batch, epochs = map(int, sizes)
        facts["images/per_epoch"] = f"{steps * batch / epochs:.0f}"  # without the last partial batch
    if run.devices:
        facts["devices"] = str(run.devices)
        if "lr/effective" in facts:
            facts["lr/per_device"] = f"{float(facts['lr/effective']) / run.devices:g}"
    return facts


def small_trials(runs: Sequence[Recorded]) -> Dict[str, Dict[str, List[Recorded]]]:
    """Return the runs of small replays, the newest finished one of each seed: {replay: {trial: runs by seed}}."""
    newest = {}
    for run in sorted(runs, key=lambda run: run.started_ms or 0):
        name, _, scale = run.tags.get(TAG, "").partition(" ")
        if scale == SMALL and run.status == FINISHED:
            newest[name, re.sub(r"-seed\d+$", "", run.tags[TRIAL]), run.param("seed") or ""] = run
    trials: Dict[str, Dict[str, List[Recorded]]] = {}
    for name, trial, seed in sorted(newest):
        trials.setdefault(name, {}).setdefault(trial, []).append(newest[name, trial, seed])
    return trials


def hardware(runs: Sequence[Recorded]) -> str:
    """Return the machines of runs, with their GPUs."""
    pairs = dict.fromkeys((run.tags.get("machine", "unknown"), run.tags.get("gpu")) for run in runs)
    return "; ".join(f"{gpu} ({machine})" if gpu else machine.removesuffix(", 0 GPUs") for machine, gpu in pairs)


def reduced(row: Mapping[str, str], trials: Mapping[str, Mapping[str, Sequence[Recorded]]]) -> Optional[Reduced]:
    """Return the figure of a claim at reduced scale; None without one or without its trials."""
    runs = trials.get(row["replay"], {})
    if not row["reduced"]:
        return None
    way, metric, *names = row["reduced"].split()
    if not all(name in runs and is_known(runs[name][0].metrics.get(metric)) for name in names):
        return None
    value = statistics.median(CALCULATIONS[way](*(run.metrics[metric] for run in each))
                              for each in zip(*(runs[name] for name in names)))  # fmt: skip
    return Reduced(row["figure"].format(value), holds(row["same"], value), [runs[name][0].id for name in names])
