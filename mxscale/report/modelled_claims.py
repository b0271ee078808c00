"""Claims that no run here can measure, modelled by prices and by the planner: id -> function.  Pure.

Every one is made from its conditions alone: no published result of the claim itself goes in.
"""

import functools
from datetime import date
from typing import Callable, Dict, Optional, Tuple

from mxscale.config.datasets import DATASETS
from mxscale.config.schema import Machine
from mxscale.cost import prices
from mxscale.perfmodel import layers, machines, rates, scenarios
from mxscale.perfmodel.published import score
from mxscale.records.claims import Modelled

P2_DATE, P3_DATE = "2017-10-26", "2017-11-12"  # of the tables' rows of that autumn
REGIONS = ("us-east-1", "eu-west-1")  # the works do not say theirs
EXACT = "a price list: no error but that of the region and of the exchange rate's date"
CALTECH = 15_240  # training images of an epoch


# ---------------------------------------------------------------- by prices


def price(instance: str, region: str, as_of: str, setup_minutes: float = 0) -> dict:
    machine = Machine(provider="aws", instance=instance, region=region, as_of=as_of)
    return prices.freeze_price(machine, setup_minutes, date.today())


def finetune_cost() -> Modelled:
    """10 minutes of set-up and 10 of training on a p2.8xlarge: the dearer region's bill."""
    bills = [prices.cost(price("p2.8xlarge", region, P2_DATE, 10), [600])["eur"] for region in REGIONS]
    said = ", ".join(f"{bill:.2f} EUR in {region}" for bill, region in zip(bills, REGIONS))
    return Modelled(max(bills), f"20 minutes billed by the second: {said}", EXACT)


def p3_price() -> Modelled:
    small, large = (
        [price(instance, region, P3_DATE)["eur_per_hour"] for region in REGIONS]
        for instance in ("p3.2xlarge", "p3.16xlarge")
    )
    said = "; ".join(f"{a:.2f} to {b:.2f} EUR/h in {region}" for a, b, region in zip(small, large, REGIONS))
    return Modelled(min(large), said, EXACT)


# ---------------------------------------------------------------- by the planner


@functools.cache
def error() -> str:
    """How far the planner is off in published series, their own first rates given."""
    off = score.summary(score.predict(score.evidence(["published_scaling"])))
    return f"planner: median {off['median']:.0f} %, mean {off['mean']:.0f} % off over {off['rows']} published rows"


def aws(instance: str, as_of: str) -> Tuple[scenarios.Machine, str]:
    settings = Machine(provider="aws", instance=instance, region=REGIONS[0], as_of=as_of)
    node = machines.node(settings, lambda machine: prices.freeze_price(machine, 0, date.today()))
    return node.machine, node.gpu


def owned(gpu: str, count: int, gbps: float, rdma: bool = True) -> Tuple[scenarios.Machine, str]:
    """A node of a cluster that is nobody's to rent."""
    ring, kept, _ = machines.inside_node(gpu, count)
    nic, served, _ = machines.between_nodes(gbps, rdma)
    return scenarios.Machine(f"{count} x {gpu}", count, ring, kept, nic, served), gpu


@functools.cache
def imagenet() -> int:
    """Its training images."""
    return DATASETS["imagenet"].train_images


def plan(where, network: str, batch: int, precision: str, nodes: int = 1, images: Optional[int] = None,
         epochs: float = 90, servers: str = "1x", **exchange) -> Dict:  # fmt: skip
    """One plan, with the source of its device's rate as `source`; images of an epoch: None for ImageNet's."""
    machine, gpu = where
    known = layers.network(network)
    rate = rates.of_device(known, gpu, batch, precision)
    of_one = {(machine.name, batch, precision): rate.images_per_s}
    # Published servers were kvstores of one process a node, which adds its devices' gradients before it sends them
    task = scenarios.Task(known, images or imagenet(), epochs, of_one, server=machine, pushes=1)
    choices = {name: [value] for name, value in exchange.items()}
    grid = scenarios.Grid([machine], [nodes], servers=[servers], batch=[batch], precision=[precision], **choices)
    [row] = scenarios.rows(scenarios.evaluate(grid, task)[0], [0])
    return {**row, "source": rate.source}


def told(value: Optional[float], says: str, row: Dict) -> Modelled:
    return Modelled(value, f"{says}; one device: {row['source']}", error())


def on_64_v100(**exchange) -> Dict:
    """The published comparison: 8 p3.16xlarge, 256 images per GPU, forward in float16 and float32 gradients."""
    return plan(aws("p3.16xlarge", P3_DATE), "resnet50_v1", 256, "amp", 8, **exchange)


def hvd_throughput() -> Modelled:
    row = on_64_v100()
    return told(row["images_per_s"], f"{row['images_per_s']:,.0f} images/s, input not counted", row)


def hvd_time() -> Modelled:
    row = on_64_v100()
    return told(60 * row["hours"], f"{60 * row['hours']:.0f} min, input and validation not counted", row)


def one_server() -> Modelled:
    row = on_64_v100(comm="parameter_server", servers="1")
    return told(100 * row["efficiency"], f"{100 * row['efficiency']:.0f} % with one machine as the server", row)


