"""An exported network for tests, and photographs' stand-ins."""

from pathlib import Path

import mxnet as mx
import numpy as np
from PIL import Image

from mxscale.models import weights, zoo
from mxscale.models.model_card import ModelCard
from mxscale.serve import export
from mxscale.serve.trained_models import Network

SIDE, CLASSES = 32, ("cat", "dog", "eel")
MEAN, STD = (120.0, 110.0, 100.0), (60.0, 50.0, 40.0)


def trained(resize=None) -> Network:
    """Return the small network with random weights for three classes."""
    net = zoo.build("small", len(CLASSES))
    zoo.initialise(net, 3, mx.cpu(), zero_gamma=False)
    zoo.finish(net, (1, 3, SIDE, SIDE), mx.cpu())
    weights.parameters(net)["output.weight"].set_data(20 * weights.parameters(net)["output.weight"].data())
    return Network(net, ModelCard("small", CLASSES, SIDE, resize, "bilinear", MEAN, STD, "0" * 64))


def write(path, resize=None) -> Network:
    """Write that network as ONNX and return it."""
    network = trained(resize)
    Path(path).write_bytes(export.of_network(*network).SerializeToString())
    return network


def scores(network: Network, pixels: np.ndarray) -> np.ndarray:
    """Return MXNet's logits of images (n, side, side, 3) uint8."""
    normalised = (pixels.astype("float32") - np.float32(MEAN)) / np.float32(STD)
    return network.net(mx.nd.array(normalised.transpose(0, 3, 1, 2))).asnumpy()


def photographs(folder, count: int, size=(40, 32), seed: int = 0) -> list:
    """Write smooth random images as JPEGs `0000.jpg`, ...; return their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    paths, stream = [], np.random.RandomState(seed)
    for number in range(count):
        coarse = Image.fromarray(stream.randint(0, 256, (4, 4, 3)).astype("uint8"))
        paths.append(folder / f"{number:04d}.jpg")
        coarse.resize(size, Image.Resampling.BICUBIC).save(paths[-1], quality=95)
    return paths
