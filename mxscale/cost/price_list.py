"""The verb `prices`: list known prices, calculate a bill, import newer prices."""

import datetime
from collections import Counter
from dataclasses import replace
from operator import itemgetter
from typing import Dict, List, Optional, Sequence, Tuple

from mxscale.config.schema import Config
from mxscale.cost import price_table, prices
from mxscale.cost.price_table import Row, parse_date
from mxscale.util.errors import ConfigError
from mxscale.util.text_table import columns


def update(config: Config, path: str, as_of: Optional[str], source: Optional[str], today: datetime.date) -> str:
    """Add the prices of a catalog, or of SkyPilot's cache, to the user's; return a line of each. Raises ConfigError."""
    date, rows, given = price_table.past_date("as_of", as_of, today), [], config.machine.provider
    clouds = [given] if given in price_table.CLOUDS else list(price_table.CLOUDS)
    if path == "skypilot":
        for file in price_table.cached_catalogs(clouds):
            written = min(today, datetime.date.fromtimestamp(file.stat().st_mtime)) if as_of is None else date
            name = source or "/".join(file.parts[-4:])  # catalogs/v8/azure/vms.csv
            rows += price_table.read_catalog(str(file), written.isoformat(), name, [file.parent.name])
    else:
        rows = price_table.read_catalog(path, date.isoformat(), source, clouds)
    rows, user_table = price_table.select(rows, config.machine), price_table.path_of(config, exists=False)
    catalog_of = itemgetter("provider", "as_of", "source")
    added = Counter(map(catalog_of, price_table.append(user_table, rows)))
    lines = []
    for catalog, count in Counter(map(catalog_of, rows)).items():
        (cloud, day, name), new = catalog, added[catalog]
        lines.append(f"{user_table}: added {new} {cloud} prices of {day} from {name}, {count - new} already known")
    return "\n".join(lines)


def listing(config: Config, today: datetime.date) -> str:
    """Return every known price of machine.instance, or the number of prices of each instance. Raises ConfigError."""
    rows = price_table.select(price_table.read_all(price_table.path_of(config)), config.machine)
    if config.machine.instance is None:
        return "\n".join([*_overview(rows, today), "prices of one instance: mxscale prices machine.instance=NAME"])
    table = [("region", "market", "USD/h", "as of", "source")]
    # Rows without a date have no place in the order of dates and come first
    dated = sorted(rows, key=lambda row: (row["region"], row["market"], str(parse_date(row["as_of"]) or "")))
    for row in dated:
        as_of = price_table.aged(row["as_of"], today)
        table.append((row["region"], row["market"], row["usd_per_hour"], as_of, row["source"]))
    return "\n".join([config.machine.instance, *columns(table, indent="  ")])


def _overview(rows: List[Row], today: datetime.date) -> List[str]:
    by_instance: Dict[Tuple[str, str], List[Row]] = {}
    for row in rows:
        by_instance.setdefault((row["provider"], row["instance"]), []).append(row)
    table = [("cloud", "instance", "GPUs", "regions", "prices", "newest")]
    for names, group in sorted(by_instance.items()):
        last = group[-1]
        gpus = f"{last['gpus']} {last['gpu']}".strip() if last["gpus"] not in ("", "0") else "none"
        newest = max((str(date) for row in group if (date := parse_date(row["as_of"]))), default="no date")
        regions = str(len({row["region"] for row in group}))
        table.append((*names, gpus, regions, str(len(group)), price_table.aged(newest, today)))
    return columns(table, indent="  ")


def bill(config: Config, minutes: Sequence[float], today: datetime.date) -> str:
    """Return the bill in every region with a price, per second and per hour; minutes: of set-up and of the run.

    Raises ConfigError if the instance is missing or has no price in machine.market.
    """
    machine, user_table = config.machine, price_table.path_of(config)
    if machine.instance is None:
        raise ConfigError("machine.instance is missing: minutes= bills one instance")
    rows = price_table.select(price_table.read_all(user_table), machine)
    table = [("region", "billing", "USD", "EUR", "USD/h", "as of", "USD/EUR")]
    for region in sorted({row["region"] for row in rows}):
        for billing in dict.fromkeys((machine.billing, "per_hour")):
            settings = replace(machine, provider=rows[0]["provider"], region=region, billing=billing)
            try:
                price = prices.freeze_price(settings, minutes[0], today, user_table)
            except ConfigError as error:
                unpriced = error  # no price of this region and market on that date
                continue
            money = prices.cost(price, 60 * minutes[1])
            cells = [f"{money[c]:.4f}" if c in money else "unknown" for c in ("usd", "eur")]
            rate = f"{price.usd_per_eur:g} of {price.fx_date}" if price.usd_per_eur else "unknown"
            table.append((region, billing, *cells, f"{price.usd_per_hour:g}", price.as_of, rate))
    if len(table) == 1:
        raise unpriced
    nodes = f"{machine.nodes} x " if machine.nodes > 1 else ""
    head = f"{nodes}{machine.instance} {machine.market}, {minutes[0]:g} min set-up and {minutes[1]:g} min run"
    return "\n".join([head, *columns(table, indent="  ")])