def servers_per_worker() -> Modelled:
    """The fewest server machines for each machine of workers with which servers are as fast as Horovod."""
    ring = on_64_v100()
    found = [on_64_v100(comm="parameter_server", servers=f"{times}x") for times in (1, 2, 3, 4)]
    enough = [times for times, row in enumerate(found, 1) if row["images_per_s"] >= ring["images_per_s"]]
    said = ", ".join(f"{times}: {100 * row['efficiency']:.0f} %" for times, row in enumerate(found, 1))
    says = f"Horovod {100 * ring['efficiency']:.0f} %; by machines of servers for each of workers {said}"
    says += "" if enough else ": none of these is enough"
    return told(enough[0] if enough else float("inf"), says, ring)


def horovod_or_servers() -> Modelled:
    ring, served = on_64_v100(), on_64_v100(comm="parameter_server", servers="2x")
    says = f"90 epochs: Horovod {ring['usd']:.0f} USD, two machines of servers for each of workers {served['usd']:.0f}"
    return told(None, f"{says} USD: it {'holds' if ring['usd'] < served['usd'] else 'does not hold'}", ring)


def on_8_k80(network: str, batch: int, **exchange) -> Dict:
    """Fine-tuning in one process, whose kvstore sums on the devices."""
    where = aws("p2.8xlarge", P2_DATE)
    return plan(where, network, batch, "float32", images=CALTECH, epochs=6, comm="device", **exchange)


def finetune_efficiency(network: str, batch: int) -> Modelled:
    row = on_8_k80(network, batch)
    return told(100 * row["efficiency"], f"{100 * row['efficiency']:.0f} % with kvstore device", row)


def finetune_time() -> Modelled:
    row = on_8_k80("resnet152_v1", 16)
    return told(60 * row["hours"], f"{60 * row['hours']:.0f} min of training alone", row)


def p3_or_p2() -> Modelled:
    """Six epochs of the fine-tuning on 8 GPUs of each."""
    old = on_8_k80("resnet152_v1", 16)
    new = plan(aws("p3.16xlarge", P3_DATE), "resnet152_v1", 16, "float32", images=CALTECH, epochs=6, comm="device")
    says = f"six epochs: {new['usd']:.2f} USD on a p3.16xlarge, {old['usd']:.2f} USD on a p2.8xlarge"
    return told(None, f"{says}: it {'holds' if new['usd'] < old['usd'] else 'does not hold'}", new)


def imagenet_cost() -> Modelled:
    row = plan(aws("p3.16xlarge", P3_DATE), "resnet50_v1", 64, "float32", epochs=100, comm="device")
    says = f"ResNet-50 in float32 on a p3.16xlarge: {row['eur']:.0f} EUR, {row['hours']:.0f} hours"
    return told(None, f"{says}: it {'holds' if 100 <= row['eur'] < 1000 else 'does not hold'}", row)


def minutes(row: Dict) -> Modelled:
    says = (
        f"{60 * row['hours']:.0f} min, input and validation not counted, at {100 * row['efficiency']:.0f} % efficiency"
    )
    return told(60 * row["hours"], says, row)


def fdr_cluster() -> Modelled:
    """Two FDR InfiniBand links of 54.5 Gbit/s each; gradients travel as float16 (arXiv:1711.04325, sec. 3 and 4)."""
    return minutes(plan(owned("P100", 8, 109), "resnet50_v1b", 32, "float32", 128, compression="fp16"))


def double_buffering(pick: str) -> Modelled:
    """32 V100 by 25 Gbit/s Ethernet, 64 images each; beside the same without either."""
    where = owned("V100", 8, 25, rdma=False)
    both = plan(where, "resnet50_v1b", 64, "float32", 4, compression="fp16", double_buffering=True)
    if pick == "efficiency":
        return told(100 * both["efficiency"], f"{100 * both['efficiency']:.0f} %, in float32", both)
    neither = plan(where, "resnet50_v1b", 64, "float32", 4)
    ratio = both["images_per_s"] / neither["images_per_s"]
    return told(
        ratio, f"{ratio:.2f} x the rate with neither, which overlaps with backward, by 25 Gbit/s Ethernet", both
    )


def he() -> Modelled:
    """8 P100 in one machine, 32 images each."""
    return minutes(plan(owned("P100", 8, 0), "resnet50_v1b", 32, "float32"))


def goyal() -> Modelled:
    """32 machines of 8 P100 with 50 Gbit/s Ethernet, 32 images per GPU (arXiv:1706.02677, sec. 4)."""
    return minutes(plan(owned("P100", 8, 50, rdma=False), "resnet50_v1b", 32, "float32", 32))


MODELS: Dict[str, Callable[[], Optional[Modelled]]] = {
    "finetune-cost": finetune_cost,
    "finetune-eff-r152": lambda: finetune_efficiency("resnet152_v1", 16),
    "finetune-eff-r50": lambda: finetune_efficiency("resnet50_v1", 32),
    "finetune-time-6ep": finetune_time,
    "p3-cheaper": p3_or_p2,
    "p3-price": p3_price,
    "imagenet-cloud-cost": imagenet_cost,
    "hvd-64-throughput": hvd_throughput,
    "hvd-64-time": hvd_time,
    "ps-1-server": one_server,
    "ps-2to1": servers_per_worker,
    "hvd-cheapest": horovod_or_servers,
    "in15-time": fdr_cluster,
    "db-speedup": lambda: double_buffering("ratio"),
    "db-eff-32": lambda: double_buffering("efficiency"),
    "table-he": he,
    "table-goyal": goyal,
}
