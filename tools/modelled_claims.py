"""Models of claims that no run here can measure, by prices and by the planner.

    python tools/modelled_claims.py > mxscale/tables/modelled_claims.csv

A model is the plan that `mxscale plan` prints for the conditions of its claim; it never uses the published result.
"""

import functools
from datetime import date
from typing import Callable, Dict, Optional

from hydra import initialize_config_dir

from mxscale.cli import CONF, composition
from mxscale.config.datasets import DATASETS
from mxscale.config.schema import Machine
from mxscale.cost import prices
from mxscale.perfmodel import scenarios
from mxscale.planner import planning
from mxscale.records.claims import Modelled
from mxscale.util import csv_tables

P2_DATE, P3_DATE = "2017-10-26", "2017-11-12"  # dates of price rows
REGIONS = ("us-east-1", "eu-west-1")  # the works do not state theirs
EXACT = "a price list: exact except for the region"
CALTECH = 15_240  # training images


def price(instance: str, region: str, as_of: str, setup_minutes: float = 0) -> dict:
    machine = Machine(provider="aws", instance=instance, region=region, as_of=as_of)
    return prices.freeze_price(machine, setup_minutes, date.today())


def finetune_cost() -> Modelled:
    """Return the bill of 10 minutes of set-up and 10 of training on a p2.8xlarge, in the more expensive region."""
    bills = [prices.cost(price("p2.8xlarge", region, P2_DATE, 10), 600)["eur"] for region in REGIONS]
    figures = ", ".join(f"{bill:.2f} EUR in {region}" for bill, region in zip(bills, REGIONS))
    return Modelled(max(bills), f"20 minutes billed per second: {figures}", EXACT)


def p3_price() -> Modelled:
    small, large = (
        [price(instance, region, P3_DATE).eur_per_hour for region in REGIONS]
        for instance in ("p3.2xlarge", "p3.16xlarge")
    )
    figures = "; ".join(f"{a:.2f} to {b:.2f} EUR/h in {region}" for a, b, region in zip(small, large, REGIONS))
    return Modelled(min(large), figures, EXACT)


IMAGENET = DATASETS["imagenet"].train_images


@functools.cache
def plan(*settings: str) -> Dict:
    """Return the one plan of `mxscale plan SETTINGS`, with `inputs`: what it rests on."""
    with initialize_config_dir(str(CONF.resolve()), version_base="1.3"):
        composed = composition.of_run(composition.compose("plan", [f"plan.images={IMAGENET}", *settings]))
    values, verb = composition.separated(composed, "plan")
    result = planning.solve(planning.config_of(values), verb.plan)
    [row] = scenarios.rows(result.plans, range(len(result.plans["hours"])))
    return {**row, "inputs": result.inputs}


def modelled(value: Optional[float], text: str, row: Dict, ratio: bool = False) -> Modelled:
    """Return the model of a claim by a plan; ratio: the figure does not depend on the rate of one device."""
    errors = row["inputs"]["error"].split("; ")
    known = [error for error in errors if not ratio or error.startswith("scaling")]
    return Modelled(value, f"{text}; one device: {row['inputs']['device']}", "; ".join(known))


def minutes(row: Dict, form: str) -> Modelled:
    time = 60 * row["hours"]
    return modelled(time, form.format(time), row)


def efficiency(row: Dict, form: str) -> Modelled:
    percent = 100 * row["efficiency"]
    return modelled(percent, form.format(percent), row, ratio=True)


def verdict(**parts: bool) -> str:
    """Return whether each part of a claim's sentence holds."""
    failing = [name for name, holds in parts.items() if not holds]
    if not failing:
        return "the claim holds"
    if len(failing) == len(parts):
        return "the claim does not hold"
    return f"the claim holds except for the {' and the '.join(failing)}"


def on_64_v100(*exchange: str) -> Dict:
    """Return a plan of the published comparison: 8 p3.16xlarge, 256 images per GPU, mixed precision."""
    return plan("experiment=aws_horovod", "plan.nodes=8", *exchange)


SERVERS, SERVER = "plan.comm=dist_device_sync", "plan.server_instance=p3.16xlarge"


def hvd_throughput() -> Modelled:
    row = on_64_v100()
    return modelled(row["images_per_s"], f"{row['images_per_s']:,.0f} images/s, without input", row)


def one_server() -> Modelled:
    row = on_64_v100(SERVERS, "plan.servers=1", SERVER)
    return efficiency(row, "{:.0f} % with one server machine")


def servers_per_worker() -> Modelled:
    """Return the fewest server machines per worker machine with which servers are as fast as Horovod."""
    ring = on_64_v100()
    rows = [on_64_v100(SERVERS, f"plan.servers={times}x", SERVER) for times in (1, 2, 3, 4)]
    enough = [times for times, row in enumerate(rows, 1) if row["images_per_s"] >= ring["images_per_s"]]
    figures = ", ".join(f"{times}: {100 * row['efficiency']:.0f} %" for times, row in enumerate(rows, 1))
    text = f"Horovod {100 * ring['efficiency']:.0f} %; by server machines per worker machine {figures}"
    text += "" if enough else ": none is enough"
    return modelled(enough[0] if enough else float("inf"), text, ring, ratio=True)


def horovod_or_servers() -> Modelled:
    ring, served = on_64_v100(), on_64_v100(SERVERS, "plan.servers=2x", SERVER)
    both = {"Horovod": ring, "two server machines per worker machine": served}
    figures = "; ".join(
        f"{name} {row['images_per_s']:,.0f} images/s, {row['usd']:.0f} USD" for name, row in both.items()
    )
    holds = verdict(
        throughput=ring["images_per_s"] > served["images_per_s"],
        cost=ring["usd"] < served["usd"],
    )
    return modelled(None, f"90 epochs: {figures}: {holds}", ring)


