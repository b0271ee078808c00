"""Histories of AWS's spot prices, as `aws ec2 describe-spot-price-history` prints them (JSON or text), and as CSV.

The imported changes are in spot.csv beside the user's price table. A price holds until its zone's next change, and the
last one for HOLDS. Only prices of Linux are read.
"""

import datetime
import hashlib
import json
import re
from pathlib import Path
from typing import Dict, Iterator, List, NamedTuple, Optional, Set, Tuple

from mxscale.config.schema import Machine
from mxscale.cost.price_table import check_filled, csv_rows, parse_price
from mxscale.util import csv_tables
from mxscale.util.atomic_files import write_text
from mxscale.util.errors import ConfigError
from mxscale.util.file_lock import locked
from mxscale.util.regular_files import read_text

COLUMNS = ("AvailabilityZone", "InstanceType", "ProductDescription", "SpotPrice", "Timestamp")  # also of the text form
TEXT = "SPOTPRICEHISTORY"  # first cell of a line of --output text
LINUX = ("Linux/UNIX", "Linux/UNIX (Amazon VPC)")
HOLDS = datetime.timedelta(days=7)
DAY = datetime.timedelta(days=1)


class Change(NamedTuple):
    """A price that is valid from `time` on, until the next change of that instance and zone."""

    instance: str
    zone: str
    time: datetime.datetime
    usd: float
    source: str

    @property
    def region(self) -> str:
        return self.zone[:-1]  # us-east-1a


class Span(NamedTuple):
    """A price and the time in which it holds."""

    start: datetime.datetime
    end: datetime.datetime
    usd: float
    source: str


def is_history(text: str) -> bool:
    """Return whether a file's text is a history, not a catalog."""
    head = text[:1000]
    return "SpotPriceHistory" in head or head.startswith(TEXT) or all(name in head for name in COLUMNS)


def path_of(own: Path) -> Path:
    """Return the path of the imported histories, given that of the user's price table."""
    return own.with_name("spot.csv")


def parse(text: str, where: str, source: str) -> List[Change]:
    """Return the Linux prices of a history. Raises ConfigError, which names the line of an invalid row."""
    rows = _json_rows(text, where) if text.lstrip()[:1] in ("{", "[") else _text_rows(text, where)
    found = []
    for line, row in rows:
        at = f"{where}, line {line}"
        check_filled(row, COLUMNS, at)
        if not re.fullmatch(r"[a-z]{2}(-[a-z]+)+-\d(-[\w-]+-\d)?[a-z]", row["AvailabilityZone"]):
            raise ConfigError(f"{at}: AvailabilityZone={row['AvailabilityZone']}: expected a zone such as us-east-1a")
        usd, time = parse_price(row["SpotPrice"], f"{at}: SpotPrice"), _time(row["Timestamp"], at)
        if row["ProductDescription"] in LINUX:
            found.append(Change(row["InstanceType"], row["AvailabilityZone"], time, usd, row.get("source") or source))
    if not found:
        raise ConfigError(f"{where}: the history has no price of Linux/UNIX")
    return found


def _time(text: str, at: str) -> datetime.datetime:
    try:
        time = datetime.datetime.fromisoformat(text.replace("Z", "+00:00"))
    except ValueError:
        raise ConfigError(f"{at}: Timestamp={text}: expected a time such as 2017-11-12T08:30:00Z") from None
    return time.replace(tzinfo=time.tzinfo or datetime.timezone.utc).astimezone(datetime.timezone.utc)


def _text_rows(text: str, where: str) -> Iterator[Tuple[int, Dict[str, str]]]:
    """Yield (line number, row) of the text form (tabs, without a header) or of a CSV file."""
    if not text.startswith(TEXT):
        yield from csv_rows(text, where, COLUMNS)
        return
    for line, content in enumerate(text.splitlines(), 1):
        first, *cells = content.split("\t")
        if first == "NEXTTOKEN" or not content:
            continue
        if first != TEXT or len(cells) != len(COLUMNS):
            raise ConfigError(f"{where}, line {line}: expected {TEXT} and {len(COLUMNS)} cells, separated by tabs")
        yield line, dict(zip(COLUMNS, cells))


def _json_rows(text: str, where: str) -> Iterator[Tuple[int, Dict[str, str]]]:
    """Yield (line number, row) of {"SpotPriceHistory": [...]} or of the list alone."""
    position, decoder = text.index("[") if "[" in text else len(text), json.JSONDecoder()
    while True:
        gap = re.compile(r"[\s,\[]*").match(text, position).end()
        line = text.count("\n", 0, gap) + 1
        if text[gap : gap + 1] == "]":
            return
        try:
            row, position = decoder.raw_decode(text, gap)
        except json.JSONDecodeError as error:
            raise ConfigError(f"{where}, line {error.lineno}: invalid JSON ({error.msg})") from None
        if not isinstance(row, dict):
            raise ConfigError(f"{where}, line {line}: expected an object with {', '.join(COLUMNS)}")
        yield line, {name: str(row.get(name) or "") for name in COLUMNS}


