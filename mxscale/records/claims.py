"""Claims: the published figures of tables/claims.csv, and their values by recorded runs.

A row has the published value, which values agree with it (the tolerance is ours, the works state none), what a
measurement needs, and its command. These columns say how runs decide it:

- `settings`: conditions under which a run measures the claim, see _unmet.
- `hardware`: those of the published hardware; a run that meets only `settings` measures "on other hardware". Filled for
  accuracies, and where the machine is unnamed, which no run meets. Elsewhere the GPU and the number of devices are part
  of `settings`: a time, rate or efficiency on others says nothing about the claim.
- `how`: a calculation, a metric and kinds of runs, such as `slower throughput/median comm.backend=nccl
  comm.backend=device`, paired by machine, batch and seed; without kinds each run has a value.
- `reduced`: the same with names of trials of a small replay in place of kinds, paired by seed. `same` are the values
  that agree with the published result, `figure` is the value in words.
- `why`: what differs from the published conditions, and the cause of a disagreement, if it is known.

This project's own results are in tables/measured_claims.csv, the modelled values, which tools/modelled_claims.py makes,
in tables/modelled_claims.csv.
"""

import operator
import re
import statistics
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from mxscale.records.recorded import FINISHED, Recorded, sort_key
from mxscale.records.recorded import known as is_known
from mxscale.util import csv_tables
from mxscale.util.errors import ConfigError, nearest

MEASURED, ELSEWHERE, REDUCED = "measured", "measured on other hardware", "reduced scale"
MODELLED, SOURCE, NEITHER = "modelled", "source fact", "not possible here"
BY_RUNS = (MEASURED, ELSEWHERE, REDUCED)
STATES = (*BY_RUNS, MODELLED, SOURCE, NEITHER)
VERDICTS = AGREES, DISAGREES, INCONCLUSIVE = ("agrees", "disagrees", "inconclusive")

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


def calculated(way: str, values: Sequence[float]) -> Optional[float]:
    """Return a calculation's result; None if it divides by 0, such as by the cost of a free machine."""
    try:
        return CALCULATIONS[way](*values)
    except ZeroDivisionError:
        return None


BOUNDS = {"<": operator.lt, ">": operator.gt, "<=": operator.le, ">=": operator.ge}


def holds(bounds: str, value: float) -> bool:
    """Return whether a value is within bounds such as `>=94 <=98`."""
    return all(BOUNDS[sign](value, float(bound)) for sign, bound in re.findall(r"([<>]=?)(\S+)", bounds))


def verdict(bounds: str, values: Sequence[float], least: int = 3) -> Optional[str]:
    """Return the verdict by the interval of the values; None without bounds.

    AGREES if all are within the bounds, DISAGREES if all are on the same side of them, INCONCLUSIVE otherwise, and for
    fewer values than `least`.
    """
    if not bounds:
        return None
    if len(values) >= least and all(holds(bounds, value) for value in values):
        return AGREES
    beyond = any(not any(holds(bound, value) for value in values) for bound in bounds.split())
    return DISAGREES if len(values) >= least and beyond else INCONCLUSIVE


@dataclass(frozen=True)
class Figure:
    """The values of a claim by runs, at full scale in the claim's unit."""

    values: List[float]  # one of each run, or of each round of a comparison, in their order
    runs: Sequence[str] = ()  # ids; none for a row of tables/measured_claims.csv
    hardware: str = ""
    date: str = ""  # of the newest run, as 2026-11-27
    command: str = ""  # if it differs from the claim's
    note: str = ""

    median = property(lambda self: statistics.median(self.values))
    low = property(lambda self: min(self.values))
    high = property(lambda self: max(self.values))


class Modelled(NamedTuple):
    """The modelled value of a claim."""

    value: Optional[float]  # in the claim's unit; None if it is not a number
    text: str
    error: str  # known error of the model


