"""Claims: the published figures of tables/claims.csv, each with its states here.

A row has the published value, which values agree with it (the tolerance is ours, the works state none), what a
measurement needs, its command, the conditions under which a run measures it, and the calculation of a small replay (see
claim_values). The modelled values are in tables/modelled_claims.csv.
"""

from dataclasses import dataclass
from typing import Dict, List, Mapping, NamedTuple, Optional, Sequence

from mxscale.records import claim_values
from mxscale.records.claim_values import SOURCE_FACT, Measured, Reduced
from mxscale.records.recorded import Recorded
from mxscale.util import csv_tables
from mxscale.util.errors import ConfigError, nearest

MEASURED, REDUCED, MODELLED = "measured", "reduced scale", "modelled"
SOURCE, NEITHER = "source fact", "not reproducible here"
STATES = (MEASURED, REDUCED, MODELLED, SOURCE, NEITHER)


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
        return verdict(self.row, self.measured.value) if self.measured.runs else self.within_modelled

    @property
    def within_modelled(self) -> Optional[bool]:
        """Whether the modelled value agrees with the published one within tolerance."""
        return verdict(self.row, self.modelled and self.modelled.value)


def outcomes(
    runs: Sequence[Recorded],
    models: Mapping[str, Modelled],
    trials: Mapping[str, Mapping[str, Recorded]],
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
        Outcome(row, claim_values.measured(row, runs), claim_values.reduced(row, trials), models.get(name))
        for name, row in known().items()
        if replay in (None, row["replay"])
    ]


def verdict(row: Mapping[str, str], value: Optional[float]) -> Optional[bool]:
    """Return whether `value` agrees with the published one; None if either is not a number."""
    return None if value is None or not row["agrees"] else claim_values.holds(row["agrees"], value)


def agreement(outcome: Outcome) -> str:
    """Return `within tolerance (>=94 <=98)` or `not within tolerance (...)`; "" if there is nothing to compare."""
    if outcome.within is None:
        return ""
    return f"{'within' if outcome.within else 'not within'} tolerance ({outcome.row['agrees']})"
