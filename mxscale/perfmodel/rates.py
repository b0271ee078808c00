"""The rate of one device alone, and its source.

In order of preference: a given rate; the user's own runs; a published rate on the GPU, of the network or of another, to
which the roofline of both steps relates the wanted one; the roofline alone. An unknown rate is an error, not a guess.
"""

import functools
import math
import re
from dataclasses import dataclass
from typing import Callable, Iterator, List, Mapping, Optional, Sequence

from mxscale.perfmodel import hardware, layers, roofline
from mxscale.perfmodel.layers import Network
from mxscale.perfmodel.published import rows
from mxscale.perfmodel.roofline import Seconds, Step
from mxscale.util.errors import ConfigError

CONFIGURED = {"fp32": "float32", "tf32": "float32", "fp16": "float16", "amp": "amp"}  # published precision -> setting
# precision -> published ones, the nearest first; on A100 and later, float32 multiplies as TF32
NEAREST = {
    "float32": ("fp32", "tf32", "amp", "fp16"),
    "float16": ("fp16", "amp", "fp32", "tf32"),
    "amp": ("amp", "fp16", "fp32", "tf32"),
}
EQUAL = 2  # of them are equal to the precision
REFERENCE = "resnet50_v1b"  # has the most published rates
OTHER_MEMORY = 0.5  # distance of another memory size, in factors of 2 of the batch
OF_CLASSES = 0.02  # largest share of a network's FLOPs in its classifier, whose size differs between publications


@dataclass(frozen=True)
class Rate:
    """Images/s of one device."""

    images_per_s: float
    source: str
    kind: str = "given"  # given | measured | published | related | computed

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
        gpu: Name of the device; None: unknown.
        images_per_s: The value of plan.images_per_s.
    """
    if images_per_s is not None:
        return Rate(images_per_s, "given (plan.images_per_s)")
    others = [run for run in runs if gpu and not _possibly_on(run, gpu)]
    if others:
        ran = "on a CPU" if others[0].device == "cpu" else f"on {others[0].gpu}"
        raise ConfigError(f"plan.calibrate: {others[0].source} ran {ran}, but the plan is for {gpu}")
    rate = measured(network, batch, precision, runs)
    if not rate and gpu and precision in NEAREST:
        rate = by_tables(Step(network, batch, precision), gpu)
    if rate:
        return rate
    on = f"on {gpu}" if gpu else "on this machine"
    raise ConfigError(
        f"the rate of one device that trains {network.name} in {precision} {on} is unknown: give plan.images_per_s, or "
        "plan.calibrate=RUN_DIR of a run"
    )


def _possibly_on(run: Measured, gpu: str) -> bool:
    """Return whether the run may have used such a GPU."""
    if hardware.is_cpu(gpu):
        return run.device == "cpu"
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


def by_tables(
    step: Step,
    gpu: str,
    points: Optional[Sequence[rows.Point]] = None,
    constants: Optional[Mapping[str, float]] = None,
) -> Optional[Rate]:
    """Return the rate on such a GPU without measurements; None if its peaks are unknown.

    Args:
        points: Published rates of one device; None for those of `single`.
        constants: Of the roofline; None for those of hardware.csv.
    """
    seconds = functools.partial(roofline.step_s, gpu=gpu, constants=constants)
    if not (alone := seconds(step)):
        return None
    for reference in _references(step.network):
        if point := _nearest(step._replace(network=reference), gpu, single() if points is None else points):
            return _from_published(point, reference, step, seconds)
    return Rate(step.batch / sum(alone), f"computed from the peaks of {gpu} and the network's layers", "computed")


def _references(network: Network) -> Iterator[Network]:
    """Yield the networks whose published rates are tried: the network, ResNet-50, and all by FLOPs."""
    yield layers.network(network.name)
    yield layers.network(REFERENCE)
    yield from sorted(map(layers.network, layers.names()), key=lambda other: _distance(other.flops, network.flops))


def _nearest(step: Step, gpu: str, points: Sequence[rows.Point]) -> Optional[rows.Point]:
    """Return the published rate of a network: of the nearest precision, then framework, then batch and memory."""
    wanted, device, names = hardware.network(step.network.name), hardware.device(gpu), NEAREST[step.precision]

    def distance(point: rows.Point) -> tuple:
        other_precision = point.precision not in names[:EQUAL] and names.index(point.precision)
        other_framework = not point.framework.startswith("MXNet")
        far = _distance(point.batch, step.batch) + _memory_distance(point.gpu, gpu)
        return other_precision, other_framework, far, -point.rate

    alike = (
        point
        for point in points
        if point.precision in names and hardware.network(point.model) == wanted and hardware.device(point.gpu) is device
    )
    return min(alike, key=distance, default=None) if wanted and device else None


def _from_published(point: rows.Point, published: Network, step: Step, seconds: Callable[[Step], Seconds]) -> Rate:
    """Return the rate of a step by that of a published network and the seconds of both steps by the roofline.

    Launches, of the published step half at most, stay as they are; the rest has the ratio of both rooflines.
    """
    similar = point.precision in NEAREST[step.precision][:EQUAL]
    before = Step(published, point.batch, step.precision if similar else CONFIGURED[point.precision])
    own = published.name == step.network.name
    work = step.network.flops / published.flops
    if own and abs(work - 1) < OF_CLASSES:
        step, work = step._replace(network=published), 1.0
    what = f"{point.model} on {point.gpu}, {point.precision}, batch {point.batch:g}: {point.source}"
    known_s, (images_s, launches_s), wanted = before.batch / point.rate, seconds(before), seconds(step)
    fixed_s = min(launches_s, known_s / 2)
    step_s = wanted.launches_s * fixed_s / launches_s + (known_s - fixed_s) * wanted.images_s / images_s
    rate = step.batch / step_s
    if not (own and similar):
        return Rate(rate, f"related by the network's layers to a published rate ({what})", "related")
    scaled = [f"batch {step.batch:g}"] * (step.batch != point.batch) + [f"{work:.3g} of the FLOPs"] * (work != 1)
    return Rate(rate, f"published ({what}){', scaled to ' * bool(scaled)}{' and '.join(scaled)}", "published")


def _memory_distance(one: str, other: str) -> float:
    """Return the distance of two variants of a GPU by their memory (V100-16GB), which correlates with the clock."""
    sizes = [re.findall(r"(?<!\d)(\d+) ?gb", name.lower()) for name in (one, other)]
    return OTHER_MEMORY / 2 if not all(sizes) else OTHER_MEMORY * (sizes[0] != sizes[1])


@functools.lru_cache
def single() -> List[rows.Point]:
    """Return the published rates of one device in the package's tables."""
    points = [point for name in rows.TABLES for point in rows.of_package(name)]
    return [point for point in points if point.devices == 1 and point.batch and not point.flag]


def _distance(one: float, other: float) -> float:
    return abs(math.log2(one / other))
