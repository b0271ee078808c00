"""Batches read from RecordIO files or generated: sharded, in a reproducible order.

The training order is a function of (seed, epoch, shard). Each virtual shard is a contiguous part of the packed
file, with an ImageRecordIter of its own. Each epoch opens a new reader with a seed derived from the three numbers:
`reset()` would continue the same random stream, and a resumed run could not restore its position.
"""

import hashlib
import math
from dataclasses import dataclass
from typing import Iterator, List, NamedTuple, Optional, Sequence, Tuple

import mxnet as mx
from mxnet import nd

from mxscale.config.schema import Data
from mxscale.data.ram_cache import RamCache
from mxscale.rundir.plan import Split


class Micro(NamedTuple):
    """One per-device batch: images (B, 3, H, W) float32, labels (B,) float32, on the shard's device."""

    shard: int
    turn: int  # index within the accumulation
    lane: int  # index of the rank's device
    images: nd.NDArray
    labels: nd.NDArray


# ImageRecordIter's inter_method, OpenCV's numbers; only area is antialiased
INTERPOLATIONS = {"bilinear": 1, "bicubic": 2, "area": 3, "lanczos": 4}


def part_sizes(count: int, parts: int) -> List[int]:
    """Return how ImageRecordIter divides `count` records: ceil(count / parts) each, the last parts fewer or none."""
    step = math.ceil(count / parts)
    return [max(0, min(step, count - part * step)) for part in range(parts)]


def seed_of(*numbers: int) -> int:
    """Return a 31-bit seed derived from several numbers. Adjacent numbers give unrelated seeds."""
    text = ",".join(map(str, numbers)).encode()
    return int.from_bytes(hashlib.sha256(text).digest()[:4], "little") & 0x7FFFFFFF


def open_reader(
    records: Split, data: Data, batch: int, part: Tuple[int, int], cache: Optional[RamCache] = None, **settings
):
    """Return an ImageRecordIter over part (index, number of parts) of the file.

    `cache` holds the decoded images with data.keep=ram; None: a new one. `settings` are ImageRecordIter's own.
    """
    if data.keep == "ram":
        memory = (cache or RamCache()).part(records.rec, records.idx, part, data.threads)
        with memory.names() as (rec, idx):
            return _image_record_iter(rec, idx, (0, 1), data, batch, **settings)
    return _image_record_iter(records.rec, records.idx, part, data, batch, **settings)


def _image_record_iter(rec: str, idx: str, part: Tuple[int, int], data: Data, batch: int, **settings):
    """Return an ImageRecordIter. It decodes 16 batches ahead (iter_image_recordio_2.cc, kMaxPrefetchBuffer).

    `prefetch_buffer` is the number of used batches that the reader retains; it leaks them when it is deleted. With 1
    it still leaks the last batch, unless it was read to its end.
    """
    index, parts = part
    red, green, blue = data.mean
    std_red, std_green, std_blue = data.std
    return mx.io.ImageRecordIter(
        path_imgrec=rec,
        path_imgidx=idx,
        data_shape=(3, data.image_size, data.image_size),
        batch_size=batch,
        num_parts=parts,
        part_index=index,
        preprocess_threads=data.threads,
        prefetch_buffer=1,
        inter_method=INTERPOLATIONS[data.interpolation],
        round_batch=True,
        mean_r=red,
        mean_g=green,
        mean_b=blue,
        std_r=std_red,
        std_g=std_green,
        std_b=std_blue,
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
        random_h=round(a.hue * 180),  # OpenCV's hue goes to 180
    )
    if a.pad:
        settings.update(pad=a.pad, fill_value=0)  # black, as torchvision's RandomCrop; MXNet's default is white
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


@dataclass(frozen=True)
class Reading:
    """What one rank reads in training.

    Attributes:
        data: Settings of the images.
        batch: Images of one per-device batch.
        shards: The virtual shards of this rank. Shard s goes to device s modulo their number.
        total_shards: The number of shards of all ranks.
        accumulation: Batches of each shard in one step.
        steps_per_epoch: Steps after which the order changes.
        seed: The run's seed.
        devices: The rank's devices.
    """

    data: Data
    batch: int
    shards: Sequence[int]
    total_shards: int
    accumulation: int
    steps_per_epoch: int
    seed: int
    devices: Sequence


