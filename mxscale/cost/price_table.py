"""Price tables: the package's tables/prices.csv, and a table of the user's own with the same columns.

Newer prices come from SkyPilot's catalog aws/vms.csv (skypilot-org/skypilot-catalog): prices of Linux instances in USD
per hour, one row per availability zone. The spot price is that of the cheapest zone, as SkyPilot itself takes it.
"""

import calendar
import datetime
import math
import os
import re
from operator import itemgetter
from pathlib import Path
from typing import Dict, List, Optional, Tuple

from mxscale.config.schema import Config, Machine
from mxscale.util import csv_tables
from mxscale.util.atomic_files import digest_of, write_text
from mxscale.util.errors import ConfigError, nearest
from mxscale.util.file_lock import locked

COLUMNS = ("provider", "instance", "region", "market", "gpus", "gpu", "network_gbps", "usd_per_hour", "as_of", "source")
REQUIRED = ("provider", "instance", "region", "market", "as_of", "source")  # must not be empty
IDENTITY = itemgetter("provider", "instance", "region", "market", "source")  # the key of a price

MAX_LISTED = 60  # names in an error message

OF_CATALOG = ("InstanceType", "Region", "Price", "SpotPrice")
KIND = (
    "SkyPilot's aws/vms.csv; other catalogs and histories of spot prices are not read: write their prices into "
    "machine.prices, with the columns of docs/cost.md"
)
REGION = re.compile(r"[a-z]{2}(-[a-z]+)+-\d(-[\w-]+)?")  # eu-west-1, us-gov-east-1, us-west-2-lax-1
NOT_OFFERED = ("", "N/A")

Row = Dict[str, str]


def path_of(config: Config, exists: bool = True) -> Path:
    """Return the path of the user's table: machine.prices, or RUNS/prices.csv, which may be missing.

    Raises ConfigError if `exists` is true and machine.prices names a missing file.
    """
    given = config.machine.prices
    if exists and given is not None and not os.path.isfile(given):
        raise ConfigError(f"machine.prices={given}: no such file; `mxscale prices update=FILE` creates it")
    return Path(given or Path(config.runs) / "prices.csv")


def read_all(user_table: Optional[Path] = None) -> List[Row]:
    """Return the rows of the package's table, then those of the user's table, in the order of their addition."""
    return [*csv_tables.read("prices"), *(read(user_table) if user_table else [])]


def read(path: Path) -> List[Row]:
    """Return the rows of a user's table; [] if the file is missing. Raises ConfigError if it is invalid."""
    if not os.path.lexists(path):
        return []
    rows = []
    for line, row in csv_tables.of_user(path, str(path), COLUMNS):
        if empty := [name for name in REQUIRED if not row[name]]:
            raise ConfigError(f"{path}, line {line}: {empty[0]} is empty")
        if row["as_of"][0].isdigit() and parse_date(row["as_of"]) is None:
            raise ConfigError(f"{path}, line {line}: as_of {row['as_of']!r} is no date: write YYYY-MM-DD")
        parse_price(row["usd_per_hour"], f"{path}, line {line}: usd_per_hour")
        rows.append(row)
    return rows


def parse_date(text: str) -> Optional[datetime.date]:
    """Return the date of YYYY-MM-DD, or the last day of YYYY-MM, whose day is unknown; None for any other text."""
    match = re.fullmatch(r"(\d{4})-(\d{2})(?:-(\d{2}))?", text)
    if not match:
        return None
    year, month, day = (int(part) if part else None for part in match.groups())
    try:
        return datetime.date(year, month, day or calendar.monthrange(year, month)[1])
    except ValueError:  # month 13, 30 February
        return None


def aged(as_of: str, on: datetime.date) -> str:
    """Return the date of a price, with a remark if it is more than a year before `on`."""
    date = parse_date(as_of)
    return f"{as_of}, over a year old" if date and (on - date).days > 365 else as_of


