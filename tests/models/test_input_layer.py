"""Cast and normalisation within the network's graph."""

import mxnet as mx
import numpy as np
import pytest
from mxnet import gluon

from mxscale.config.training_settings import Data
from mxscale.models import weights
from mxscale.models.networks import InputLayer

DATA = Data(mean=[110.0, 140.0, 0.0], std=[50.0, 25.0, 10.0])


class Same(gluon.HybridBlock):
    def hybrid_forward(self, F, images):
        return F.identity(images)


@pytest.mark.parametrize("hybrid", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_bytes_are_normalised_per_channel(hybrid, dtype):
    layer = InputLayer(Same(), DATA, dtype, normalised=False)
    layer.hybridize(hybrid, static_alloc=True, static_shape=True)
    images = mx.nd.array(np.full((2, 3, 4, 4), [[[100]], [[150]], [[200]]]), dtype="uint8")
    found = layer(images)
    assert found.dtype == np.dtype(dtype)
    assert found[1, :, 3, 2].asnumpy() == pytest.approx([-0.2, 0.4, 20.0], rel=1e-3)


def test_normalised_images_stay_as_they_are():
    images = mx.nd.random.normal(shape=(2, 3, 4, 4))
    assert (InputLayer(Same(), DATA, "float32", normalised=True)(images) == images).asnumpy().all()
    assert InputLayer(Same(), DATA, "float16", normalised=True)(images).dtype == np.float16


def test_the_layer_has_no_parameters():
    net = gluon.nn.Dense(2)
    layer = InputLayer(net, DATA, "float32", normalised=False)
    net.initialize()
    layer(mx.nd.zeros((1, 3, 4, 4), dtype="uint8"))
    assert len(layer.collect_params().keys()) == len(weights.parameters(net)) == 2