def update(text: str, file: str, own: Path, name: Optional[str] = None) -> str:
    """Add the changes of a history to spot.csv beside `own`, and return a line that reports it. Raises ConfigError."""
    source = f"{name or Path(file).name}@{hashlib.sha256(text.encode()).hexdigest()[:8]}"
    changes, path = parse(text, f"update={file}", source), path_of(own)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with locked(path.with_name(f".{path.name}.lock")):
            held = {change[:4]: change for change in [*changes, *read(path)]}  # a known change keeps its source
            before = len(read(path))
            _write(path, sorted(held.values()))
    except OSError as error:
        raise ConfigError(f"{path}: cannot write spot prices ({error.strerror}); set machine.prices=FILE") from None
    first, last = min(change.time for change in changes), max(change.time for change in changes)
    return f"{path}: added {len(held) - before} spot prices of {first:%Y-%m-%d} to {last:%Y-%m-%d} from {source}"


def _write(path: Path, changes: List[Change]) -> None:
    rows = ((one.zone, one.instance, LINUX[0], f"{one.usd:.10g}", one.time.isoformat(), one.source) for one in changes)
    write_text(path, csv_tables.text([(*COLUMNS, "source"), *rows]))


def read(path: Path) -> List[Change]:
    """Return the imported changes; [] if there are none. Raises ConfigError if the file is invalid."""
    try:
        return parse(read_text(path), str(path), "")
    except FileNotFoundError:
        return []
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read as spot prices ({error})") from None


def regions(machine: Machine, own: Path) -> Set[str]:
    """Return the regions of an instance in the imported histories; with machine.region that one, or none."""
    known = {one.region for one in read(path_of(own)) if one.instance == machine.instance}
    return known if machine.region is None else known & {machine.region}


def spans(changes: List[Change], instance: Optional[str], region: Optional[str]) -> Dict[str, List[Span]]:
    """Return the prices of an instance by zone of a region (None: of all), each in the order of time."""
    of_zone: Dict[str, List[Change]] = {}
    for one in sorted(changes):
        if one.instance == instance and region in (None, one.region):
            of_zone.setdefault(one.zone, []).append(one)
    found = {}
    for zone, each in of_zone.items():
        ends = [*(after.time for after in each[1:]), each[-1].time + HOLDS]
        found[zone] = [Span(one.time, end, one.usd, one.source) for one, end in zip(each, ends)]
    return found


def mean(prices: List[Span], start: datetime.datetime, end: datetime.datetime) -> Optional[float]:
    """Return the time-weighted mean of a zone's known prices from `start` to `end`; None if none is known."""
    inside = [(max(0.0, (min(one.end, end) - max(one.start, start)).total_seconds()), one.usd) for one in prices]
    known = sum(seconds for seconds, _ in inside)
    return sum(seconds * usd for seconds, usd in inside) / known if known else None


def price(machine: Machine, date: datetime.date, own: Optional[Path]) -> Optional[Dict]:
    """Return the spot price of the region's cheapest zone, as prices.listed_price does; None if no history has one.

    With machine.as_of it is the time-weighted mean of that day (UTC), else the price in effect when that day ends.
    """
    if machine.region is None:
        return None
    start = datetime.datetime.combine(date, datetime.time(), datetime.timezone.utc)
    found = []
    for zone, prices in spans(read(path_of(own)) if own else [], machine.instance, machine.region).items():
        if machine.as_of is None:
            found += [
                (one.usd, f"{one.source}, {zone} since {one.start:%Y-%m-%d %H:%M} UTC")
                for one in prices
                if one.start < start + DAY <= one.end
            ]
        elif (usd := mean(prices, start, start + DAY)) is not None:
            sources = dict.fromkeys(one.source for one in prices if one.start < start + DAY and one.end > start)
            found.append((usd, f"{' and '.join(sources)}, {zone}, mean of the day"))
    if not found:
        return None
    usd, source = min(found)
    return {"currency": "usd", "per_hour": usd, "as_of": date.isoformat(), "source": source, "note": None}


def command(machine: Machine) -> str:
    """Return the commands that import a history with that machine's price."""
    return (
        f"aws ec2 describe-spot-price-history --region {machine.region or 'REGION'} --instance-types "
        f"{machine.instance or 'INSTANCE'} --start-time DATE > spot.json && mxscale prices update=spot.json"
    )
