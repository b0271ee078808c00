"""The layers of a network, from tables/layers.csv."""

import functools
import math
from dataclasses import dataclass
from typing import Dict, List, NamedTuple, Optional, Tuple

from mxscale.util import csv_tables
from mxscale.util.errors import ConfigError, nearest


class Layer(NamedTuple):
    """What a layer has for one image."""

    gradients: int
    flops: float  # of forward
    read: float = 0.0  # numbers of its input
    written: float = 0.0  # numbers of its output
    kind: str = "conv"  # | conv3x3, of stride 1 | batch_norm | dense


@dataclass(frozen=True)
class Network:
    """A network for one image size and one number of classes."""

    name: str
    layers: Tuple[Layer, ...]  # in forward order

    @property
    def gradients(self) -> int:
        return sum(layer.gradients for layer in self.layers)

    @property
    def flops(self) -> float:
        """Return the FLOPs of forward for one image: twice its multiply-adds."""
        return sum(layer.flops for layer in self.layers)


@functools.lru_cache
def network(name: str, image_size: Optional[int] = None, classes: Optional[int] = None) -> Network:
    """Return the network scaled to an image size and a number of classes.

    FLOPs and maps of convolutions and norms scale with the image area. A dense layer keeps its own, which is exact
    after a global pooling, but not in AlexNet and VGG. The input of a layer is the output of the row before it, also
    where a branch begins or a pooling, which the table lacks, is between them.

    Args:
        image_size: Side in pixels; None for that of the table, as for the number of classes.

    Raises ConfigError if the table lacks the network.
    """
    rows = _table().get(name)
    if rows is None:
        raise ConfigError(f"model.name={name}{nearest(name, _table())}")
    made, before = [], [3, int(rows[0]["image_size"]), int(rows[0]["image_size"])]
    for row in rows:
        shape = [int(number) for number in row["output"].split("x")]
        count, flops = int(row["parameters"]), float(row["flops"])
        maps = [math.prod(before), math.prod(shape)]
        kind = row["kind"]
        if kind == "conv" and shape[1:] == before[1:] and round(count / (shape[0] * before[0])) == 9:
            kind = "conv3x3"
        if kind != "dense" and image_size:
            flops, *maps = ((image_size / int(row["image_size"])) ** 2 * value for value in (flops, *maps))
        if row["layer"].partition(".")[0] == "output" and classes:  # the classifier
            count, flops = (value * classes / int(row["classes"]) for value in (count, flops))
        made.append(Layer(round(count), flops, *maps, kind))
        before = shape
    return Network(name, tuple(made))


def names() -> List[str]:
    return list(_table())


@functools.lru_cache
def _table() -> Dict[str, List[Dict[str, str]]]:
    networks: Dict[str, List[Dict[str, str]]] = {}
    for row in csv_tables.read("layers"):
        networks.setdefault(row["network"], []).append(row)
    return networks
