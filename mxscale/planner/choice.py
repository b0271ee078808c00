"""The recommended ones of many plans: the cheapest and the fastest within limits, the Pareto front."""

from typing import Dict, Optional

import numpy as np

from mxscale.perfmodel.scenarios import Plans
from mxscale.util.errors import ConfigError

Limits = Dict[str, float]  # column (hours, usd, eur) -> upper limit


def satisfied(plans: Plans, limits: Limits) -> np.ndarray:
    """Return which plans are within all limits; a plan of unknown cost is within no budget."""
    within = np.ones(len(plans["hours"]), bool)
    for name, limit in limits.items():
        within &= plans[name] <= limit  # False for NaN
    return within


def cheapest(plans: Plans, among: np.ndarray) -> Optional[int]:
    """Return the index of the cheapest plan of `among` (a mask), then the fastest; None if no cost is known."""
    best = front(plans, among)
    return int(best[-1]) if len(best) else None


def fastest(plans: Plans, among: np.ndarray) -> Optional[int]:
    """Return the index of the fastest plan of `among` (a mask), then the cheapest."""
    places = np.flatnonzero(among)
    order = np.lexsort((np.nan_to_num(plans["usd"][places], nan=np.inf), plans["hours"][places]))
    return int(places[order[0]]) if len(places) else None


def currency(plans: Plans) -> str:
    """Return "usd" if any cost is known in it, else "eur"."""
    return "usd" if np.isfinite(plans["usd"]).any() else "eur"


def front(plans: Plans, among: np.ndarray) -> np.ndarray:
    """Return the indices of the Pareto front of time and cost within `among` (a mask), the fastest first."""
    money = plans[currency(plans)]
    places = np.flatnonzero(among & np.isfinite(money))
    places = places[np.lexsort((money[places], plans["hours"][places]))]
    below = np.minimum.accumulate(np.concatenate([[np.inf], money[places]]))[:-1]
    return places[money[places] < below]


def choose(plans: Plans, limits: Limits) -> Dict[str, int]:
    """Return the recommended plans: description -> index. Raises ConfigError."""
    allowed, budgets = satisfied(plans, limits), [name for name in limits if name != "hours"]
    within = " and ".join(
        f"{'within' if name == 'hours' else 'for at most'} {limit:g} {'h' if name == 'hours' else name.upper()}"
        for name, limit in limits.items()
    )
    if limits and not allowed.any():
        if budgets and all(np.isnan(plans[name]).all() for name in budgets):
            raise ConfigError("a budget needs a price: give machine.usd_per_hour or machine=aws")
        nearest_one = fastest if "hours" in limits else cheapest
        return {f"no plan finishes {within}; the nearest": nearest_one(plans, np.ones(len(allowed), bool))}
    best = {"cheapest": cheapest(plans, allowed), "fastest": fastest(plans, allowed)}
    if limits and "hours" not in limits:
        best = dict(reversed(best.items()))
    if len(set(best.values())) == 1:
        best = {" and ".join(best): best["fastest"]}
    return {f"{name} {within}".strip(): place for name, place in best.items() if place is not None}
