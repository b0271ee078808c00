"""The layers of each network: the rows of tables/layers.csv, by shape inference without any computation."""

import csv
import json
from typing import Dict, Iterator, List, NamedTuple, Sequence

import mxnet as mx
import numpy as np

from mxscale.config.networks import NAMES, network
from mxscale.models import zoo
from mxscale.models.weights import parameters
from mxscale.util.atomic_files import replacing
from mxscale.util.errors import ConfigError, nearest


class Layer(NamedTuple):
    """One layer with weights. Activations, poolings and sums have no row."""

    network: str
    image_size: int  # side of the input in pixels
    classes: int
    layer: str  # structural name
    kind: str  # conv | dense | batch_norm
    parameters: int  # with a gradient, that is without running statistics
    flops: int  # forward, one image: 2 x multiply-adds of conv and dense layers; 2 per value of batch norm
    output: str  # shape for one image, such as 64x112x112


def write(names: Sequence[str], output: str) -> int:
    """Write the layers of the networks as CSV and return the number of rows. Raises ConfigError."""
    for name in names:
        if name not in NAMES:
            raise ConfigError(f"networks: {name}{nearest(name, NAMES)}")
    rows = [layer for name in names for layer in layers(name)]
    try:
        with replacing(output) as new, open(new, "w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(Layer._fields)
            writer.writerows(rows)
    except OSError as error:
        raise ConfigError(f"output={output}: {error.strerror}") from None
    return len(rows)


def layers(name: str) -> List[Layer]:
    """Return the layers with weights of a network of the zoo, in forward order."""
    side, classes = network(name).side, network(name).classes
    net = zoo.build(name, classes)
    known = parameters(net)
    structural = {parameter.name: path for path, parameter in known.items()}
    trained = {parameter.name for parameter in known.values() if parameter.grad_req != "null"}
    scores = net(mx.sym.var("data"))
    inner = scores.get_internals()
    given, made, _ = inner.infer_shape(data=(1, 3, side, side))
    shapes = dict(zip(inner.list_outputs(), made))
    weights = dict(zip(inner.list_arguments(), given))
    counts = {name: int(np.prod(shape)) for name, shape in weights.items() if name in trained}
    rows = _rows(json.loads(scores.tojson()), structural, weights, counts, shapes)
    return [Layer(name, side, classes, *row) for row in rows]


KINDS = {"Convolution": "conv", "FullyConnected": "dense", "BatchNorm": "batch_norm"}


def _rows(graph: Dict, structural: Dict, weights: Dict, counts: Dict, shapes: Dict) -> Iterator[tuple]:
    for node in graph["nodes"]:
        if node["op"] not in KINDS:
            continue
        kind = KINDS[node["op"]]
        inputs = [graph["nodes"][entry[0]]["name"] for entry in node["inputs"]]
        own = {structural[i].rpartition(".")[2]: i for i in inputs if i in structural}
        layer = structural[own["gamma" if kind == "batch_norm" else "weight"]].rpartition(".")[0]
        count = sum(counts.get(variable, 0) for variable in own.values())
        output = shapes[f"{node['name']}_output"][1:]
        # A weight of a convolution is used once for each position of the output.
        places = int(np.prod(output[1:]))
        flops = 2 * (int(np.prod(output)) if kind == "batch_norm" else int(np.prod(weights[own["weight"]])) * places)
        yield layer, kind, count, flops, "x".join(map(str, output))
