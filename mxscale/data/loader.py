"""Batches out of RecordIO, or made up: sharded, in an order that can be repeated.

The training order is a function of (seed, epoch, shard): each virtual shard is a contiguous part of
the packed file, read by an ImageRecordIter of its own, a new one each epoch with a seed made of the
three.  (`reset()` would go on in the same random stream, and a resume could not find its place.)
"""

import hashlib
import math
from typing import Iterator, List, NamedTuple, Tuple

import mxnet as mx
from mxnet import nd

from mxscale.config.schema import Data
from mxscale.data.ram_cache import Kept

KEPT = Kept()  # of this process: what data.keep=ram holds


class Micro(NamedTuple):
    """One per-device batch: images (B, 3, H, W) float32, labels (B,) float32, on the shard's device."""

    shard: int
    turn: int  # of the accumulation
    lane: int  # which of the rank's devices has it
    images: nd.NDArray
    labels: nd.NDArray


class Records(NamedTuple):
    """A split of a packed set."""

    rec: str
    idx: str
    count: int


# ImageRecordIter's inter_method, which is OpenCV's number: no antialiasing but in area
INTERPOLATIONS = {"bilinear": 1, "bicubic": 2, "area": 3, "lanczos": 4}


def part_sizes(count: int, parts: int) -> List[int]:
    """How ImageRecordIter divides `count` records: ceil(count / parts) each, the last ones less or none."""
    step = math.ceil(count / parts)
    return [max(0, min(step, count - part * step)) for part in range(parts)]


def seed_of(*numbers: int) -> int:
    """A 31-bit seed from several numbers; neighbours get unrelated ones."""
    text = ",".join(map(str, numbers)).encode()
    return int.from_bytes(hashlib.sha256(text).digest()[:4], "little") & 0x7FFFFFFF


def open_reader(records: Records, data: Data, batch: int, part: Tuple[int, int], verbose=False, **settings):
    """Batches of part (index, of) of the file, as an ImageRecordIter gives them."""
    if data.keep == "ram":
        memory = KEPT.part(records.rec, records.idx, part, data.threads)
        with memory.names() as (rec, idx):
            return _image_record_iter(rec, idx, (0, 1), data, batch, verbose=verbose, **settings)
    return _image_record_iter(records.rec, records.idx, part, data, batch, verbose=verbose, **settings)


def _image_record_iter(rec: str, idx: str, part: Tuple[int, int], data: Data, batch: int, **settings):
    """It decodes 16 batches ahead, whatever it is told (iter_image_recordio_2.cc, kMaxPrefetchBuffer).

    `prefetch_buffer` is how many used batches it holds back, and those it leaks when it goes.  With 1 it
    still leaks the batch that it handed out last, unless it was read to its end.
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
        **settings,
    )


def augmentation(data: Data) -> dict:
    """ImageRecordIter's words for our `data.augment`."""
    a = data.augment
    settings = dict(
        rand_mirror=a.flip,
        brightness=a.brightness,
        contrast=a.contrast,
        saturation=a.saturation,
        random_h=round(a.hue * 180),  # OpenCV's hue goes to 180
    )
    if a.pad:
        settings.update(pad=a.pad, fill_value=0)  # black, as torchvision's RandomCrop; MXNet's own is white
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
    """The training images of one rank.  Shard s goes to device s modulo their number.

    `seed_aug` makes augmentation a function of the seed and of the place in a batch, whatever the
    threads do.  So the batches of one shard and epoch share their crops and flips, place by place.

    shards: those of this rank, of `of` in all; accumulation: batches of each shard in one step.
    """

    def __init__(self, records: Records, data: Data, batch: int, shards: List[int], of: int, accumulation: int,
                 steps_per_epoch: int, seed: int, devices: list):  # fmt: skip
        self.records, self.data, self.batch, self.devices = records, data, batch, devices
        self.shards, self.of, self.accumulation = shards, of, accumulation
        self.steps_per_epoch, self.seed = steps_per_epoch, seed
        self.parts = readable_parts(part_sizes(records.count, of), batch)
        self._epoch, self._streams, self._readers = None, {}, {}

    def step(self, step: int) -> Iterator[Micro]:
        """The batches of global step `step`, in the order of (shard, accumulation).

        Steps are asked for in order; the first one asked for may be any (a resume).
        """
        epoch, within = divmod(step, self.steps_per_epoch)
        if epoch != self._epoch:
            for reader in self._readers.values():
                for _ in reader:  # what the epoch drops is read all the same: see _image_record_iter
                    pass
            self._epoch = epoch
            self._streams = {shard: self._stream(epoch, shard, within * self.accumulation) for shard in self.shards}
        for shard in self.shards:
            lane = shard % len(self.devices)
            for turn in range(self.accumulation):
                # Copied, on a CPU too: a reader waits for every use of its last batch before it
                # hands out another, so that lending its own arrays would put input after compute.
                images, labels = (array.copyto(self.devices[lane]) for array in next(self._streams[shard]))
                yield Micro(shard, turn, lane, images, labels)

    def _stream(self, epoch: int, shard: int, skip: int):
        """Endless batches of one shard in one epoch; a short shard wraps into another pass."""
        tour = 0
        while True:
            seed = seed_of(self.seed, epoch, shard, tour)
            reader = self._readers[shard] = open_reader(
                self.records,
                self.data,
                self.batch,
                (self.parts[shard], self.of),
                shuffle=True,
                seed=seed,
                seed_aug=seed,
                **augmentation(self.data),
            )
            for batch in reader:
                if skip:
                    skip -= 1
                    continue
                yield batch.data[0], batch.label[0]
            tour += 1


