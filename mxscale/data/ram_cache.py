"""data.keep=ram: images are decoded once and cached in memory, for sets that fit.

The cache holds every image as MXNet's decoder returned it, as a BMP, which is decoded by copying. It is a pair of
anonymous record files; the same reader reads them with the same seeds. Batches are therefore bit-identical to those
of data.keep=packed: crops and flips stay random, and a resumed run finds its position. A rank caches only the shards
that it reads. The kernel frees the memory when the process ends.
"""

import contextlib
import os
import struct
import sys
import tempfile
from typing import Dict, Iterator, List, Tuple

import mxnet as mx
import numpy as np

from mxscale.data import recordio
from mxscale.data.images import BadImage, size_of
from mxscale.data.workers import PER_WORKER, Pool
from mxscale.environment.container_limits import available_memory
from mxscale.rundir.plan import Split
from mxscale.util.errors import ConfigError

BMP = struct.Struct("<2sIIIIiiHHIIiiII")  # file header (14 bytes), BITMAPINFOHEADER (40)


def bitmap(content: bytes) -> bytes:
    """Return an encoded image as a BMP of the same pixels, decoded as an ImageRecordIter does."""
    pixels = mx.image.imdecode(content, to_rgb=0).asnumpy()
    height, width, _ = pixels.shape
    rows = np.zeros((height, row_bytes(width)), "uint8")
    rows[:, : 3 * width] = pixels.reshape(height, 3 * width)
    header = BMP.pack(b"BM", BMP.size + rows.size, 0, BMP.size, 40, width, -height, 1, 24, 0, rows.size, 0, 0, 0, 0)
    return header + rows.tobytes()


def row_bytes(width: int) -> int:
    return (3 * width + 3) // 4 * 4


class Memory:
    """A .rec and an .idx file in memory, without names."""

    def __init__(self):
        self.rec, self.idx = (os.fdopen(os.memfd_create(name), "wb") for name in ("part.rec", "part.idx"))
        self._count, self._at = 0, 0

    def add(self, header: recordio.Header, content: bytes) -> None:
        record = recordio.frame(recordio.HEADER.pack(*header) + content)
        self.rec.write(record)
        self.idx.write(b"%d\t%d\n" % (self._count, self._at))
        self._count += 1
        self._at += len(record)

    @contextlib.contextmanager
    def names(self):
        """Yield paths of the .rec and the .idx, valid within the block. Files opened there stay readable after it."""
        self.rec.flush()
        self.idx.flush()
        # A separate folder, because MXNet lists all files beside the one that it opens.
        with tempfile.TemporaryDirectory(prefix="mxscale-") as folder:
            names = os.path.join(folder, "part.rec"), os.path.join(folder, "part.idx")
            for name, file in zip(names, (self.rec, self.idx), strict=True):
                os.symlink(f"/proc/{os.getpid()}/fd/{file.fileno()}", name)
            yield names


class RamCache:
    """Decoded images of parts of record files, by (.rec, index, number of parts)."""

    def __init__(self):
        self.parts: Dict[Tuple[str, int, int], Memory] = {}

    def part(self, rec: str, idx: str, part: Tuple[int, int], workers: int) -> Memory:
        """Return the images of a part; the first call decodes them in `workers` processes.

        Raises ConfigError if the images do not fit into memory.
        """
        key = (rec, *part)
        if key not in self.parts:
            offsets = offsets_of(idx, part)
            check_fit(bytes_of(rec, offsets), available_memory())
            self.parts[key] = decoded(rec, offsets, workers)
        return self.parts[key]


def decoded(rec: str, offsets: List[int], workers: int) -> Memory:
    """Return the consecutive records at `offsets` with decoded images."""
    memory, headers = Memory(), []
    pool = Pool(min(workers, len(offsets) // PER_WORKER), len(offsets))
    with contextlib.closing(pool.map(_payloads(rec, offsets, headers), bitmap)) as results:
        for number, content in enumerate(results):
            if isinstance(content, BadImage):
                raise RuntimeError(f"{rec}, record at byte {offsets[number]}: {content.reason}")
            memory.add(headers[number], content)
    return memory


def _payloads(rec: str, offsets: List[int], headers: List[recordio.Header]) -> Iterator[bytes]:
    """Yield the images of the consecutive records at `offsets`; append their headers to `headers`."""
    records = recordio.scan(rec, start=offsets[0])
    for _, record in zip(offsets, records):
        headers.append(record.header)
        yield record.payload


def offsets_of(idx: str, part: Tuple[int, int]) -> List[int]:
    """Return the offsets of the records of a part. Parts are contiguous, as in ImageRecordIter."""
    offsets = recordio.read_index(idx)
    index, of = part
    step = -(-len(offsets) // of)
    return offsets[index * step : (index + 1) * step]


def bytes_of(rec: str, offsets: List[int]) -> int:
    """Return the size in bytes of the decoded records at `offsets`, from the headers of their images."""
    total = 0
    for content in _payloads(rec, offsets, []):
        width, height = size_of(content)
        total += height * row_bytes(width) + 128  # headers and padding are less
    return total


def announce(splits: Dict[str, Split], share: float) -> None:
    """Report the memory that a share of a set's training and validation images needs.

    Args:
        splits: The set's splits by name. Test images are read once and not cached.
        share: The largest share of the images that the ranks of one host read, 0-1.

    Raises:
        ConfigError: The images do not fit into memory.
    """
    read = splits["train"], splits["val"]
    wanted = share * sum(bytes_of(split.rec, offsets_of(split.idx, (0, 1))) for split in read)
    free = available_memory()
    check_fit(wanted, free)
    print(f"data.keep=ram: {_gb(wanted)} for the decoded images, {_gb(free)} free", file=sys.stderr, flush=True)


def check_fit(wanted: float, free: int) -> None:
    """Raise ConfigError if `wanted` bytes are more than `free`."""
    if wanted > free:
        raise ConfigError(
            f"data.keep=ram: the decoded images need {_gb(wanted)}, and {_gb(free)} of memory are free here "
            "(a container's limit included): set data.keep=packed, or pack smaller (data.pack_short_side)"
        )


def _gb(count: float) -> str:
    return f"{count / 2**30:.2f} GB"
