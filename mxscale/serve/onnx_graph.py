"""A network as an ONNX graph: uint8 RGB images in, probabilities and logits out, for any batch size.

MXNet's exporter translates the network. Cast, normalisation and softmax are added here, so that whoever has the file
needs nothing else than images of the right size.
"""

import json
from typing import Dict

import mxnet as mx
import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from mxscale.models import model_card
from mxscale.models.model_card import INPUT, LOGITS, PROBABILITIES, ModelCard
from mxscale.util.errors import ConfigError

# The exporter's operators are those of opset 13, whichever newer one the package onnx has. Its `export_model` declares
# the newest, in which some of them mean something else.
OPSET, IR = 13, 8
PIXELS = "pixels"  # the network's own input


def of_network(net, card: ModelCard) -> onnx.ModelProto:
    """Return a network as an ONNX model with its card as metadata.

    Args:
        net: An initialised network in Gluon.

    Returns:
        A model with the input `images`, (batch, side, side, 3) uint8, and the outputs `probabilities` and `logits`,
        (batch, classes) float32.

    Raises:
        ConfigError: MXNet's exporter does not know an operator, or is missing.
    """
    translator = _translator()
    symbol, side = net(mx.sym.var(PIXELS)), card.image_size
    values = {parameter.name: parameter.data(mx.cpu()).astype("float32") for parameter in net.collect_params().values()}
    fix_gamma(symbol, values)
    try:
        graph = translator.create_onnx_graph_proto(
            symbol, values, [(1, 3, side, side)], [TensorProto.FLOAT], opset_version=OPSET, dynamic=True,
            dynamic_input_shapes=[("batch", 3, side, side)],
        )  # fmt: skip
    except (AttributeError, NotImplementedError) as error:  # "No conversion function registered for op type ..."
        raise ConfigError(f"format=onnx: {error}") from None
    _complete(graph, card)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], producer_name="mxscale")
    model.ir_version = IR
    helper.set_model_props(model, dict(model_card.to_metadata(card)))
    onnx.checker.check_model(model)
    return model


def _translator():
    """Return MXNet's exporter. Raises ConfigError for a version without one that writes any batch size."""
    try:
        from mxnet.onnx.mx2onnx._export_onnx import MXNetGraph
    except ImportError:
        raise ConfigError(
            f"MXNet {mx.__version__} cannot export to ONNX; use 1.9, as `make setup` installs it"
        ) from None
    MXNetGraph.register("reverse", OPSET)(_reverse)
    return MXNetGraph()


def _reverse(node, outputs_lookup, initializer, **_):
    """Translate `reverse`, because MXNet's own translation fails on axes other than the first."""
    name, (producer, index, *_) = node["name"], node["inputs"][0]
    axes = [int(axis) for axis in node["attrs"]["axis"].strip("()").split(",") if axis.strip()]
    # From the last value, towards what precedes the first
    numbers = {"starts": [-1], "ends": [-(2**63) + 1], "axes": None, "steps": [-1]}
    for what, value in numbers.items():
        array = np.array(value * len(axes) if value else axes, "int64")
        initializer.append(numpy_helper.from_array(array, f"{name}_{what}"))
    source = outputs_lookup[producer][index].name
    return [helper.make_node("Slice", [source, *(f"{name}_{what}" for what in numbers)], [name], name=name)]


def fix_gamma(symbol, values: Dict[str, mx.nd.NDArray]) -> None:
    """Set gamma to 1 where batch normalisation ignores it (`fix_gamma`, MXNet's default): ONNX has no such flag."""
    nodes = json.loads(symbol.tojson())["nodes"]
    for node in nodes:
        if node["op"] == "BatchNorm" and node.get("attrs", {}).get("fix_gamma", "True") in ("True", "1"):
            gamma = nodes[node["inputs"][1][0]]["name"]
            values[gamma] = mx.nd.ones_like(values[gamma])


def _complete(graph: onnx.GraphProto, card: ModelCard) -> None:
    """Add what is before and after the network: cast, normalisation, order of axes; softmax."""
    side, scores = card.image_size, graph.output[0].name
    for name, constant in (("mean", card.mean), ("std", card.std)):
        graph.initializer.append(numpy_helper.from_array(np.array(constant, "float32"), name))
    before = [
        helper.make_node("Cast", [INPUT], ["as_float"], to=TensorProto.FLOAT),
        helper.make_node("Sub", ["as_float", "mean"], ["centred"]),
        helper.make_node("Div", ["centred", "std"], ["normalised"]),
        helper.make_node("Transpose", ["normalised"], [PIXELS], perm=[0, 3, 1, 2]),
    ]
    after = [
        helper.make_node("Identity", [scores], [LOGITS]),
        helper.make_node("Softmax", [LOGITS], [PROBABILITIES], axis=1),
    ]
    nodes = [*before, *graph.node, *after]
    del graph.node[:], graph.input[:], graph.output[:]
    graph.node.extend(nodes)
    graph.input.append(helper.make_tensor_value_info(INPUT, TensorProto.UINT8, ["batch", side, side, 3]))
    for name in (PROBABILITIES, LOGITS):
        graph.output.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", len(card.class_names)]))
