"""The registry of price sources: one entry for each value of machine.provider.

A price given by hand (machine.usd_per_hour, machine.eur_per_hour) takes precedence over every source.
"""

from dataclasses import dataclass
from typing import Dict, Optional

# AWS bills on-demand and spot Linux instances per second, for 60 s at least, since 2017-10-02:
# https://aws.amazon.com/about-aws/whats-new/2017/10/announcing-amazon-ec2-per-second-billing/
MINIMUM_S = 60


@dataclass(frozen=True)
class PriceSource:
    """A source of the price of one node-hour."""

    name: str  # value of machine.provider
    help: str
    # "module:function" of (Machine, date, path of the user's price table or None) that returns {"currency", "per_hour",
    # "as_of", "source"}; None: only a price by hand
    implementation: Optional[str] = None
    required: bool = True  # refuse a machine without a price; otherwise its cost is unknown
    listed: bool = False  # the price is a row of a price table, chosen by instance, region and market
    market: Optional[str] = None  # recorded in place of machine.market; None: machine.market
    minimum_s: int = MINIMUM_S  # shortest billed time of a start, in seconds


PRICE_SOURCES: Dict[str, PriceSource] = {
    entry.name: entry
    for entry in (
        PriceSource("local", "this machine; its cost is unknown", required=False),
        PriceSource("aws", "an AWS instance in a price table", "mxscale.cost.prices:listed_price", listed=True),
        PriceSource("custom", "any machine, at a price by hand"),
        PriceSource(
            "owned", "purchase and electricity", "mxscale.cost.prices:owned_price", market="owned", minimum_s=0
        ),
    )
}