def readable_parts(sizes: List[int], batch: int) -> List[int]:
    """Shard -> the part it reads: its own, unless that is too short for one batch.

    ImageRecordIter fills a last batch from the part's beginning, once; a part of less than half a
    batch, or of nothing, it can't read.  Its shard then reads another shard's part, in an order of
    its own.  That happens to sets of a few images per shard alone.
    """
    readable = [part for part, size in enumerate(sizes) if 2 * size >= batch and size > 0]
    return [part if part in readable else readable[part % len(readable)] for part in range(len(sizes))]


class SyntheticData:
    """Random images and labels made once, the same on each device: what the input costs nothing of."""

    def __init__(self, data: Data, classes: int, batch: int, shards: List[int], accumulation: int, seed: int,
                 devices: list):  # fmt: skip
        mx.random.seed(seed_of(seed, 0))
        shape = (batch, 3, data.image_size, data.image_size)
        self.images = nd.random.normal(shape=shape, ctx=devices[0])
        self.labels = nd.random.randint(0, classes, shape=(batch,), ctx=devices[0]).astype("float32")
        self.lanes = [(self.images.as_in_context(device), self.labels.as_in_context(device)) for device in devices]
        self.shards, self.accumulation = shards, accumulation
        nd.waitall()

    def step(self, step: int) -> Iterator[Micro]:
        for shard in self.shards:
            lane = shard % len(self.lanes)
            for turn in range(self.accumulation):
                yield Micro(shard, turn, lane, *self.lanes[lane])


def synthetic_evaluation(data: Data, classes: int, count: int, rank: int, seed: int, ctx):
    """Made-up images to evaluate on, all of them on rank 0."""
    if rank == 0:
        made = SyntheticData(data, classes, count, [0], 1, seed + 1, [ctx])
        yield made.images, made.labels, count


def evaluation_batches(records: Records, data: Data, batch: int, rank: int, ranks: int, ctx):
    """(images, labels, how many of them count) of this rank's part, every image once.

    A new reader each time: with `round_batch` only a reader's first epoch counts right.  A batch is
    at most the part, because a reader wraps once.
    """
    mine = part_sizes(records.count, ranks)[rank]
    if not mine:
        return
    settings = {"resize": data.eval_resize} if data.eval_resize else {}
    for one in open_reader(records, data, min(batch, mine), (rank, ranks), **settings):
        images, labels = one.data[0], one.label[0]
        yield images.as_in_context(ctx), labels.as_in_context(ctx), images.shape[0] - one.pad