@dataclass(frozen=True)
class Outcome:
    """A claim, and its values here."""

    row: Dict[str, str]
    figures: Mapping[str, Figure]  # by state, one of BY_RUNS
    modelled: Optional[Modelled] = None
    other: Sequence[Tuple[str, str]] = ()  # (run id, why it does not measure the claim)

    @property
    def state(self) -> str:
        """One of STATES: the first that applies."""
        if self.row["how"] == SOURCE_FACT:
            return SOURCE
        return next((of for of in BY_RUNS if of in self.figures), MODELLED if self.modelled else NEITHER)

    def verdict(self, state: str) -> Optional[str]:
        """Return the verdict of the figure of a state, else of the modelled value; None if there is none."""
        bounds = self.row["same" if state == REDUCED else "agrees"]
        if state in self.figures:
            return verdict(bounds, self.figures[state].values)
        value = self.modelled and self.modelled.value
        return None if value is None else verdict(bounds, [value], least=1)


def known() -> Dict[str, Dict[str, str]]:
    """Return the rows of the table of claims by id."""
    return {row["id"]: row for row in csv_tables.read("claims")}


def check(ids: Sequence[str]) -> None:
    """Raise ConfigError for an unknown id."""
    claims = known()
    for name in ids:
        if name not in claims:
            raise ConfigError(f"claims: no published figure is called {name}{nearest(name, claims)}")


def outcomes(
    runs: Sequence[Recorded],
    models: Mapping[str, Modelled],
    trials: Mapping[str, Mapping[str, Sequence[Recorded]]],
    recorded: Optional[Mapping[str, Mapping[str, Figure]]] = None,
) -> List[Outcome]:
    """Return the outcome of every claim, in the order of the table.

    Args:
        runs: Those that may measure a claim.
        models: By id.
        trials: Runs of small replays, as small_trials returns them.
        recorded: Results that runs replace, as `committed` returns them; none by default.
    """
    found = []
    for name, row in known().items():
        figures, other = measured(row, runs)
        figures = {**(recorded or {}).get(name, {}), **figures, **reduced(row, trials)}
        found.append(Outcome(row, figures, models.get(name), other))
    return found


def committed() -> Dict[str, Dict[str, Figure]]:
    """Return this project's own results: {id: {state: figure}}."""
    found: Dict[str, Dict[str, Figure]] = {}
    for row in csv_tables.read("measured_claims"):
        values = [float(value) for value in row["values"].split()]
        facts = {key: row[key] for key in ("hardware", "date", "command", "note")}
        found.setdefault(row["id"], {})[row["state"]] = Figure(values, **facts)
    return found


def modelled() -> Dict[str, Modelled]:
    """Return the modelled values by id."""
    rows = csv_tables.read("modelled_claims")
    return {
        row["id"]: Modelled(float(row["value"]) if row["value"] else None, row["text"], row["error"]) for row in rows
    }


def measured(row: Mapping[str, str], runs: Sequence[Recorded]) -> Tuple[Dict[str, Figure], List[Tuple[str, str]]]:
    """Return the figures by state that the runs with the claim's tag give, and why other runs give none."""
    tagged = [run for run in by_start(runs) if row["id"] in run.tags.get("claims", "").split()]
    unmet = {run.id: differences(run, row) for run in tagged}
    other = [(run_id, ", ".join(why)) for run_id, why in unmet.items() if why]
    fitting = [run for run in tagged if not unmet[run.id]]
    published = [run for run in fitting if not _unmet(run, row["hardware"].split())]
    elsewhere = [run for run in fitting if run not in published]
    newest = [run for run in elsewhere if hardware([run]) == hardware(elsewhere[-1:])]
    other += [(run.id, "newer runs are on another machine") for run in elsewhere if run not in newest]
    figures = {}
    for state, used in ((MEASURED, published), (ELSEWHERE, newest)):
        if figure := _by_conditions(row["how"], used):
            figures[state] = figure
        else:
            other += [(run.id, f"it alone gives no {row['how']}") for run in used]
    return figures, other


