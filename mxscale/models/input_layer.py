"""The network's first operations: cast and normalisation of images on the device."""

from mxnet import gluon

from mxscale.config.schema import Data


class InputLayer(gluon.HybridBlock):
    """A network with its input operations in one graph; it has no parameters of its own.

    uint8 images are cast and normalised on the device, so that a quarter of the bytes travels there.
    """

    def __init__(self, net: gluon.Block, data: Data, dtype: str, normalised: bool):
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
