"""SkyPilot's catalog of AWS prices, read into rows of a price table: aws/vms.csv of skypilot-org/skypilot-catalog.

It lists prices of Linux instances in USD per hour, one row per availability zone. The spot price is that of the
cheapest zone, as SkyPilot itself takes it.
"""

import hashlib
import re
from pathlib import Path
from typing import Dict, List, Optional, Tuple

from mxscale.cost.price_table import Row, check_filled, parse_price
from mxscale.util import csv_tables
from mxscale.util.errors import ConfigError
from mxscale.util.regular_files import open_regular

COLUMNS = ("InstanceType", "Region", "Price", "SpotPrice")
KIND = (
    "SkyPilot's aws/vms.csv; other catalogs and histories of spot prices are not read: write their prices into "
    "machine.prices, with the columns of docs/cost.md"
)
REGION = re.compile(r"[a-z]{2}(-[a-z]+)+-\d(-[\w-]+)?")  # eu-west-1, us-gov-east-1, us-west-2-lax-1
NOT_OFFERED = ("", "N/A")


def read(path: str, as_of: str, name: Optional[str] = None) -> List[Row]:
    """Return the prices of a catalog as rows of a price table; their source is NAME@DIGEST.

    Args:
        name: Name of the source; the file's name by default.

    Raises:
        ConfigError: The file is not readable, invalid, or has no price.
    """
    where = f"update={path}"
    lowest: Dict[Tuple[str, str, str], Row] = {}  # by instance, region and market
    for line, row in csv_tables.of_user(path, where, COLUMNS, KIND):
        at = f"{where}, line {line}"
        check_filled(row, ("InstanceType", "Region"), at)
        instance, region = row["InstanceType"], row["Region"]
        if not REGION.fullmatch(region):
            raise ConfigError(f"{at}: {region} is not an AWS region; only AWS catalogs are supported")
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
    with open_regular(path) as file:
        source = f"{name or Path(path).name}@{hashlib.sha256(file.read()).hexdigest()[:8]}"
    return [{**row, "source": source} for row in lowest.values()]
