"""Instances and markets to plan for: those asked for, and others in place of those that the provider refuses."""

from dataclasses import dataclass, replace
from typing import Callable, Iterator, List, Sequence, Tuple

from mxscale.config.schema import RULES, Machine
from mxscale.perfmodel import hardware
from mxscale.rundir.price import Price
from mxscale.util.errors import ConfigError, nearest

MARKETS = RULES["machine.market"].choices


@dataclass(frozen=True)
class Offer:
    """An instance in a market."""

    instance: str
    market: str

    def __str__(self) -> str:
        return f"{self.instance}:{self.market}"


def refused(listed: Sequence[str]) -> List[Offer]:
    """Return the offers of plan.unavailable, each INSTANCE (in all markets) or INSTANCE:MARKET. Raises ConfigError."""
    found = []
    for text in listed:
        instance, _, market = str(text).partition(":")
        if instance not in hardware.instances():
            raise ConfigError(f"plan.unavailable: {instance}{nearest(instance, hardware.instances())}")
        if market and market not in MARKETS:
            raise ConfigError(f"plan.unavailable: {text}: expected {instance}:{' or '.join(MARKETS)}")
        found += [Offer(instance, each) for each in ([market] if market else MARKETS)]
    return found


def available(
    names: Sequence[str], machine: Machine, unavailable: Sequence[Offer], price_of: Callable[[Machine], Price]
) -> Tuple[List[Machine], str]:
    """Return the machines to plan for, and what replaces refused ones ("" if nothing is refused).

    In place of a refused offer come the other offers of the same GPU with a known price: the same instance in another
    market, and other instances.

    Raises:
        ConfigError: All are refused, and none with that GPU and a known price is left.
    """
    asked = [Offer(name, machine.market) for name in names]
    kept, dropped = [one for one in asked if one not in unavailable], [one for one in asked if one in unavailable]
    if not dropped:
        return [replace(machine, instance=name) for name in names], ""
    others = [one for each in dropped for one in _alike(each) if one not in (*unavailable, *asked)]
    others = [one for one in dict.fromkeys(others) if _priced(one, machine, price_of)]
    words = ", ".join(map(str, dropped))
    if not kept and not others:
        gpu = hardware.instances()[dropped[0].instance].get("gpu") or "that kind"
        raise ConfigError(
            f"plan.unavailable: {words}: no other instance with {gpu} has a known price in {machine.region}; import "
            "prices with mxscale prices update=FILE, or name other instances in plan.instance"
        )
    machines = [replace(machine, instance=one.instance, market=one.market) for one in (*kept, *others)]
    return machines, f"{words} refused; in its place {', '.join(map(str, others)) or 'none with a known price'}"


def _alike(offer: Offer) -> Iterator[Offer]:
    """Yield the offers with the same GPU, the same instance first."""
    gpu = hardware.instances()[offer.instance].get("gpu")
    same = [name for name, row in hardware.instances().items() if gpu and row.get("gpu") == gpu]
    for name in [offer.instance, *(name for name in same if name != offer.instance)]:
        yield from (Offer(name, market) for market in MARKETS)


def _priced(offer: Offer, machine: Machine, price_of: Callable[[Machine], Price]) -> bool:
    try:
        return price_of(replace(machine, instance=offer.instance, market=offer.market, nodes=1)).known
    except ConfigError:
        return False
