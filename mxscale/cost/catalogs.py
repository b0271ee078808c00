"""SkyPilot's catalog of AWS prices, read into rows of a price table: aws/vms.csv of skypilot-org/skypilot-catalog.

It lists prices of Linux instances in USD per hour, one row per availability zone. The spot price is that of the
cheapest zone, as SkyPilot itself takes it.
"""

import hashlib
import re
from pathlib import Path
from typing import Dict, List, Optional, Tuple

from mxscale.cost.price_table import Row, check_filled, csv_rows, parse_price
from mxscale.util.errors import ConfigError
from mxscale.util.regular_files import open_regular

COLUMNS = ("InstanceType", "Region", "Price", "SpotPrice")
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
    text = _text_of(path)
    source = f"{name or Path(path).name}@{hashlib.sha256(text.encode()).hexdigest()[:8]}"
    header = re.findall(r"\w+", text.partition("\n")[0])
    if missing := [column for column in COLUMNS if column not in header]:
        raise ConfigError(
            f"{where}: no column {', '.join(missing)}: expected SkyPilot's aws/vms.csv; other catalogs and histories "
            "of spot prices are not read: write their prices into machine.prices, with the columns of docs/cost.md"
        )
    found: Dict[Tuple[str, str, str], Row] = {}
    for line, row in csv_rows(text, where, COLUMNS):
        at = f"{where}, line {line}"
        check_filled(row, ("InstanceType", "Region"), at)
        instance, region = row["InstanceType"], row["Region"]
        if not REGION.fullmatch(region):
            raise ConfigError(f"{at}: {region} is not an AWS region; only AWS catalogs are supported")
        count = (row.get("AcceleratorCount") or "0").removesuffix(".0")
        common = {"provider": "aws", "instance": instance, "region": region, "gpus": count,
                  "gpu": row.get("AcceleratorName") or "", "as_of": as_of, "source": source}  # fmt: skip
        for market, column in (("on_demand", "Price"), ("spot", "SpotPrice")):
            if row[column] not in NOT_OFFERED:
                usd = parse_price(row[column], f"{at}: {column}")
                other = found.get((instance, region, market))  # of another zone
                usd = min(usd, float(other["usd_per_hour"])) if other else usd
                found[instance, region, market] = {**common, "market": market, "usd_per_hour": f"{usd:.10g}"}
    if not found:
        raise ConfigError(f"{where}: the file has no price")
    return list(found.values())


def _text_of(path: str) -> str:
    try:
        with open_regular(path) as file:
            return file.read().decode()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not a text file"
        raise ConfigError(f"update={path}: cannot be read ({reason})") from None
