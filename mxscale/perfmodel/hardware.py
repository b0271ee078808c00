"""Devices, links and networks as tables/hardware.csv and tables/models.csv have them.  Pure: standard library."""

import functools
import re
from dataclasses import dataclass
from typing import Dict, List, Optional

from mxscale.util import csv_tables


@dataclass(frozen=True)
class Network:
    """A neural network as the exchange sees it."""

    name: str
    parameters: float
    gmacs: float  # multiply-adds of a forward pass of one image, in thousand millions
    early: float  # share of the gradients that are ready after a quarter of backward: it begins at the last layer
    tensors: float
    largest: float  # share of the largest tensor
    source: str


@functools.cache
def networks() -> List[tuple]:
    """(pattern, Network) in the order in which they are tried."""
    return [
        (
            re.compile(row["pattern"]),
            Network(
                row["name"],
                *(float(row[key]) for key in ("parameters", "gmacs", "early", "tensors", "largest")),
                row["source"],
            ),
        )
        for row in csv_tables.read("models")
    ]


def network(name: str) -> Optional[Network]:
    """That of a published name (ResNet50_v1.5, vgg-16 ...); None where it is not known."""
    text = re.sub(r"[\s_]+", "-", name.lower().strip())
    text = re.sub(r"(resnex?t)-?v\d(\.\d)?[a-d]?-(?=\d)", r"\1-", text)  # resnet_v1_152 is resnet152_v1
    return next((found for pattern, found in networks() if pattern.search(text)), None)


def launches_s(tensors, launch_s: float):
    """Seconds that starting a step's kernels takes with so many tensors (or an array); launch_s: with ResNet-50's."""
    return launch_s * tensors / network("resnet-50").tensors


@functools.cache
def devices() -> Dict[str, Dict[str, object]]:
    """Name -> {pattern, quantity: value}."""
    known: Dict[str, Dict[str, object]] = {}
    for row in _rows("device"):
        held = known.setdefault(row["name"], {"pattern": re.compile(row["pattern"])})
        held[row["quantity"]] = row["value"] if row["quantity"] == "link" else float(row["value"])
    return known


def device(name: str) -> Optional[Dict[str, object]]:
    """The row of a published device name (V100-SXM2-16GB, 8x K80 ...); None where it is not known."""
    return next((held for held in devices().values() if held["pattern"].search(name.lower())), None)


@functools.cache
def link_bytes_per_s(name: str) -> float:
    return next(float(row["value"]) for row in _rows("link") if row["name"] == name)


def usual_link(gpu: str) -> str:
    """The link between such devices of a node (pcie3, nvlink2 ...)."""
    known = device(gpu)
    return str(known["link"]) if known else _other(gpu, "link")


def usual_gbps(gpu: str) -> float:
    """The network between nodes where it is not known: that of the machines which such devices are mostly in."""
    found = (float(row["value"]) for row in _rows("network") if re.search(row["pattern"], gpu.lower()))
    return next(found, None) or float(_other(gpu, "gbps"))


@functools.cache
def instance_gbps(name: str) -> Optional[float]:
    """The network of a rented machine (p3.16xlarge ...); None where it is not known."""
    known = {row["instance"]: row["nic_gbps"] for row in csv_tables.read("instances")}
    return float(known.get(name) or 0) or None


def _other(gpu: str, quantity: str) -> str:
    """Of a device that the table does not know by name: a card, a server's accelerator, or nothing that says which."""
    rows = (row for row in _rows("other") if row["quantity"] == quantity)
    return next(row["value"] for row in rows if re.search(row["pattern"], gpu.lower()))


@functools.cache
def constants() -> Dict[str, float]:
    """The constants of the model that are no device's: name -> value."""
    return {row["name"]: float(row["value"]) for row in _rows("constant") + _rows("fitted")}


@functools.cache
def priors() -> Dict[str, float]:
    """The constants before any fit: what is known of the hardware, from which a fit starts and which it stays near."""
    return {row["name"]: float(row["value"]) for row in _rows("constant") + _rows("prior")}


@functools.cache
def fitted() -> List[str]:
    """Which of the constants are fitted to published throughputs."""
    return [row["name"] for row in _rows("fitted")]


@functools.cache
def _rows(kind: str) -> List[Dict[str, str]]:
    return [row for row in csv_tables.read("hardware") if row["kind"] == kind]
