"""The layers of each network, by shape inference without any computation: tables/layers.csv and `mxscale layers`."""

import json
from itertools import groupby
from typing import Dict, Iterator, List, NamedTuple, Optional, Sequence

import mxnet as mx
import numpy as np

from mxscale.config.networks import NAMES, network
from mxscale.models import zoo
from mxscale.models.weights import parameters
from mxscale.util import csv_tables, text_table
from mxscale.util.atomic_files import write_text
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


def of_networks(names: Sequence[str], image_size: Optional[int] = None, classes: Optional[int] = None) -> List[Layer]:
    """Return the layers of the networks.

    Args:
        image_size: Side of the input in pixels; None: that of each network's registry entry.
        classes: Number of classes; None: that of each network's registry entry.

    Raises:
        ConfigError: A name is unknown, or an image too small for its network.
    """
    for name in names:
        if name not in NAMES:
            raise ConfigError(f"networks: {name}{nearest(name, NAMES)}")
        if image_size is not None and image_size < network(name).min_side:
            raise ConfigError(f"image_size={image_size}: {name} needs at least {network(name).min_side}")
    return [layer for name in dict.fromkeys(names) for layer in layers(name, image_size, classes)]


def text(rows: Sequence[Layer]) -> str:
    """Return a table of the layers of one network with their sums, or of the sums of several."""
    networks = [list(group) for _, group in groupby(rows, lambda row: row.network)]
    if len(networks) == 1:
        own = networks[0]
        cells = [["layer", "kind", "output", "parameters", "FLOPs"]]
        cells += [[row.layer, row.kind, row.output, f"{row.parameters:,}", f"{row.flops:,}"] for row in own]
        cells.append(["total", f"{len(own)} layers", "", *_sums(own)])
        lines = [f"{own[0].network}: images of {own[0].image_size} px, {own[0].classes} classes", ""]
        lines += text_table.columns(cells, right=(3, 4))
    else:
        cells = [["network", "image size", "classes", "layers", "parameters", "FLOPs"]]
        for own in networks:
            cells.append([own[0].network, str(own[0].image_size), str(own[0].classes), str(len(own)), *_sums(own)])
        lines = text_table.columns(cells, right=range(1, 6))
    return "\n".join([*lines, "", "FLOPs: forward, one image; a multiply-add is 2"])


def _sums(rows: Sequence[Layer]) -> List[str]:
    return [f"{sum(row.parameters for row in rows):,}", f"{sum(row.flops for row in rows):,}"]


def write(rows: Sequence[Layer], output: str) -> str:
    """Write the layers as CSV and return a line that states what was written. Raises ConfigError."""
    try:
        write_text(output, csv_tables.text([Layer._fields, *rows]))
    except OSError as error:
        raise ConfigError(f"output={output}: {error.strerror}") from None
    return f"{output}: {len(rows):,} layers of {len({row.network for row in rows})} networks"


def layers(name: str, image_size: Optional[int] = None, classes: Optional[int] = None) -> List[Layer]:
    """Return the layers with weights of a network of the zoo, in forward order; see `of_networks`."""
    side, classes = image_size or network(name).side, classes or network(name).classes
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
