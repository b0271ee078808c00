"""Prices newer than the package's table: a user's own table beside it, and the published catalogues it is fed from.

    SkyPilot's catalogue     aws/vms.csv of skypilot-org/skypilot-catalog: a row for each availability zone
    instances.json           of ec2instances.info (instances.vantage.sh): all regions of an instance in one object

Both are of AWS, Linux, in USD per hour.  Spot is the cheapest zone's, as SkyPilot itself takes it.  Pure: standard
library alone.
"""

import csv
import hashlib
import io
import json
import math
import re
from pathlib import Path
from typing import Dict, Iterator, List, NamedTuple, Optional, Tuple

from mxscale.util import csv_tables
from mxscale.util.atomic_files import replacing
from mxscale.util.errors import ConfigError, nearest
from mxscale.util.file_lock import locked

COLUMNS = ("provider", "instance", "region", "market", "gpus", "gpu", "network_gbps", "usd_per_hour", "as_of", "source")
NEEDED = ("InstanceType", "Region", "Price", "SpotPrice")  # of SkyPilot's columns
REGION = re.compile(r"[a-z]{2}(-[a-z]+)+-\d(-[\w-]+)?")  # eu-west-1, us-gov-east-1, us-west-2-lax-1
NONE = ("", "N/A")  # a price that is not offered


class Offer(NamedTuple):
    instance: str
    region: str
    gpus: str
    gpu: str
    network_gbps: str
    usd_per_hour: Dict[str, Optional[float]]  # market -> price, None where it is not offered


# ---------------------------------------------------------------- the user's table


def own_table(setting: Optional[str], runs: str) -> Path:
    """machine.prices, or RUNS/prices.csv, which need not be there.  Raises ConfigError where a named one is not."""
    if setting is not None and not Path(setting).is_file():
        raise ConfigError(
            f"machine.prices={setting}: no such file; it is made by: python -m mxscale.cli.main prices update="
        )
    return place_of_own(setting, runs)


def place_of_own(setting: Optional[str], runs: str) -> Path:
    """The same, there or not: where new prices are written to."""
    return Path(setting or Path(runs) / "prices.csv")


def known(own: Optional[Path] = None) -> List[Dict[str, str]]:
    """The rows of the package's prices.csv, then those of `own`, in the order in which they were added."""
    return [*csv_tables.read("prices"), *(read_own(own) if own else [])]


def read_own(path: Path) -> List[Dict[str, str]]:
    """The rows of a user's table; [] where there is none.  Raises ConfigError."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return []
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: can't be read as a table of prices ({error})") from None
    rows = list(_rows(text, path, COLUMNS))
    for line, row in rows:
        for key in ("provider", "instance", "region", "market", "as_of", "source"):
            if not row[key]:
                raise ConfigError(f"{path}, line {line}: {key} is empty")
        _price(row["usd_per_hour"], f"{path}, line {line}: usd_per_hour")
    return [row for _, row in rows]


def add(path: Path, offers: List[Offer], as_of: str, source: str) -> Tuple[int, int]:
    """Add the offers' prices at the end of `path`; (added, there already).  Nothing that is there changes.

    A price is there where that source, whose name has a digest of its file, has given it: of whatever date.
    Raises ConfigError.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with locked(path.with_name(f".{path.name}.lock")):
            before = read_own(path)
            given = {_key(row) for row in before}
            rows = [row for offer in offers for row in _as_rows(offer, as_of, source)]
            new = [row for row in rows if _key(row) not in given]
            if new:
                _replace(path, [*before, *new])
    except OSError as error:
        raise ConfigError(
            f"{path}: prices can't be written there ({error.strerror}); set machine.prices=FILE"
        ) from None
    return len(new), len(rows) - len(new)


def _as_rows(offer: Offer, as_of: str, source: str) -> List[Dict[str, str]]:
    known = offer._asdict()
    prices = known.pop("usd_per_hour")
    both = {**known, "provider": "aws", "as_of": as_of, "source": source}
    return [{**both, "market": m, "usd_per_hour": f"{p:.10g}"} for m, p in prices.items() if p is not None]


def _key(row: Dict[str, str]) -> tuple:
    return tuple(row[name] for name in ("provider", "instance", "region", "market", "source"))


