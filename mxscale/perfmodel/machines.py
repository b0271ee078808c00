"""Machines that could be rented or are there already: devices, links, price.  Pure."""

from dataclasses import dataclass, replace
from typing import Callable, Dict, Optional, Tuple

from mxscale.config import schema
from mxscale.config.price_sources import PRICE_SOURCES
from mxscale.cost import prices
from mxscale.perfmodel import hardware
from mxscale.perfmodel.published import published_parse
from mxscale.perfmodel.scenarios import Machine
from mxscale.perfmodel.step_time import Link
from mxscale.util import csv_tables
from mxscale.util.errors import ConfigError, nearest

GBIT = 1e9 / 8  # bytes/s


@dataclass(frozen=True)
class Node:
    """A kind of machine, and where what is known of it comes from."""

    machine: Machine
    gpu: Optional[str]  # None: no GPU, or not known which
    links: str  # in words
    price: str


@dataclass(frozen=True)
class Given:
    """What stands before the tables' words."""

    gpus: Optional[int] = None  # by hand
    nic_gbps: Optional[float] = None
    rdma: Optional[bool] = None
    # measured, as planner.Machine has them
    intra: Optional[Link] = None
    kept: Optional[Link] = None
    nic: Optional[Link] = None
    served: Optional[Link] = None


def known() -> Dict[str, Dict[str, str]]:
    """Instance -> its row of tables/instances.csv."""
    return {row["instance"]: row for row in csv_tables.read("instances")}


def node(settings: schema.Machine, price_of: Callable[[schema.Machine], Dict], given: Given = Given()) -> Node:
    """The machine that `settings` name; price_of: as prices.freeze_price, of one node.  Raises ConfigError."""
    row = known().get(settings.instance or "", {})
    priced = given.gpus and settings.instance and price_of(replace(settings, nodes=1))["known"]  # a table of one's own
    if not row and PRICE_SOURCES[settings.provider].listed and not priced:
        where = f"machine.instance={settings.instance}" if settings.instance else "machine.instance is missing"
        raise ConfigError(f"{where}{nearest(settings.instance or '', known())}")
    devices = given.gpus or int(row.get("gpus") or 0)
    if not devices:
        what = settings.instance or f"machine={settings.provider}"
        raise ConfigError(f"plan.gpus is missing: how many devices a node of {what} has is not known")
    gpu = row.get("gpu") or None
    ring, kept, inside = inside_node(gpu, devices)
    if given.intra:
        ring, kept, inside = given.intra, given.intra, "inside a node as measured"
    if given.kept:
        kept, inside = given.kept, f"{inside}, that of comm=device as measured"
    rdma = row.get("rdma") == "yes" if given.rdma is None else given.rdma
    nic, served, between = between_nodes(given.nic_gbps or float(row.get("nic_gbps") or 0), rdma)
    if given.nic:
        nic, served, between = given.nic, given.nic, "between nodes as measured"
    if given.served:
        nic, served, between = nic or given.served, given.served, f"{between}, that of servers as measured"
    price = price_of(replace(settings, nodes=1))
    name = settings.instance or settings.provider
    machine = Machine(name, devices, ring, kept, nic, served, *(_money(price, currency) for currency in ("usd", "eur")))
    of_devices = f"{devices} x {gpu or 'device'}, {inside}, " if gpu or devices > 1 else ""
    said = f"{name}: {of_devices}{between}"
    return Node(machine, gpu, said, prices.describe(price))


def _money(price: Dict, currency: str) -> float:
    value = price.get(f"{currency}_per_hour")
    return float("nan") if value is None else value


FREE = Link(0.0, float("inf"))


def inside_node(gpu: Optional[str], devices: int) -> Tuple[Link, Link, str]:
    """The link between the devices of a node for a ring and for a kvstore, and in words."""
    k = hardware.constants()
    if devices == 1:
        return FREE, FREE, "one device"
    name = hardware.usual_link(gpu or "")
    taken = "" if gpu and hardware.device(gpu) else ", taken because the link is not known"
    if not name.startswith("pcie"):
        link = Link(k["alpha_nvlink"], k["nvlink_share"] * hardware.link_bytes_per_s(name))
        return link, link, f"{name} {link.bytes_per_s / 1e9:g} GB/s inside a node{taken}"
    generation = 2 if name == "pcie4" else 1
    ring = Link(k["alpha_pcie"], generation * k["ring_pcie"])
    shared = Link(k["alpha_pcie"], generation * k["bridge"], True)
    return ring, shared, f"{name} {ring.bytes_per_s / 1e9:g} GB/s inside a node{taken}"


def between_nodes(gbps: float, rdma: bool) -> Tuple[Optional[Link], Optional[Link], str]:
    """The link between nodes for Horovod and for parameter servers, which send by TCP; and in words."""
    if not gbps:
        return None, None, "link between nodes not known"
    tcp, nic = (
        _plain(published_parse.between_nodes(hardware.constants(), gbps * GBIT, fast)) for fast in (False, rdma)
    )
    how = "RDMA" if rdma else "TCP"
    return nic, tcp, f"{gbps:g} Gbit/s between nodes, {nic.bytes_per_s / GBIT:.3g} of them by {how}"


def _plain(link: Link) -> Link:
    return Link(float(link.alpha_s), float(link.bytes_per_s))
