"""What an hour of a machine costs and what a run is billed.  Pure: standard library alone.

`freeze_price` works a price out once, before the run, from the tables beside this file or from what
the user gives; the result is the run's price.json.  `cost` multiplies it by time.  Unknown stays
unknown: without a price there is no cost, and without an exchange rate there is one currency.
"""

import calendar
import datetime
import math
import re
from pathlib import Path
from typing import Dict, List, Optional, Sequence

from mxscale.config.schema import RULES, Machine
from mxscale.cost import catalogs
from mxscale.util import csv_tables
from mxscale.util.errors import ConfigError, nearest

HOURS_PER_YEAR = 8766  # 365.25 days x 24 h

# On-demand and spot Linux instances are billed by the second, for 60 s at least, since 2017-10-02:
# https://aws.amazon.com/about-aws/whats-new/2017/10/announcing-amazon-ec2-per-second-billing/
MINIMUM_S = 60

MOST_LISTED = 40  # names in an error

BY_HAND = "or give machine.usd_per_hour or machine.eur_per_hour"


# ---------------------------------------------------------------- tables


def parse_date(text: str) -> Optional[datetime.date]:
    """YYYY-MM-DD, or YYYY-MM: the last day of that month, since which of its days was meant is not known.

    None where the text is no date.
    """
    match = re.fullmatch(r"(\d{4})-(\d{2})(?:-(\d{2}))?", text)
    if not match:
        return None
    year, month, day = (int(part) if part else None for part in match.groups())
    try:
        return datetime.date(year, month, day or calendar.monthrange(year, month)[1])
    except ValueError:  # month 13, 30 February
        return None


def exchange_rate(date: datetime.date) -> Dict:
    """The last rate on or before `date`, in USD for one EUR, with its own date; None where there is none.

    The table has the last rate of each year, so a rate may be up to a year older than the price.
    """
    past = [row for row in csv_tables.read("fx") if parse_date(row["date"]) <= date]
    if not past:
        return {"usd_per_eur": None, "fx_date": None, "fx_source": None}
    last = max(past, key=lambda row: parse_date(row["date"]))
    return {"usd_per_eur": float(last["usd_per_eur"]), "fx_date": last["date"], "fx_source": last["source"]}


# ---------------------------------------------------------------- a price


def freeze_price(machine: Machine, setup_minutes: float, today: datetime.date, own: Optional[Path] = None) -> Dict:
    """The content of price.json: the price of one node for one hour, where it comes from, how it is billed.

    In order: an hourly price given by hand, with any provider; a row of prices.csv (aws) or of the table `own`;
    purchase and electricity (owned).  `date` is machine.as_of, or `today` where it is null; both the row and the
    exchange rate are the last on or before it.  `currency` is that of the source, the other one follows
    from the rate and is None without one.  `setup_minutes` are billed once, before the first step.
    Raises ConfigError.  `machine` went through `checks.validate`.
    """
    date = _date(machine, today)
    if machine.usd_per_hour is not None and machine.eur_per_hour is not None:
        raise ConfigError(
            "machine.usd_per_hour and machine.eur_per_hour are both given: give one, the other follows "
            "from the exchange rate"
        )
    if machine.usd_per_hour is not None:
        found = _by_hand("usd", machine.usd_per_hour, date)
    elif machine.eur_per_hour is not None:
        found = _by_hand("eur", machine.eur_per_hour, date)
    elif machine.provider == "local":
        why = f"machine=local has no price: use machine=aws, machine=owned, {BY_HAND}"
        return {"known": False, "why": why}
    elif machine.provider == "owned":
        found = _owned(machine, date)
    elif machine.provider == "custom":
        raise ConfigError("machine=custom has no price: give machine.usd_per_hour or machine.eur_per_hour")
    else:
        found = _listed(machine, date, own)
    rate = exchange_rate(date)
    return {
        "known": True,
        **_both_currencies(found["currency"], found["per_hour"], rate["usd_per_eur"]),
        "currency": found["currency"],
        "provider": machine.provider,
        "instance": machine.instance,
        "region": machine.region,
        "market": "owned" if machine.provider == "owned" else machine.market,
        "as_of": found["as_of"],
        "source": found["source"],
        "note": found.get("note"),
        "date": date.isoformat(),
        **rate,
        "nodes": machine.nodes,
        "billing": machine.billing,
        # Nobody bills an owner for a minimum.
        "minimum_s": 0 if machine.provider == "owned" else MINIMUM_S,
        "setup_minutes": setup_minutes,
    }


