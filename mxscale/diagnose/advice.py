"""Settings that can shorten a step, with the gain that the probes predict.

A gain is either tried or an upper bound. Tried: the probe of the part that the setting changes was repeated with it,
and the rest of the step is as measured. Upper bound: the setting removes all that it can from the step.
"""

import math
from dataclasses import dataclass, field
from typing import Dict, Iterator, List, NamedTuple, Optional

from mxscale.config.datasets import DATASETS
from mxscale.config.networks import network
from mxscale.config.schema import Config
from mxscale.config.sizes import bucket_bytes, server_count
from mxscale.diagnose.breakdown import Diagnosis
from mxscale.perfmodel.step_time import BACKWARD

SHOWN = 3
LEAST = 0.01  # smallest gain that is reported
MIB = 2**20


@dataclass(frozen=True)
class Facts:
    """Facts of the run besides the times, recorded in diagnosis.json."""

    ranks: int
    threads: int  # per rank
    device: str = "cpu"  # cpu | gpu
    cores: int = 1  # of a machine
    ranks_here: int = 1  # on a machine
    micro_batches: int = 1  # batches of a rank per step; only the backward of the last one hides an exchange
    parameters_mb: Optional[float] = None  # in units of 2^20 bytes, as comm.bucket_mb
    larger_fits: bool = True  # whether an epoch has the images for a step of twice the batch
    exchange_s: Optional[float] = None  # an exchange that nothing hides
    # setting -> seconds of a step's images with it, of the input alone and of compute alone
    input_tried: Dict[str, float] = field(default_factory=dict)
    compute_tried: Dict[str, float] = field(default_factory=dict)


class Advice(NamedTuple):
    """A setting and its predicted gain."""

    setting: str
    gain: float  # of images/s: 0.4 is 40 % more
    tried: bool  # False: the gain is an upper bound
    why: str


def advise(found: Diagnosis, facts: Facts, config: Config) -> List[Advice]:
    """Return the settings with the largest gains, of those that apply and are not set already."""
    step = Step(found, facts)
    every = [each for rules in (of_input, of_exchange, of_cores, of_compute) for each in rules(step, facts, config)]
    worth = [each for each in every if each.gain >= LEAST]
    return sorted(worth, key=lambda each: -each.gain)[:SHOWN]


class Step:
    """Seconds of a step by part; a part that is not significant counts as 0."""

    def __init__(self, found: Diagnosis, facts: Facts):
        def part(name: str) -> float:
            return found.shares[name].value * self.seconds if measured(found, name) else 0.0

        self.seconds, self.compute = list(found.steps.values())[-1].value, found.steps["compute"].value
        self.cores, self.exchange, self.input = part("cores"), part("exchange"), part("input")
        self.input_alone = found.steps["input"].value if "input" in found.steps else None
        self.exchange_alone = max(self.exchange, facts.exchange_s or 0.0)

    def without(self, seconds: float) -> float:
        """Return the gain of a step that is shorter by `seconds`."""
        left = self.seconds - seconds
        return self.seconds / left - 1 if left > 0 else 0.0


def measured(found: Diagnosis, part: str) -> bool:
    """Return whether a part has a significant share."""
    return part in found.shares and found.shares[part].is_significant


def of_input(step: Step, facts: Facts, config: Config) -> Iterator[Advice]:
    data = config.data
    if not step.input:
        return
    for setting, seconds in facts.input_tried.items():
        why = next(why for key, why in WHY_INPUT.items() if setting.startswith(key))
        yield Advice(setting, step.without(saved_input(step, facts, seconds)), True, why)
    image_size = data.eval_resize or data.image_size
    if DATASETS[data.kind].reencoded and (data.short_side is None or data.short_side > 1.25 * image_size):
        now = "at their size" if data.short_side is None else f"at {data.short_side} px"
        why = f"images are packed {now}; smaller ones decode faster"
        yield Advice(f"data.pack_short_side={image_size}", step.without(step.input), False, why)  # at most


WHY_INPUT = {
    "data.reader": "a faster decoder, in all threads; other crops and flips",
    "data.threads": "more threads decode",
    "data.augment": "no colour jitter; changes the training",
}


