"""Settings that can shorten a step, with an upper bound of the gain: each removes all that it can from the step."""

import math
from dataclasses import dataclass
from typing import Iterator, List, NamedTuple, Optional

from mxscale.config.datasets import DATASETS
from mxscale.config.networks import network
from mxscale.config.schema import Config
from mxscale.config.sizes import server_count
from mxscale.diagnose.breakdown import Diagnosis

SHOWN = 3
LEAST = 0.01  # smallest gain that is reported
OTHER_PRECISION = {"float32": "bf16", "bf16": "float32"}  # which one is faster on a CPU depends on the network


@dataclass(frozen=True)
class Facts:
    """Facts of the run besides the times of a step's parts, recorded in diagnosis.json."""

    ranks: int
    threads: int  # per rank
    device: str = "cpu"  # cpu | gpu
    cores: int = 1  # of a machine
    ranks_here: int = 1  # on a machine
    larger_fits: bool = True  # whether an epoch has the images for a step of twice the batch
    other_precision_s: Optional[float] = None  # seconds of compute, alone, in OTHER_PRECISION; None: not measured


class Advice(NamedTuple):
    """A setting and the upper bound of its gain."""

    setting: str
    gain: float  # of images/s: 0.4 is 40 % more
    why: str


def advise(diagnosis: Diagnosis, facts: Facts, config: Config) -> List[Advice]:
    """Return the settings with the largest gains, of those that apply and are not set already."""
    step = Step(diagnosis)
    rules = (of_input, of_exchange, of_cores, of_compute)
    worth = [advice for rule in rules for advice in rule(step, facts, config) if advice.gain >= LEAST]
    return sorted(worth, key=lambda advice: -advice.gain)[:SHOWN]


class Step:
    """Seconds of a step by part; a part that is not significant counts as 0."""

    def __init__(self, diagnosis: Diagnosis):
        def part(name: str) -> float:
            share = diagnosis.shares.get(name)
            return share.value * self.seconds if share and share.is_significant else 0.0

        self.seconds, self.compute = list(diagnosis.steps.values())[-1].value, diagnosis.steps["compute"].value
        self.cores, self.exchange, self.input = part("cores"), part("exchange"), part("input")

    def without(self, seconds: float) -> float:
        """Return the gain of a step that is shorter by `seconds`."""
        left = self.seconds - seconds
        return self.seconds / left - 1 if left > 0 else 0.0


def of_input(step: Step, facts: Facts, config: Config) -> Iterator[Advice]:
    data, gain = config.data, step.without(step.input)
    jitter = [name for name in ("brightness", "contrast", "saturation", "hue") if getattr(data.augment, name)]
    if jitter:
        plain = " ".join(f"data.augment.{name}=0" for name in jitter)
        yield Advice(plain, gain, "no colour jitter; changes the training")
    image_size = data.eval_resize or data.image_size
    if DATASETS[data.kind].reencoded and (data.short_side is None or data.short_side > 1.25 * image_size):
        now = "at their size" if data.short_side is None else f"at {data.short_side} px"
        yield Advice(f"data.pack_short_side={image_size}", gain, f"images are packed {now}; smaller ones decode faster")


def of_exchange(step: Step, facts: Facts, config: Config) -> Iterator[Advice]:
    comm, seen = config.comm, step.exchange
    if not comm.double_buffering and config.precision != "amp":
        hidden = min(seen, step.compute + step.cores)
        why = "exchanged during compute of the next step, applied one step late"
        yield Advice("comm.double_buffering=true", step.without(hidden), why)
    if comm.compression == "none":
        yield Advice("comm.compression=fp16", step.without(seen / 2), "half the bytes")
    processes = comm.processes(facts.ranks, math.ceil(facts.ranks / facts.ranks_here))
    servers = server_count(comm, processes)
    if 0 < servers < processes:
        saved = seen * (1 - servers / processes)
        yield Advice("comm.servers=1x", step.without(saved), "a server per rank process: more links")
    if facts.larger_fits:
        larger = f"batch.per_device={2 * config.batch.per_device}"  # one exchange for twice the images
        yield Advice(larger, step.without(seen / 2), "half the exchanges; another global batch and learning rate")


def of_cores(step: Step, facts: Facts, config: Config) -> Iterator[Advice]:
    """Yield settings that reduce the competition for cores."""
    most = max(1, facts.cores // facts.ranks_here)
    if facts.threads > most:
        why = f"{facts.ranks_here} ranks with {facts.threads} threads each on {facts.cores} cores"
        yield Advice(f"launch.threads={most}", step.without(step.cores), why)
    elif facts.ranks_here > 1 and not config.comm.entry.drives_all_devices:
        yield Advice("launch.hosts: more machines", step.without(step.cores), "fewer ranks per machine")


def of_compute(step: Step, facts: Facts, config: Config) -> Iterator[Advice]:
    comm = config.comm
    allowed = not comm.double_buffering and "amp" in comm.in_transit.accepted
    allowed &= not network(config.model.name).from_weights
    if facts.device == "gpu" and config.precision == "float32" and allowed:
        why = "half the bytes, and faster float16 multiplication"
        yield Advice("precision=amp", step.without(step.compute / 2), why)
    if facts.other_precision_s is not None:
        why = f"compute alone took {1000 * facts.other_precision_s:.1f} ms; changes the training"
        setting = f"precision={OTHER_PRECISION[config.precision]}"
        yield Advice(setting, step.without(step.compute - facts.other_precision_s), why)
