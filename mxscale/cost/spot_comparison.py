"""Imported spot prices beside the price on demand: numbers by zone, and a figure over time."""

import datetime
from dataclasses import replace
from pathlib import Path
from typing import Dict, List, NamedTuple, Optional

from mxscale.config.schema import Machine
from mxscale.cost import prices, spot
from mxscale.cost.spot import Span
from mxscale.util.errors import ConfigError
from mxscale.util.text_table import columns


class Zone(NamedTuple):
    """Spot prices of a zone in USD per hour; the mean and the share of time are weighted by time."""

    name: str
    least: float
    mean: float
    most: float
    above: float  # share of the known time above the price on demand


class Comparison(NamedTuple):
    """A machine's spot prices by zone, and its last price on demand in their time."""

    zones: List[Zone]
    on_demand: float
    as_of: str  # of the price on demand
    spans: Dict[str, List[Span]]
    sources: str


def compare(
    machine: Machine, own: Path, start: Optional[datetime.date] = None, end: Optional[datetime.date] = None
) -> Optional[Comparison]:
    """Return the imported prices of machine.instance in machine.region from `start` to before `end`; None if none.

    Raises:
        ConfigError: No price on demand is known then.
    """
    low, high = (
        datetime.datetime.combine(day, datetime.time(), datetime.timezone.utc)
        for day in (start or datetime.date.min, end or datetime.date.max)
    )
    found, every = {}, spot.spans(spot.read(spot.path_of(own)), machine.instance, machine.region)
    starts = {one.start for held in every.values() for one in held}
    if len(starts) > 1:
        high = min(high, max(starts))  # after the last change prices are held, not known: it has no weight
    for zone, held in every.items():
        cut = [one._replace(start=max(one.start, low), end=min(one.end, high)) for one in held]
        found[zone] = [one for one in cut if one.start <= one.end]
    found = {zone: held for zone, held in found.items() if held}
    if not found:
        return None
    last = max(held[-1].start for held in found.values()).date()
    on_demand = prices.listed_price(replace(machine, market="on_demand"), last, own)
    zones = [_zone(zone, held, on_demand["per_hour"]) for zone, held in sorted(found.items())]
    sources = ", ".join(sorted({one.source for held in found.values() for one in held}))
    return Comparison(zones, on_demand["per_hour"], on_demand["as_of"], found, sources)


def _zone(name: str, held: List[Span], on_demand: float) -> Zone:
    seconds = [(one.end - one.start).total_seconds() for one in held]
    seconds = seconds if any(seconds) else [1.0] * len(held)
    above = sum(length for length, one in zip(seconds, held) if one.usd > on_demand)
    usd = [one.usd for one in held]
    mean = sum(length * price for length, price in zip(seconds, usd)) / sum(seconds)
    return Zone(name, min(usd), mean, max(usd), above / sum(seconds))


def figure(machine: Machine, own: Path, path: str) -> str:
    """Draw spot prices and the price on demand over time, and return the numbers as a table. Raises ConfigError."""
    for key in ("instance", "region"):
        if getattr(machine, key) is None:
            raise ConfigError(f"machine.{key} is missing: figure= draws one instance in one region")
    found = compare(machine, own)
    if found is None:
        raise ConfigError(
            f"figure={path}: no history of {machine.instance} in {machine.region}: {spot.command(machine)}"
        )
    try:
        draw(found, f"{machine.instance} in {machine.region}", path)
    except OSError as error:
        raise ConfigError(f"figure={path}: {error.strerror or error}") from None
    rows = [("zone", "least", "mean", "most", "above on demand")]
    rows += [(one.name, *(f"{usd:.4g}" for usd in one[1:4]), f"{one.above:.1%} of the time") for one in found.zones]
    head = f"spot prices of {machine.instance}; on demand {found.on_demand:g} USD/h ({found.as_of}); {found.sources}"
    return "\n".join([head, *columns(rows, indent="  "), f"written to {path}"])


COLOURS = ("#2f84c6", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#999999")


def draw(found: Comparison, title: str, path: str) -> None:
    """Write the figure; the price on demand is a dashed line. Raises OSError."""
    from matplotlib.dates import AutoDateLocator, ConciseDateFormatter
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 4.2), layout="constrained")
    axes = figure.subplots()
    for index, (zone, held) in enumerate(sorted(found.spans.items())):
        times, usd = [one.start for one in held] + [held[-1].end], [one.usd for one in held] + [held[-1].usd]
        axes.step(times, usd, where="post", lw=1.2, color=COLOURS[index % len(COLOURS)], label=f"spot, {zone}")
    label = f"on demand, {found.on_demand:g} USD/h ({found.as_of})"
    axes.axhline(found.on_demand, color="#d55e00", ls="--", lw=1.5, label=label)
    locator = AutoDateLocator()
    axes.xaxis.set_major_locator(locator)
    axes.xaxis.set_major_formatter(ConciseDateFormatter(locator))
    axes.set_ylim(bottom=0)
    axes.set(xlabel="time, UTC", ylabel="USD per hour", title=title)
    axes.grid(alpha=0.3)
    figure.legend(loc="outside lower center", ncols=3, frameon=False, fontsize=9)
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
