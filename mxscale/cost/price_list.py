"""The tool `prices`: what is known of a machine's price, a bill, newer prices.  Pure: standard library alone."""

import datetime
from dataclasses import replace
from pathlib import Path
from typing import Dict, List, Optional, Sequence

from mxscale.config.schema import Config, Machine
from mxscale.cost import catalogs, prices
from mxscale.util import text_table
from mxscale.util.errors import ConfigError, nearest

BILLINGS = ("per_second", "per_hour")


def update(config: Config, path: str, as_of: Optional[str], source: Optional[str], today: datetime.date) -> str:
    """Add a catalogue's prices to the user's table; what was done, in one line.  Raises ConfigError."""
    date = today if as_of is None else prices.parse_date(as_of)
    if date is None or date > today:
        raise ConfigError(f"as_of={as_of}: expected a date such as 2026-11-01, not later than today, {today}")
    offers, digest = catalogs.read(path)
    asked, own = config.machine, catalogs.place_of_own(config.machine.prices, config.runs)
    named = digest if source is None else f"{source}@{digest.rpartition('@')[2]}"
    added, there = catalogs.add(own, catalogs.of(offers, asked.instance, asked.region), date.isoformat(), named)
    return f"{own}: {added} prices of {date} added from {named}, {there} were there already"


def listing(config: Config) -> str:
    """Every known price of machine.instance, or how many there are of each.  Raises ConfigError."""
    machine, own = config.machine, catalogs.own_table(config.machine.prices, config.runs)
    rows = _rows_of(machine, own)
    if machine.instance is None:
        return "\n".join([*_overview(rows), "its prices: mxscale prices machine.instance=NAME"])
    table = [("region", "market", "USD/h", "as of", "source")]
    # The order of their dates; of one without a date nobody knows where it belongs
    dated = sorted(rows, key=lambda row: (row["region"], row["market"], str(prices.parse_date(row["as_of"]) or "")))
    table += [tuple(row[key] for key in ("region", "market", "usd_per_hour", "as_of", "source")) for row in dated]
    return "\n".join([machine.instance, *_indented(table)])


def _rows_of(machine: Machine, own: Path) -> List[Dict[str, str]]:
    rows = catalogs.known(own)
    for key in ("instance", "region"):
        value = getattr(machine, key)
        if value is not None:
            names = {row[key] for row in rows}
            if value not in names:
                raise ConfigError(f"machine.{key}={value}{nearest(value, names, f'machine.{key}=')[:300]}")
            rows = [row for row in rows if row[key] == value]
    return rows


def _overview(rows: List[Dict[str, str]]) -> List[str]:
    found: Dict[str, List[Dict[str, str]]] = {}
    for row in rows:
        found.setdefault(row["instance"], []).append(row)
    table = [("instance", "GPUs", "regions", "prices", "newest")]
    for name, its in sorted(found.items()):
        last = its[-1]
        gpus = f"{last['gpus']} {last['gpu']}".strip() if last["gpus"] not in ("", "0") else "none"
        newest = max((str(date) for row in its if (date := prices.parse_date(row["as_of"]))), default="no date")
        table.append((name, gpus, str(len({row["region"] for row in its})), str(len(its)), newest))
    return _indented(table)


def bill(config: Config, minutes: Sequence[float], today: datetime.date) -> str:
    """What set-up and run are billed at in every region on record, by the second and by the hour.

    minutes: [set-up, run].  Raises ConfigError.
    """
    if (
        not isinstance(minutes, list)
        or len(minutes) != 2
        or not all(isinstance(n, (int, float)) and not isinstance(n, bool) and 0 <= n < 1e7 for n in minutes)
    ):
        raise ConfigError(f"minutes={minutes}: expected [SET-UP,RUN], such as 'minutes=[10,10]'")
    machine, own = config.machine, catalogs.own_table(config.machine.prices, config.runs)
    if machine.instance is None:
        raise ConfigError("machine.instance is missing: minutes= is a bill of one machine")
    rows = _rows_of(machine, own)
    regions = sorted({row["region"] for row in rows if row["market"] == machine.market})
    if not regions:
        there = ", ".join(sorted({row["market"] for row in rows}))
        raise ConfigError(f"machine.market={machine.market}: no such price of {machine.instance} is on record: {there}")
    table = [("region", "billing", "USD", "EUR", "an hour, USD", "as of", "USD/EUR")]
    for region in regions:
        for billing in BILLINGS:
            there = replace(machine, provider="aws", region=region, billing=billing)
            price = prices.freeze_price(there, minutes[0], today, own)
            money = prices.cost(price, [60 * minutes[1]])
            cells = [f"{money[c]:.4f}" if c in money else "unknown" for c in ("usd", "eur")]
            rate = f"{price['usd_per_eur']:g} of {price['fx_date']}" if price["usd_per_eur"] else "unknown"
            table.append((region, billing, *cells, f"{price['usd_per_hour']:g}", price["as_of"], rate))
    nodes = f"{machine.nodes} x " if machine.nodes > 1 else ""
    head = f"{nodes}{machine.instance} {machine.market}, {minutes[0]:g} minutes of set-up and {minutes[1]:g} of running"
    return "\n".join([head, *_indented(table)])


def _indented(table: Sequence[Sequence[str]]) -> List[str]:
    return [f"  {line}" for line in text_table.columns(table)]
