"""Batches of uint8 images from record files: libjpeg-turbo decodes in threads, some batches ahead.

The order of an epoch is a function of (seed, epoch): one permutation of all images, or rounds of all classes
(data.sampling). Global batch k of an epoch has the images k G to (k + 1) G - 1 of it (G: the global batch size), and
shard s takes its consecutive part. An image's augmentation is a function of (seed, epoch, image), and of how often the
epoch had the image before. Both are independent of threads and ranks, and a resumed run continues in the middle of an
epoch by counting.
"""

import itertools
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import Callable, Iterable, Iterator, NamedTuple, Tuple

import mxnet as mx
import numpy as np
from mxnet import nd

from mxscale.config.schema import Data
from mxscale.data.images import BadImage
from mxscale.data.reader import philox
from mxscale.data.reader.batches import Micro, Reading
from mxscale.data.reader.records import RecordFile
from mxscale.data.reader.transforms import Evaluation, Training
from mxscale.data.recordio import BadRecords
from mxscale.rundir.plan import Split

TASK = 32  # images that a thread reads at a time; their random numbers are computed at once


class Wanted(NamedTuple):
    """A batch to read, with a `Training` or an `Evaluation`, and the epoch that its random numbers belong to.

    Record i of n is i, or i + r n if the epoch has had it r times before.
    """

    records: np.ndarray
    transform: Callable
    epoch: int = 0


class BatchReader:
    """Reads batches in threads, in the order in which they are wanted."""

    def __init__(self, split: Split, threads: int, seed: int = 0):
        self.records, self.threads, self.seed = RecordFile(split), threads, seed
        self._pool = ThreadPoolExecutor(threads, "decoder")

    def read(self, wanted: Iterable[Wanted]) -> Iterator[Tuple[nd.NDArray, nd.NDArray]]:
        """Yield (images (B, 3, side, side) uint8, labels (B,) float32) of each batch, on the CPU.

        Raises:
            RuntimeError: An image cannot be read; the message names its record.
        """
        wanted, pending = iter(wanted), deque()
        while True:
            # Two tasks for each thread, so that none waits, and the batch that is handed out next
            while not pending or sum(len(tasks) for *_, tasks in pending) < 2 * self.threads + len(pending[0][2]):
                batch = next(wanted, None)
                if batch is None:
                    break
                pending.append(self._begin(batch))
            if not pending:
                return
            images, labels, tasks = pending.popleft()
            for task in tasks:
                task.result()
            yield handed_over(images), handed_over(labels)

    def _begin(self, batch: Wanted):
        """Return (images, labels, tasks) of a batch whose arrays the tasks will fill."""
        count, side = len(batch.records), batch.transform.side
        images, labels = np.empty((count, 3, side, side), "uint8"), np.empty(count, "float32")
        parts = [slice(first, first + TASK) for first in range(0, count, TASK)]
        tasks = [
            self._pool.submit(self._fill, batch._replace(records=batch.records[part]), images[part], labels[part])
            for part in parts
        ]
        return images, labels, tasks

    def _fill(self, wanted: Wanted, images: np.ndarray, labels: np.ndarray) -> None:
        """Read some images of a batch; in a thread."""
        numbers, transform, epoch = wanted
        draws = philox.uniform(self.seed, epoch, numbers, transform.draws).tolist()
        for place, number in enumerate((numbers % len(self.records)).tolist()):
            try:
                labels[place], content = self.records[number]
                transform(content, draws[place], images[place])
            except (BadImage, BadRecords) as bad:
                raise RuntimeError(f"{self.records.name_of(number)}: {bad}") from None


def handed_over(array: np.ndarray) -> nd.NDArray:
    """Return the array for MXNet, which then owns its memory. MXNet 1.5 copies it: its DLPack has no uint8."""
    if mx.__version__.startswith("1.5."):
        return nd.array(array, dtype=array.dtype)
    return nd.from_numpy(array)


class TrainData:
    """The training images of one rank."""

    def __init__(self, split: Split, reading: Reading):
        self.reading, data = reading, reading.data
        self._reader = BatchReader(split, reading.threads, reading.seed)
        self._augmenting, self._plain = Training(data), Training(replace(data, augment=data.augment.plain()))
        if data.sampling == "balanced":
            self._order = partial(philox.balanced_order, labels=self._reader.records.labels())
        else:
            self._order = partial(philox.order, count=split.count)
        self._next, self._batches = None, None

    def step(self, step: int) -> Iterator[Micro]:
        """Yield the batches of global step `step` in the order of (shard, accumulation).

        Steps must be requested in order; the first one may be any, as in a resumed run.
        """
        if step != self._next:
            self._batches = self._reader.read(self._wanted(step))
        self._next = step + 1
        for shard, micro_batch, replica in self.reading.places():
            device = self.reading.devices[replica]
            images, labels = (array.as_in_context(device) for array in next(self._batches))
            yield Micro(shard, micro_batch, replica, images, labels)

    def _wanted(self, step: int) -> Iterator[Wanted]:
        """Yield the batches of this rank from step `step` on, without end."""
        reading, of_epoch, order = self.reading, None, None
        global_batch = reading.total_shards * reading.accumulation * reading.batch
        for at in itertools.count(step):
            epoch, within = divmod(at, reading.steps_per_epoch)
            if epoch != of_epoch:
                of_epoch, order = epoch, self._order(reading.seed, epoch)
                transform = self._augmenting if epoch < reading.augmented_epochs else self._plain
            batches = order[within * global_batch :][:global_batch].reshape(-1, reading.batch)
            for shard, micro_batch, _ in reading.places():
                yield Wanted(batches[shard * reading.accumulation + micro_batch], transform, epoch)


class EvaluationData:
    """One rank's part of a split, every image once: each iteration yields (images, labels, number of valid images)."""

    def __init__(self, split: Split, data: Data, batch: int, part: Tuple[int, int], device, threads: int):
        """Each batch has `batch` images, the last one repetitions of its last image; `part` is (rank, ranks)."""
        rank, ranks = part
        self._records = np.array_split(np.arange(split.count), ranks)[rank]
        self._batch, self._device = max(1, min(batch, len(self._records))), device
        self._reader, self._transform = BatchReader(split, threads), Evaluation(data)

    def __iter__(self):
        count, size = len(self._records), self._batch
        batches = [self._records[first : first + size] for first in range(0, count, size)]
        wanted = [Wanted(np.pad(records, (0, size - len(records)), "edge"), self._transform) for records in batches]
        for records, arrays in zip(batches, self._reader.read(wanted), strict=True):
            images, labels = (array.as_in_context(self._device) for array in arrays)
            yield images, labels, len(records)
