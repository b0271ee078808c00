"""Which of many plans: the cheapest by a deadline, the fastest for a budget, those that none beats.  Pure: numpy."""

from dataclasses import dataclass
from typing import Dict, Optional

import numpy as np

from mxscale.perfmodel.scenarios import Plans


@dataclass(frozen=True)
class Bounds:
    """What a plan must keep to; None: no bound."""

    deadline_hours: Optional[float] = None
    budget_usd: Optional[float] = None
    budget_eur: Optional[float] = None

    def kept(self, plans: Plans) -> np.ndarray:
        """Which plans keep all of them; one of unknown cost keeps no budget."""
        kept = np.ones(len(plans["hours"]), bool)
        for name, bound in self.each().items():
            kept &= plans[name] <= bound  # False for NaN
        return kept

    def each(self) -> Dict[str, float]:
        given = {"hours": self.deadline_hours, "usd": self.budget_usd, "eur": self.budget_eur}
        return {name: bound for name, bound in given.items() if bound is not None}


def cheapest(plans: Plans, among: np.ndarray) -> Optional[int]:
    """The place of the cheapest of `among` (a mask), of equals the fastest; None where no cost is known."""
    money = plans[currency(plans)]
    return _least(among & np.isfinite(money), money, plans["hours"])


def fastest(plans: Plans, among: np.ndarray) -> Optional[int]:
    """The place of the fastest of `among` (a mask), of equals the cheapest."""
    return _least(among, plans["hours"], np.nan_to_num(plans["usd"], nan=np.inf))


def currency(plans: Plans) -> str:
    """usd where any cost is known in it, else eur."""
    return "usd" if np.isfinite(plans["usd"]).any() else "eur"


def _least(among: np.ndarray, first: np.ndarray, second: np.ndarray) -> Optional[int]:
    places = np.flatnonzero(among)
    return int(places[np.lexsort((second[places], first[places]))[0]]) if len(places) else None


def front(plans: Plans, among: np.ndarray) -> np.ndarray:
    """Places of the plans of `among` that no other is both faster and cheaper than, the fastest first."""
    money = plans[currency(plans)]
    places = np.flatnonzero(among & np.isfinite(money))
    places = places[np.lexsort((money[places], plans["hours"][places]))]
    below = np.minimum.accumulate(np.concatenate([[np.inf], money[places]]))[:-1]
    return places[money[places] < below]
