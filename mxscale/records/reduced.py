"""Claims at reduced scale: figures of a scaled-down replay, and whether they point the same way as the published ones.

tables/reduced_claims.csv has a row for each claim: the replay, a calculation on its cells, and the condition under
which the result points the same way. Such a result is no reproduction: hardware, network and data are others.
"""

import operator
import re
from dataclasses import dataclass
from typing import Dict, List, Mapping, Optional, Sequence

from mxscale.records.recorded import FINISHED, Recorded, known
from mxscale.util import csv_tables

TAG, CELL = "replay", "sweep.name"  # tags of a run: `NAME small`, and its cell
SMALL = "small"


@dataclass(frozen=True)
class Reduced:
    """The figure of a claim at reduced scale."""

    text: str  # the figure in words
    value: float
    same: bool  # points the same way as published
    replay: str
    runs: List[str]
    why: str = ""  # reason of a figure that points the other way, or what it leaves out

    @property
    def direction(self) -> str:
        return "the same way as published" if self.same else "reversed"


def slower(first: float, second: float) -> float:
    """Return by how many percent the first rate is below the second."""
    return 100 * (1 - first / second)


# name -> function of the cells' values
CALCULATIONS = {
    "value": lambda a: a,
    "percent": lambda a: 100 * a,
    "ratio": lambda a, b: a / b,
    "difference": lambda a, b: a - b,
    "slower": slower,
    "growth": lambda a, b, c, d: slower(c, d) - slower(a, b),
    "spread": lambda *values: max(values) - min(values),
}
CONDITIONS = {"<": operator.lt, ">": operator.gt, "<=": operator.le, ">=": operator.ge}


def of_runs(runs: Sequence[Recorded]) -> Dict[str, Dict[str, Recorded]]:
    """Return the newest finished run of each cell of each small replay: {replay: {cell: run}}."""
    found: Dict[str, Dict[str, Recorded]] = {}
    for run in sorted(runs, key=lambda run: run.started_ms or 0):
        name, _, scale = run.tags.get(TAG, "").partition(" ")
        if scale == SMALL and run.status == FINISHED:
            found.setdefault(name, {})[run.tags[CELL]] = run
    return found


def evaluate(cells: Mapping[str, Mapping[str, Recorded]]) -> Dict[str, Reduced]:
    """Return the claims that the cells decide: {id: figure}."""
    found = {row["id"]: _evaluated(row, cells.get(row["replay"], {})) for row in csv_tables.read("reduced_claims")}
    return {name: reduced for name, reduced in found.items() if reduced}


def _evaluated(row: Dict[str, str], cells: Mapping[str, Recorded]) -> Optional[Reduced]:
    way, metric, *names = row["how"].split()
    if not all(name in cells and known(cells[name].metrics.get(metric)) for name in names):
        return None
    value = CALCULATIONS[way](*(cells[name].metrics[metric] for name in names))
    sign, bound = re.match(r"([<>]=?)(.*)", row["same"]).groups()
    same = CONDITIONS[sign](value, float(bound))
    why = "" if same else row["why_not"]
    return Reduced(row["figure"].format(value), value, same, row["replay"], [cells[name].id for name in names], why)