def _date(machine: Machine, today: datetime.date) -> datetime.date:
    if machine.as_of is None:
        return today
    date = parse_date(machine.as_of)
    if date is None:
        raise ConfigError(f"machine.as_of={machine.as_of}: expected a date such as 2017-11-12, or null for today")
    if date > today:
        raise ConfigError(f"machine.as_of={machine.as_of}: later than today, {today}; prices to come are not known")
    return date


def _both_currencies(currency: str, per_hour: float, usd_per_eur: Optional[float]) -> Dict:
    if currency == "usd":
        return {"usd_per_hour": per_hour, "eur_per_hour": per_hour / usd_per_eur if usd_per_eur else None}
    return {"usd_per_hour": per_hour * usd_per_eur if usd_per_eur else None, "eur_per_hour": per_hour}


def _by_hand(currency: str, per_hour: float, date: datetime.date) -> Dict:
    """A price of 0 is the user's word that the machine is free, and is kept."""
    return {"currency": currency, "per_hour": per_hour, "as_of": date.isoformat(), "source": "given"}


def _owned(machine: Machine, date: datetime.date) -> Dict:
    """An hour of use of a machine that was bought, its purchase written off evenly over its hours of use.

    per hour = purchase / (years x 8766 h x utilisation) + watts / 1000 x per_kwh

    `utilisation` is the share of all hours in use.  Electricity counts for hours in use alone; `watts`
    is what the machine draws then, and cooling is in it if the user puts it there.
    """
    needed = ("purchase", "years", "watts", "per_kwh")
    missing = [f"machine.{key}" for key in needed if getattr(machine, key) is None]
    if missing:
        raise ConfigError(f"machine=owned needs {', '.join(missing)} (0 where it costs nothing), {BY_HAND}")
    purchase = machine.purchase / (machine.years * HOURS_PER_YEAR * machine.utilisation)
    electricity = machine.watts / 1000 * machine.per_kwh
    source = (
        f"purchase {machine.purchase:.10g} {machine.currency.upper()} / ({machine.years:.10g} years x "
        f"{HOURS_PER_YEAR} h x {machine.utilisation:.10g}) + {machine.watts:.10g} W at {machine.per_kwh:.10g} per kWh"
    )
    return {
        "currency": machine.currency,
        "per_hour": purchase + electricity,
        "as_of": date.isoformat(),
        "source": source,
    }


def _listed(machine: Machine, date: datetime.date, own: Optional[Path]) -> Dict:
    """The newest row of prices.csv and `own` on or before `date`; a month counts from its last day.

    A row without a date is used only where no date is asked for and the machine has no dated row.
    """
    everything = catalogs.known(own)
    rows = [row for row in everything if row["provider"] == machine.provider]
    what = machine.provider
    for key in ("instance", "region", "market"):
        rows = _pick(rows, key, getattr(machine, key), what, everything)
        what = getattr(machine, key) if key == "instance" else f"{what} {getattr(machine, key)}"
    dated = [row for row in rows if parse_date(row["as_of"])]
    if dated:
        row, note = _newest(dated, machine, date, what), None
    elif machine.as_of is None:
        row, note = rows[0], f"{what} has no dated price: that of a snapshot without a date is used"
    else:
        raise ConfigError(
            f"machine.as_of={machine.as_of}: the price of {what} has no date; "
            f"leave machine.as_of out to use it, {BY_HAND}"
        )
    per_hour = float(row["usd_per_hour"])
    return {"currency": "usd", "per_hour": per_hour, "as_of": row["as_of"], "source": row["source"], "note": note}


def _pick(rows: List[Dict], key: str, value: Optional[str], what: str, everything: List[Dict]) -> List[Dict]:
    """The rows with that value.  ConfigError otherwise: the nearest name, or all where the value is right elsewhere."""
    found = [row for row in rows if row[key] == value]
    if found:
        return found
    names = sorted({row[key] for row in rows})
    listed = ", ".join(names[:MOST_LISTED]) + (f" and {len(names) - MOST_LISTED} more" if names[MOST_LISTED:] else "")
    choose = f"{what} has prices for {listed} ({BY_HAND})"
    if value is None:
        raise ConfigError(f"machine.{key} is missing: {choose}")
    # A right region that this instance has no row for is no slip of the pen: don't call it one.
    elsewhere = {row[key] for row in everything} | set(RULES[f"machine.{key}"].choices)
    if value in elsewhere:
        raise ConfigError(f"machine.{key}={value}: {choose}")
    raise ConfigError(f"machine.{key}={value}{nearest(value, names, f'machine.{key}=')} ({BY_HAND})")


