"""How fast one device trains a network by itself, and who says so.  Pure.

In order: given by hand; one's own runs; a published rate of that network on that GPU; the network's FLOPs over those
that the GPU achieves with ResNet-50.  Where nothing is known nothing is guessed.
"""

import functools
import math
import re
from dataclasses import dataclass, field
from typing import List, Optional, Sequence

from mxscale.config.schema import Comm
from mxscale.perfmodel import hardware, layers, step_time
from mxscale.perfmodel.layers import Network
from mxscale.perfmodel.published import rows
from mxscale.util.errors import ConfigError

# our precision -> published ones that it is, the nearest first; on A100 and later, float32 multiplies as TF32
PRECISIONS = {"float32": ("fp32", "tf32"), "float16": ("fp16", "amp"), "amp": ("amp", "fp16")}
QUANTITY = {"float32": "resnet50_fp32", "float16": "resnet50_fp16", "amp": "resnet50_fp16"}  # of hardware.csv
OTHER = 1.0  # another framework weighs as much as twice the batch
OF_CLASSES = 0.02  # of a network's FLOPs at most are those of its classes, which published rates differ in
TRAINED = 3  # FLOPs of a step, in those of a forward: backward makes gradients of inputs and of weights


@dataclass(frozen=True)
class Rate:
    """Images/s of one device."""

    images_per_s: float
    kind: str  # given | measured | published | computed
    source: str


@dataclass(frozen=True)
class Measured:
    """What a run of one's own reached."""

    network: str
    batch: int  # of a device
    precision: str
    devices: int
    nodes: int  # that have devices
    images_per_s: float  # of all devices
    source: str
    threads: Optional[int] = None  # of each device, where it is a CPU's
    comm: Comm = field(default_factory=Comm)  # how it exchanged its gradients
    image_size: Optional[int] = None
    classes: Optional[int] = None
    device: str = "gpu"  # cpu | gpu
    gpu: Optional[str] = None  # its name, where that is on record
    accumulation: int = 1  # batches of a device in a step
    server_nodes: int = 0  # that are parameter servers alone


def of_device(
    network: Network,
    gpu: Optional[str],
    batch: int,
    precision: str,
    given: Optional[float] = None,
    runs: Sequence[Measured] = (),
) -> Rate:
    """The rate of one device at this batch and precision.  Raises ConfigError where it is not known."""
    if given is not None:
        return Rate(given, "given", "given by hand (plan.images_per_s)")
    others = [run for run in runs if gpu and not _may_be(run, gpu)]
    if others:
        ran = "on a CPU" if others[0].device == "cpu" else f"on {others[0].gpu}"
        raise ConfigError(f"plan.calibrate: {others[0].source} ran {ran}, and the plan is for {gpu}")
    found = measured(network, batch, precision, runs)
    if not found and gpu:
        found = reported(network, gpu, batch, precision) or computed(network, gpu, precision)
    if found:
        return found
    on = f"on {gpu}" if gpu else "on such a machine"
    raise ConfigError(
        f"how fast one device trains {network.name} in {precision} {on} is not known: give plan.images_per_s, or "
        "plan.calibrate=RUN_DIR of a run of it"
    )


def _may_be(run: Measured, gpu: str) -> bool:
    """Whether it may have run on such a GPU."""
    known, wanted = hardware.device(run.gpu) if run.gpu else None, hardware.device(gpu)
    return run.device != "cpu" and (known is None or wanted is None or known is wanted)


def measured(network: Network, batch: int, precision: str, runs: Sequence[Measured]) -> Optional[Rate]:
    """Of one's own runs the one of the fewest devices, its batch the nearest."""
    alike = [run for run in runs if (run.network, run.precision) == (network.name, precision)]
    if not alike:
        return None
    run = min(alike, key=lambda run: (_apart(run.batch, batch), run.devices))
    with_exchange = "" if run.devices == 1 else f" of {run.devices} devices, their exchange included,"
    said = f"measured{with_exchange} at batch {run.batch} ({run.source})"
    return Rate(run.images_per_s / run.devices, "measured", said)


def reported(network: Network, gpu: str, batch: int, precision: str) -> Optional[Rate]:
    """A published rate of one such GPU: the same precision, then the nearest in batch, framework, memory."""
    wanted, device = hardware.network(network.name), hardware.device(gpu)
    names = PRECISIONS[precision]
    alike = [
        point
        for point in _single()
        if wanted
        and device
        and hardware.network(point.model) == wanted
        and hardware.device(point.gpu) is device
        and point.precision in names
    ]
    if not alike:
        return None
    point = min(
        alike,
        key=lambda point: (
            names.index(point.precision),
            _apart(point.batch, batch) + OTHER * (not point.framework.startswith("MXNet")) + _variant(point.gpu, gpu),
            -point.rate,
        ),
    )
    what = f"{point.model} on {point.gpu}, {point.precision}, batch {point.batch:g}: {point.source}"
    work = _work(network)
    taken = [f"batch {batch}"] * (point.batch != batch) + [f"{work:.3g} of the FLOPs (image size)"] * (work != 1)
    if not taken:
        return Rate(point.rate, "published", f"published ({what})")
    return Rate(at_batch(point, batch, work), "published", f"published ({what}), taken to {' and '.join(taken)}")


def _work(network: Network) -> float:
    """Its FLOPs over those at the size that rates are published at, which is layers.csv's; 1 but for classes."""
    ratio = network.flops / layers.network(network.name).flops if layers.known(network.name) else 1.0
    return 1.0 if abs(ratio - 1) < OF_CLASSES else ratio


def _variant(one: str, other: str) -> float:
    """How far apart two of a kind are by their size of memory (V100-16GB), which goes with the clock."""
    sizes = [re.findall(r"(\d+) ?gb", name.lower()) for name in (one, other)]
    return OTHER / 4 if not all(sizes) else OTHER / 2 * (sizes[0] != sizes[1])


def at_batch(point: rows.Point, batch: int, work: float = 1.0) -> float:
    """Images/s at another batch, with `work` times the FLOPs an image."""
    launches_s = hardware.launches_s(hardware.network(point.model).tensors, hardware.constants()["launch"])
    return batch / float(step_time.at_batch(point.batch / point.rate, batch, point.batch, launches_s, work))


@functools.lru_cache
def _single() -> List[rows.Point]:
    points = [point for name in rows.TABLES for point in rows.of_package(name)]
    return [point for point in points if point.devices == 1 and point.batch and not point.flag]


def computed(network: Network, gpu: str, precision: str) -> Optional[Rate]:
    """As many FLOPs a second as the GPU achieves with ResNet-50; too high for depthwise convolutions."""
    device = hardware.device(gpu) or {}
    known = device.get(QUANTITY[precision])
    if known is None:
        return None
    achieved = known * TRAINED * layers.network("resnet50_v1b").flops
    said = f"computed: {achieved / 1e12:.1f} TFLOP/s, which {gpu} achieves with ResNet-50 in {precision}"
    return Rate(achieved / (TRAINED * network.flops), "computed", said)


def _apart(one: float, other: float) -> float:
    return abs(math.log2(one / other))