def _by_conditions(how: str, runs: Sequence[Recorded]) -> Optional[Figure]:
    """Return the figure that runs give by the column `how`."""
    if how in ("", SOURCE_FACT):
        return None
    way, metric, *kinds = how.split()
    if way == SPREAD:  # over the cases, of which one has none
        cases: Dict[tuple, List[Recorded]] = {}
        for run in runs:
            cases.setdefault((run.devices, run.param("batch.per_device"), run.param("optimizer.lr")), []).append(run)
        return _figure(way, metric, list(cases.values()) if len(cases) > 1 else [], ())
    groups = [[run for run in runs if not _unmet(run, kind.split("+"))] for kind in kinds] or [runs]
    return _figure(way, metric, groups, ("batch.per_device",))


def _figure(way: str, metric: str, groups: Sequence[Sequence[Recorded]], alike: Sequence[str]) -> Optional[Figure]:
    """Return the figure of paired runs, a group for each argument of the calculation; None without a pair.

    The runs of a pair have the same seed, machine and settings `alike`.
    """
    keyed: List[Dict[tuple, List[Recorded]]] = [{} for _ in groups]
    for pairs, group in zip(keyed, groups):
        for run in group:
            if is_known(run.metrics.get(metric)):
                key = (run.tags.get("machine"), *(run.param(name) for name in ("seed", *alike)))
                pairs.setdefault(key, []).append(run)
    rounds = [each for key in (keyed[0] if keyed else ()) for each in zip(*(pairs.get(key, ()) for pairs in keyed))]
    results = [(calculated(way, [run.metrics[metric] for run in each]), each) for each in rounds]
    values = [value for value, _ in results if value is not None]
    runs = [run for value, each in results if value is not None for run in each]
    return Figure(values, [run.id for run in runs], hardware(runs), date_of(runs)) if values else None


def date_of(runs: Sequence[Recorded]) -> str:
    """Return the date (UTC) of the newest run, as 2026-11-27; "" if it is unknown."""
    newest = max((run.started_ms or 0 for run in runs), default=0)
    return datetime.fromtimestamp(newest / 1000, timezone.utc).date().isoformat() if newest else ""


def by_start(runs: Sequence[Recorded]) -> List[Recorded]:
    return sorted(runs, key=lambda run: run.started_ms or 0)


def hardware(runs: Sequence[Recorded]) -> str:
    """Return the machines of runs, with the GPUs that they used."""
    pairs = dict.fromkeys((run.tags.get("machine", "unknown"), _facts(run)["gpu"]) for run in runs)
    return "; ".join(
        machine.removesuffix(", 0 GPUs") if gpu == "none" else f"{gpu} ({machine})" for machine, gpu in pairs
    )


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
    """Return the runs of the newest sweep of each small replay: {replay: {trial: finished runs by seed}}."""
    of_replay: Dict[str, List[Recorded]] = {}
    for run in by_start(runs):
        name, _, scale = run.tags.get(TAG, "").partition(" ")
        if scale == SMALL and run.status == FINISHED:
            of_replay.setdefault(name, []).append(run)
    trials: Dict[str, Dict[str, List[Recorded]]] = {}
    for name, found in of_replay.items():
        newest = [run for run in found if run.tags.get("sweep") == found[-1].tags.get("sweep")]
        rounds = {(re.sub(r"-seed\d+$", "", run.tags[TRIAL]), run.param("seed")): run for run in newest}
        for trial, seed in sorted(rounds, key=lambda key: sort_key(key[1])):
            trials.setdefault(name, {}).setdefault(trial, []).append(rounds[trial, seed])
    return trials


def reduced(row: Mapping[str, str], trials: Mapping[str, Mapping[str, Sequence[Recorded]]]) -> Dict[str, Figure]:
    """Return {REDUCED: figure} of a claim, with a value for each seed of all its trials; {} without one."""
    if not row["reduced"]:
        return {}
    way, metric, *names = row["reduced"].split()
    runs = trials.get(row["replay"], {})
    figure = _figure(way, metric, [runs.get(name, ()) for name in names], ())
    return {REDUCED: figure} if figure else {}
