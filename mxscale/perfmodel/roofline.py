"""Seconds of a step on one device alone, from its peak rates and the network's layers.

A roofline (Williams, Waterman, Patterson, CACM 52(4), 2009): a layer takes the time of its arithmetic or that of its
memory traffic, whichever is longer. The achieved shares of the peaks are fitted to published rates
(tools/scaling_model.py).
"""

from typing import Mapping, NamedTuple, Optional

from mxscale.perfmodel import hardware
from mxscale.perfmodel.layers import Layer, Network

# In hardware.csv: shares of the peaks; the gain of Winograd's algorithm (arXiv:1509.09308) for 3x3 convolutions of
# stride 1, which tensor cores do not need; seconds of a layer's kernel launches in a step
CONSTANTS = ("peak_share", "memory_share", "winograd", "launch_layer")
STEP_FLOPS = 3  # FLOPs of a step over those of forward: backward computes gradients of inputs and of weights
CONVOLUTION_MAPS = 3  # of input and output, or their gradients, in forward and in both parts of backward
# Of its output, with the activation that follows: forward reads it for the statistics, then reads and writes it in
# both; backward reads values and gradients for two sums, then the values again, and writes
NORM_MAPS = 8
BYTES = {"float32": 4, "float16": 2, "amp": 2}


class Step(NamedTuple):
    """A step on one device."""

    network: Network
    batch: float  # images
    precision: str


def step_s(step: Step, gpu: str, constants: Optional[Mapping[str, float]] = None) -> Optional[float]:
    """Return the seconds of a step; None if the GPU's peaks are unknown. constants: None for those of hardware.csv."""
    device, k = hardware.device(gpu) or {}, constants or hardware.constants()
    peak = device.get("peak_tf32" if step.precision == "float32" else "peak_fp16")
    winograd = 1.0 if peak else k["winograd"]
    peak, memory = peak or device.get("peak_fp32"), device.get("memory")
    if not (peak and memory):
        return None
    flops, numbers = k["peak_share"] * peak, k["memory_share"] * memory / BYTES[step.precision]  # achieved in a second

    def image_s(layer: Layer) -> float:
        if layer.kind == "batch_norm":
            return NORM_MAPS * layer.written / numbers
        arithmetic_s = STEP_FLOPS * layer.flops / flops / (winograd if layer.kind == "conv3x3" else 1.0)
        return max(arithmetic_s, CONVOLUTION_MAPS * (layer.read + layer.written) / numbers)

    return step.batch * sum(map(image_s, step.network.layers)) + k["launch_layer"] * len(step.network.layers)
