"""AWS's history of spot prices, as `aws ec2 describe-spot-price-history` writes it, into rows of a price table.

Each entry is the price of an instance in an availability zone from a time on. A row of the price table has the price of
a day in a region: the mean over the day in the cheapest zone, weighted by time.
"""

import datetime
import json
from collections import defaultdict
from typing import Dict, Iterator, List, NamedTuple, Tuple

from mxscale.cost.price_table import Row, check_filled, csv_rows, parse_price
from mxscale.util import csv_tables
from mxscale.util.errors import ConfigError

COLUMNS = ("AvailabilityZone", "InstanceType", "ProductDescription", "SpotPrice", "Timestamp")
JSON_KEY, TEXT_MARK = "SpotPriceHistory", "SPOTPRICEHISTORY"  # of --output json and text
LINUX = ("Linux/UNIX", "Linux/UNIX (Amazon VPC)")
DAY = datetime.timedelta(days=1)


class Change(NamedTuple):
    """A price from a time on."""

    time: datetime.datetime  # UTC
    usd_per_hour: float


Changes = Dict[Tuple[str, str], List[Change]]  # by instance and zone


def is_history(text: str) -> bool:
    """Return whether a file is a history of spot prices."""
    first = text.lstrip().partition("\n")[0]
    if text.lstrip()[:1] == "{":
        return f'"{JSON_KEY}"' in text
    return first.startswith(TEXT_MARK) or {"SpotPrice", "Timestamp"} <= {
        cell.strip('" \r') for cell in first.split(",")
    }


def rows(text: str, where: str, source: str) -> List[Row]:
    """Return one row for each instance, region and day.

    Args:
        where: Names the file in errors.
        source: Name of the file with its digest.

    Raises:
        ConfigError: An entry is invalid.
    """
    changes: Changes = defaultdict(list)
    for at, entry in _entries(text, where):
        check_filled(entry, COLUMNS, at)
        if entry["ProductDescription"] in LINUX:
            price = parse_price(entry["SpotPrice"], f"{at}: SpotPrice")
            key = entry["InstanceType"], _zone(entry["AvailabilityZone"], at)
            changes[key].append(Change(_time(entry["Timestamp"], at), price))
    cheapest: Dict[Tuple[str, str, datetime.date], float] = {}
    for (instance, zone), found in changes.items():
        for day, price in daily(sorted(found)):
            key = instance, zone[:-1], day
            cheapest[key] = min(price, cheapest.get(key, price))
    hardware = {row["instance"]: row for row in csv_tables.read("prices")}
    return [
        {"provider": "aws", "instance": instance, "region": region, "market": "spot",
         **{key: hardware.get(instance, {}).get(key, "") for key in ("gpus", "gpu", "network_gbps")},
         "usd_per_hour": f"{price:.10g}", "as_of": day.isoformat(), "source": f"{source} of {day}"}
        for (instance, region, day), price in sorted(cheapest.items())
    ]  # fmt: skip


def daily(changes: List[Change]) -> Iterator[Tuple[datetime.date, float]]:
    """Yield each day from the first change to the day of the last one, and its mean price weighted by time.

    The first day counts from the first change.
    """
    ends = [change.time for change in changes[1:]] + [_midnight(changes[-1].time) + DAY]
    weighted: Dict[datetime.date, List[float]] = defaultdict(lambda: [0.0, 0.0])
    for change, end in zip(changes, ends):
        start = change.time
        while start < end:
            until = min(end, _midnight(start) + DAY)
            seconds = (until - start).total_seconds()
            total = weighted[start.date()]
            total[0] += seconds * change.usd_per_hour
            total[1] += seconds
            start = until
    for day, (total_price, seconds) in sorted(weighted.items()):
        yield day, total_price / seconds


def _midnight(time: datetime.datetime) -> datetime.datetime:
    return time.replace(hour=0, minute=0, second=0, microsecond=0)


def _entries(text: str, where: str) -> Iterator[Tuple[str, Row]]:
    """Yield (place, entry) of JSON, tab-separated text or CSV."""
    if text.lstrip()[:1] == "{":
        try:
            listed = json.loads(text)[JSON_KEY]
        except (json.JSONDecodeError, KeyError) as error:
            raise ConfigError(f"{where}: invalid JSON ({error})") from None
        for number, entry in enumerate(listed if isinstance(listed, list) else [None], 1):
            if not isinstance(entry, dict):
                raise ConfigError(f"{where}: entry {number} of {JSON_KEY} is no object")
            yield f"{where}: entry {number}", {key: str(entry.get(key, "")) for key in COLUMNS}
    elif text.startswith(TEXT_MARK):
        for number, line in enumerate(text.splitlines(), 1):
            cells = line.split("\t")
            if len(cells) != len(COLUMNS) + 1:
                raise ConfigError(f"{where}, line {number}: expected {TEXT_MARK} and {len(COLUMNS)} cells between tabs")
            yield f"{where}, line {number}", dict(zip(COLUMNS, cells[1:]))
    else:
        yield from ((f"{where}, line {line}", row) for line, row in csv_rows(text, where, COLUMNS))


def _zone(text: str, where: str) -> str:
    if len(text) < 2 or not (text[-1].isalpha() and text[-2].isdigit()):
        raise ConfigError(f"{where}: AvailabilityZone={text}: expected a zone such as us-east-1a")
    return text


def _time(text: str, where: str) -> datetime.datetime:
    try:
        time = datetime.datetime.fromisoformat(text.replace("Z", "+00:00"))
    except ValueError:
        raise ConfigError(f"{where}: Timestamp={text}: expected a time such as 2017-11-12T09:30:00Z") from None
    utc = datetime.timezone.utc
    return (time if time.tzinfo else time.replace(tzinfo=utc)).astimezone(utc)
