"""Plans without the machines that a provider refuses: other markets and instances, and what they cost more."""

from dataclasses import dataclass, replace
from typing import Callable, Dict, Iterable, List, Optional, Sequence

import numpy as np

from mxscale.config.schema import Config
from mxscale.config.verbs.plan import MARKETS, Plan
from mxscale.cost import price_table
from mxscale.perfmodel import hardware
from mxscale.util.errors import ConfigError, nearest


@dataclass(frozen=True)
class Offers:
    """The machines of plan.instance, as INSTANCE or INSTANCE:MARKET, and those in place of the refused ones."""

    requested: List[str]
    refused: List[str]  # of the requested ones
    left: List[str]  # requested, and others in place of the refused ones


def offers(config: Config, settings: Plan, solve: Callable) -> Offers:
    """Return the machines to plan for if those of plan.unavailable are refused. Raises ConfigError.

    Args:
        solve: Plan -> Result; raises ConfigError for a machine whose rate, network or price is unknown.
    """
    requested = settings.listed("instance", config.machine.instance)
    out = {name for entry in settings.listed("unavailable", None) for name in _each(entry)}
    _check_known(config, requested, out)
    own_market = config.machine.market
    refused = [name for name in requested if _full(name, own_market) in out]
    left = [name for name in requested if name not in refused]
    if refused:
        taken = {_full(name, own_market) for name in requested} | out
        left += [name for name in _others(config) if name not in taken and _known(settings, name, solve)]
    if not left:
        raise ConfigError(
            f"plan.unavailable={','.join(refused)}: no other instance or market with a known price is left"
        )
    return Offers(requested, refused, left)


def _check_known(config: Config, requested: Sequence[Optional[str]], out: Iterable[str]) -> None:
    """Raise ConfigError if no machine is requested, or a refused one is in no table."""
    if None in requested:
        raise ConfigError("machine.instance is missing: plan.unavailable replaces machines of plan.instance")
    priced = {row["instance"] for row in price_table.read_all(price_table.path_of(config))}
    known = sorted(priced.union(hardware.instances(), (name.partition(":")[0] for name in requested)))
    for name in (each.partition(":")[0] for each in out):
        if name not in known:
            raise ConfigError(f"plan.unavailable={name}: unknown instance{nearest(name, known)}")


def _each(entry: str) -> List[str]:
    """Return the machines that an entry refuses: INSTANCE means all markets."""
    name, _, market = entry.partition(":")
    return [f"{name}:{each}" for each in ([market] if market else MARKETS)]


def _full(name: str, market: str) -> str:
    return name if ":" in name else f"{name}:{market}"


def _others(config: Config) -> List[str]:
    """Return the machines with GPUs in all markets; the price of the region decides which are left."""
    own = price_table.read_all(price_table.path_of(config))
    priced = {row["instance"] for row in own if row["region"] == config.machine.region}
    with_gpus = [name for name, row in hardware.instances().items() if row["gpu"] and name in priced]
    return [f"{name}:{market}" for name in with_gpus for market in MARKETS]


def _known(settings: Plan, name: str, solve: Callable) -> bool:
    """Return whether a machine can be planned for, at a known cost."""
    try:
        return bool(np.isfinite(solve(replace(settings, instance=name)).plans["usd"]).any())
    except ConfigError:
        return False


def difference(found: Dict, before: Dict) -> str:
    """Return what a plan costs more than one on a refused machine: `+3.20 USD (+4 %), +0.50 h`."""
    parts = []
    if found["usd"] is not None and before["usd"]:
        more = found["usd"] - before["usd"]
        parts.append(f"{more:+,.2f} USD ({100 * more / before['usd']:+.0f} %)")
    else:
        parts.append("cost difference unknown")
    return ", ".join([*parts, f"{found['hours'] - before['hours']:+,.2f} h"])
