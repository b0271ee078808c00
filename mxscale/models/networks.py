"""Networks that Gluon's zoo lacks, each with `features` and `output`, the head; and the input of every network."""

import math
from functools import partial
from typing import List, NamedTuple

from mxnet.gluon import nn
from mxnet.gluon.model_zoo.vision.resnet import BasicBlockV1, ResNetV1

from mxscale.config.schema import Data

EPSILON = 1e-5  # of batch normalisation, as in PyTorch and in Gluon's BasicBlockV1


class Classifier(nn.HybridBlock):
    """Images (n, 3, side, side), of the registry's `min_side` at least, to scores (n, classes)."""

    def hybrid_forward(self, F, x):
        return self.output(self.features(x))


def normalised_convolution(
    channels: int, kernel: int, stride: int, in_channels: int, groups: int = 1, epsilon: float = EPSILON
):
    """Return a convolution without bias, padded to keep the size at stride 1, and the batch normalisation after it."""
    return (
        nn.Conv2D(channels, kernel, stride, kernel // 2, groups=groups, use_bias=False, in_channels=in_channels),
        nn.BatchNorm(epsilon=epsilon, in_channels=channels),
    )


class BottleneckV1b(nn.HybridBlock):
    """1x1, 3x3 with the stride, 1x1, without biases ("v1.5", GluonCV's `_v1b`), as in torchvision's and timm's weights.

    `body` and `downsample` have the layout of Gluon's BottleneckV1, which has the stride in the first 1x1 convolution,
    and biases in the 1x1 convolutions.
    """

    def __init__(self, channels: int, stride: int, downsample: bool = False, in_channels: int = 0, **kwargs):
        super().__init__(**kwargs)
        middle = channels // 4
        self.body = nn.HybridSequential(prefix="")
        self.body.add(
            *normalised_convolution(middle, 1, 1, in_channels),
            nn.Activation("relu"),
            *normalised_convolution(middle, 3, stride, middle),
            nn.Activation("relu"),
            *normalised_convolution(channels, 1, 1, middle),
        )
        self.downsample = None
        if downsample:
            self.downsample = nn.HybridSequential(prefix="")
            self.downsample.add(*normalised_convolution(channels, 1, stride, in_channels))

    def hybrid_forward(self, F, x):
        shortcut = self.downsample(x) if self.downsample else x
        return F.Activation(self.body(x) + shortcut, act_type="relu")


# layers -> (block, blocks of each stage, channels of the stem and of each stage): arXiv:1512.03385, table 1
_BASIC = [64, 64, 128, 256, 512]
_WIDE = [64, 256, 512, 1024, 2048]
SPECIFICATION = {
    18: (BasicBlockV1, [2, 2, 2, 2], _BASIC),
    34: (BasicBlockV1, [3, 4, 6, 3], _BASIC),
    50: (BottleneckV1b, [3, 4, 6, 3], _WIDE),
    101: (BottleneckV1b, [3, 4, 23, 3], _WIDE),
    152: (BottleneckV1b, [3, 8, 36, 3], _WIDE),
}


def resnet_v1b(layers: int, classes: int) -> nn.HybridBlock:
    """Return the uninitialised network; with 18 and 34 layers it is Gluon's v1."""
    block, blocks, channels = SPECIFICATION[layers]
    return ResNetV1(block, blocks, channels, classes=classes)


class Small(Classifier):
    """The network of arXiv:1512.03385, sec. 4.2, with n = 2: 14 layers with weights, 175,258 parameters for 10 classes.

    Unlike in the paper, a shortcut that changes shape is a 1x1 convolution (option B), as in the others.
    """

    def __init__(self, classes: int, **kwargs):
        super().__init__(**kwargs)
        channels = 16
        with self.name_scope():
            self.features = nn.HybridSequential(prefix="")
            self.features.add(
                nn.Conv2D(channels, 3, padding=1, use_bias=False, in_channels=3), nn.BatchNorm(), nn.Activation("relu")
            )
            for number, width in enumerate((16, 32, 64), 1):  # each stage after the first halves the side
                stage, changes = nn.HybridSequential(prefix=f"stage{number}_"), width != channels
                with stage.name_scope():
                    stage.add(BasicBlockV1(width, 2 if changes else 1, changes, in_channels=channels, prefix=""))
                    stage.add(BasicBlockV1(width, 1, in_channels=width, prefix=""))
                self.features.add(stage)
                channels = width
            # GlobalAvgPool2D hands its gradient back in a plain layout, which the layers before it keep: with AVX-512
            # oneDNN then has reference kernels alone for them, 45 % of a step
            self.features.add(nn.HybridLambda(lambda F, x: F.mean(x, axis=(2, 3))))
            self.output = nn.Dense(classes, in_units=channels)


# Channels of a stage, which halves the side, and whether it ends in a residual block
RESNET9_STAGES = ((64, True), (192, False), (384, True))
RESNET9_SCALE = 1 / 8


class ResNet9(nn.HybridBlock):
    """The network of David Page's entries to DAWNBench ("How to train your ResNet", 2018), for CIFAR-10 in few epochs.

    The layers are narrower, the early ones most, for training on a CPU: 3,528,362 parameters for 10 classes. Pooling
    precedes batch normalisation, which then has a quarter of the work. Scores are scaled by 1/8 as in the original,
    here before the last layer, which stays the last operator.
    """

    def __init__(self, classes: int, **kwargs):
        super().__init__(**kwargs)
        channels = 32
        with self.name_scope():
            self.features = nn.HybridSequential(prefix="")
            self.features.add(*normalised_convolution(channels, 3, 1, 3), nn.Activation("relu"))
            for width, residual in RESNET9_STAGES:
                convolution, norm = normalised_convolution(width, 3, 1, channels)
                self.features.add(convolution, nn.MaxPool2D(2), norm, nn.Activation("relu"))
                if residual:
                    self.features.add(_ResNet9Block(width))
                channels = width
            self.features.add(nn.GlobalMaxPool2D(), nn.Flatten())
            self.output = nn.Dense(classes, in_units=channels)

    def hybrid_forward(self, F, x):
        return self.output(self.features(x) * RESNET9_SCALE)


class _ResNet9Block(nn.HybridBlock):
    """x + two 3x3 convolutions of x, without an activation after the sum."""

    def __init__(self, channels: int, **kwargs):
        super().__init__(**kwargs)
        self.body = nn.HybridSequential(prefix="")
        for _ in range(2):
            self.body.add(*normalised_convolution(channels, 3, 1, channels), nn.Activation("relu"))

    def hybrid_forward(self, F, x):
        return x + self.body(x)


class MnistConvnet(nn.HybridBlock):
    """The network of Horovod's MXNet example for MNIST (examples/mxnet/mxnet_mnist.py).

    Of grey images with three equal channels, it uses the first: the input of the example is (n, 1, 28, 28).
    """

    def __init__(self, classes: int, **kwargs):
        super().__init__(**kwargs)
        with self.name_scope():
            self.features = nn.HybridSequential(prefix="")
            self.features.add(
                nn.Conv2D(20, 5, activation="relu", in_channels=1),
                nn.MaxPool2D(2, 2),
                nn.Conv2D(50, 5, activation="relu", in_channels=20),
                nn.MaxPool2D(2, 2),
                nn.Flatten(),
                nn.Dense(512, activation="relu"),
            )
            self.output = nn.Dense(classes, in_units=512)

    def hybrid_forward(self, F, x):
        return self.output(self.features(F.slice_axis(x, axis=1, begin=0, end=1)))


_convolution = partial(normalised_convolution, epsilon=1e-3)
STEM, HEAD = 32, 1280  # channels; the same for all five networks


class Scale(NamedTuple):
    """How a network differs from Lite0."""

    width: float  # factor of the channels
    depth: float  # factor of the blocks of a stage
    dropout: float  # share of features dropped before the head


# tensorflow/tpu, models/official/efficientnet/lite/efficientnet_lite_builder.py
SCALES = (Scale(1.0, 1.0, 0.2), Scale(1.0, 1.1, 0.2), Scale(1.1, 1.2, 0.3), Scale(1.2, 1.4, 0.3), Scale(1.4, 1.8, 0.3))


class Stage(NamedTuple):
    blocks: int
    kernel: int
    stride: int  # of the first block
    expansion: int  # factor of the channels inside a block
    channels: int


# arXiv:1905.11946, table 1
STAGES = (
    Stage(1, 3, 1, 1, 16),
    Stage(2, 3, 2, 6, 24),
    Stage(2, 5, 2, 6, 40),
    Stage(3, 3, 2, 6, 80),
    Stage(3, 5, 1, 6, 112),
    Stage(4, 5, 2, 6, 192),
    Stage(1, 3, 1, 6, 320),
)


class EfficientNetLite(Classifier):
    """EfficientNet (arXiv:1905.11946) without squeeze-and-excitation and with ReLU6; `number` is 0 to 4.

    The published weights were trained with TensorFlow's SAME padding: a convolution with stride 2 and an even input
    has one row and one column less of zeros at the top and left than at the bottom and right. Seen from the
    opposite corner, that is the symmetric padding of the other frameworks, at even and odd sizes. So this network
    rotates its input by 180 degrees, and its kernels are those of the published files, rotated alike. Its last
    operation before the head is a global mean, which does not depend on the rotation.
    """

    def __init__(self, number: int, classes: int, **kwargs):
        super().__init__(**kwargs)
        scale = SCALES[number]
        with self.name_scope():
            self.features = nn.HybridSequential(prefix="")
            self.features.add(Rotation(), *_convolution(STEM, 3, 2, 3), Relu6())
            channels = STEM
            for stage in stages(scale):
                self.features.add(_blocks(stage, channels))
                channels = stage.channels
            self.features.add(*_convolution(HEAD, 1, 1, channels), Relu6())
            self.features.add(nn.GlobalAvgPool2D(), nn.Flatten(), nn.Dropout(scale.dropout))
            self.output = nn.Dense(classes, in_units=HEAD)


def stages(scale: Scale) -> List[Stage]:
    """Return the stages of a network. The first and the last stage keep their number of blocks."""
    inner = [stage._replace(blocks=math.ceil(stage.blocks * scale.depth)) for stage in STAGES[1:-1]]
    scaled = [STAGES[0], *inner, STAGES[-1]]
    return [stage._replace(channels=_rounded(stage.channels * scale.width)) for stage in scaled]


def _rounded(channels: float) -> int:
    """Return the nearest multiple of 8, and the next one if that loses more than a tenth."""
    nearest = max(8, int(channels + 4) // 8 * 8)
    return nearest + 8 if nearest < 0.9 * channels else nearest


class Rotation(nn.HybridBlock):
    """Images rotated by 180 degrees."""

    def hybrid_forward(self, F, x):
        return F.flip(x, axis=(2, 3))


class Relu6(nn.HybridBlock):
    """min(max(x, 0), 6) behind a batch normalisation; `channels` are those of the 1x1 convolution beside it.

    oneDNN stores the maps of convolutions in blocks of 16 channels, or of 8 where the 1x1 convolution's channels are no
    multiple of 16. A batch normalisation whose input and gradient differ in that runs backward in oneDNN's reference
    kernel, which takes ten times as long. `clip` prevents it, since its gradient has no blocks; elsewhere it is the
    slower one of two equal ways.
    """

    def __init__(self, channels: int = 16, **kwargs):
        super().__init__(**kwargs)
        self.mixed_blocks = channels % 16 != 0

    def hybrid_forward(self, F, x):
        return F.clip(x, 0, 6) if self.mixed_blocks else F.minimum(F.Activation(x, act_type="relu"), 6)


class InvertedResidual(nn.HybridBlock):
    """1x1 that expands, depthwise with the stride, 1x1 that projects; with a shortcut where the shape stays."""

    def __init__(self, kernel: int, stride: int, expansion: int, in_channels: int, channels: int, **kwargs):
        super().__init__(**kwargs)
        inner = expansion * in_channels
        self.shortcut = stride == 1 and in_channels == channels
        self.body = nn.HybridSequential(prefix="")
        if expansion > 1:
            self.body.add(*_convolution(inner, 1, 1, in_channels), Relu6(in_channels))
        self.body.add(*_convolution(inner, kernel, stride, inner, groups=inner), Relu6(channels))
        self.body.add(*_convolution(channels, 1, 1, inner))

    def hybrid_forward(self, F, x):
        return self.body(x) + x if self.shortcut else self.body(x)


def _blocks(stage: Stage, in_channels: int) -> nn.HybridSequential:
    blocks = nn.HybridSequential(prefix="")
    for index in range(stage.blocks):
        stride, before = (stage.stride, in_channels) if index == 0 else (1, stage.channels)
        blocks.add(InvertedResidual(stage.kernel, stride, stage.expansion, before, stage.channels))
    return blocks


class InputLayer(nn.HybridBlock):
    """A network with its input operations in one graph; it has no parameters of its own.

    uint8 images are cast and normalised on the device, so that a quarter of the bytes travels there.
    """

    def __init__(self, net: nn.HybridBlock, data: Data, dtype: str, normalised: bool):
        """`normalised`: images arrive as normalised float32 and are cast at most; `dtype` is the network's."""
        super().__init__()
        self.net = net
        self._scale = None if normalised else {"mean": tuple(data.mean), "std": tuple(data.std)}
        self._dtype = dtype

    def hybrid_forward(self, F, images):
        """Return the logits (B, classes) of images (B, 3, H, W)."""
        if self._scale:
            images = F.image.normalize(F.cast(images, "float32"), **self._scale)
        if self._dtype != "float32":
            images = F.cast(images, self._dtype)
        return self.net(images)
