"""The probes of a diagnosis, and the configuration of each.

Probes differ only in what they leave out: network, batch, image size, classes and threads per rank are the run's. They
neither validate nor record nor write checkpoints.
"""

import math
from dataclasses import dataclass, replace
from typing import Dict, List

from mxscale.config.backends import SINGLE_RANK
from mxscale.config.datasets import DATASETS
from mxscale.config.networks import network
from mxscale.config.schema import Checkpoint, Comm, Config, Data, Schedule, Tracking
from mxscale.config.sizes import Sizes
from mxscale.diagnose.advice import OTHER_PRECISION
from mxscale.environment.machine import multiplies_bf16
from mxscale.rundir.plan import Plan

NEVER = 10**6  # epochs
LR = 1e-4  # rates do not depend on it, and synthetic labels must not lead to NaN


@dataclass(frozen=True)
class Run:
    """The run to diagnose: config.yaml and plan.json of its first steps."""

    config: Config
    plan: Plan

    @property
    def sizes(self) -> Sizes:
        return self.plan.sizes

    @property
    def micro_batches(self) -> int:
        """Batches per step of the rank with the most shards."""
        return math.ceil(self.sizes.shards / self.sizes.ranks) * self.config.batch.accumulation

    @property
    def images_of_a_rank(self) -> int:
        return self.micro_batches * self.config.batch.per_device


# Settings that determine a step. Short runs have defaults for all others, such as price, budget and checkpoints.
OF_A_STEP = ("entry", "seed", "precision", "label_smoothing", "class_weights", "batch", "data", "model", "optimizer",
             "comm")  # fmt: skip


def untimed(config: Config) -> Config:
    """Return the run to diagnose: without an end, validation, checkpoints and records, at a constant learning rate."""
    of_step = {key: getattr(config, key) for key in OF_A_STEP}
    of_step.update(class_weights=None, optimizer=replace(config.optimizer, lr=LR))
    return Config(
        **of_step,
        schedule=Schedule(kind="constant", reference_batch=None),
        epochs=NEVER,
        validate_every=NEVER,
        log_every=1,
        launch=replace(config.launch, restarts=0, setup_minutes=0.0),
        tracking=Tracking(enabled=False),
        checkpoint=Checkpoint(every_epochs=NEVER),
    )


def configs(run: Run, interval: int) -> Dict[str, List[Config]]:
    """Return the runs of each probe that applies, which run at the same time; interval: steps between two lines."""
    ranks = run.sizes.ranks
    threads = replace(run.config.launch, ranks=ranks, threads=run.plan.threads)
    real = replace(run.config, log_every=interval, launch=threads)
    synthetic = replace(real, data=synthetic_data(run))
    runs = {"compute": [one_rank(run, synthetic)]}
    other = OTHER_PRECISION.get(run.config.precision)
    if other and run.plan.device == "cpu" and multiplies_bf16() and not network(run.config.model.name).from_weights:
        runs["other_precision"] = [replace(one_rank(run, synthetic), precision=other)]
    if ranks > 1 and run.plan.device == "cpu":
        runs["side_by_side"] = [one_rank(run, synthetic, rank) for rank in range(ranks)]
    if ranks > 1:
        runs["exchange"] = [synthetic]
    if not DATASETS[real.data.kind].generated:
        runs["all"] = [real]
    return runs


def synthetic_data(run: Run) -> Data:
    """Return synthetic images of the same size, number and classes, mixed on the device as those of the run."""
    data = run.config.data
    return Data(
        kind="synthetic",
        image_size=data.image_size,
        num_classes=run.plan.classes,
        num_images=run.sizes.train_images,
        augment=data.augment,
        cache=data.cache,
        shards=data.shards,
    )


def one_rank(run: Run, config: Config, rank: int = 0) -> Config:
    """Return a run of one rank with the same number of batches per step."""
    shards = run.micro_batches // config.batch.accumulation if config.data.shards else None
    alone = replace(
        config,
        comm=Comm(backend=SINGLE_RANK),
        data=replace(config.data, shards=shards),
        launch=replace(config.launch, ranks=1, hosts=None),
    )
    if not run.plan.hosts:
        return alone
    # Horovod's launcher starts a rank on another machine
    slots = [host for host in run.plan.hosts for _ in range(host.slots)]
    comm = Comm(transport=config.comm.transport)
    return replace(alone, comm=comm, launch=replace(alone.launch, hosts=[f"{slots[rank].address}:1"]))
