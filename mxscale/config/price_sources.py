"""The registry of price sources: one entry for each value of machine.provider.

A price given by hand (machine.usd_per_hour, machine.eur_per_hour) takes precedence over every source.
"""

from dataclasses import dataclass
from typing import Dict, Optional

# AWS bills on-demand and spot Linux instances per second, for 60 s at least, since 2017-10-02:
# https://aws.amazon.com/about-aws/whats-new/2017/10/announcing-amazon-ec2-per-second-billing/
# So does GCP: https://www.itpro.com/cloud/29563/google-cloud-platform-brings-per-second-billing-to-compute
MINIMUM_S = 60
# Azure bills per second. Its pages state no minimum; a user reports its notice of 300 s from 2025-06-01 on:
# https://learn.microsoft.com/en-us/answers/questions/2259765/clarification-on-azure-vm-billing-for-short-runtim
AZURE_MINIMUM_S = 300


@dataclass(frozen=True)
class PriceSource:
    """A source of the price of one node-hour."""

    name: str  # value of machine.provider
    help: str
    # "module:function" of (Machine, date, path of the user's price table or None) that returns {"currency", "per_hour",
    # "as_of", "source"}; None: only a price by hand
    implementation: Optional[str] = None
    required: bool = True  # refuse a machine without a price; otherwise its cost is unknown
    listed: Optional[str] = None  # the price is a row of a price table, whose "INSTANCE REGION" this pattern matches
    region: Optional[str] = None  # of a plan without machine.region
    mounts: bool = True  # SkyPilot can mount storage there
    gpus_apart: bool = False  # its catalog has the prices of GPUs apart from those of their machines
    market: Optional[str] = None  # recorded in place of machine.market; None: machine.market
    minimum_s: int = MINIMUM_S  # shortest billed time of a start, in seconds


def _cloud(name: str, listed: str, region: str, **fields) -> PriceSource:
    source = "mxscale.cost.prices:listed_price"
    return PriceSource(name, "an instance in a price table", source, listed=listed, region=region, **fields)


PRICE_SOURCES: Dict[str, PriceSource] = {
    entry.name: entry
    for entry in (
        PriceSource("local", "this machine; its cost is unknown", required=False),
        _cloud("aws", r"[a-z][\w-]*\.[\w-]+ [a-z]{2}(-[a-z]+)+-\d(-[\w-]+)?", "us-east-1"),
        _cloud("azure", r"(Standard|Basic)_[\w-]+ [a-z]\w+", "eastus", minimum_s=AZURE_MINIMUM_S),
        _cloud("gcp", r"(TPU-VM|[a-z]\w*(-\w+)+)? [a-z]+-[a-z]+\d+", "us-central1", gpus_apart=True),
        # Lambda bills each started minute (conf/machine/lambda.yaml): https://docs.lambda.ai/public-cloud/billing
        _cloud("lambda", r"[cg]pu_\w+ [a-z]+(-[a-z]+)+-\d", "us-east-1"),
        # RunPod bills per second, without a stated minimum: https://docs.runpod.io/accounts-billing/billing
        _cloud("runpod", r"(\d+x_|cpu\d)[\w.-]+ [A-Z]{2}", "US", minimum_s=0, mounts=False),
        PriceSource("custom", "any machine, at a price by hand"),
        PriceSource(
            "owned", "purchase and electricity", "mxscale.cost.prices:owned_price", market="owned", minimum_s=0
        ),
    )
}