def saved_input(step: Step, facts: Facts, seconds: float) -> float:
    """Return the seconds that a step saves if the input alone takes `seconds` instead of step.input_alone.

    On a CPU, decoding and compute share the cores, so the loss is proportional to the time of the input alone. On a
    GPU, the loss is the time of the input beyond the rest of the step.
    """
    if facts.device == "cpu":
        left = step.input * seconds / step.input_alone
    else:
        left = seconds - (step.seconds - step.input)
    return step.input - min(step.input, max(0.0, left))


def of_exchange(step: Step, facts: Facts, config: Config) -> Iterator[Advice]:
    comm, seen = config.comm, step.exchange
    if not seen:
        return
    backward = BACKWARD * step.compute / facts.micro_batches
    if not comm.double_buffering and comm.update_on == "worker" and config.precision != "amp":
        beyond = max(0.0, step.exchange_alone - (step.compute + step.cores))
        why = "exchanged during compute of the next step, applied one step late"
        yield Advice("comm.double_buffering=true", step.without(max(0.0, seen - beyond)), False, why)
    if not comm.overlap and not comm.double_buffering:
        hidden = min(seen, backward)
        yield Advice("comm.overlap=true", step.without(hidden), False, "exchanged during backward")
    if comm.compression == "none" and comm.update_on == "worker":
        saved = min(seen, step.exchange_alone / 2)
        yield Advice("comm.compression=fp16", step.without(saved), False, "half the bytes")
    one = facts.parameters_mb and facts.parameters_mb * MIB <= bucket_bytes(comm, facts.parameters_mb * MIB)
    if comm.overlap and not comm.double_buffering and one:
        # the last of four buckets is sent after backward
        hidden, size = min(seen * 3 / 4, backward), facts.parameters_mb / 4
        why = f"all {facts.parameters_mb:.3g} MB are one bucket, which is sent after backward"
        yield Advice(f"comm.bucket_mb={size:.2g}", step.without(hidden), False, why)
    processes = comm.processes(facts.ranks, math.ceil(facts.ranks / facts.ranks_here))
    servers = server_count(comm, processes)
    if 0 < servers < processes:
        saved = seen * (1 - servers / processes)
        yield Advice("comm.servers=1x", step.without(saved), False, "a server per rank process: more links")
    if not facts.larger_fits:
        return
    larger = larger_batch(config)  # one exchange for twice the images
    saved = seen / 2 + max(0.0, step.compute - facts.compute_tried.get(larger, step.compute))
    yield Advice(larger, step.without(saved), False, "half the exchanges; another global batch and learning rate")


def larger_batch(config: Config) -> str:
    """Return the setting of twice the batch."""
    return f"batch.per_device={2 * config.batch.per_device}"


def of_cores(step: Step, facts: Facts, config: Config) -> Iterator[Advice]:
    """Yield settings that reduce the competition for cores."""
    if not step.cores:
        return
    most = max(1, facts.cores // facts.ranks_here)
    if facts.threads > most:
        why = f"{facts.ranks_here} ranks with {facts.threads} threads each on {facts.cores} cores"
        yield Advice(f"launch.threads={most}", step.without(step.cores), False, why)
    elif facts.ranks_here > 1 and not config.comm.entry.drives_all_devices:
        yield Advice("launch.hosts=[a:1,b:1]", step.without(step.cores), False, "fewer ranks per machine")


def of_compute(step: Step, facts: Facts, config: Config) -> Iterator[Advice]:
    for setting, seconds in facts.compute_tried.items():
        if step.exchange and setting == larger_batch(config):
            continue  # included in of_exchange
        yield Advice(setting, step.without(step.compute - seconds), True, WHY_COMPUTE[setting.split("=")[0]])
    comm = config.comm
    allowed = comm.update_on == "worker" and not comm.double_buffering and "amp" in comm.in_transit.accepted
    allowed &= not network(config.model.name).from_weights
    if facts.device == "gpu" and config.precision == "float32" and allowed:
        why = "half the bytes, and faster float16 multiplication"
        yield Advice("precision=amp", step.without(step.compute / 2), False, why)


WHY_COMPUTE = {
    "batch.per_device": "more images per step; another global batch and learning rate",
    "model": "a smaller, less accurate network",
}
