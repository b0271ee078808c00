"""EfficientNet-Lite: its padding, its names in PyTorch's files, its size. Against PyTorch: `make test-reference`."""

import mxnet as mx
import numpy as np
import pytest

from mxscale.config import networks
from mxscale.models import convert, weights, zoo
from mxscale.models.networks import Rotation

PUBLISHED = {0: 4652008, 1: 5416680, 2: 6092072, 3: 8197096, 4: 13006568}  # parameters with 1,000 classes


def same(image, kernel, stride):
    """Return TensorFlow's convolution with padding SAME of (1, 1, side, side), by its definition."""
    size, side = len(kernel), image.shape[-1]
    outputs = -(-side // stride)
    zeros = max((outputs - 1) * stride + size - side, 0)
    padded = np.pad(image[0, 0], (zeros // 2, zeros - zeros // 2))
    places = [range(0, outputs * stride, stride)] * 2
    return np.array([[(padded[y : y + size, x : x + size] * kernel).sum() for x in places[1]] for y in places[0]])


@pytest.mark.parametrize("size", [3, 5])
@pytest.mark.parametrize("side", [8, 9])
def test_a_rotated_convolution_has_tensorflows_padding(size, side):
    random = np.random.RandomState(size * side)
    image, kernel = random.normal(size=(1, 1, side, side)), random.normal(size=(size, size))
    rotated = mx.nd.array(kernel[::-1, ::-1].copy().reshape(1, 1, size, size))
    half = size // 2
    found = mx.nd.Convolution(
        Rotation()(mx.nd.array(image)), rotated, num_filter=1, kernel=(size, size), stride=(2, 2), pad=(half, half),
        no_bias=True,
    )  # fmt: skip
    np.testing.assert_allclose(Rotation()(found).asnumpy()[0, 0], same(image, kernel, 2), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("number", PUBLISHED)
def test_the_number_of_parameters_is_the_published_one(number):
    parameters = weights.parameters(zoo.build(f"efficientnet_lite{number}", 1000))
    trained = [parameter for name, parameter in parameters.items() if "running" not in name]
    assert sum(int(np.prod(parameter.shape)) for parameter in trained) == PUBLISHED[number]


@pytest.mark.parametrize("number, shorter_side", [(0, 256), (1, 272), (2, 292), (3, 312), (4, 332)])
def test_validation_crops_as_published(number, shorter_side):
    stated = networks.network(f"efficientnet_lite{number}").pretrained_input
    assert round(stated["image_size"] / stated["crop"]) == shorter_side  # 32 more: CROP_PADDING of TensorFlow's code


@pytest.mark.parametrize("number", PUBLISHED)
def test_each_tensor_has_one_name_in_pytorch(number):
    name = f"efficientnet_lite{number}"
    assert sorted(convert.names(networks.network(name)).values()) == list(weights.parameters(zoo.build(name, 10)))


def test_a_round_trip_through_pytorchs_layout_is_bit_identical(tmp_path):
    from safetensors.numpy import save_file

    net = zoo.build("efficientnet_lite0", 3)
    zoo.initialise(net, 1, mx.cpu(), zero_gamma=False)
    arrays = weights.arrays(net)
    tensors = convert.to_torch(networks.network("efficientnet_lite0"), arrays)
    assert (tensors["_conv_stem.weight"] == arrays["features.1.weight"][:, :, ::-1, ::-1]).all()
    save_file(tensors, tmp_path / "w.safetensors")
    back = convert.load(str(tmp_path / "w.safetensors"), "efficientnet_lite0")
    assert all(back[name].tobytes() == array.tobytes() for name, array in arrays.items())
