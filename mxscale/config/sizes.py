"""What follows from a config: batches, steps, ranks, servers, buckets, what `auto` stands for.

Pure: standard library alone.
"""

from dataclasses import dataclass
from typing import Optional

from mxscale.config.schema import Comm, Config
from mxscale.util.errors import ConfigError


@dataclass(frozen=True)
class Sizes:
    """What follows from a config, the number of ranks and of training images; computed once per run."""

    ranks: int
    shards: int
    per_device_batch: int
    global_batch: int
    effective_lr: float
    train_images: int
    steps_per_epoch: int
    total_steps: int
    dropped_per_epoch: int  # training images of the last, partial global batch


def auto_ranks(config: Config, slots: int, gpus: int, cores: int) -> int:
    """What launch.ranks=auto stands for: the slots of launch.hosts (0: none), else a rank per GPU, else up to 2."""
    if config.comm.entry.single_rank:
        return 1
    most = slots or gpus or min(2, cores)
    return min(most, config.data.shards or most)


def bucket_bytes(comm: Comm, gradient_bytes: float) -> float:
    """comm.bucket_mb; null: a quarter of all gradients, with double buffering a half, 0.25 to 32 MiB.

    Small buckets leave while backward is still at earlier layers, large ones use a network better and take less of the
    CPU.  With double buffering an exchange has a whole step, so that leaving early gains nothing.
    """
    mib = 2**20
    if comm.bucket_mb is not None:
        return comm.bucket_mb * mib
    share = 1 / 2 if comm.double_buffering else 1 / 4
    return min(max(gradient_bytes * share, mib / 4), 32 * mib)


def server_count(comm: Comm, ranks: int) -> int:
    """How many parameter servers: comm.servers, or as many times the ranks; 0 where the back end has none."""
    if not comm.entry.needs_servers:
        return 0
    text = str(comm.servers)
    return int(text[:-1]) * ranks if text.endswith("x") else int(text)


def unsaved(comm: Comm) -> Optional[str]:
    """What of this exchange no checkpoint can hold, so that nothing goes on from one; None where all of it can."""
    if comm.update_on == "server":
        cause = "comm.update_on=server" if "worker" in comm.entry.update_on else f"comm={comm.backend}"
        return f"with {cause} the optimizer's state is on the servers, and MXNet can't save it there"
    if comm.compression == "2bit":
        return "with comm.compression=2bit each rank holds back what it did not send, and MXNet can't save that"
    return None


def sizes(config: Config, ranks: int, train_images: int, shards: Optional[int] = None) -> Sizes:
    """Global batch = per-device batch x shards x accumulation; a rank with several shards accumulates.

    `shards` given: those of the run that is resumed.
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
            f"batch.per_device={config.batch.per_device}: the global batch of {global_batch} is more than the "
            f"{train_images} training images; use {advice}"
        )
    reference = config.schedule.reference_batch
    total = config.epochs * steps
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
