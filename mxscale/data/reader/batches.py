"""What readers of images receive and return, and the reader of generated images."""

import hashlib
import math
import time
from dataclasses import dataclass
from typing import Iterator, List, NamedTuple, Sequence, Tuple

import mxnet as mx
from mxnet import nd

from mxscale.config.schema import Data


class Micro(NamedTuple):
    """One per-device batch: images (B, 3, H, W), labels (B,) float32, on the shard's device.

    Images are RGB: uint8, or normalised float32 (`Reader.normalised` of config/readers.py).
    """

    shard: int
    micro_batch: int  # index within the accumulation
    replica: int  # index of the rank's device
    images: nd.NDArray
    labels: nd.NDArray


INTERVALS = 5  # of a measurement, for its spread


def rates(counts: Iterator[int], seconds: float) -> List[float]:
    """Return the images/s in each of INTERVALS equal parts of the time; `counts` are the sizes of batches."""
    measured, images, began = [], 0, time.perf_counter()
    while len(measured) < INTERVALS:
        images += next(counts)
        took = time.perf_counter() - began
        if took >= seconds / INTERVALS:
            measured.append(images / took)
            images, began = 0, time.perf_counter()
    return measured


def replica_of(shard: int, shards: Sequence[int], devices: int) -> int:
    """Return the device of a shard: a rank's shards take its devices in turn."""
    return list(shards).index(shard) % devices


@dataclass(frozen=True)
class Reading:
    """What one rank reads in training."""

    data: Data
    batch: int  # images of one per-device batch
    shards: Sequence[int]  # the virtual shards of this rank, which take its devices in turn
    total_shards: int  # of all ranks
    accumulation: int  # batches of each shard in one step
    steps_per_epoch: int  # steps after which the order changes
    seed: int  # the run's
    devices: Sequence  # the rank's
    threads: int  # that decode
    augmented_epochs: float = math.inf  # epochs before those of data.augment.off_epochs

    def places(self) -> Iterator[Tuple[int, int, int]]:
        """Yield (shard, micro-batch, replica) of each batch of a step, in the order of (shard, accumulation)."""
        for shard in self.shards:
            replica = replica_of(shard, self.shards, len(self.devices))
            for micro_batch in range(self.accumulation):
                yield shard, micro_batch, replica


def seed_of(*numbers: int) -> int:
    """Return a 31-bit seed derived from several numbers. Adjacent numbers give unrelated seeds."""
    text = ",".join(map(str, numbers)).encode()
    return int.from_bytes(hashlib.sha256(text).digest()[:4], "little") & 0x7FFFFFFF


class SyntheticData:
    """Random images and labels generated once, the same on each device: batches without any input cost."""

    def __init__(self, reading: Reading, classes: int):
        devices, side = reading.devices, reading.data.image_size
        mx.random.seed(seed_of(reading.seed, 0))
        self.images = nd.random.normal(shape=(reading.batch, 3, side, side), ctx=devices[0])
        self.labels = nd.random.randint(0, classes, shape=(reading.batch,), ctx=devices[0]).astype("float32")
        self.replicas = [(self.images.as_in_context(device), self.labels.as_in_context(device)) for device in devices]
        self.reading = reading
        nd.waitall()

    def step(self, step: int) -> Iterator[Micro]:
        """Yield the batches of one step in the order of (shard, accumulation)."""
        for shard, micro_batch, replica in self.reading.places():
            yield Micro(shard, micro_batch, replica, *self.replicas[replica])

    @classmethod
    def evaluation(cls, data: Data, classes: int, count: int, rank: int, seed: int, device):
        """Return [(images, labels, count)] of generated images to evaluate on, all of them on rank 0."""
        if rank:
            return []
        generated = cls(Reading(data, count, [0], 1, 1, 1, seed + 1, [device], 1), classes)
        return [(generated.images, generated.labels, count)]
