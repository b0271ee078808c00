"""Gradients and FLOPs of a network's layers, from tables/layers.csv."""

import functools
from dataclasses import dataclass
from typing import Dict, List, Optional, Tuple

from mxscale.util import csv_tables
from mxscale.util.errors import ConfigError, nearest


@dataclass(frozen=True)
class Network:
    """A network for one image size and one number of classes."""

    name: str
    layers: Tuple[Tuple[int, float], ...]  # (gradients, FLOPs of forward) of each layer, in forward order

    @property
    def gradients(self) -> int:
        return sum(count for count, _ in self.layers)

    @property
    def flops(self) -> float:
        """Return the FLOPs of forward for one image: twice its multiply-adds."""
        return sum(flops for _, flops in self.layers)


def network(name: str, image_size: Optional[int] = None, classes: Optional[int] = None) -> Network:
    """Return the network scaled to an image size and a number of classes.

    FLOPs of convolutions and norms scale with the image area. A dense layer keeps its FLOPs, which is exact after
    a global pooling, but not in AlexNet and VGG.

    Args:
        image_size: Side in pixels; None for that of the table, as for the number of classes.

    Raises ConfigError if the table lacks the network.
    """
    rows = _table().get(name)
    if rows is None:
        raise ConfigError(f"model.name={name}{nearest(name, _table())}")
    made = []
    for row in rows:
        count, flops = int(row["parameters"]), float(row["flops"])
        if row["kind"] != "dense" and image_size:
            flops *= (image_size / int(row["image_size"])) ** 2
        if row["layer"].partition(".")[0] == "output" and classes:  # the classifier
            count, flops = (value * classes / int(row["classes"]) for value in (count, flops))
        made.append((round(count), flops))
    return Network(name, tuple(made))


def names() -> List[str]:
    return list(_table())


@functools.lru_cache
def _table() -> Dict[str, List[Dict[str, str]]]:
    networks: Dict[str, List[Dict[str, str]]] = {}
    for row in csv_tables.read("layers"):
        networks.setdefault(row["network"], []).append(row)
    return networks
