"""What a pretrained network makes of given images, and its weights for PyTorch: the work of the small tools."""

import mxnet as mx
import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import save_file

from mxscale.config.networks import network
from mxscale.models import convert, pretrained, weights, zoo
from mxscale.util.atomic_files import replacing
from mxscale.util.errors import ConfigError

BATCH = 16  # images at a time


def logits(name: str, source: str, given: str, made: str) -> None:
    """Scores (n, classes) of the images (n, 3, height, width) in `given`, both .npy of float32.  ConfigError.

    The images are taken as they are: whoever made them has normalised them.
    """
    images = _images(given)
    loaded = pretrained.load(source, name)
    if network(name).from_weights and loaded.graph is None:
        raise ConfigError(f"model.pretrained={source} is without its graph: name the origin, symbol:PREFIX")
    heads = [array for n, array in loaded.arrays.items() if n.startswith("output.") and n.endswith(".weight")]
    if not heads:
        raise ConfigError(f"model.pretrained={source} has no classifier: there are no logits")
    net = zoo.build(name, len(heads[0]), loaded.graph)
    zoo.initialise(net, 0, mx.cpu(), zero_gamma=False)
    try:
        zoo.finish(net, (1, *images.shape[1:]), mx.cpu())
    except mx.MXNetError as error:
        raise ConfigError(f"input={given} does not fit {name}: {str(error).strip().splitlines()[-1]}") from None
    arrays = {n: mx.nd.array(weights.host(array)) for n, array in loaded.arrays.items()}
    weights.fit(net, arrays, source, "keep")
    scores = [net(mx.nd.array(images[at : at + BATCH])).asnumpy() for at in range(0, len(images), BATCH)]
    scores = np.concatenate(scores)
    _replace(made, lambda path: _save_npy(path, scores))
    print(f"{made}: {len(scores)} x {scores.shape[1]} logits of {name}")
    rest = f", {len(loaded.ignored)} {convert.UNUSED} ignored" if loaded.ignored else ""
    print(f"{source}: {len(arrays)} tensors used{rest}")


def export(name: str, path: str, made: str, source: str) -> None:
    """The network `name` whose weights are in the .params file at `path`, as safetensors in PyTorch's names."""
    tensors = convert.to_torch(name, {n: array.asnumpy() for n, array in weights.load(path).items()}, source)
    _replace(made, lambda new: save_file(tensors, new, metadata={"format": "pt"}))  # which libraries look for
    print(f"{made}: {len(tensors)} tensors of {name}, {source}")


def _images(path: str) -> np.ndarray:
    try:
        images = np.load(path, allow_pickle=False)
    except FileNotFoundError:
        raise ConfigError(f"input={path}: no such file") from None
    except OSError as error:
        raise ConfigError(f"input={path}: {error.strerror or error}") from None
    except (ValueError, EOFError) as error:
        raise ConfigError(f"input={path} is no .npy file: {str(error).splitlines()[0]}") from None
    if not isinstance(images, np.ndarray) or images.dtype != np.float32 or images.ndim != 4 or images.shape[1] != 3:
        found = f"{images.dtype} {images.shape}" if isinstance(images, np.ndarray) else "several arrays"
        raise ConfigError(f"input={path}: expected float32 (n, 3, height, width), found {found}")
    if not images.size:
        raise ConfigError(f"input={path}: there is no image in it")
    return images


def _save_npy(path: str, array: np.ndarray) -> None:
    with open(path, "wb") as file:
        np.save(file, array)


def _replace(path: str, write) -> None:
    """`write(new)` writes the file: `path` is whole or as it was before.  Raises ConfigError."""
    try:
        with replacing(path) as new:
            write(new)
    except (OSError, SafetensorError) as error:
        raise ConfigError(f"output={path}: can't be written ({getattr(error, 'strerror', None) or error})") from None