def _replace(path: Path, rows: List[Dict[str, str]]) -> None:
    with replacing(path) as new, open(new, "w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


# ---------------------------------------------------------------- published catalogues


def read(path: str) -> Tuple[List[Offer], str]:
    """The offers of a catalogue, and FILE@DIGEST of its content.  Raises ConfigError."""
    try:
        content = Path(path).read_bytes()
        text = content.decode()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is no text"
        raise ConfigError(f"update={path}: can't be read ({why})") from None
    offers = _of_json(text, path) if text.lstrip()[:1] in ("[", "{") else _of_csv(text, path)
    if not any(price is not None for offer in offers for price in offer.usd_per_hour.values()):
        raise ConfigError(f"update={path}: no price in it")
    return offers, f"{Path(path).name}@{hashlib.sha256(content).hexdigest()[:8]}"


def of(offers: List[Offer], instance: Optional[str], region: Optional[str]) -> List[Offer]:
    """Those of one instance or region, None: of any.  Raises ConfigError where there is none."""
    for key, value in (("instance", instance), ("region", region)):
        if value is not None:
            names = {getattr(offer, key) for offer in offers}
            if value not in names:
                raise ConfigError(f"machine.{key}={value}: not in that catalogue{nearest(value, names)[:200]}")
            offers = [offer for offer in offers if getattr(offer, key) == value]
    return offers


def _of_csv(text: str, path: str) -> List[Offer]:
    found: Dict[Tuple[str, str], Offer] = {}
    for line, row in _rows(text, f"update={path}", NEEDED):
        where = f"update={path}, line {line}"
        for key in ("InstanceType", "Region"):
            if not row[key]:
                raise ConfigError(f"{where}: {key} is empty")
        _check_region(row["Region"], where)
        key = row["InstanceType"], row["Region"]
        prices = {"on_demand": _offered(row["Price"], f"{where}: Price"),
                  "spot": _offered(row["SpotPrice"], f"{where}: SpotPrice")}  # fmt: skip
        if key in found:  # another zone
            prices = {market: _least(price, found[key].usd_per_hour[market]) for market, price in prices.items()}
        count = (row.get("AcceleratorCount") or "0").removesuffix(".0")
        found[key] = Offer(*key, count, row.get("AcceleratorName") or "", "", prices)
    return list(found.values())


def _of_json(text: str, path: str) -> List[Offer]:
    where, found = f"update={path}", []
    try:
        instances = json.loads(text)
    except json.JSONDecodeError as error:
        raise ConfigError(f"{where}: no JSON ({error.msg}, line {error.lineno})") from None
    for number, one in enumerate(instances if isinstance(instances, list) else [None], 1):
        if not isinstance(one, dict) or not one.get("instance_type") or not isinstance(one.get("pricing"), dict):
            raise ConfigError(
                f"{where}: entry {number} has no instance_type and pricing; expected [{{instance_type, pricing}}]"
            )
        gigabit = re.fullmatch(r"(\d+) Gigabit", str(one.get("network_performance") or ""))
        for region, platforms in one["pricing"].items():
            at = f"{where}: {one['instance_type']} {region}"
            _check_region(region, at)
            linux = platforms.get("linux") if isinstance(platforms, dict) else None
            if not isinstance(linux, dict):
                continue  # another system's
            spot = _offered(linux.get("spot_min"), f"{at}: spot_min")
            if spot is None:
                spot = _offered(linux.get("spot_avg"), f"{at}: spot_avg")
            prices = {"on_demand": _offered(linux.get("ondemand"), f"{at}: ondemand", zero=True), "spot": spot}
            gpus, gpu = str(one.get("GPU") or 0), str(one.get("GPU_model") or "")
            found.append(Offer(one["instance_type"], region, gpus, gpu, gigabit[1] if gigabit else "", prices))
    return found


def _rows(text: str, where, needed) -> Iterator[Tuple[int, Dict[str, str]]]:
    """(line, row) of a CSV that has these columns; every cell a text.  Raises ConfigError."""
    reader = csv.DictReader(io.StringIO(text, newline=""), restval="")
    try:
        missing = [name for name in needed if name not in (reader.fieldnames or [])]
        if missing:
            raise ConfigError(f"{where}: no column {', '.join(missing)}; expected {', '.join(needed)}")
        for row in reader:
            if None in row:
                raise ConfigError(f"{where}, line {reader.line_num}: more cells than columns")
            yield reader.line_num, {name: cell.strip() for name, cell in row.items()}
    except csv.Error as error:
        raise ConfigError(f"{where}, line {reader.line_num}: no CSV ({error})") from None


def _check_region(region: str, where: str) -> None:
    if not REGION.fullmatch(region):
        raise ConfigError(f"{where}: {region} is no region of AWS; only AWS's catalogue is read")


def _offered(cell, where: str, zero: bool = False) -> Optional[float]:
    """A price; None where there is no such offer (zero: 0 says that too, as instances.json has it)."""
    if cell is None or cell in NONE or (zero and str(cell) in ("0", "0.0")):
        return None
    return _price(cell, where)


def _price(cell, where: str) -> float:
    try:
        price = float(cell)
    except (TypeError, ValueError):
        price = math.nan
    if not (math.isfinite(price) and price > 0):
        raise ConfigError(f"{where}={cell}: expected USD per hour, above 0")
    return price


def _least(*prices: Optional[float]) -> Optional[float]:
    return min((price for price in prices if price is not None), default=None)
