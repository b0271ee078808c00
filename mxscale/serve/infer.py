"""Use of trained networks: scores of images, and export of the weights to PyTorch's names."""

import mxnet as mx
import numpy as np
from mxnet.gluon import nn
from safetensors import SafetensorError
from safetensors.numpy import save_file

from mxscale.config.networks import network
from mxscale.models import convert, graph_trial, pretrained, weights, zoo
from mxscale.util.atomic_files import replacing
from mxscale.util.errors import ConfigError

BATCH = 16  # images per forward


def write_logits(name: str, source: str, given: str, output: str) -> None:
    """Write the scores that pretrained weights give to images.

    Args:
        given: A .npy file of normalised images (n, 3, height, width), float32.
        output: The .npy file to write: scores (n, classes), float32.

    Raises:
        ConfigError: The weights are invalid, have no classifier or do not fit the network or the images; or a file
            cannot be read or written.
    """
    images = _images(given)
    loaded = pretrained.load(source, name)
    net = _network(name, source, loaded, images.shape)
    arrays = {n: mx.nd.array(weights.host(array)) for n, array in loaded.arrays.items()}
    weights.fit(net, arrays, source, "keep")
    scores = [net(mx.nd.array(images[at : at + BATCH])).asnumpy() for at in range(0, len(images), BATCH)]
    scores = np.concatenate(scores)
    _replace(output, lambda path: _save_npy(path, scores))
    print(f"{output}: {len(scores)} x {scores.shape[1]} logits of {name}")
    ignored = f", {len(loaded.ignored)} {convert.UNUSED} ignored" if loaded.ignored else ""
    print(f"{source}: {len(arrays)} tensors used{ignored}")


def _network(name: str, source: str, loaded: pretrained.Loaded, shape) -> nn.HybridBlock:
    """Return the initialised network of the weights for images of `shape`. Raises ConfigError."""
    if network(name).from_weights and loaded.graph is None:
        raise ConfigError(f"model.pretrained={source} has no graph: use symbol:PREFIX")
    heads = [array for n, array in loaded.arrays.items() if n.startswith("output.") and n.endswith(".weight")]
    if not heads:
        raise ConfigError(f"model.pretrained={source} has no classifier, which logits need")
    if loaded.graph:
        graph_trial.check(loaded.graph, shape[2], source)
    net = zoo.build(name, len(heads[0]), loaded.graph)
    zoo.initialise(net, 0, mx.cpu(), zero_gamma=False)
    try:
        zoo.finish(net, (1, *shape[1:]), mx.cpu())
    except mx.MXNetError as error:
        reason = str(error).strip().splitlines()[-1]
        raise ConfigError(f"images of {shape[2]}x{shape[3]} pixels do not fit {name}: {reason}") from None
    return net


def write_export(name: str, path: str, output: str, source: str) -> None:
    """Write the weights of a network as safetensors, by PyTorch's names and in PyTorch's order.

    Args:
        path: The weights, by structural name.
        source: What messages call the weights.

    Raises:
        ConfigError: The file is invalid, or the network has no counterpart in PyTorch; or `output` cannot be written.
    """
    arrays = {n: array.asnumpy() for n, array in weights.load(path).items()}
    tensors = convert.to_torch(name, arrays, source)
    _replace(output, lambda new: save_file(tensors, new, metadata={"format": "pt"}))  # libraries require the format
    print(f"{output}: {len(tensors)} tensors of {name}, {source}")


def _images(path: str) -> np.ndarray:
    try:
        images = np.load(path, allow_pickle=False)
    except FileNotFoundError:
        raise ConfigError(f"input={path}: no such file") from None
    except OSError as error:
        raise ConfigError(f"input={path}: {error.strerror or error}") from None
    except (ValueError, EOFError) as error:
        raise ConfigError(f"input={path} is not a .npy file: {str(error).splitlines()[0]}") from None
    if not isinstance(images, np.ndarray) or images.dtype != np.float32 or images.ndim != 4 or images.shape[1] != 3:
        found = f"{images.dtype} {images.shape}" if isinstance(images, np.ndarray) else "several arrays"
        raise ConfigError(f"input={path}: expected float32 (n, 3, height, width), found {found}")
    if not images.size:
        raise ConfigError(f"input={path} has no images")
    return images


def _save_npy(path: str, array: np.ndarray) -> None:
    with open(path, "wb") as file:
        np.save(file, array)


def _replace(path: str, write) -> None:
    """Call `write(new)` and move the file to `path`; if it fails, `path` is unchanged. Raises ConfigError."""
    try:
        with replacing(path) as new:
            write(new)
    except (OSError, SafetensorError) as error:
        raise ConfigError(f"output={path}: cannot be written ({getattr(error, 'strerror', None) or error})") from None
