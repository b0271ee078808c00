"""data.decoder=pillow: images decoded ahead of MXNet's reader, by `data.threads` threads of our own.

The decoder in MXNet's wheel has no SIMD, and its reader takes no more threads than half of the
processors.  So Pillow's libjpeg-turbo decodes (it does so without Python's lock), and the reader is given
bitmaps, some batches at a time, to augment.  Order and augmentation stay what the reader makes of the
seed: the order is asked of a reader over records of one pixel each, and the augmentation is a function of
the seed and the place in a batch.  Both decoders give the same pixels, so batches are the same bits.
"""

import os
from concurrent.futures import ThreadPoolExecutor
from itertools import chain, islice
from typing import Callable, Dict, Iterator, List, NamedTuple, Tuple

import numpy as np
from mxnet import nd

from mxscale.data import recordio
from mxscale.data.bitmaps import Memory, by_pillow, dot
from mxscale.data.kept import offsets_of

TOGETHER = 4  # batches that are decoded as one, while those before them are used


class Batch(NamedTuple):
    """As an ImageRecordIter's."""

    data: List[nd.NDArray]
    label: List[nd.NDArray]
    pad: int


class Part:
    """One part of a record file: where its records are, and stand-ins of one pixel to ask the order of."""

    def __init__(self, rec: str, idx: str, part: Tuple[int, int]):
        offsets = offsets_of(idx, part)
        following = chain(recordio.read_index(idx), [os.path.getsize(rec)])
        following = [offset for offset in following if offset > offsets[0]][: len(offsets)]
        self.places = [(start, end - start) for start, end in zip(offsets, following, strict=True)]
        self.file = open(rec, "rb")
        self.stand_ins = Memory()
        for number in range(len(offsets)):
            self.stand_ins.add(recordio.Header(0, float(number), number, 0), dot())

    def decoded(self, number: int) -> Tuple[recordio.Header, bytes]:
        record = recordio.record_at(self.file.fileno(), *self.places[number])
        return record.header, by_pillow(record.payload)


class Parts:
    """The parts that a process reads, each opened once."""

    def __init__(self):
        self._parts: Dict[tuple, Part] = {}

    def part(self, records, part: Tuple[int, int]) -> Part:
        key = (records, part)
        if key not in self._parts:
            self._parts[key] = Part(records.rec, records.idx, part)
        return self._parts[key]


def batches(part: Part, threads: int, open_order: Callable, open_images: Callable) -> Iterator[Batch]:
    """What one ImageRecordIter over the part would give.

    open_order(memory), open_images(memory) -> an ImageRecordIter over such records: as shuffled as the part
    is to be read; in their order, augmented.
    """
    decoders, assembly = ThreadPoolExecutor(threads), ThreadPoolExecutor(1)
    order = iter(open_order(part.stand_ins))

    def opened():
        """A reader over the next few batches, and how much of each is padding."""
        asked = [(one.label[0].asnumpy().astype(int), one.pad) for one in islice(order, TOGETHER)]
        if not asked:
            return [], []
        memory = Memory()
        for header, content in decoders.map(part.decoded, np.concatenate([numbers for numbers, _ in asked])):
            memory.add(header, content)
        reader = open_images(memory)
        memory.close()  # the reader has it open
        return reader, [pad for _, pad in asked]

    try:
        coming = assembly.submit(opened)
        while True:
            reader, pads = coming.result()
            if not pads:
                return
            coming = assembly.submit(opened)
            for one, pad in zip(reader, pads):
                yield Batch(one.data, one.label, pad)
    finally:  # without waiting: what nobody reads on may be collected in one of these very threads
        for pool in (assembly, decoders):
            pool.shutdown(wait=False, cancel_futures=True)
