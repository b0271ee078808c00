"""The layers of each network, by shape inference without any computation: tables/layers.csv and `mxscale layers`."""

import json
from itertools import groupby
from typing import Dict, Iterator, List, NamedTuple, Optional, Sequence, Tuple

import mxnet as mx
import numpy as np

from mxscale.config.networks import NAMES, network
from mxscale.models import zoo
from mxscale.models.symbol import Node, nodes_of
from mxscale.models.weights import parameters, trained_in_forward_order
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
    """Return the layers of the networks; image_size (pixels) and classes are by default those of their entries.

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
        first = rows[0]
        table = [["layer", "kind", "output", "parameters", "FLOPs"]]
        table += [[row.layer, row.kind, row.output, f"{row.parameters:,}", f"{row.flops:,}"] for row in rows]
        table.append(["total", f"{len(rows)} layers", "", *_sums(rows)])
        lines = [f"{first.network}: images of {first.image_size} px, {first.classes} classes", ""]
        lines += text_table.columns(table, right=(3, 4))
    else:
        table = [["network", "image size", "classes", "layers", "parameters", "FLOPs"]]
        for first, *others in networks:
            sums = _sums([first, *others])
            table.append([first.network, str(first.image_size), str(first.classes), str(1 + len(others)), *sums])
        lines = text_table.columns(table, right=range(1, 6))
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
    scores = net(mx.sym.var("data"))
    internals = scores.get_internals()  # the variables and the outputs of all nodes
    _, output_shapes, _ = internals.infer_shape(data=(1, 3, side, side))
    shapes = dict(zip(internals.list_outputs(), output_shapes))
    return [Layer(name, side, classes, *row) for row in _rows(nodes_of(json.loads(scores.tojson())), net, shapes)]


KINDS = {"Convolution": "conv", "FullyConnected": "dense", "BatchNorm": "batch_norm"}


def _rows(nodes: List[Node], net, shapes: Dict[str, Tuple[int, ...]]) -> Iterator[tuple]:
    structural = {parameter.name: name for name, parameter in parameters(net).items()}
    trained = {parameter.name for parameter in trained_in_forward_order(net)}
    for node in nodes:
        if node.op not in KINDS:
            continue
        variables = [nodes[i].name for i, _ in node.inputs if nodes[i].name in structural]  # weight or gamma first
        count = sum(int(np.prod(shapes[variable])) for variable in variables if variable in trained)
        output = shapes[f"{node.name}_output"][1:]
        if node.op == "BatchNorm":
            flops = 2 * int(np.prod(output))
        else:  # a weight of a convolution is used once for each position of the output
            flops = 2 * int(np.prod(shapes[variables[0]])) * int(np.prod(output[1:]))
        yield structural[variables[0]].rpartition(".")[0], KINDS[node.op], count, flops, "x".join(map(str, output))
