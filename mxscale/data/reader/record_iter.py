"""Batches read by MXNet's ImageRecordIter: sharded, in a reproducible order, normalised.

The training order is a function of (seed, epoch, shard). Each virtual shard is a contiguous part of the packed
file, with an ImageRecordIter of its own. Each epoch opens a new reader with a seed derived from the three numbers:
`reset()` would continue the same random stream, and a resumed run could not restore its position.
"""

import math
from typing import Iterable, Iterator, List, Tuple

import mxnet as mx
import numpy as np

from mxscale.config.schema import Data
from mxscale.data.images import BadImage
from mxscale.data.reader.batches import Micro, Reading, seed_of
from mxscale.data.reader.records import RecordFile
from mxscale.data.reader.transforms import INTERPOLATIONS
from mxscale.data.recordio import BadRecords
from mxscale.rundir.plan import Split


def part_sizes(count: int, parts: int) -> List[int]:
    """Return how ImageRecordIter divides `count` records: ceil(count / parts) each, the last parts fewer or none."""
    step = math.ceil(count / parts)
    return [max(0, min(step, count - part * step)) for part in range(parts)]


def verify(records: Split, sizes: List[int], parts: Iterable[int]) -> None:
    """Read the records of some parts once: ImageRecordIter itself checks none. Raises RuntimeError, which names one."""
    file, ends = RecordFile(records), np.cumsum(sizes)
    for part in sorted(set(parts)):
        for number in range(ends[part] - sizes[part], ends[part]):
            try:
                file[number]
            except (BadImage, BadRecords) as bad:
                raise RuntimeError(f"{file.name_of(number)}: {bad}") from None


def open_reader(records: Split, data: Data, batch: int, part: Tuple[int, int], threads: int, **settings):
    """Return an ImageRecordIter over part (index, number of parts) of the file. `settings` are its own.

    It decodes 16 batches ahead (iter_image_recordio_2.cc, kMaxPrefetchBuffer). `prefetch_buffer` is the number of used
    batches that the reader retains; it leaks them when it is deleted. With 1 it still leaks the last batch, unless it
    was read to its end.
    """
    (index, parts), side = part, data.image_size
    return mx.io.ImageRecordIter(
        path_imgrec=records.rec,
        path_imgidx=records.idx,
        data_shape=(3, side, side),
        batch_size=batch,
        num_parts=parts,
        part_index=index,
        preprocess_threads=threads,
        prefetch_buffer=1,
        inter_method=INTERPOLATIONS[data.interpolation],
        round_batch=True,
        **dict(zip(("mean_r", "mean_g", "mean_b"), data.mean, strict=True)),
        **dict(zip(("std_r", "std_g", "std_b"), data.std, strict=True)),
        **{"verbose": False, **settings},
    )


def augmentation(data: Data) -> dict:
    """Return ImageRecordIter's settings for `data.augment`."""
    a = data.augment
    settings = dict(
        rand_mirror=a.flip,
        brightness=a.brightness,
        contrast=a.contrast,
        saturation=a.saturation,
        random_h=a.hls[0] + round(a.hue * 180),  # OpenCV's hue goes to 180
        random_l=a.hls[1],
        random_s=a.hls[2],
        pca_noise=a.lighting,
        max_rotate_angle=a.rotate,
        max_shear_ratio=a.shear,
        max_aspect_ratio=a.stretch,
        fill_value=0,  # black, as torchvision's RandomCrop; MXNet's default is white
    )
    if a.pad and a.crop != "random_resized":  # which is not of a padded image, as in the other reader
        settings["pad"] = a.pad
    if a.crop == "random_resized":
        settings.update(
            random_resized_crop=True,
            min_random_area=a.scale[0],
            max_random_area=a.scale[1],
            min_aspect_ratio=a.ratio[0],
            max_aspect_ratio=a.ratio[1],
        )
    elif a.crop == "random":
        settings["rand_crop"] = True
    return settings


class TrainData:
    """The training images of one rank, read from records.

    `seed_aug` makes augmentation a function of the seed and of the position in a batch, independent of threads. All
    batches of one shard and epoch therefore share their crops and flips, position by position.
    """

    def __init__(self, records: Split, reading: Reading):
        self.records, self.reading = records, reading
        sizes = part_sizes(records.count, reading.total_shards)
        self.parts = readable_parts(sizes, reading.batch)
        verify(records, sizes, [self.parts[shard] for shard in reading.shards])
        self._epoch, self._streams, self._readers = None, {}, {}

    def step(self, step: int) -> Iterator[Micro]:
        """Yield the batches of global step `step` in the order of (shard, accumulation).

        Steps must be requested in order; the first one may be any, as in a resumed run.
        """
        reading = self.reading
        epoch, within = divmod(step, reading.steps_per_epoch)
        if epoch != self._epoch:
            for reader in self._readers.values():
                for _ in reader:  # read what the epoch drops, too: see open_reader
                    pass
            self._epoch = epoch
            skip = within * reading.accumulation
            self._streams = {shard: self._stream(epoch, shard, skip) for shard in reading.shards}
        for shard, micro_batch, replica in reading.places():
            # Copied on a CPU too: a reader waits for every use of its last batch before it returns another.
            # Without a copy, reading would wait for compute.
            images, labels = (array.copyto(reading.devices[replica]) for array in next(self._streams[shard]))
            yield Micro(shard, micro_batch, replica, images, labels)

    def _stream(self, epoch: int, shard: int, skip: int):
        """Yield batches of one shard in one epoch without end; a short shard is read several times."""
        reading, repeat = self.reading, 0
        while True:
            seed = seed_of(reading.seed, epoch, shard, repeat)
            reader = self._readers[shard] = open_reader(
                self.records,
                reading.data,
                reading.batch,
                (self.parts[shard], reading.total_shards),
                reading.threads,
                shuffle=True,
                seed=seed,
                seed_aug=seed,
                **augmentation(reading.data),
            )
            for batch in reader:
                if skip:
                    skip -= 1
                    continue
                yield batch.data[0], batch.label[0]
            repeat += 1


def readable_parts(sizes: List[int], batch: int) -> List[int]:
    """Return the part that each shard reads: its own, unless that is too short for one batch.

    ImageRecordIter fills a last batch once from the beginning of the part; it cannot read a part of less than half a
    batch. The shard then reads another shard's part in a different order. This occurs only in sets with a few images
    per shard.
    """
    readable = [part for part, size in enumerate(sizes) if 2 * size >= batch and size > 0]
    return [part if part in readable else readable[part % len(readable)] for part in range(len(sizes))]


class EvaluationData:
    """One rank's part of a split, every image once.

    Each iteration yields (images, labels, number of valid images) and opens a new reader: with `round_batch`, only
    a reader's first epoch reports the padding correctly.
    """

    def __init__(self, records: Split, data: Data, batch: int, part: Tuple[int, int], device, threads: int):
        """Each batch has at most `batch` images; `part` is (rank, ranks)."""
        self.records, self.data, self.part, self.device, self.threads = records, data, part, device, threads
        # A batch is at most as large as the part, because a reader wraps only once.
        sizes = part_sizes(records.count, part[1])
        self.batch = min(batch, sizes[part[0]])
        verify(records, sizes, [part[0]])

    def __iter__(self):
        if not self.batch:
            return
        settings = {"resize": self.data.eval_resize} if self.data.eval_resize else {}
        for one in open_reader(self.records, self.data, self.batch, self.part, self.threads, **settings):
            images, labels = one.data[0], one.label[0]
            yield images.as_in_context(self.device), labels.as_in_context(self.device), images.shape[0] - one.pad
