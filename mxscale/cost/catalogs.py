"""Published price catalogs, read into rows of a price table.

    SkyPilot's catalog     aws/vms.csv of skypilot-org/skypilot-catalog: one row per availability zone
    instances.json         of ec2instances.info (instances.vantage.sh): one object per instance with all regions

Both list AWS prices of Linux instances in USD per hour. The spot price is that of the cheapest zone, as SkyPilot
itself takes it.
"""

import hashlib
import json
import re
from pathlib import Path
from typing import Dict, Iterator, List, Optional, Tuple

from mxscale.cost.price_table import Row, check_filled, csv_rows, parse_price
from mxscale.util.errors import ConfigError
from mxscale.util.regular_files import open_regular

SKYPILOT_COLUMNS = ("InstanceType", "Region", "Price", "SpotPrice")
REGION = re.compile(r"[a-z]{2}(-[a-z]+)+-\d(-[\w-]+)?")  # eu-west-1, us-gov-east-1, us-west-2-lax-1
NOT_OFFERED = ("", "N/A")

# (instance, region, GPUs, GPU, network in Gbit/s), market -> USD per hour or None if not offered
Offer = Tuple[Tuple[str, str, str, str, str], Dict[str, Optional[float]]]


def read(path: str, as_of: str, name: Optional[str] = None) -> List[Row]:
    """Return the prices of a catalog as rows of a price table; their source is NAME@DIGEST.

    Args:
        name: Name of the source; the file's name by default.

    Raises:
        ConfigError: The file is not readable, invalid, or has no price.
    """
    text = text_of(path)
    source = f"{name or Path(path).name}@{hashlib.sha256(text.encode()).hexdigest()[:8]}"
    offers = _instances_json(text, path) if text.lstrip()[:1] in ("[", "{") else _skypilot(text, path)
    rows = [
        {"provider": "aws", "instance": instance, "region": region, "gpus": gpus, "gpu": gpu, "network_gbps": network,
         "market": market, "usd_per_hour": f"{price:.10g}", "as_of": as_of, "source": source}
        for (instance, region, gpus, gpu, network), prices in offers
        for market, price in prices.items()
        if price is not None
    ]  # fmt: skip
    if not rows:
        raise ConfigError(f"update={path}: the file has no price")
    return rows


def text_of(path: str) -> str:
    """Return the content of the file `update` names. Raises ConfigError."""
    try:
        with open_regular(path) as file:
            return file.read().decode()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not a text file"
        raise ConfigError(f"update={path}: cannot be read ({reason})") from None


def _skypilot(text: str, path: str) -> List[Offer]:
    found: Dict[Tuple[str, str], Offer] = {}
    for line, row in csv_rows(text, f"update={path}", SKYPILOT_COLUMNS):
        where = f"update={path}, line {line}"
        check_filled(row, ("InstanceType", "Region"), where)
        _check_region(row["Region"], where)
        key = row["InstanceType"], row["Region"]
        prices = {"on_demand": _offered(row["Price"], f"{where}: Price"),
                  "spot": _offered(row["SpotPrice"], f"{where}: SpotPrice")}  # fmt: skip
        if key in found:  # another zone
            prices = {market: _least(price, found[key][1][market]) for market, price in prices.items()}
        count = (row.get("AcceleratorCount") or "0").removesuffix(".0")
        found[key] = (*key, count, row.get("AcceleratorName") or "", ""), prices
    return list(found.values())


def _instances_json(text: str, path: str) -> Iterator[Offer]:
    where = f"update={path}"
    try:
        instances = json.loads(text)
    except json.JSONDecodeError as error:
        raise ConfigError(f"{where}: invalid JSON ({error.msg}, line {error.lineno})") from None
    for number, one in enumerate(instances if isinstance(instances, list) else [None], 1):
        if not isinstance(one, dict) or not one.get("instance_type") or not isinstance(one.get("pricing"), dict):
            raise ConfigError(
                f"{where}: entry {number} has no instance_type and pricing; expected [{{instance_type, pricing}}]"
            )
        gigabit = re.fullmatch(r"(\d+) Gigabit", str(one.get("network_performance") or ""))
        gpus, gpu = str(one.get("GPU") or 0), str(one.get("GPU_model") or "")
        for region, platforms in one["pricing"].items():
            at = f"{where}: {one['instance_type']} {region}"
            _check_region(region, at)
            linux = platforms.get("linux") if isinstance(platforms, dict) else None
            if isinstance(linux, dict):  # else only other operating systems
                spot = _offered(linux.get("spot_min"), f"{at}: spot_min")
                if spot is None:
                    spot = _offered(linux.get("spot_avg"), f"{at}: spot_avg")
                on_demand = linux.get("ondemand")
                if str(on_demand) in ("0", "0.0"):  # how this file writes "not offered"
                    on_demand = None
                prices = {"on_demand": _offered(on_demand, f"{at}: ondemand"), "spot": spot}
                yield (one["instance_type"], region, gpus, gpu, gigabit[1] if gigabit else ""), prices


def _check_region(region: str, where: str) -> None:
    if not REGION.fullmatch(region):
        raise ConfigError(f"{where}: {region} is not an AWS region; only AWS catalogs are supported")


def _offered(cell, where: str) -> Optional[float]:
    return None if cell is None or cell in NOT_OFFERED else parse_price(cell, where)


def _least(*prices: Optional[float]) -> Optional[float]:
    return min((price for price in prices if price is not None), default=None)