def _newest(rows: List[Dict], machine: Machine, date: datetime.date, what: str) -> Dict:
    past = [row for row in rows if parse_date(row["as_of"]) <= date]
    if past:
        return max(reversed(past), key=lambda row: parse_date(row["as_of"]))  # of equals the last that was added
    dates = ", ".join(sorted({str(parse_date(row["as_of"])) for row in rows}))
    raise ConfigError(
        f"machine.as_of={machine.as_of or date}: before the first price of {what}; it has prices of {dates} ({BY_HAND})"
    )


# ---------------------------------------------------------------- a bill


def cost(price: Dict, attempts_s: Sequence[float], nodes: Sequence[int] = ()) -> Optional[Dict[str, float]]:
    """{'usd': ..., 'eur': ...} for the wall seconds of each attempt of a run, on all nodes.

    An attempt is one start of the machines: a run that was resumed twice has three, each billed with its
    own minimum or its own started hours, on its own number of `nodes` (default: the price's).  Set-up time
    is added to the first.  A currency that is unknown is left out; None where the price is unknown.
    """
    if not price["known"]:
        return None
    setup_s = 60 * price["setup_minutes"]
    seconds = [s + (setup_s if i == 0 else 0) for i, s in enumerate(attempts_s)]
    nodes = nodes or [price["nodes"]] * len(seconds)
    node_hours = sum(_billed_hours(price, s) * count for s, count in zip(seconds, nodes, strict=True))
    per_hour = {"usd": price["usd_per_hour"], "eur": price["eur_per_hour"]}
    return {name: node_hours * value for name, value in per_hour.items() if value is not None}


def affordable_s(price: Dict, bounds: Dict[str, float], attempts_s: Sequence[float], nodes: Sequence[int]) -> float:
    """Wall seconds that one more attempt may last before the cost of all of them is more than a bound.

    bounds: {"usd", "eur"} as they are set; the price knows these currencies.  attempts_s: of those before it;
    nodes: of those and of this one.  Its own set-up time, if it is the first, is taken off, and what it is billed at
    least has to fit in: 0 where it does not, or nothing is left.  inf where nothing is bound, or an hour costs nothing.
    """
    spent = cost(price, attempts_s, nodes[:-1]) or {}
    hours = math.inf
    for currency, most in bounds.items():
        per_hour = price[f"{currency}_per_hour"] * nodes[-1]
        if per_hour:
            hours = min(hours, (most - spent[currency]) / per_hour)
    setup_s = 0 if attempts_s else 60 * price["setup_minutes"]
    if math.isinf(hours):
        return hours
    # A rounding error makes neither two hours out of a bound of exactly three, nor something out of nothing
    seconds = 3600 * math.floor(round(hours, 9)) if price["billing"] == "per_hour" else 3600 * hours
    return max(0.0, round(seconds - setup_s, 6)) if seconds >= _billed_hours(price, 0) * 3600 else 0.0


def _billed_hours(price: Dict, seconds: float) -> float:
    if price["billing"] == "per_hour":
        # In milliseconds, so that a sum such as 3600.0000000001 s does not start a second hour.
        return max(1, math.ceil(round(seconds, 3) / 3600))
    return max(seconds, price["minimum_s"]) / 3600


# ---------------------------------------------------------------- for the terminal


def describe(price: Dict) -> str:
    """One line: the machine, its price with date and source, and the other currency with its rate."""
    if not price["known"]:
        return f"price unknown: {price['why']}"
    first, second = ("usd", "eur") if price["currency"] == "usd" else ("eur", "usd")
    words = [price["instance"] or price["provider"]]
    if price["provider"] == "aws":
        words += [price["region"], price["market"]]
    machine = " ".join(word for word in words if word)  # a price by hand needs no region
    nodes = f"{price['nodes']} x " if price["nodes"] > 1 else ""
    line = f"{nodes}{machine} {_money(price, first)} ({price['as_of']}, {price['source']})"
    if price[f"{second}_per_hour"] is None:
        return f"{line}, {second.upper()} unknown: no exchange rate on or before {price['date']}"
    return f"{line}, {_money(price, second)} at {price['usd_per_eur']:.10g} USD/EUR of {price['fx_date']}"


def _money(price: Dict, currency: str) -> str:
    """To the cent, and to four digits where a cheap hour needs more than cents."""
    value = price[f"{currency}_per_hour"]
    return f"{value:{'.2f' if value >= 10 else '.4g'}} {currency.upper()}/h"