def past_date(key: str, text: Optional[str], today: datetime.date) -> datetime.date:
    """Return the date of a setting that is not later than today, its default. Raises ConfigError."""
    date = today if text is None else parse_date(text)
    if date is None or date > today:
        raise ConfigError(f"{key}={text}: expected a date such as 2017-11-12, not later than today, {today}")
    return date


def append(path: Path, rows: List[Row]) -> Tuple[int, int]:
    """Append the rows whose price the table lacks; existing rows stay unchanged.

    A price is known if its source, whose name includes the digest of a file, is in the table, with any date.

    Returns:
        (number of added rows, number of rows that were in the table before).
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with locked(path.with_name(f".{path.name}.lock")):
            before = read(path)
            known = set(map(IDENTITY, before))
            added = [row for row in rows if IDENTITY(row) not in known]
            if added:
                cells = [[row.get(name, "") for name in COLUMNS] for row in [*before, *added]]
                write_text(path, csv_tables.text([COLUMNS, *cells]))
    except OSError as error:
        raise ConfigError(f"{path}: cannot write prices ({error.strerror}); set machine.prices=FILE") from None
    return len(added), len(rows) - len(added)


def select(rows: List[Row], machine: Machine) -> List[Row]:
    """Return the rows of machine.instance and machine.region, each if it is set. Raises ConfigError."""
    for key in ("instance", "region"):
        value = getattr(machine, key)
        rows = rows if value is None else matching(rows, key, value)
    return rows


def matching(rows: List[Row], key: str, value: Optional[str], hint: str = "") -> List[Row]:
    """Return the rows whose column `key` has the value of machine.KEY.

    Raises ConfigError if no row has it. The message names the values that exist, and ends with the hint.
    """
    selected = [row for row in rows if row[key] == value]
    if selected:
        return selected
    names = sorted({row[key] for row in rows})
    if value is None:
        raise ConfigError(f"machine.{key} is missing: expected one of {', '.join(names[:MAX_LISTED])}{hint}")
    raise ConfigError(f"machine.{key}={value}{nearest(value, names, f'machine.{key}=', names[:MAX_LISTED])}{hint}")


def read_catalog(path: str, as_of: str, name: Optional[str] = None) -> List[Row]:
    """Return the prices of a catalog as rows of a price table; their source is NAME@DIGEST, by default FILE@DIGEST.

    Raises ConfigError if the file is not readable, invalid, or has no price.
    """
    where = f"update={path}"
    lowest: Dict[Tuple[str, str, str], Row] = {}  # by instance, region and market
    for line, row in csv_tables.of_user(path, where, OF_CATALOG, KIND):
        at = f"{where}, line {line}"
        instance, region = row["InstanceType"], row["Region"]
        if not (instance and REGION.fullmatch(region)):
            raise ConfigError(f"{at}: {instance} {region}: expected an instance in an AWS region")
        count = row.get("AcceleratorCount", "0").removesuffix(".0") or "0"
        common = {"provider": "aws", "instance": instance, "region": region, "gpus": count,
                  "gpu": row.get("AcceleratorName", ""), "as_of": as_of}  # fmt: skip
        for market, column in (("on_demand", "Price"), ("spot", "SpotPrice")):
            if row[column] not in NOT_OFFERED:
                usd = parse_price(row[column], f"{at}: {column}")
                other = lowest.get((instance, region, market))  # of another zone
                usd = min(usd, float(other["usd_per_hour"])) if other else usd
                lowest[instance, region, market] = {**common, "market": market, "usd_per_hour": f"{usd:.10g}"}
    if not lowest:
        raise ConfigError(f"{where}: the file has no price")
    source = f"{name or Path(path).name}@{digest_of(path)[:8]}"
    return [{**row, "source": source} for row in lowest.values()]


def parse_price(cell, where: str) -> float:
    """Return a cell as a price in USD per hour. Raises ConfigError if it is no number above 0."""
    try:
        price = float(cell)
    except (TypeError, ValueError):
        price = math.nan
    if not (math.isfinite(price) and price > 0):
        raise ConfigError(f"{where}={cell}: expected USD per hour, above 0")
    return price
