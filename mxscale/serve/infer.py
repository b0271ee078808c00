"""Use of trained networks: scores of images, and export of the weights to PyTorch's names."""

from typing import Dict, List, NamedTuple

import mxnet as mx
import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import save_file

from mxscale.config.networks import network
from mxscale.models import convert, pretrained, weights, zoo
from mxscale.util.atomic_files import replacing
from mxscale.util.errors import ConfigError

BATCH = 16  # images per forward


class Logits(NamedTuple):
    """The result of `logits`."""

    scores: np.ndarray  # (n, classes), float32
    tensors: int  # number of tensors loaded into the network
    ignored: List[str]  # the file's names of tensors that no network here has


def logits(name: str, source: str, images: np.ndarray) -> Logits:
    """Compute the scores that pretrained weights give to images.

    Args:
        images: Normalised images (n, 3, height, width), float32.

    Raises:
        ConfigError: The weights are invalid, have no classifier or do not fit the network or the images.
    """
    loaded = pretrained.load(source, name)
    if network(name).from_weights and loaded.graph is None:
        raise ConfigError(f"model.pretrained={source} has no graph: use symbol:PREFIX")
    heads = [array for n, array in loaded.arrays.items() if n.startswith("output.") and n.endswith(".weight")]
    if not heads:
        raise ConfigError(f"model.pretrained={source} has no classifier, which logits need")
    net = zoo.build(name, len(heads[0]), loaded.graph)
    zoo.initialise(net, 0, mx.cpu(), zero_gamma=False)
    try:
        zoo.finish(net, (1, *images.shape[1:]), mx.cpu())
    except mx.MXNetError as error:
        raise ConfigError(
            f"images of {images.shape[2]}x{images.shape[3]} pixels do not fit {name}: "
            f"{str(error).strip().splitlines()[-1]}"
        ) from None
    arrays = {n: mx.nd.array(weights.host(array)) for n, array in loaded.arrays.items()}
    weights.fit(net, arrays, source, "keep")
    scores = [net(mx.nd.array(images[at : at + BATCH])).asnumpy() for at in range(0, len(images), BATCH)]
    return Logits(np.concatenate(scores), len(arrays), list(loaded.ignored))


def export(name: str, path: str, source: str) -> Dict[str, np.ndarray]:
    """Return the weights of a network by PyTorch's names, in PyTorch's order.

    Args:
        source: What messages call the weights.

    Raises:
        ConfigError: The file is invalid, or the network has no counterpart in PyTorch.
    """
    return convert.to_torch(name, {n: array.asnumpy() for n, array in weights.load(path).items()}, source)


def write_logits(name: str, source: str, given: str, output: str) -> None:
    """Write the scores of the images in `given` to `output`, both .npy files of float32. Raises ConfigError."""
    result = logits(name, source, _images(given))
    _replace(output, lambda path: _save_npy(path, result.scores))
    print(f"{output}: {len(result.scores)} x {result.scores.shape[1]} logits of {name}")
    ignored = f", {len(result.ignored)} {convert.UNUSED} ignored" if result.ignored else ""
    print(f"{source}: {result.tensors} tensors used{ignored}")


def write_export(name: str, path: str, output: str, source: str) -> None:
    """Write the result of `export` to `output` as safetensors. Raises ConfigError."""
    tensors = export(name, path, source)
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
