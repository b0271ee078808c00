"""The price of a machine's hour, and the bill of a run.

`freeze_price` determines the price once, before the run, from tables or from what the user gives; the result is the
run's price.json. `bill` multiplies it by time. The cost is unknown without a price, and in the other currency without
an exchange rate.
"""

import datetime
import math
from itertools import accumulate
from pathlib import Path
from pkgutil import resolve_name
from typing import Dict, List, Mapping, NamedTuple, Optional, Sequence

from mxscale.config.price_sources import PRICE_SOURCES
from mxscale.config.schema import Machine
from mxscale.cost import price_table
from mxscale.cost.price_table import parse_date
from mxscale.rundir.price import Price
from mxscale.util import csv_tables
from mxscale.util.errors import ConfigError

HOURS_PER_YEAR = 8766  # 365.25 days x 24 h
UNITS_S = {"per_second": 0, "per_minute": 60, "per_hour": 3600}  # machine.billing -> the billed time is a multiple

BY_HAND = "or give machine.usd_per_hour or machine.eur_per_hour"


def exchange_rate(date: datetime.date) -> Dict:
    """Return the last rate on or before `date` in USD per EUR with its date and source; {} if none exists.

    The table has the last rate of each month, and those of the days of the published bills.
    """
    past = [row for row in csv_tables.read("fx") if parse_date(row["date"]) <= date]
    if not past:
        return {}
    last = max(past, key=lambda row: parse_date(row["date"]))
    return {"usd_per_eur": float(last["usd_per_eur"]), "fx_date": last["date"], "fx_source": last["source"]}


# ---------------------------------------------------------------- the price of an hour


def freeze_price(
    machine: Machine, setup_minutes: float, today: datetime.date, user_table: Optional[Path] = None
) -> Price:
    """Return the content of price.json: the price of one node-hour, its source, and how it is billed.

    A price by hand comes first, then the price source of machine.provider (config/price_sources.py).

    Args:
        machine: Validated settings. machine.as_of is the date of price and exchange rate; null: `today`.
        setup_minutes: Billed once, before the first step.
        user_table: The user's price table, read in addition to the package's.

    Returns:
        The price in the currency of the source; the other currency is None without an exchange rate.

    Raises ConfigError if settings are missing, contradict each other, or select no price.
    """
    source, date = PRICE_SOURCES[machine.provider], price_table.past_date("machine.as_of", machine.as_of, today)
    quote = _quote(machine, date, user_table)
    if quote is None:
        why = f"machine={source.name} has no price: use machine=aws, machine=owned, {BY_HAND}"
        return Price(known=False, why=why)
    rate = exchange_rate(date)
    usd = eur = quote.pop("per_hour")
    if quote["currency"] == "usd":
        eur = usd / rate["usd_per_eur"] if rate else None
    else:
        usd = eur * rate["usd_per_eur"] if rate else None
    return Price(
        known=True,
        usd_per_hour=usd,
        eur_per_hour=eur,
        **quote,
        **{key: getattr(machine, key) for key in ("provider", "instance", "region", "nodes", "billing")},
        market=source.market or machine.market,
        date=date.isoformat(),
        **rate,
        minimum_s=source.minimum_s,
        setup_minutes=setup_minutes,
    )


def _quote(machine: Machine, date: datetime.date, user_table: Optional[Path]) -> Optional[Dict]:
    """Return the price of an hour as a price source does; None if the machine needs none. Raises ConfigError."""
    source = PRICE_SOURCES[machine.provider]
    by_hand = {"usd": machine.usd_per_hour, "eur": machine.eur_per_hour}
    by_hand = {currency: per_hour for currency, per_hour in by_hand.items() if per_hour is not None}  # 0: it is free
    if len(by_hand) > 1:
        raise ConfigError("machine.usd_per_hour and machine.eur_per_hour are both given: give one of them")
    if by_hand:
        [(currency, per_hour)] = by_hand.items()
        return {"currency": currency, "per_hour": per_hour, "as_of": date.isoformat(), "source": "given"}
    if source.implementation:
        return resolve_name(source.implementation)(machine, date, user_table)
    if source.required:
        raise ConfigError(f"machine={source.name} has no price: give machine.usd_per_hour or machine.eur_per_hour")
    return None


