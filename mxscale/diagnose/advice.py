"""Settings that may shorten a step, with the gain that a diagnosis' probes predict.  Pure.

Two kinds of gain.  Tried: the probe of the part that a setting changes was run once more with it; the rest of the step
stays as it was measured.  At most: what is left of the step when a setting does all that it can.
"""

from dataclasses import dataclass, field
from typing import Dict, Iterator, List, NamedTuple, Optional

from mxscale.config.datasets import DATASETS
from mxscale.config.schema import Config
from mxscale.config.sizes import bucket_bytes, server_count
from mxscale.diagnose.breakdown import Diagnosis
from mxscale.perfmodel.step_time import BACKWARD

SHOWN = 3
LEAST = 0.01  # gain of images/s from which on a setting is worth a line
MIB = 2**20


@dataclass(frozen=True)
class Facts:
    """What is known beside the times."""

    ranks: int
    threads: int  # of each rank
    device: str = "cpu"  # cpu | gpu
    cores: int = 1  # of a machine
    ranks_here: int = 1  # of a machine
    turns: int = 1  # batches of a rank in a step: the last one's backward alone hides an exchange
    parameters_mb: Optional[float] = None
    exchange_s: Optional[float] = None  # an exchange by itself, where nothing hides it
    # setting -> seconds of a step's images with it: of the input alone, of computing alone
    input_tried: Dict[str, float] = field(default_factory=dict)
    compute_tried: Dict[str, float] = field(default_factory=dict)


class Advice(NamedTuple):
    setting: str
    gain: float  # of images/s: 0.4 is 40 % more
    tried: bool  # else it is the most that there can be
    why: str


def advise(found: Diagnosis, facts: Facts, config: Config) -> List[Advice]:
    """The settings with the largest gains, of those that are not set already and make sense here."""
    step = Step(found, facts)
    every = [each for rules in (of_input, of_exchange, of_cores, of_compute) for each in rules(step, facts, config)]
    worth = [each for each in every if each.gain >= LEAST]
    return sorted(worth, key=lambda each: -each.gain)[:SHOWN]


class Step:
    """Seconds of a step by part; a part that is not above the spread counts as nothing."""

    def __init__(self, found: Diagnosis, facts: Facts):
        whole = list(found.steps.values())[-1].value
        part = lambda name: found.shares[name].value * whole if measured(found, name) else 0.0  # noqa: E731
        self.whole, self.compute = whole, found.steps["compute"].value
        self.cores, self.exchange, self.input = part("cores"), part("exchange"), part("input")
        self.input_alone = found.steps["input"].value if "input" in found.steps else None
        self.exchange_alone = max(self.exchange, facts.exchange_s or 0.0)

    def without(self, seconds: float) -> float:
        """The gain of a step that is so much shorter."""
        left = self.whole - seconds
        return self.whole / left - 1 if left > 0 else 0.0


def measured(found: Diagnosis, part: str) -> bool:
    return part in found.shares and found.shares[part].is_there


# ---------------------------------------------------------------- the input


def of_input(step: Step, facts: Facts, config: Config) -> Iterator[Advice]:
    data = config.data
    if not step.input:
        return
    for setting, seconds in facts.input_tried.items():
        why = next(why for key, why in WHY_INPUT.items() if setting.startswith(key))
        yield Advice(setting, step.without(saved_input(step, facts, seconds)), True, why)
    side = data.eval_resize or data.image_size
    if DATASETS[data.kind].reencoded and (data.short_side is None or data.short_side > 1.25 * side):
        # Decoding is what smaller files save; what it takes is what keeping decoded images saves, where that was tried
        kept = facts.input_tried.get("data.keep=ram")
        saved = step.input if kept is None else saved_input(step, facts, kept)
        now = "as they are" if data.short_side is None else f"at {data.short_side}"
        yield Advice(
            f"data.pack_short_side={side}", step.without(saved), False, f"images are packed {now}: less to decode"
        )


