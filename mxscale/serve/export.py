"""`mxscale export`: a trained network for programs without mxscale."""

import json
import os
import tempfile
from dataclasses import asdict
from pathlib import Path

import numpy as np

from mxscale.config.networks import network
from mxscale.config.schema import Config
from mxscale.config.verb_settings import Export
from mxscale.launcher.progress import echo
from mxscale.models import convert, model_card, weights
from mxscale.serve import onnx_graph, trained_models
from mxscale.serve.predictor import Predictor
from mxscale.serve.trained_models import Exported, Network
from mxscale.util.atomic_files import replacing
from mxscale.util.errors import ConfigError

BOUND = 1e-4  # of the difference of a probability between ONNX Runtime and MXNet; rounding in float32 is below 1e-5
IMAGES = 8  # random ones, on which both are compared


def main(config: Config, request: Export) -> None:
    """Export what is requested. Raises ConfigError."""
    if request.source.endswith(trained_models.ONNX):
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
    content = onnx_graph.of_network(*trained).SerializeToString()
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

    entry, arrays = network(trained.card.network), weights.arrays(trained.net)
    tensors = convert.to_torch(entry, arrays) if entry.torch_names else arrays
    metadata = {"format": "pt" if entry.torch_names else "mxnet", **model_card.to_metadata(trained.card)}
    content = save({key: np.ascontiguousarray(value) for key, value in tensors.items()}, metadata)
    with replacing(path) as new:
        Path(new).write_bytes(content)
    return f"{path}: {len(tensors)} tensors of {entry.name}, with {'PyTorch' if entry.torch_names else 'MXNet'}'s names"


# Value of format -> its writer, and the end of the default name
FORMATS = {
    "onnx": (write_onnx, ".onnx"),
    "symbol": (write_symbol, ""),
    "safetensors": (write_safetensors, ".safetensors"),
}