class TrainData:
    """The training images of one rank, read from records.

    `seed_aug` makes augmentation a function of the seed and of the position in a batch, independent of threads. All
    batches of one shard and epoch therefore share their crops and flips, position by position.
    """

    def __init__(self, records: Split, reading: Reading):
        self.records, self.reading = records, reading
        self.parts = readable_parts(part_sizes(records.count, reading.total_shards), reading.batch)
        self._epoch, self._streams, self._readers = None, {}, {}
        self.cache = RamCache()

    def step(self, step: int) -> Iterator[Micro]:
        """Yield the batches of global step `step` in the order of (shard, accumulation).

        Steps must be requested in order; the first one may be any, as in a resumed run.
        """
        reading = self.reading
        epoch, within = divmod(step, reading.steps_per_epoch)
        if epoch != self._epoch:
            for reader in self._readers.values():
                for _ in reader:  # read what the epoch drops, too: see _image_record_iter
                    pass
            self._epoch = epoch
            skip = within * reading.accumulation
            self._streams = {shard: self._stream(epoch, shard, skip) for shard in reading.shards}
        for shard in reading.shards:
            lane = shard % len(reading.devices)
            for turn in range(reading.accumulation):
                # Copied on a CPU too: a reader waits for every use of its last batch before it returns another.
                # Without a copy, reading would wait for compute.
                images, labels = (array.copyto(reading.devices[lane]) for array in next(self._streams[shard]))
                yield Micro(shard, turn, lane, images, labels)

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
                self.cache,
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


class SyntheticData:
    """Random images and labels generated once, the same on each device: batches without any input cost."""

    def __init__(self, reading: Reading, classes: int):
        devices, side = reading.devices, reading.data.image_size
        mx.random.seed(seed_of(reading.seed, 0))
        self.images = nd.random.normal(shape=(reading.batch, 3, side, side), ctx=devices[0])
        self.labels = nd.random.randint(0, classes, shape=(reading.batch,), ctx=devices[0]).astype("float32")
        self.lanes = [(self.images.as_in_context(device), self.labels.as_in_context(device)) for device in devices]
        self.reading = reading
        nd.waitall()

    def step(self, step: int) -> Iterator[Micro]:
        """Yield the batches of one step in the order of (shard, accumulation)."""
        for shard in self.reading.shards:
            lane = shard % len(self.lanes)
            for turn in range(self.reading.accumulation):
                yield Micro(shard, turn, lane, *self.lanes[lane])

    @classmethod
    def evaluation(cls, data: Data, classes: int, count: int, rank: int, seed: int, device):
        """Return [(images, labels, count)] of generated images to evaluate on, all of them on rank 0."""
        if rank:
            return []
        generated = cls(Reading(data, count, [0], 1, 1, 1, seed + 1, [device]), classes)
        return [(generated.images, generated.labels, count)]


class EvaluationData:
    """One rank's part of a split, every image once.

    Each iteration yields (images, labels, number of valid images) and opens a new reader: with `round_batch`, only
    a reader's first epoch reports the padding correctly.
    """

    def __init__(self, records: Split, data: Data, batch: int, part: Tuple[int, int], device):
        """Each batch has at most `batch` images; `part` is (rank, ranks)."""
        self.records, self.data, self.part, self.device = records, data, part, device
        # A batch is at most as large as the part, because a reader wraps only once.
        self.batch = min(batch, part_sizes(records.count, part[1])[part[0]])
        self._cache = RamCache()

    def __iter__(self):
        if not self.batch:
            return
        settings = {"resize": self.data.eval_resize} if self.data.eval_resize else {}
        for one in open_reader(self.records, self.data, self.batch, self.part, self._cache, **settings):
            images, labels = one.data[0], one.label[0]
            yield images.as_in_context(self.device), labels.as_in_context(self.device), images.shape[0] - one.pad