WHY_INPUT = {
    "data.threads": "more threads decode",
    "data.keep": "images are decoded once",
    "data.augment": "no colour jitter, which changes what is learnt",
}


def saved_input(step: Step, facts: Facts, seconds: float) -> float:
    """How much shorter a step is when its images by themselves take `seconds` to come, and not step.input_alone.

    On a CPU decoding takes from computing, so what is lost to the input goes by the time that it takes by itself; else
    it is what batches take longer to come than the rest of the step.
    """
    if facts.device == "cpu":
        left = step.input * seconds / step.input_alone
    else:
        left = seconds - (step.whole - step.input)
    return step.input - min(step.input, max(0.0, left))


# ---------------------------------------------------------------- the exchange


def of_exchange(step: Step, facts: Facts, config: Config) -> Iterator[Advice]:
    comm, seen = config.comm, step.exchange
    if not seen:
        return
    backward = BACKWARD * step.compute / facts.turns
    if not comm.double_buffering and comm.update_on == "worker":
        beyond = max(0.0, step.exchange_alone - (step.compute + step.cores))
        why = "exchanged while the next step computes, applied a step late"
        yield Advice("comm.double_buffering=true", step.without(max(0.0, seen - beyond)), False, why)
    if not comm.overlap and not comm.double_buffering:
        hidden = min(seen, backward)
        yield Advice("comm.overlap=true", step.without(hidden), False, "exchanged while backward goes on")
    if comm.compression == "none" and config.precision != "float16" and comm.update_on == "worker":
        saved = min(seen, step.exchange_alone / 2)
        yield Advice("comm.compression=fp16", step.without(saved), False, "half the bytes")
    one = facts.parameters_mb and facts.parameters_mb * MIB <= bucket_bytes(comm, facts.parameters_mb * MIB)
    if comm.overlap and not comm.double_buffering and one:
        # Of four buckets the last one is sent when backward is over
        hidden, size = min(seen * 3 / 4, backward), facts.parameters_mb / 4
        why = f"all {facts.parameters_mb:.3g} MB are one bucket, which waits for backward's end"
        yield Advice(f"comm.bucket_mb={size:.2g}", step.without(hidden), False, why)
    servers = server_count(comm, facts.ranks)
    if 0 < servers < facts.ranks:
        saved = seen * (1 - servers / facts.ranks)
        yield Advice("comm.servers=1x", step.without(saved), False, "a server for each rank: more links")
    larger = larger_batch(config)  # as many exchanges for twice the images
    saved = seen / 2 + max(0.0, step.compute - facts.compute_tried.get(larger, step.compute))
    yield Advice(larger, step.without(saved), False, "half the exchanges; another global batch and learning rate")


def larger_batch(config: Config) -> str:
    return f"batch.per_device={2 * config.batch.per_device}"


# ---------------------------------------------------------------- cores, computing


def of_cores(step: Step, facts: Facts, config: Config) -> Iterator[Advice]:
    if not step.cores:
        return
    most = max(1, facts.cores // facts.ranks_here)
    if facts.threads > most:
        why = f"{facts.ranks_here} ranks of {facts.threads} threads on {facts.cores} cores"
        yield Advice(f"launch.threads={most}", step.without(step.cores), False, why)
    elif facts.ranks_here > 1:
        yield Advice("launch.hosts=[a:1,b:1]", step.without(step.cores), False, "fewer ranks on a machine")


def of_compute(step: Step, facts: Facts, config: Config) -> Iterator[Advice]:
    for setting, seconds in facts.compute_tried.items():
        if step.exchange and setting == larger_batch(config):
            continue  # said of the exchange
        yield Advice(setting, step.without(step.compute - seconds), True, WHY_COMPUTE[setting.split("=")[0]])
    if facts.device == "gpu" and config.precision == "float32":
        why = "half the bytes, and units that multiply float16 faster"
        yield Advice("precision=amp", step.without(step.compute / 2), False, why)


WHY_COMPUTE = {
    "batch.per_device": "more images a step; another global batch and learning rate",
    "model": "a smaller network, less accurate",
}
