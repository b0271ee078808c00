"""`mxscale export`: a trained network for programs without mxscale.

In ONNX, MXNet's exporter translates the network. Cast, normalisation and softmax are added here, so that whoever has
the file needs nothing else than images of the right size. MXNet is imported only to export.
"""

import json
import os
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Union

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from mxscale.config.networks import network
from mxscale.config.schema import Config
from mxscale.config.verb_settings import Export
from mxscale.models import model_card
from mxscale.models.model_card import INPUT, LOGITS, PROBABILITIES, ModelCard
from mxscale.rundir.directory import RunDir
from mxscale.serve import trained_models
from mxscale.serve.predictor import Predictor
from mxscale.serve.trained_models import Exported, Network
from mxscale.util.atomic_files import replacing
from mxscale.util.errors import ConfigError
from mxscale.util.regular_files import read_regular
from mxscale.util.terminal import echo

ONNX = ".onnx"
MAX_BYTES = 2 << 30  # of an exported file, the limit of ONNX's format
BOUND = 1e-4  # of the difference of a probability between ONNX Runtime and MXNet; rounding in float32 is below 1e-5
IMAGES = 8  # random ones, on which both are compared
# The exporter's operators are those of opset 13, whichever newer one the package onnx has. Its `export_model` declares
# the newest, in which some of them mean something else.
OPSET, IR = 13, 8
PIXELS = "pixels"  # the network's own input


def main(config: Config, request: Export) -> None:
    """Export what is requested. Raises ConfigError."""
    if request.source.endswith(ONNX):
        raise ConfigError(f"{request.source} is an exported file; name the run or the weights")
    run = trained_models.find_run(request.source, config)
    trained = trained_models.load(run or request.source, config)
    write, suffix = FORMATS[request.format]
    path = request.output or str((run.path if run else Path()) / f"model{suffix}")
    try:
        echo(write(trained, path))
    except OSError as error:
        raise ConfigError(f"output={path}: cannot be written ({error.strerror or error})") from None


def write_onnx(trained: Network, path: str) -> str:
    """Write an ONNX file, verified against MXNet, and return a line about it."""
    content = of_network(*trained).SerializeToString()
    largest = difference(trained, Exported(content, trained.card))
    if not largest <= BOUND:
        raise ConfigError(f"probabilities in ONNX Runtime differ from MXNet's by {largest:.1e}, more than {BOUND:.0e}")
    with replacing(path) as new:
        Path(new).write_bytes(content)
    card, size = trained.card, f"{len(content) / 1e6:.1f} MB"
    return (
        f"{path}: {card.network}, {len(card.class_names)} classes, {size}; uint8 images (n, {card.image_size}, "
        f"{card.image_size}, 3) to probabilities, which differ from MXNet's by at most {largest:.1e}"
    )


def difference(trained: Network, exported: Exported) -> float:
    """Return the largest difference of a probability between ONNX Runtime and MXNet, on random images."""
    import mxnet as mx

    card = trained.card
    images = np.random.RandomState(0).randint(0, 256, (IMAGES, card.image_size, card.image_size, 3)).astype("uint8")
    in_onnx, _ = Predictor(exported, threads=1).scores(images)
    normalised = (images.astype("float32") - np.float32(card.mean)) / np.float32(card.std)
    in_mxnet = mx.nd.softmax(trained.net(mx.nd.array(normalised.transpose(0, 3, 1, 2)))).asnumpy()
    return float(np.abs(in_onnx - in_mxnet).max())


def write_symbol(trained: Network, path: str) -> str:
    """Write PREFIX-symbol.json and PREFIX-0000.params, whose input is normalised, and the card as PREFIX.json."""
    import mxnet as mx

    net, card = trained
    net.hybridize()
    net(mx.nd.zeros((1, 3, card.image_size, card.image_size)))  # traces the graph
    folder, name = os.path.split(path)
    with tempfile.TemporaryDirectory(dir=folder or ".") as new:
        try:
            net.export(os.path.join(new, name))
        except mx.MXNetError as error:
            raise OSError(str(error).strip().splitlines()[-1]) from None
        Path(new, f"{name}.json").write_text(json.dumps(asdict(card), indent=1) + "\n")
        for file in os.listdir(new):
            os.replace(os.path.join(new, file), os.path.join(folder, file))
    return f"{path}-symbol.json, {path}-0000.params: {card.network}; {path}.json states its classes and normalisation"


def write_safetensors(trained: Network, path: str) -> str:
    """Write the weights under PyTorch's names where PyTorch has the network, otherwise under their own."""
    from safetensors.numpy import save

    from mxscale.models import convert, weights

    entry, arrays = network(trained.card.network), weights.arrays(trained.net)
    tensors = convert.to_torch(entry, arrays) if entry.torch_names else arrays
    metadata = {"format": "pt" if entry.torch_names else "mxnet", **model_card.to_metadata(trained.card)}
    content = save({key: np.ascontiguousarray(value) for key, value in tensors.items()}, metadata)
    with replacing(path) as new:
        Path(new).write_bytes(content)
    return f"{path}: {len(tensors)} tensors of {entry.name}, with {'PyTorch' if entry.torch_names else 'MXNet'}'s names"