def owned_price(machine: Machine, date: datetime.date, user_table: Optional[Path]) -> Dict:
    """Return the price of an hour of use of a purchased machine, written off evenly over its hours of use.

    per hour = purchase / (years x 8766 h x utilisation) + watts / 1000 x per_kwh

    `utilisation` is the share of all hours in use. Only hours in use consume electricity.
    """
    required = ("purchase", "years", "watts", "per_kwh")
    missing = [f"machine.{key}" for key in required if getattr(machine, key) is None]
    if missing:
        raise ConfigError(f"machine=owned needs {', '.join(missing)} (0 if free), {BY_HAND}")
    purchase = machine.purchase / (machine.years * HOURS_PER_YEAR * machine.utilisation)
    electricity = machine.watts / 1000 * machine.per_kwh
    source = (
        f"purchase {machine.purchase:.10g} {machine.currency.upper()} / ({machine.years:.10g} years x "
        f"{HOURS_PER_YEAR} h x {machine.utilisation:.10g}) + {machine.watts:.10g} W at {machine.per_kwh:.10g} per kWh"
    )
    per_hour = purchase + electricity
    return {"currency": machine.currency, "per_hour": per_hour, "as_of": date.isoformat(), "source": source}


def listed_price(machine: Machine, date: datetime.date, user_table: Optional[Path]) -> Dict:
    """Return the newest price of the tables on or before `date`; a month counts from its last day.

    A row without a date is used only if machine.as_of is null and the machine has no dated row. Raises ConfigError.
    """
    known = price_table.read_all(user_table)
    rows = [row for row in known if row["provider"] == machine.provider]
    elsewhere = [row["provider"] for row in known if row["instance"] == machine.instance]
    if elsewhere and machine.provider not in elsewhere:
        raise ConfigError(f"machine.instance={machine.instance} is of {elsewhere[0]}: set machine={elsewhere[0]}")
    rows = price_table.matching(rows, "instance", machine.instance, f" ({BY_HAND})")
    rows = price_table.matching(rows, "region", machine.region, f" ({BY_HAND})")
    rows = [row for row in rows if row["market"] == machine.market]
    dates = [parse_date(row["as_of"]) for row in rows]
    past = [(day, place) for place, day in enumerate(dates) if day and day <= date]
    if past:
        row = rows[max(past)[1]]  # of equal dates the last one added
    elif rows and not any(dates) and machine.as_of is None:
        row = rows[0]
    else:
        what = f"{machine.instance} {machine.region} {machine.market}"
        others = f", only of {', '.join(sorted({row['as_of'] for row in rows}))}" if rows else ""
        raise ConfigError(
            f"no price of {what} on {date} is known{others}: import one (mxscale prices update=vms.csv), {BY_HAND}"
        )
    return {"currency": "usd", "per_hour": float(row["usd_per_hour"]), "as_of": row["as_of"], "source": row["source"]}


# ---------------------------------------------------------------- the bill


class Usage(NamedTuple):
    """The machines of one attempt: their number, and its wall time."""

    seconds: float
    nodes: int
    continues: bool = False  # they kept running since the attempt before


def cost(price: Price, seconds: float) -> Optional[Dict[str, float]]:
    """Return the cost of a run of one attempt, see `bill`."""
    return bill(price, [Usage(seconds, price.nodes)])


def bill(price: Price, attempts: Sequence[Usage]) -> Optional[Dict[str, float]]:
    """Return the cost of a run as {"usd", "eur"}.

    Each start of the machines is billed with its own minimum or its own started hours: a run that was resumed twice
    has three, a restart none. A node is billed until the last attempt that uses it. Set-up time is added to the first
    attempt.

    Returns:
        The cost, without a currency whose exchange rate is unknown; None if the price is unknown.
    """
    if not price.known:
        return None
    node_hours = sum(_node_hours(price, start) for start in _starts(price, attempts))
    per_hour = {"usd": price.usd_per_hour, "eur": price.eur_per_hour}
    return {name: node_hours * value for name, value in per_hour.items() if value is not None}


def affordable_s(price: Price, bounds: Dict[str, float], before: Sequence[Usage], following: Usage) -> float:
    """Return the wall time in seconds that an attempt may last within the budget.

    Args:
        bounds: Budget.bounds, the limits on the cost of all attempts together.
        before: The earlier attempts.
        following: The attempt, without time.

    Returns:
        The time without set-up; 0 if the budget does not cover what the attempt is billed at least; inf without a
        limit or at a price of 0.
    """
    attempts, hours = [*before, following], math.inf  # that a node may be billed beyond the least
    least = bill(price, attempts) or {}
    for currency, limit in bounds.items():
        per_hour = price.per_hour(currency) * following.nodes
        if per_hour:
            hours = min(hours, (limit - least[currency]) / per_hour)
    if math.isinf(hours):
        return hours
    # Rounding keeps exactly three hours from becoming two, and zero from becoming a positive time
    if round(hours, 9) < 0:
        return 0.0
    ran_s = sum(attempt.seconds for attempt in _starts(price, attempts)[-1])
    hours += billed_hours(ran_s, price.billing, price.minimum_s)
    unit_s = UNITS_S.get(price.billing)
    seconds = unit_s * math.floor(round(3600 * hours / unit_s, 9)) if unit_s else 3600 * hours
    return max(0.0, round(seconds - ran_s, 6))


