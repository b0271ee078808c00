"""Price tables: the package's tables/prices.csv, and a table of the user's own with the same columns.

Newer prices come from SkyPilot's catalogs CLOUD/vms.csv (skypilot-org/skypilot-catalog): prices of Linux instances in
USD per hour, one row per availability zone. The spot price is that of the cheapest zone, as SkyPilot itself takes it.
"""

import calendar
import datetime
import math
import os
import re
from operator import itemgetter
from pathlib import Path
from typing import Dict, List, Optional, Sequence, Tuple

from mxscale.config.price_sources import PRICE_SOURCES
from mxscale.config.schema import Config, Machine
from mxscale.util import csv_tables
from mxscale.util.atomic_files import digest_of, write_text
from mxscale.util.errors import ConfigError, nearest
from mxscale.util.file_lock import locked

COLUMNS = ("provider", "instance", "region", "market", "gpus", "gpu", "network_gbps", "usd_per_hour", "as_of", "source")
REQUIRED = ("provider", "instance", "region", "market", "as_of", "source")  # must not be empty
IDENTITY = itemgetter("provider", "instance", "region", "market", "source")  # the key of a price

MAX_LISTED = 60  # names in an error message

OF_CATALOG = ("InstanceType", "AcceleratorCount", "AcceleratorName", "Region", "Price", "SpotPrice")
OF_PRICE = ("instance", "gpus", "gpu", "region", "market")
CLOUDS = {name: source for name, source in PRICE_SOURCES.items() if source.listed}
KIND = (
    f"SkyPilot's vms.csv of {', '.join(CLOUDS)}; write prices of other catalogs and histories of spot prices into "
    "machine.prices, with the columns of docs/cost.md"
)
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


def append(path: Path, rows: List[Row]) -> List[Row]:
    """Append the rows whose price the table lacks, and return them; existing rows stay unchanged.

    A price is known if its source, whose name includes the digest of a file, is in the table, with any date.
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
    return added


def select(rows: List[Row], machine: Machine) -> List[Row]:
    """Return the rows of the machine's cloud, instance and region, each if it is set. Raises ConfigError."""
    for key in ("provider", "instance", "region"):
        value = getattr(machine, key)
        if value is not None and (key != "provider" or value in CLOUDS):
            rows = matching(rows, key, value)
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


def cached_catalogs(clouds: List[str]) -> List[Path]:
    """Return the catalogs of these clouds in the newest version of SkyPilot's cache. Raises ConfigError if none."""
    files = [path for path in Path.home().glob(".sky/catalogs/v[0-9]*/*/vms.csv") if path.parent.name in clouds]
    if not files:
        raise ConfigError(
            f"update=skypilot: no ~/.sky/catalogs/*/*/vms.csv of {' or '.join(clouds)}: run `sky gpus list`"
        )
    newest = max((path.parents[1] for path in files), key=lambda folder: (len(folder.name), folder.name))  # v9 < v10
    return sorted(path for path in files if path.parents[1] == newest)


def read_catalog(path: str, as_of: str, name: Optional[str] = None, clouds: Sequence[str] = tuple(CLOUDS)) -> List[Row]:
    """Return the prices of a catalog as rows of a price table; their source is NAME@DIGEST, by default FILE@DIGEST.

    Args:
        clouds: Whose catalog it may be; the names of its instances and regions decide.

    Raises ConfigError if the file is not readable, invalid, truncated, of another cloud, or has no price.
    """
    where = f"update={path}"
    lines = list(csv_tables.of_user(path, where, OF_CATALOG, KIND))
    if lines and not Path(path).read_bytes().endswith(b"\n"):
        raise ConfigError(f"{where}, line {lines[-1][0]}: the file is truncated: it ends within this line")
    lowest: Dict[tuple, float] = {}  # of all zones, by the columns OF_PRICE
    cloud = _cloud_of(lines, where, clouds)
    apart = CLOUDS[cloud].gpus_apart
    for line, row in lines:
        machine = [row[column] for column in OF_CATALOG[:4]]
        machine[1] = machine[1].removesuffix(".0") or "0"
        for market, column in (("on_demand", "Price"), ("spot", "SpotPrice")):
            if row[column] not in NOT_OFFERED:
                included = apart and row["InstanceType"] != ""  # the price of GPUs may include that of their machine
                usd = parse_price(row[column], f"{where}, line {line}: {column}", included)
                lowest[(*machine, market)] = min(usd, lowest.get((*machine, market), math.inf))
    if apart:
        lowest = _with_gpus(lowest)
    if not lowest:
        raise ConfigError(f"{where}: the file has no price" + " of a machine in tables/instances.csv" * apart)
    common = {"provider": cloud, "as_of": as_of, "source": f"{name or Path(path).name}@{digest_of(path)[:8]}"}
    return [{**common, **dict(zip(OF_PRICE, key)), "usd_per_hour": f"{usd:.10g}"} for key, usd in lowest.items()]


def _cloud_of(lines: List[Tuple[int, Row]], where: str, clouds: Sequence[str]) -> str:
    """Return the one of the clouds that has all instances and regions of a catalog. Raises ConfigError."""
    for line, row in lines:
        name, expected = f"{row['InstanceType']} {row['Region']}", clouds
        clouds = [cloud for cloud in clouds if re.fullmatch(CLOUDS[cloud].listed, name)]
        if not clouds:
            raise ConfigError(
                f"{where}, line {line}: {name}: expected an instance and region of {' or '.join(expected)}"
            )
    return clouds[0]


def _with_gpus(lowest: Dict[tuple, float]) -> Dict[tuple, float]:
    """Return the prices of machines with the price of their GPUs, as SkyPilot adds them.

    A machine whose GPUs are not in tables/instances.csv is left out: its price alone would be too low.
    """
    machines, whole = {row["instance"]: row for row in csv_tables.read("instances")}, {}
    for (instance, _, _, *place), usd in lowest.items():
        if machine := machines.get(instance):
            gpus = machine["gpus"], machine["gpu"].removesuffix("-40GB")  # the catalog's A100
            if added := lowest.get(("", *gpus, *place)):
                whole[(instance, *gpus, *place)] = usd + added
    return whole


def parse_price(cell, where: str, free: bool = False) -> float:
    """Return a cell as a price in USD per hour. Raises ConfigError if it is no number above 0, or 0 if `free`."""
    try:
        price = float(cell)
    except (TypeError, ValueError):
        price = math.nan
    if not (math.isfinite(price) and (price > 0 or (free and price == 0))):
        raise ConfigError(f"{where}={cell}: expected USD per hour, above 0")
    return price