# Value of format -> its writer, and the end of the default name
FORMATS = {"onnx": (write_onnx, ONNX), "symbol": (write_symbol, ""), "safetensors": (write_safetensors, ".safetensors")}


# ---------------------------------------------------------------- ONNX


def exported(model: Union[str, RunDir], config: Config) -> Exported:
    """Return a trained network as ONNX: one that `load` takes, or a file of `mxscale export`. Raises ConfigError."""
    if isinstance(model, str) and model.endswith(ONNX):
        return _read(model)
    trained = trained_models.load(model, config)
    return Exported(of_network(*trained).SerializeToString(), trained.card)


def _read(path: str) -> Exported:
    try:
        content = read_regular(path, MAX_BYTES)
        model = onnx.load_model_from_string(content)
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror or error}") from None
    except Exception:  # of protobuf
        raise ConfigError(f"{path} is no ONNX file, or it is damaged") from None
    if any(tensor.data_location == onnx.TensorProto.EXTERNAL for tensor in model.graph.initializer):
        raise ConfigError(f"{path} has weights in other files: expected a file of `mxscale export`, which has none")
    card = model_card.from_metadata({entry.key: entry.value for entry in model.metadata_props}, path)
    if card is None:
        raise ConfigError(f"{path} has no metadata of mxscale: expected a file of `mxscale export`")
    return Exported(content, card, path)


def of_network(net, card: ModelCard) -> onnx.ModelProto:
    """Return an initialised network of Gluon as an ONNX model with its card as metadata.

    Returns:
        A model with the input `images`, (batch, side, side, 3) uint8, and the outputs `probabilities` and `logits`,
        (batch, classes) float32.

    Raises:
        ConfigError: MXNet's exporter does not know an operator, or is missing.
    """
    import mxnet as mx

    try:
        from mxnet.onnx.mx2onnx._export_onnx import MXNetGraph
    except ImportError:
        raise ConfigError("this MXNet cannot export to ONNX; use 1.9, as `make setup` installs it") from None
    for operator, translate in TRANSLATIONS.items():
        MXNetGraph.register(operator, OPSET)(translate)
    symbol, side = net(mx.sym.var(PIXELS)), card.image_size
    values = {parameter.name: parameter.data(mx.cpu()).astype("float32") for parameter in net.collect_params().values()}
    fix_gamma(symbol, values)
    try:
        graph = MXNetGraph().create_onnx_graph_proto(
            symbol, values, [(1, 3, side, side)], [TensorProto.FLOAT], opset_version=OPSET, dynamic=True,
            dynamic_input_shapes=[("batch", 3, side, side)],
        )  # fmt: skip
    except (AttributeError, NotImplementedError) as error:  # "No conversion function registered for op type ..."
        raise ConfigError(f"format=onnx: {error}") from None
    _complete(graph, card)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], producer_name="mxscale")
    model.ir_version = IR
    helper.set_model_props(model, model_card.to_metadata(card))
    onnx.checker.check_model(model)
    return model


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


def _mean(node, outputs_lookup, **_):
    """Translate the mean of each channel; MXNet's own translation is invalid for newer packages of onnx."""
    name, (producer, index, *_) = node["name"], node["inputs"][0]
    if node["attrs"].get("axis") != "(2, 3)" or node["attrs"].get("keepdims") in ("True", "1"):
        raise NotImplementedError(f"{name} is a mean of other axes than height and width, or keeps them")
    source = outputs_lookup[producer][index].name
    pooled = helper.make_node("GlobalAveragePool", [source], [f"{name}_pooled"])
    return [pooled, helper.make_node("Flatten", [f"{name}_pooled"], [name], name=name)]


def _variable(node, is_input, **context):
    """Translate an input, or weights with their bytes, for which MXNet's own translation makes Python's numbers."""
    name = node["name"]
    if is_input:
        return [helper.make_tensor_value_info(name, context["in_type"], context["in_shape"])], (np.dtype("float32"),)
    weights = context["weights"][name]
    context["initializer"].append(numpy_helper.from_array(weights, name))
    return [helper.make_tensor_value_info(name, TensorProto.FLOAT, weights.shape)], (weights.dtype,)


# Operator -> its translation, in place of that of MXNet's exporter
TRANSLATIONS = {"reverse": _reverse, "mean": _mean, "null": _variable}


def fix_gamma(symbol, values: dict) -> None:
    """Set gamma to 1 where batch normalisation ignores it (`fix_gamma`, MXNet's default): ONNX has no such flag."""
    nodes = json.loads(symbol.tojson())["nodes"]
    for node in nodes:
        if node["op"] == "BatchNorm" and node.get("attrs", {}).get("fix_gamma", "True") in ("True", "1"):
            gamma = nodes[node["inputs"][1][0]]["name"]
            values[gamma][:] = 1


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
