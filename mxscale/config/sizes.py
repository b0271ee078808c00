"""Sizes derived from a config: batches, steps, ranks, parameter servers, gradient buckets."""

from dataclasses import dataclass
from typing import Optional

from mxscale.config.schema import Comm, Config
from mxscale.util.errors import ConfigError


@dataclass(frozen=True)
class Sizes:
    """Sizes that follow from a config, the number of ranks and the number of training images; computed once per run."""

    ranks: int
    shards: int
    per_device_batch: int
    global_batch: int
    effective_lr: float
    train_images: int
    steps_per_epoch: int
    total_steps: int
    dropped_per_epoch: int  # training images in the last, incomplete global batch


def auto_ranks(config: Config, slots: int, gpus: int, cores: int) -> int:
    """Return the ranks of launch.ranks=auto: the slots of launch.hosts if any, else one per GPU, else up to 2."""
    if config.comm.entry.single_rank:
        return 1
    most = slots or gpus or min(2, cores)
    return min(most, config.data.shards or most)


def bucket_bytes(comm: Comm, gradient_bytes: float) -> float:
    """Return the size of a gradient bucket in bytes.

    The default is a quarter of all gradients, or half of them with double buffering, within 0.25 to 32 MiB. Small
    buckets start their exchange during the backward pass; large ones use the network better and need less CPU time.
    With double buffering an exchange may last a step, so an early start gains nothing.
    """
    mib = 2**20
    if comm.bucket_mb is not None:
        return comm.bucket_mb * mib
    share = 1 / 2 if comm.double_buffering else 1 / 4
    return min(max(gradient_bytes * share, mib / 4), 32 * mib)


def server_count(comm: Comm, processes: int) -> int:
    """Return the number of parameter servers for that many rank processes; 0 for a back end without servers."""
    if not comm.entry.needs_servers:
        return 0
    text = str(comm.servers)
    return int(text[:-1]) * processes if text.endswith("x") else int(text)


def sizes(config: Config, ranks: int, train_images: int, shards: Optional[int] = None) -> Sizes:
    """Return the sizes of a run: global batch = per-device batch x shards x accumulation.

    Args:
        ranks: Number of ranks; one with several shards accumulates their gradients.
        shards: Shards of the run that is resumed; None: a new run.

    Raises:
        ConfigError: There are more ranks than shards, or fewer images than one global batch.
    """
    shards = shards or config.data.shards or ranks
    if shards < ranks:
        raise ConfigError(
            f"launch.ranks={ranks} is more than the {shards} shards of this run: use at most {shards} ranks"
        )
    global_batch = config.batch.per_device * shards * config.batch.accumulation
    steps = train_images // global_batch
    if steps < 1:
        most = train_images // (shards * config.batch.accumulation)
        advice = f"at most {most}" if most else "fewer ranks, shards or accumulation"
        raise ConfigError(
            f"batch.per_device={config.batch.per_device}: the global batch of {global_batch} exceeds the "
            f"{train_images} training images; use {advice}"
        )
    reference = config.schedule.reference_batch
    total = steps * (1 if config.epochs == "auto" else config.epochs)  # auto: known when the training starts
    return Sizes(
        ranks=ranks,
        shards=shards,
        per_device_batch=config.batch.per_device,
        global_batch=global_batch,
        effective_lr=config.optimizer.lr * (global_batch / reference if reference else 1.0),
        train_images=train_images,
        steps_per_epoch=steps,
        total_steps=min(total, config.max_steps or total),
        dropped_per_epoch=train_images - steps * global_batch,
    )
