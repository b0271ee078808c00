"""Seconds of a step on one device alone, from its peak rates and the network's layers.

A roofline (Williams, Waterman, Patterson, CACM 52(4), 2009): a layer takes the time of its arithmetic or that of its
memory traffic, whichever is longer. The achieved shares of the peaks are fitted to published rates
(tools/scaling_model.py).
"""

import functools
from typing import Mapping, NamedTuple, Optional

import numpy as np

from mxscale.perfmodel import hardware
from mxscale.perfmodel.layers import Network

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


class Seconds(NamedTuple):
    """What a step takes."""

    images_s: float  # grows with the batch
    launches_s: float  # of kernels


def step_s(step: Step, gpu: str, constants: Optional[Mapping[str, float]] = None) -> Optional[Seconds]:
    """Return the seconds of a step; None if the GPU's peaks are unknown. constants: None for those of hardware.csv."""
    device, k = hardware.device(gpu) or {}, constants or hardware.constants()
    peak = device.get("peak_tf32" if step.precision == "float32" else "peak_fp16")
    winograd = 1.0 if peak else k["winograd"]
    peak, memory = peak or device.get("peak_fp32"), device.get("memory")
    if not (peak and memory):
        return None
    flops, maps, square = _columns(step.network)
    arithmetic_s = STEP_FLOPS * flops / (k["peak_share"] * peak * np.where(square, winograd, 1.0))
    traffic_s = maps * BYTES[step.precision] / (k["memory_share"] * memory)
    image_s = float(np.maximum(arithmetic_s, traffic_s).sum())
    return Seconds(step.batch * image_s, k["launch_layer"] * len(step.network.layers))


@functools.lru_cache
def _columns(network: Network) -> np.ndarray:
    """Return columns of the layers: FLOPs of forward, numbers moved in a step, whether Winograd's algorithm fits."""
    moved = (
        NORM_MAPS * layer.written if layer.kind == "batch_norm" else CONVOLUTION_MAPS * (layer.read + layer.written)
        for layer in network.layers
    )
    return np.array([(layer.flops, of, layer.kind == "conv3x3") for layer, of in zip(network.layers, moved)]).T
