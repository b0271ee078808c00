"""Machines to plan for: devices, links, price."""

import math
from dataclasses import dataclass, replace
from typing import Callable, Mapping, Optional, Tuple

from mxscale.config import schema
from mxscale.config.verb_settings import Plan
from mxscale.perfmodel import hardware, step_time
from mxscale.perfmodel.step_time import FREE, Link
from mxscale.rundir.price import Price
from mxscale.util.errors import ConfigError, nearest

NO_OVERRIDES = Plan()
GBIT = 1e9 / 8  # bytes/s


@dataclass(frozen=True)
class Machine:
    """A node of one kind: its devices, links and price. An unknown price is NaN."""

    name: str
    gpus: int  # devices of a node
    intra: Link  # between them, for a ring
    intra_kvstore: Link  # between them, for a kvstore's sum
    nic: Optional[Link]  # between nodes; None: unknown
    nic_servers: Optional[Link]  # between nodes, for parameter servers, which do not use RDMA
    usd_per_hour: float = float("nan")
    eur_per_hour: float = float("nan")
    gpu: Optional[str] = None  # None: no GPU, or an unknown one
    rdma: bool = False  # between nodes
    watts: float = float("nan")  # power draw in use
    links: str = ""  # described, as is power
    power: str = ""
    price: Optional[Price] = None


def node(
    settings: schema.Machine,
    price_of: Callable[[schema.Machine], Price],
    links: Mapping[str, Link],
    overrides: Plan = NO_OVERRIDES,
) -> Machine:
    """Return the machine that the settings name.

    Args:
        price_of: Returns the price of one node, as prices.freeze_price does.
        links: Measured ones, inside a node (`intra`) and between nodes (`nic`).
        overrides: Its gpu, gpus, nic_gbps and rdma override the tables.

    Raises ConfigError if the instance, the number of its devices or its price is unknown.
    """
    price = price_of(replace(settings, nodes=1))
    row = hardware.instances().get(settings.instance or "", {})
    of_cpus = row.get("gpus") == "0"
    devices = overrides.gpus or (1 if of_cpus else int(row.get("gpus") or 0))
    if of_cpus and devices > 1:
        raise ConfigError(f"plan.gpus={devices}: {settings.instance} has no GPUs, and its processors are one device")
    if not devices:
        what = settings.instance or f"machine={settings.provider}"
        raise ConfigError(f"plan.gpus is missing: the number of devices of a {what} node is unknown")
    gpu = overrides.gpu or (f"{hardware.CPU}{settings.instance}" if of_cpus else row.get("gpu")) or None
    if overrides.gpu and not hardware.device(gpu):
        raise ConfigError(f"plan.gpu={gpu}{nearest(gpu, hardware.devices(), 'plan.gpu=', listed=hardware.devices())}")
    ring, kvstore, inside = inside_node(gpu, devices, None if overrides.gpu else row.get("link"))
    if measured := links.get("intra"):
        ring, kvstore, inside = measured, measured, "measured inside a node"
    rdma = row.get("rdma") == "yes" if overrides.rdma is None else overrides.rdma
    nic, servers, between = between_nodes(overrides.nic_gbps or float(row.get("nic_gbps") or 0), rdma)
    if measured := links.get("nic"):
        nic, servers, between = measured, measured, "measured between nodes"
    name = settings.instance or settings.provider
    money = [math.nan if value is None else value for value in map(price.per_hour, ("usd", "eur"))]
    of_devices = f"{devices} x {gpu or 'device'}, {inside}, " if gpu or devices > 1 else ""
    wires = f"{name}: {of_devices}{between}"
    watts, power = _power(settings.watts, devices, gpu)
    of_power = f"{name}: {power}"
    return Machine(name, devices, ring, kvstore, nic, servers, *money, gpu, rdma, watts, wires, of_power, price)


def _power(watts: Optional[float], devices: int, gpu: Optional[str]) -> Tuple[float, str]:
    """Return the power draw of a node in W: as given, else the TDP of its GPUs; NaN: unknown. And a description."""
    if watts:
        return watts, f"{watts:g} W (machine.watts)"
    tdp = (hardware.device(gpu or "") or {}).get("tdp", math.nan)
    known = f"{devices} x {tdp:g} W, the TDP of its GPUs, without the rest of the machine"
    return devices * tdp, "unknown; give machine.watts" if math.isnan(tdp) else known


def inside_node(gpu: Optional[str], devices: int, link: Optional[str] = None) -> Tuple[Link, Link, str]:
    """Return the links (default: the usual ones) between a node's devices for ring and kvstore, and a description."""
    k = hardware.constants()
    if devices == 1:
        return FREE, FREE, "one device"
    name = link or hardware.usual_link(gpu or "")
    taken = "" if gpu and hardware.device(gpu) else " (default, the link is unknown)"
    ring, summed = (
        Link(*map(float, step_time.inside_node(k, *hardware.link_in_node(name), kvstore))) for kvstore in (False, True)
    )
    return ring, summed, f"{name} {ring.bytes_per_s / 1e9:g} GB/s inside a node{taken}"


def between_nodes(gbps: float, rdma: bool) -> Tuple[Optional[Link], Optional[Link], str]:
    """Return the links between nodes for Horovod and for parameter servers, which use TCP, and a description."""
    if not gbps:
        return None, None, "link between nodes unknown"
    k = hardware.constants()
    tcp, nic = (Link(*map(float, step_time.between_nodes(k, gbps * GBIT, fast))) for fast in (False, rdma))
    achieved = f"{nic.bytes_per_s / GBIT:.{3 if nic.bytes_per_s < 1000 * GBIT else 4}g}"
    how = "RDMA" if rdma else "TCP"
    return nic, tcp, f"{gbps:g} Gbit/s between nodes, {achieved} Gbit/s achieved by {how}"
