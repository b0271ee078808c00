"""A small residual network for small images (CIFAR, digits): arXiv:1512.03385, sec. 4.2, with n = 2.

6n + 2 = 14 layers with weights, 175,258 parameters for 10 classes. Unlike in the paper, a shortcut that changes
shape is a 1x1 convolution (option B), as in the other networks here.
"""

from mxnet.gluon import nn
from mxnet.gluon.model_zoo.vision.resnet import BasicBlockV1

WIDTHS = (16, 32, 64)  # channels of the three stages; each stage after the first halves the side
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
