"""`mxscale export`: a trained network for programs without mxscale."""

import json
import os
import tempfile
from dataclasses import asdict
from pathlib import Path

import numpy as np

from mxscale.config.schema import Config
from mxscale.config.verbs.models import Export
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
    if trained_models.is_file(request.source):
        raise ConfigError(f"{request.source} is an exported file; name the run or the weights")
    run = trained_models.find_run(request.source, config)
    trained = trained_models.load(run or request.source, config)
    path = request.output or str((run.path if run else Path()) / f"model{SUFFIXES[request.format]}")
    try:
        echo(FORMATS[request.format](trained, path))
    except OSError as error:
        raise ConfigError(f"output={path}: cannot be written ({error.strerror or error})") from None


def write_onnx(trained: Network, path: str) -> str:
    """Write an ONNX file, verified against MXNet, and return a line about it."""
    content = onnx_graph.of_network(*trained).SerializeToString()
    found = difference(trained, Exported(content, trained.card))
    if not found <= BOUND:
        raise ConfigError(f"probabilities in ONNX Runtime differ from MXNet's by {found:.1e}, more than {BOUND:.0e}")
    with replacing(path) as new:
        Path(new).write_bytes(content)
    card, size = trained.card, f"{len(content) / 1e6:.1f} MB"
    return (
        f"{path}: {card.network}, {len(card.class_names)} classes, {size}; uint8 images (n, {card.image_size}, "
        f"{card.image_size}, 3) to probabilities, which differ from MXNet's by at most {found:.1e}"
    )


def difference(trained: Network, exported: Exported) -> float:
    """Return the largest difference of a probability between ONNX Runtime and MXNet, on random images."""
    import mxnet as mx

    card = trained.card
    images = np.random.RandomState(0).randint(0, 256, (IMAGES, card.image_size, card.image_size, 3)).astype("uint8")
    there, _ = Predictor(exported, threads=1).scores(images)
    normalised = (images.astype("float32") - np.float32(card.mean)) / np.float32(card.std)
    here = mx.nd.softmax(trained.net(mx.nd.array(normalised.transpose(0, 3, 1, 2)))).asnumpy()
    return float(np.abs(there - here).max())


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

    name, arrays = trained.card.network, weights.arrays(trained.net)
    known = name in convert.TORCH_NETWORKS
    tensors = convert.to_torch(name, arrays) if known else arrays
    metadata = {"format": "pt" if known else "mxnet", **model_card.to_metadata(trained.card)}
    content = save({key: np.ascontiguousarray(value) for key, value in tensors.items()}, metadata)
    with replacing(path) as new:
        Path(new).write_bytes(content)
    return f"{path}: {len(tensors)} tensors of {name}, with {'PyTorch' if known else 'MXNet'}'s names"


FORMATS = {"onnx": write_onnx, "symbol": write_symbol, "safetensors": write_safetensors}
SUFFIXES = {"onnx": ".onnx", "symbol": "", "safetensors": ".safetensors"}
