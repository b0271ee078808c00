"""EfficientNet-Lite 0 to 4: EfficientNet (arXiv:1905.11946) without squeeze-and-excitation and with ReLU6.

The published weights were trained with TensorFlow's SAME padding: a convolution with stride 2 and an even input has one
row and one column less of zeros at the top and left than at the bottom and right. Seen from the opposite corner, that
is the symmetric padding of the other frameworks, at even and odd sizes. So this network rotates its input by 180
degrees, and its kernels are those of the published files, rotated alike. Its last operation before the head is a global
mean, which does not depend on the rotation.
"""

import math
from functools import partial
from typing import List, NamedTuple

from mxnet.gluon import nn

from mxscale.models.residual import normalised_convolution

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


class EfficientNetLite(nn.HybridBlock):
    """Images (n, 3, side, side), side >= 8, to scores (n, classes)."""

    def __init__(self, number: int, classes: int, **kwargs):
        """`number`: 0 to 4."""
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

    def hybrid_forward(self, F, x):
        return self.output(self.features(x))


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
    def hybrid_forward(self, F, x):
        return F.clip(x, 0, 6)


class InvertedResidual(nn.HybridBlock):
    """1x1 that expands, depthwise with the stride, 1x1 that projects; with a shortcut where the shape stays."""

    def __init__(self, kernel: int, stride: int, expansion: int, in_channels: int, channels: int, **kwargs):
        super().__init__(**kwargs)
        inner = expansion * in_channels
        self.shortcut = stride == 1 and in_channels == channels
        self.body = nn.HybridSequential(prefix="")
        if expansion > 1:
            self.body.add(*_convolution(inner, 1, 1, in_channels), Relu6())
        self.body.add(*_convolution(inner, kernel, stride, inner, groups=inner), Relu6())
        self.body.add(*_convolution(channels, 1, 1, inner))

    def hybrid_forward(self, F, x):
        return self.body(x) + x if self.shortcut else self.body(x)


def _blocks(stage: Stage, in_channels: int) -> nn.HybridSequential:
    blocks = nn.HybridSequential(prefix="")
    for index in range(stage.blocks):
        stride, before = (stage.stride, in_channels) if index == 0 else (1, stage.channels)
        blocks.add(InvertedResidual(stage.kernel, stride, stage.expansion, before, stage.channels))
    return blocks
