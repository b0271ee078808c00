"""Selection of plans: the cheapest before a deadline, the fastest within a budget, the Pareto front."""

from typing import Dict, Optional

import numpy as np

from mxscale.perfmodel.scenarios import Plans

Limits = Dict[str, float]  # column (hours, usd, eur) -> upper limit


def satisfied(plans: Plans, limits: Limits) -> np.ndarray:
    """Return which plans are within all limits; a plan of unknown cost is within no budget."""
    within = np.ones(len(plans["hours"]), bool)
    for name, limit in limits.items():
        within &= plans[name] <= limit  # False for NaN
    return within


def cheapest(plans: Plans, among: np.ndarray) -> Optional[int]:
    """Return the index of the cheapest plan of `among` (a mask), then the fastest; None if no cost is known."""
    money = plans[currency(plans)]
    return _least(among & np.isfinite(money), money, plans["hours"])


def fastest(plans: Plans, among: np.ndarray) -> Optional[int]:
    """Return the index of the fastest plan of `among` (a mask), then the cheapest."""
    return _least(among, plans["hours"], np.nan_to_num(plans["usd"], nan=np.inf))


def currency(plans: Plans) -> str:
    """Return "usd" if any cost is known in it, else "eur"."""
    return "usd" if np.isfinite(plans["usd"]).any() else "eur"


def _least(among: np.ndarray, first: np.ndarray, second: np.ndarray) -> Optional[int]:
    places = np.flatnonzero(among)
    return int(places[np.lexsort((second[places], first[places]))[0]]) if len(places) else None


def front(plans: Plans, among: np.ndarray) -> np.ndarray:
    """Return the indices of the Pareto front of time and cost within `among` (a mask), the fastest first."""
    money = plans[currency(plans)]
    places = np.flatnonzero(among & np.isfinite(money))
    places = places[np.lexsort((money[places], plans["hours"][places]))]
    below = np.minimum.accumulate(np.concatenate([[np.inf], money[places]]))[:-1]
    return places[money[places] < below]
