"""The roofline of a step on one device, against values computed by hand."""

import pytest

from mxscale.perfmodel import hardware, layers, roofline
from mxscale.perfmodel.layers import Layer, Network
from mxscale.perfmodel.roofline import Step

HALF = {"peak_share": 0.5, "memory_share": 0.5, "winograd": 2.0, "launch_layer": 0.001}  # of V100: 7.85e12, 450e9


def seconds(layer: Layer, batch=10, precision="float32", gpu="V100") -> float:
    return sum(roofline.step_s(Step(Network("one", (layer,)), batch, precision), gpu, HALF))


def test_a_layer_takes_the_longer_of_arithmetic_and_memory_traffic():
    arithmetic = seconds(Layer(0, 7.85e9 / 3, 1e3, 1e3))  # 1 ms an image
    assert arithmetic == pytest.approx(0.011)
    traffic = seconds(Layer(0, 1e3, 1e7, 2e7))  # 3 x 30 million numbers of 4 bytes at 450e9 bytes/s: 0.8 ms
    assert traffic == pytest.approx(0.001 + 10 * 3 * 3e7 * 4 / 450e9)
    assert seconds(Layer(0, 1e7, 1e7, 2e7, "batch_norm")) == pytest.approx(0.001 + 10 * 8 * 2e7 * 4 / 450e9)


def test_winograd_is_for_devices_without_tensor_cores():
    plain, square = (Layer(0, 7.85e9, 1e3, 1e3, kind) for kind in ("conv", "conv3x3"))
    assert seconds(plain) - 0.001 == pytest.approx(2 * (seconds(square) - 0.001))
    assert seconds(plain, precision="amp") == seconds(square, precision="amp") < seconds(square)
    assert seconds(plain, gpu="A100") == seconds(square, gpu="A100")


def test_half_precision_halves_the_traffic_where_there_are_no_tensor_cores():
    layer = Layer(0, 1e3, 1e7, 1e7)
    assert seconds(layer, gpu="K80") - 0.001 == pytest.approx(2 * (seconds(layer, precision="amp", gpu="K80") - 0.001))


@pytest.mark.parametrize("gpu", ["TPU v3", "Tesla X1"])
def test_unknown_peaks_give_no_time(gpu):
    assert roofline.step_s(Step(Network("one", (Layer(0, 1e9),)), 1, "float32"), gpu) is None


def test_small_images_are_bound_by_the_launches():
    """64 px have 1/12 of the FLOPs of 224 px; at batch 32 an A100 is not 12 times as fast."""
    large, small = (Step(layers.network("resnet50_v1b", size), 32, "amp") for size in (224, 64))
    assert sum(roofline.step_s(large, "A100")) < 3 * sum(roofline.step_s(small, "A100"))


def test_convolutions_of_three_by_three_are_recognised():
    kinds = [layer.kind for layer in layers.network("vgg16").layers]
    assert kinds.count("conv3x3") == 9 and kinds.count("dense") == 3  # of 13: 4 follow a pooling, as if of stride 2
    assert [layer.kind for layer in layers.network("mobilenet1.0").layers].count("conv3x3") == 0
    assert [layer.kind for layer in layers.network("resnet50_v1b").layers].count("conv3x3") == 13  # 16, 3 of stride 2


def test_every_gpu_with_peaks_has_a_link_and_a_source():
    for name, known in hardware.devices().items():
        assert ("memory" in known) == any(key.startswith("peak_") for key in known), name
        assert "link" in known
