"""Devices, links, networks and instances of the tables hardware.csv, models.csv and instances.csv."""

import functools
import re
from dataclasses import dataclass
from typing import Dict, List, Optional, Tuple

from mxscale.util import csv_tables


@dataclass(frozen=True)
class Network:
    """A published neural network."""

    name: str
    parameters: float
    early: float  # share of the gradients that are ready after the first quarter of backward
    tensors: float
    largest: float  # share of the largest tensor


LONGEST = 200  # characters of a name
CPU = "CPU of "  # begins the name of the device of an instance without GPUs
QUANTITIES = ("parameters", "early", "tensors", "largest")


def _cut(name: str) -> str:
    """Return a name in lower case as the tables' patterns are searched in it, which may take quadratic time."""
    return name[:LONGEST].lower()


def is_cpu(name: Optional[str]) -> bool:
    """Return whether a device is the processors of an instance without GPUs."""
    return (name or "").startswith(CPU)


@functools.cache
def networks() -> List[tuple]:
    """Return (pattern, Network) in matching order."""
    return [
        (re.compile(row["pattern"]), Network(row["name"], **{key: float(row[key]) for key in QUANTITIES}))
        for row in csv_tables.read("models")
    ]


@functools.cache
def network(name: str) -> Optional[Network]:
    """Return the network of a published name (ResNet50_v1.5, vgg-16, ...); None if unknown."""
    text = re.sub(r"[\s_]+", "-", _cut(name).strip())
    text = re.sub(r"(resnex?t)-?v\d(\.\d)?[a-d]?-(?=\d)", r"\1-", text)  # resnet_v1_152 is resnet152_v1
    return next((known for pattern, known in networks() if pattern.search(text)), None)


@functools.cache
def devices() -> Dict[str, Dict[str, object]]:
    """Return {name: {"pattern", quantity: value}}."""
    known: Dict[str, Dict[str, object]] = {}
    for row in _rows("device"):
        quantities = known.setdefault(row["name"], {"pattern": re.compile(row["pattern"])})
        quantities[row["quantity"]] = row["value"] if row["quantity"] == "link" else float(row["value"])
    return known


@functools.cache
def device(name: str) -> Optional[Dict[str, object]]:
    """Return the device of a published name (V100-SXM2-16GB, 8x K80, ...); None if unknown."""
    return next((known for known in devices().values() if known["pattern"].search(_cut(name))), None)


def links() -> List[str]:
    """Return the names of all links in a node."""
    return ["pcie3", "pcie4", *(row["name"] for row in _rows("link"))]


@functools.cache
def link_in_node(name: str) -> Tuple[float, float]:
    """Return (nominal bytes/s, 0 for PCIe; rate of the PCIe generation, that of PCIe 3 being 1) of a link's name."""
    if name.startswith("pcie"):
        return 0.0, 2.0 if name == "pcie4" else 1.0
    return next(float(row["value"]) for row in _rows("link") if row["name"] == name), 1.0


def usual_link(gpu: str) -> str:
    """Return the usual link between such devices in a node (pcie3, nvlink2, ...)."""
    known = device(gpu)
    return str(known["link"]) if known else _other(gpu, "link")


def usual_gbps(gpu: str) -> float:
    """Return the Gbit/s between nodes of the machines that usually have such devices."""
    rates = (float(row["value"]) for row in _rows("network") if re.search(row["pattern"], _cut(gpu)))
    return next(rates, None) or float(_other(gpu, "gbps"))


@functools.cache
def instances() -> Dict[str, Dict[str, str]]:
    """Return the rows of tables/instances.csv by instance (p3.16xlarge, ...)."""
    return {row["instance"]: row for row in csv_tables.read("instances")}


def _other(gpu: str, quantity: str) -> str:
    """Return the default of a device that the table does not list: a card, a server accelerator, or an unnamed one."""
    rows = (row for row in _rows("other") if row["quantity"] == quantity)
    return next(row["value"] for row in rows if re.search(row["pattern"], _cut(gpu)))


@functools.cache
def constants() -> Dict[str, float]:
    """Return the constants of the model that belong to no device: they are fitted to published throughputs."""
    return {row["name"]: float(row["value"]) for row in _rows("fitted")}


@functools.cache
def errors(of: str) -> Dict[str, float]:
    """Return {quantity: value} of the model's error, in percent.

    Args:
        of: `scaling`, one of scaling_class, or the kind of a rate (see rates.Rate).
    """
    return {row["quantity"]: float(row["value"]) for row in _rows("error") if row["name"] == of}


@functools.cache
def described_errors(of: str, what: str) -> str:
    """Return the errors of `errors` in words; "" if it has none."""
    if not (off := errors(of)):
        return ""
    within = f"median {off['median']:.0f} %, 90 % within {off['p90']:.0f} %"
    return f"{what}: {within} ({off['rows']:.0f} rows, each without its source)"


def scaling_class(nodes: float, devices: float, rdma: bool) -> str:
    """Return the kind of machines whose error of scaling `errors` has, as in "scaling of one node"."""
    if devices > 500:
        return "scaling of over 500 devices"
    return "scaling of one node" if nodes == 1 else f"scaling over {'RDMA' if rdma else 'TCP'}"


def _rows(kind: str) -> List[Dict[str, str]]:
    return [row for row in csv_tables.read("hardware") if row["kind"] == kind]
