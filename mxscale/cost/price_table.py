"""Price tables: the package's tables/prices.csv, and a table of the user's own with the same columns."""

import calendar
import datetime
import math
import os
import re
from operator import itemgetter
from pathlib import Path
from typing import Container, Dict, List, Optional, Tuple

from mxscale.config.schema import Config, Machine
from mxscale.util import csv_tables
from mxscale.util.atomic_files import write_text
from mxscale.util.errors import ConfigError, nearest
from mxscale.util.file_lock import locked

COLUMNS = ("provider", "instance", "region", "market", "gpus", "gpu", "network_gbps", "usd_per_hour", "as_of", "source")
REQUIRED = ("provider", "instance", "region", "market", "as_of", "source")  # must not be empty
IDENTITY = itemgetter("provider", "instance", "region", "market", "source")  # the key of a price

Row = Dict[str, str]


def path_of(config: Config, exists: bool = True) -> Path:
    """Return the path of the user's table: machine.prices, or RUNS/prices.csv, which may be missing.

    Raises:
        ConfigError: `exists` is true and machine.prices names a missing file.
    """
    given = config.machine.prices
    if exists and given is not None and not os.path.isfile(given):
        raise ConfigError(f"machine.prices={given}: no such file; `mxscale prices update=FILE` creates it")
    return Path(given or Path(config.runs) / "prices.csv")


def read_all(own: Optional[Path] = None) -> List[Row]:
    """Return the rows of the package's table, then those of the user's table, in the order of their addition."""
    return [*csv_tables.read("prices"), *(read(own) if own else [])]


def read(path: Path) -> List[Row]:
    """Return the rows of a user's table; [] if the file is missing. Raises ConfigError if it is invalid."""
    try:
        path.stat()
    except FileNotFoundError:
        return []
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read as a price table ({error.strerror})") from None
    rows = []
    for line, row in csv_tables.of_user(path, str(path), COLUMNS):
        check_filled(row, REQUIRED, f"{path}, line {line}")
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


def select(rows: List[Row], machine: Machine, where: str = "") -> List[Row]:
    """Return the rows of machine.instance and machine.region, each if it is set.

    Args:
        where: What has no such row, for the error message.
    """
    for key in ("instance", "region"):
        value = getattr(machine, key)
        if value is not None:
            names = {row[key] for row in rows}
            if value not in names:
                raise ConfigError(f"machine.{key}={value}{where}{nearest(value, names, f'machine.{key}=')[:300]}")
            rows = [row for row in rows if row[key] == value]
    return rows


def check_filled(row: Row, columns: Container[str], where: str) -> None:
    """Raise ConfigError if one of the columns is empty."""
    for name in columns:
        if not row[name]:
            raise ConfigError(f"{where}: {name} is empty")


def parse_price(cell, where: str) -> float:
    """Return a cell as a price in USD per hour. Raises ConfigError if it is no number above 0."""
    try:
        price = float(cell)
    except (TypeError, ValueError):
        price = math.nan
    if not (math.isfinite(price) and price > 0):
        raise ConfigError(f"{where}={cell}: expected USD per hour, above 0")
    return price
