"""Residual networks that Gluon's zoo lacks: ResNet v1b, and two small ones for small images.

ResNet v1b has the stride in the 3x3 convolution and no biases ("v1.5", GluonCV's `_v1b`). torchvision's and timm's
ResNet weights have this architecture. They do not fit Gluon's own `resnet50_v1`, which has the stride in the first 1x1
convolution and biases in the 1x1 convolutions. The networks with 18 and 34 layers are the same in both and have a
`_v1b` name for consistency.

The small network is that of arXiv:1512.03385, sec. 4.2, with n = 2: 6n + 2 = 14 layers with weights, 175,258 parameters
for 10 classes. Unlike in the paper, a shortcut that changes shape is a 1x1 convolution (option B), as in the others.

ResNet-9 is the network of David Page's entries to DAWNBench ("How to train your ResNet", 2018), which learns CIFAR-10
in few epochs. Here the layers are narrower, the early ones most, for training on a CPU: 3,528,362 parameters for 10
classes. Pooling precedes batch normalisation, which then has a quarter of the work. Scores are scaled by 1/8 as in the
original, here before the last layer, which stays the last operator.
"""

from mxnet.gluon import nn
from mxnet.gluon.model_zoo.vision.resnet import BasicBlockV1, ResNetV1

EPSILON = 1e-5  # of batch normalisation, as in PyTorch and in Gluon's BasicBlockV1


class BottleneckV1b(nn.HybridBlock):
    """1x1, 3x3 with the stride, 1x1; `body` and `downsample` have the layout of Gluon's BottleneckV1."""

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


def normalised_convolution(
    channels: int, kernel: int, stride: int, in_channels: int, groups: int = 1, epsilon: float = EPSILON
):
    """Return a convolution without bias, padded to keep the size at stride 1, and the batch normalisation after it."""
    return (
        nn.Conv2D(channels, kernel, stride, kernel // 2, groups=groups, use_bias=False, in_channels=in_channels),
        nn.BatchNorm(epsilon=epsilon, in_channels=channels),
    )


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
    """Return the uninitialised network of 18, 34, 50, 101 or 152 layers, with `.features` and `.output`."""
    block, blocks, channels = SPECIFICATION[layers]
    return ResNetV1(block, blocks, channels, classes=classes)


WIDTHS = (16, 32, 64)  # channels of the three stages of Small; each stage after the first halves the side
BLOCKS = 2  # per stage: n of the paper


class Small(nn.HybridBlock):
    """Images (n, 3, side, side), side >= 8, to scores (n, classes)."""

    def __init__(self, classes: int, **kwargs):
        super().__init__(**kwargs)
        with self.name_scope():
            self.features = nn.HybridSequential(prefix="")
            self.features.add(
                nn.Conv2D(WIDTHS[0], 3, padding=1, use_bias=False, in_channels=3), nn.BatchNorm(), nn.Activation("relu")
            )
            channels = WIDTHS[0]
            for stage, width in enumerate(WIDTHS):
                self.features.add(_stage(stage, width, channels))
                channels = width
            self.features.add(nn.GlobalAvgPool2D(), nn.Flatten())
            self.output = nn.Dense(classes, in_units=channels)

    def hybrid_forward(self, F, x):
        return self.output(self.features(x))


def _stage(index: int, width: int, channels: int) -> nn.HybridSequential:
    stage = nn.HybridSequential(prefix=f"stage{index + 1}_")
    with stage.name_scope():
        stage.add(BasicBlockV1(width, 1 if index == 0 else 2, width != channels, in_channels=channels, prefix=""))
        for _ in range(BLOCKS - 1):
            stage.add(BasicBlockV1(width, 1, in_channels=width, prefix=""))
    return stage


RESNET9_WIDTHS = (32, 64, 192, 384)  # channels of the first layer and of the three stages; each stage halves the side
RESNET9_RESIDUAL = (True, False, True)  # stages that end in a residual block
RESNET9_SCALE = 1 / 8


class ResNet9(nn.HybridBlock):
    """Images (n, 3, side, side), side >= 8, to scores (n, classes)."""

    def __init__(self, classes: int, **kwargs):
        super().__init__(**kwargs)
        first, *widths = RESNET9_WIDTHS
        with self.name_scope():
            self.features = nn.HybridSequential(prefix="")
            self.features.add(*normalised_convolution(first, 3, 1, 3), nn.Activation("relu"))
            channels = first
            for width, residual in zip(widths, RESNET9_RESIDUAL):
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
