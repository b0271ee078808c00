"""Price tables: the package's tables/prices.csv, and a table of the user's own with the same columns."""

import calendar
import csv
import datetime
import io
import math
import os
import re
from pathlib import Path
from typing import Container, Dict, Iterable, Iterator, List, Optional, Tuple

from mxscale.config.schema import Config, Machine
from mxscale.util import csv_tables
from mxscale.util.atomic_files import write_text
from mxscale.util.errors import ConfigError, nearest
from mxscale.util.file_lock import locked
from mxscale.util.regular_files import read_text

COLUMNS = ("provider", "instance", "region", "market", "gpus", "gpu", "network_gbps", "usd_per_hour", "as_of", "source")
REQUIRED = ("provider", "instance", "region", "market", "as_of", "source")  # must not be empty
IDENTITY = ("provider", "instance", "region", "market", "source")  # the key of a price

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
        text = read_text(path)
    except FileNotFoundError:
        return []
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read as a price table ({error})") from None
    rows = []
    for line, row in csv_rows(text, path, COLUMNS):
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
            known = {_identity(row) for row in before}
            added = [row for row in rows if _identity(row) not in known]
            if added:
                _write(path, [*before, *added])
    except OSError as error:
        raise ConfigError(f"{path}: cannot write prices ({error.strerror}); set machine.prices=FILE") from None
    return len(added), len(rows) - len(added)


def _identity(row: Row) -> tuple:
    return tuple(row[name] for name in IDENTITY)


def _write(path: Path, rows: List[Row]) -> None:
    write_text(path, csv_tables.text([COLUMNS, *([row.get(name, "") for name in COLUMNS] for row in rows)]))


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


def csv_rows(text: str, where, columns: Iterable[str]) -> Iterator[Tuple[int, Row]]:
    """Yield (line number, row) of a CSV text with at least these columns. Raises ConfigError."""
    reader = csv.DictReader(io.StringIO(text, newline=""), restval="")
    try:
        missing = [name for name in columns if name not in (reader.fieldnames or [])]
        if missing:
            raise ConfigError(f"{where}: no column {', '.join(missing)}; expected {', '.join(columns)}")
        for row in reader:
            if None in row:
                raise ConfigError(f"{where}, line {reader.line_num}: more cells than columns")
            yield reader.line_num, {name: cell.strip() for name, cell in row.items()}
    except csv.Error as error:
        raise ConfigError(f"{where}, line {reader.line_num}: invalid CSV ({error})") from None


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
