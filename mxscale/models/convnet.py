"""The convolutional network of Horovod's MXNet example for MNIST (examples/mxnet/mxnet_mnist.py)."""

from mxnet.gluon import nn


class MnistConvnet(nn.HybridBlock):
    """Grey images (n, 3, side, side), side >= 16, with three equal channels, to scores (n, classes).

    Only the first channel is used, so the layers are those of the example, whose input is (n, 1, 28, 28).
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
