"""The rate of one device alone, and its source.

In order of preference: a given rate; the user's own runs; a published rate of the network on the GPU; the network's
FLOPs at the FLOP/s that the GPU achieves with ResNet-50. An unknown rate is an error, not a guess.
"""

import functools
import math
import re
from dataclasses import dataclass
from typing import List, Optional, Sequence

from mxscale.perfmodel import hardware, layers, step_time
from mxscale.perfmodel.layers import Network
from mxscale.perfmodel.published import rows
from mxscale.util.errors import ConfigError

# precision -> matching published ones, the nearest first; on A100 and later, float32 multiplies as TF32
PRECISIONS = {"float32": ("fp32", "tf32"), "float16": ("fp16", "amp"), "amp": ("amp", "fp16")}
QUANTITY = {"float32": "resnet50_fp32", "float16": "resnet50_fp16", "amp": "resnet50_fp16"}  # of hardware.csv
OTHER_FRAMEWORK = 1.0  # distance of another framework, in factors of 2 of the batch
OF_CLASSES = 0.02  # largest share of a network's FLOPs in its classifier, whose size differs between publications
STEP_FLOPS = 3  # FLOPs of a step over those of forward: backward computes gradients of inputs and of weights


@dataclass(frozen=True)
class Rate:
    """Images/s of one device."""

    images_per_s: float
    source: str
    kind: str = "given"  # given | measured | published | computed

    @property
    def error(self) -> str:
        """The error of absolute figures with this rate (tools/scaling_model.py); "" for a given or measured one."""
        return hardware.described_errors(self.kind, f"absolute error with a {self.kind} rate")


@dataclass(frozen=True)
class Measured:
    """The measured rate of one of the user's runs."""

    network: str
    batch: int  # per device
    precision: str
    devices: int
    images_per_s: float  # of all devices
    source: str
    image_size: Optional[int] = None
    device: str = "gpu"  # cpu | gpu
    gpu: Optional[str] = None  # its recorded name


def of_device(
    network: Network,
    gpu: Optional[str],
    batch: int,
    precision: str,
    images_per_s: Optional[float] = None,
    runs: Sequence[Measured] = (),
) -> Rate:
    """Return the rate of one device. Raises ConfigError if no source has it.

    Args:
        gpu: Name of the device; None: a CPU, or unknown.
        images_per_s: The value of plan.images_per_s.
    """
    if images_per_s is not None:
        return Rate(images_per_s, "given (plan.images_per_s)")
    others = [run for run in runs if gpu and not _possibly_on(run, gpu)]
    if others:
        ran = "on a CPU" if others[0].device == "cpu" else f"on {others[0].gpu}"
        raise ConfigError(f"plan.calibrate: {others[0].source} ran {ran}, but the plan is for {gpu}")
    rate = measured(network, batch, precision, runs)
    if not rate and gpu:
        rate = reported(network, gpu, batch, precision) or computed(network, gpu, precision)
    if rate:
        return rate
    on = f"on {gpu}" if gpu else "on this machine"
    raise ConfigError(
        f"the rate of one device that trains {network.name} in {precision} {on} is unknown: give plan.images_per_s, or "
        "plan.calibrate=RUN_DIR of a run"
    )


def _possibly_on(run: Measured, gpu: str) -> bool:
    """Return whether the run may have used such a GPU."""
    known, wanted = hardware.device(run.gpu) if run.gpu else None, hardware.device(gpu)
    return run.device != "cpu" and (known is None or wanted is None or known is wanted)


def measured(network: Network, batch: int, precision: str, runs: Sequence[Measured]) -> Optional[Rate]:
    """Return the rate of the own run with the nearest batch, then the fewest devices."""
    alike = [run for run in runs if (run.network, run.precision) == (network.name, precision)]
    if not alike:
        return None
    run = min(alike, key=lambda run: (_distance(run.batch, batch), run.devices))
    with_exchange = "" if run.devices == 1 else f" on {run.devices} devices, exchange included,"
    source = f"measured{with_exchange} at batch {run.batch} ({run.source})"
    return Rate(run.images_per_s / run.devices, source, "measured")


def reported(
    network: Network, gpu: str, batch: float, precision: str, points: Optional[Sequence[rows.Point]] = None
) -> Optional[Rate]:
    """Return the rate among `points` (by default `single`) of one such GPU.

    The precision is the same, then the nearest batch, framework and memory count.
    """
    wanted, device, names = hardware.network(network.name), hardware.device(gpu), PRECISIONS[precision]
    if not (wanted and device):
        return None

    def distance(point: rows.Point) -> tuple:
        other_framework = OTHER_FRAMEWORK * (not point.framework.startswith("MXNet"))
        far = _distance(point.batch, batch) + other_framework + _memory_distance(point.gpu, gpu)
        return names.index(point.precision), far, -point.rate

    alike = [
        point
        for point in (single() if points is None else points)
        if point.precision in names and hardware.network(point.model) == wanted and hardware.device(point.gpu) is device
    ]
    if not alike:
        return None
    point = min(alike, key=distance)
    what = f"{point.model} on {point.gpu}, {point.precision}, batch {point.batch:g}: {point.source}"
    work = _work(network)
    scaled = [f"batch {batch}"] * (point.batch != batch) + [f"{work:.3g} of the FLOPs (image size)"] * (work != 1)
    launches_s = hardware.launches_s(wanted.tensors, hardware.constants()["launch"])
    step_s = float(step_time.at_batch(point.batch / point.rate, batch, point.batch, launches_s, work))
    note = f", scaled to {' and '.join(scaled)}" if scaled else ""
    return Rate(batch / step_s if scaled else point.rate, f"published ({what}){note}", "published")


def _work(network: Network) -> float:
    """Return the network's FLOPs over those at the image size of layers.csv, which publications use."""
    ratio = network.flops / layers.network(network.name).flops
    return 1.0 if abs(ratio - 1) < OF_CLASSES else ratio


def _memory_distance(one: str, other: str) -> float:
    """Return the distance of two variants of a GPU by their memory (V100-16GB), which correlates with the clock."""
    sizes = [re.findall(r"(?<!\d)(\d+) ?gb", name.lower()) for name in (one, other)]
    return OTHER_FRAMEWORK / 4 if not all(sizes) else OTHER_FRAMEWORK / 2 * (sizes[0] != sizes[1])


@functools.lru_cache
def single() -> List[rows.Point]:
    """Return the published rates of one device in the package's tables."""
    points = [point for name in rows.TABLES for point in rows.of_package(name)]
    return [point for point in points if point.devices == 1 and point.batch and not point.flag]


def computed(network: Network, gpu: str, precision: str, resnet50: Optional[float] = None) -> Optional[Rate]:
    """Return the rate at the FLOP/s that the GPU achieves with ResNet-50; too high for depthwise convolutions.

    ResNet-50's images/s are those of hardware.csv, unless they are given.
    """
    known = resnet50 or (hardware.device(gpu) or {}).get(QUANTITY[precision])
    if known is None:
        return None
    achieved = known * STEP_FLOPS * layers.network("resnet50_v1b").flops
    source = f"computed: {achieved / 1e12:.1f} TFLOP/s, which {gpu} achieves with ResNet-50 in {precision}"
    return Rate(achieved / (STEP_FLOPS * network.flops), source, "computed")


def _distance(one: float, other: float) -> float:
    return abs(math.log2(one / other))
