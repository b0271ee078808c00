"""What a network exchanges and computes: its rows of tables/layers.csv.  Pure: standard library alone."""

import functools
from dataclasses import dataclass
from typing import Dict, List, Optional, Tuple

from mxscale.util import csv_tables
from mxscale.util.errors import ConfigError, nearest


@dataclass(frozen=True)
class Network:
    """A network for images of one size and so many classes."""

    name: str
    layers: Tuple[Tuple[int, float], ...]  # (gradients, FLOPs of a forward) of each, the first first

    @property
    def gradients(self) -> int:
        return sum(count for count, _ in self.layers)

    @property
    def flops(self) -> float:
        """Of a forward of one image: twice its multiply-adds."""
        return sum(flops for _, flops in self.layers)


def network(name: str, image_size: Optional[int] = None, classes: Optional[int] = None) -> Network:
    """The network; None: of the table's own size and classes.  Raises ConfigError for one that the table lacks.

    FLOPs of convolutions and norms go with the area that they see; a dense layer behind them is counted as in the
    table, which is exact where a global pooling comes before it (not in AlexNet and VGG).
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


def known(name: Optional[str]) -> bool:
    return name in _table()


@functools.lru_cache
def _table() -> Dict[str, List[Dict[str, str]]]:
    found: Dict[str, List[Dict[str, str]]] = {}
    for row in csv_tables.read("layers"):
        found.setdefault(row["network"], []).append(row)
    return found