def on_aws(instance: str, as_of: str, network: str, *more: str) -> Dict:
    """Return a plan for one AWS instance in one process, whose kvstore sums on the devices, at the prices of a date."""
    machine = (f"machine.instance={instance}", f"machine.region={REGIONS[0]}", f"machine.as_of={as_of}")
    return plan(*machine, f"model={network}", "plan.nodes=1", "plan.comm=device", *more)


def finetuning(network: str, batch: int, instance: str = "p2.8xlarge", as_of: str = P2_DATE) -> Dict:
    """Return a plan of six epochs of the fine-tuning."""
    job = ("data=caltech256", f"plan.images={CALTECH}", "plan.epochs=6", f"plan.batch={batch}")
    return on_aws(instance, as_of, network, *job)


def p3_or_p2() -> Modelled:
    """Return how six epochs of the fine-tuning on 8 GPUs of each compare."""
    old = finetuning("resnet152_v1", 16)
    new = finetuning("resnet152_v1", 16, "p3.16xlarge", P3_DATE)
    text = f"six epochs: {new['usd']:.2f} USD on a p3.16xlarge, {old['usd']:.2f} USD on a p2.8xlarge"
    return modelled(None, f"{text}: {verdict(cost=new['usd'] < old['usd'])}", new)


def imagenet_cost() -> Modelled:
    row = on_aws("p3.16xlarge", P3_DATE, "resnet50_v1", "plan.batch=64", "plan.epochs=100")
    text = f"ResNet-50 in float32 on a p3.16xlarge: {row['eur']:.0f} EUR, {row['hours']:.0f} hours"
    holds = verdict(cost=100 <= row["eur"] < 1000, time=row["hours"] >= 24)  # "hundreds", "entire days"
    return modelled(None, f"{text}: {holds}", row)


def owned(gpu: str, nodes: int, batch: int, *more: str) -> Dict:
    """Return a plan of 90 epochs on machines of eight GPUs without a price."""
    machine = ("machine=local", f"plan.gpu={gpu}", "plan.gpus=8", f"plan.nodes={nodes}")
    return plan(*machine, "model=resnet50_v1b", f"plan.batch={batch}", "plan.epochs=90", *more)


def on_p100(nodes: int, *more: str) -> Modelled:
    """Return the time of 90 epochs on machines of 8 P100, 32 images per GPU."""
    row = owned("P100", nodes, 32, *more)
    form = "{:.0f} min, without input and validation, at " + f"{100 * row['efficiency']:.0f} % efficiency"
    return minutes(row, form)


def on_32_v100(*more: str) -> Dict:
    """Return a plan for 4 machines of 8 V100 on 25 Gbit/s Ethernet, 64 images per GPU."""
    return owned("V100", 4, 64, "plan.nic_gbps=25", "plan.rdma=false", *more)


DOUBLE_BUFFERING = ("plan.compression=fp16", "plan.double_buffering=true")


def double_buffering_speedup() -> Modelled:
    both, neither = on_32_v100(*DOUBLE_BUFFERING), on_32_v100()
    ratio = both["images_per_s"] / neither["images_per_s"]
    text = f"{ratio:.2f} x the rate without both, which overlaps with backward, on 25 Gbit/s Ethernet"
    return modelled(ratio, text, both, ratio=True)


MODELS: Dict[str, Callable[[], Modelled]] = {
    "finetune-cost": finetune_cost,
    "finetune-eff-r152": lambda: efficiency(finetuning("resnet152_v1", 16), "{:.0f} % with kvstore device"),
    "finetune-eff-r50": lambda: efficiency(finetuning("resnet50_v1", 32), "{:.0f} % with kvstore device"),
    "finetune-time-6ep": lambda: minutes(finetuning("resnet152_v1", 16), "{:.0f} min, training only"),
    "p3-cheaper": p3_or_p2,
    "p3-price": p3_price,
    "imagenet-cloud-cost": imagenet_cost,
    "hvd-64-throughput": hvd_throughput,
    "hvd-64-time": lambda: minutes(on_64_v100(), "{:.0f} min, without input and validation"),
    "ps-1-server": one_server,
    "ps-2to1": servers_per_worker,
    "hvd-cheapest": horovod_or_servers,
    # Two FDR InfiniBand links of 54.5 Gbit/s per machine, gradients in float16 (arXiv:1711.04325, sec. 3, 4)
    "in15-time": lambda: on_p100(128, "plan.nic_gbps=109", "plan.rdma=true", "plan.compression=fp16"),
    "db-speedup": double_buffering_speedup,
    "db-eff-32": lambda: efficiency(on_32_v100(*DOUBLE_BUFFERING), "{:.0f} %, in float32"),
    "table-he": lambda: on_p100(1),
    # 50 Gbit/s Ethernet (arXiv:1706.02677, sec. 4)
    "table-goyal": lambda: on_p100(32, "plan.nic_gbps=50", "plan.rdma=false"),
}


def table() -> str:
    """Return modelled_claims.csv: the value (empty if it is not a number), its text, and the error of the model."""
    found = {name: model() for name, model in MODELS.items()}
    rows = [(name, "" if one.value is None else f"{one.value:.6g}", one.text, one.error) for name, one in found.items()]
    return csv_tables.text([("id", "value", "text", "error"), *rows])


if __name__ == "__main__":
    print(table(), end="")