def _starts(price: Price, attempts: Sequence[Usage]) -> List[List[Usage]]:
    """Return the attempts of each start of the machines, with set-up time."""
    starts, extra_s = [], 60 * price.setup_minutes
    for attempt in attempts:
        if not (starts and attempt.continues):
            starts.append([])
        starts[-1].append(attempt._replace(seconds=attempt.seconds + extra_s))
        extra_s = 0
    return starts


def _node_hours(price: Price, start: List[Usage]) -> float:
    """Return the billed hours of all nodes from a start of the machines on."""
    hours, counted = 0.0, 0
    ends = accumulate(attempt.seconds for attempt in start)
    for seconds, attempt in reversed([*zip(ends, start)]):
        more = max(0, attempt.nodes - counted)  # nodes that no later attempt uses
        hours += more * billed_hours(seconds, price.billing, price.minimum_s)
        counted += more
    return hours


def billed_hours(seconds: float, billing: str, minimum_s: float) -> float:
    """Return the billed hours of one start of a node."""
    if unit_s := UNITS_S.get(billing):
        # In milliseconds, so that a sum such as 3600.0000000001 s does not start a second hour
        return max(1, math.ceil(round(seconds, 3) / unit_s)) * unit_s / 3600
    return max(seconds, minimum_s) / 3600


# ---------------------------------------------------------------- output


def describe(price: Price) -> str:
    """Return one line: the machine, its price with date and source, and the other currency with its rate."""
    if not price.known:
        return f"price unknown: {price.why}"
    first, second = ("usd", "eur") if price.currency == "usd" else ("eur", "usd")
    parts = [price.instance or price.provider]
    if PRICE_SOURCES[price.provider].listed:
        parts += [price.region, price.market]
    machine = " ".join(part for part in parts if part)  # a price by hand needs no region
    nodes = f"{price.nodes} x " if price.nodes > 1 else ""
    as_of = price_table.aged(price.as_of, datetime.date.fromisoformat(price.date)) if price.date else price.as_of
    line = f"{nodes}{machine} {_money(price, first)} ({as_of}, {price.source})"
    if price.per_hour(second) is None:
        return f"{line}, {second.upper()} unknown: no exchange rate on or before {price.date}"
    return f"{line}, {_money(price, second)} at {price.usd_per_eur:.10g} USD/EUR of {price.fx_date}"


def least_billed(price: Price) -> str:
    """Return the end of a line: what a start is billed at least, until which the cost of a run stands still."""
    if UNITS_S.get(price.billing):
        return f", billed by started {price.billing.removeprefix('per_')}s"
    return f", at least {price.minimum_s:g} s billed" if price.minimum_s else ""


def amount(value: float) -> str:
    """Return an amount of money with four decimals, or with two significant digits if it is smaller than 0.001."""
    decimals = 4 if value == 0 or abs(value) >= 0.001 else 1 - math.floor(math.log10(abs(value)))
    return f"{value:.{decimals}f}"


def in_currencies(amounts: Mapping[str, Optional[float]]) -> List[str]:
    """Return known amounts by currency as texts, such as ["1.6000 USD", "1.4111 EUR"]."""
    return [f"{amount(value)} {currency.upper()}" for currency, value in amounts.items() if value is not None]


def billed(price: Price, wall_s: float, cost: Dict[str, Optional[float]]) -> Optional[str]:
    """Return the billed time of all nodes with its reasons; None if it is the wall time or the price is unknown.

    Args:
        cost: {"usd", "eur"} of the run, as `bill` returns it.
    """
    known = [(value, price.per_hour(currency)) for currency, value in cost.items() if value is not None]
    seconds = next((3600 * value / per_hour for value, per_hour in known if per_hour), wall_s)
    if abs(seconds - wall_s) < 0.05:
        return None
    rounded = bool(UNITS_S.get(price.billing))
    reasons = {
        f"{price.nodes} nodes": price.nodes > 1,
        f"{price.setup_minutes:g} min of set-up": price.setup_minutes,
        f"each started {str(price.billing).removeprefix('per_')}": rounded,
        f"at least {price.minimum_s:g} s for each start": not rounded and wall_s < price.minimum_s,
    }
    return f"{seconds:,.1f} s ({', '.join(text for text, applies in reasons.items() if applies) or 'each start'})"


def _money(price: Price, currency: str) -> str:
    """Return the price rounded to cents, or to four digits below 10."""
    value = price.per_hour(currency)
    return f"{value:{'.2f' if value >= 10 else '.4g'}} {currency.upper()}/h"
