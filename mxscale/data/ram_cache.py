"""data.keep=ram: images decoded once and kept in memory, for sets that fit.

What is kept is every image as MXNet's decoder gave it (a BMP, which costs a copy to read), in record
files that have no name; the same reader goes through them with the same seeds.  So batches are those of
data.keep=packed to the last bit: crops and flips stay random, a resume finds its place.  A rank keeps
the shards that it reads, no others.  The memory goes with the process, however that ends.
"""

import contextlib
import sys
from typing import Dict, Iterator, List, Tuple

from mxscale.data import recordio
from mxscale.data.bitmaps import Memory, bitmap, row_bytes
from mxscale.data.images import BadImage, size_of
from mxscale.data.workers import PER_WORKER, Pool
from mxscale.environment.container_limits import available_memory
from mxscale.util.errors import ConfigError


class Kept:
    """Parts of record files: (.rec, index, of) -> their decoded images.  One for a process."""

    def __init__(self):
        self.parts: Dict[Tuple[str, int, int], Memory] = {}

    def part(self, rec: str, idx: str, part: Tuple[int, int], workers: int) -> Memory:
        """The part's images; the first time they are decoded, by `workers` processes.

        Raises ConfigError where they don't fit into the memory.
        """
        key = (rec, *part)
        if key not in self.parts:
            offsets = offsets_of(idx, part)
            fit(bytes_of(rec, offsets), available_memory())
            self.parts[key] = decoded(rec, offsets, workers)
        return self.parts[key]


def decoded(rec: str, offsets: List[int], workers: int) -> Memory:
    """The records at `offsets`, which follow one another, with decoded images."""
    memory, headers = Memory(), []
    pool = Pool(min(workers, len(offsets) // PER_WORKER), len(offsets))
    with contextlib.closing(pool.map(_payloads(rec, offsets, headers), bitmap)) as results:
        for number, content in enumerate(results):
            if isinstance(content, BadImage):
                raise RuntimeError(f"{rec}, record at byte {offsets[number]}: {content.reason}")
            memory.add(headers[number], content)
    return memory


def _payloads(rec: str, offsets: List[int], headers: List[recordio.Header]) -> Iterator[bytes]:
    """The images of the records at `offsets`, which follow one another; their headers are appended."""
    records = recordio.scan(rec, start=offsets[0])
    for _, record in zip(offsets, records):
        headers.append(record.header)
        yield record.payload


def offsets_of(idx: str, part: Tuple[int, int]) -> List[int]:
    """Where the records of a part begin: contiguous parts, as ImageRecordIter makes them."""
    offsets = recordio.read_index(idx)
    index, of = part
    step = -(-len(offsets) // of)
    return offsets[index * step : (index + 1) * step]


# ---------------------------------------------------------------- memory


def bytes_of(rec: str, offsets: List[int]) -> int:
    """What the records at `offsets` take when decoded; their headers are read, no more."""
    total = 0
    for content in _payloads(rec, offsets, []):
        width, height = size_of(content)
        total += height * row_bytes(width) + 128  # headers and padding are less
    return total


def announce(splits: dict, share: float) -> None:
    """Say what `share` of a set's training and validation images will take.  Raises ConfigError where it doesn't fit.

    splits: name -> {"rec", "idx"}.  The test images are read once and not kept.
    """
    wanted = share * sum(
        bytes_of(splits[name]["rec"], offsets_of(splits[name]["idx"], (0, 1))) for name in ("train", "val")
    )
    free = available_memory()
    fit(wanted, free)
    print(f"data.keep=ram: {_gb(wanted)} for the decoded images, {_gb(free)} are free", file=sys.stderr, flush=True)


def fit(wanted: float, free: int) -> None:
    """Raises ConfigError where `wanted` bytes are more than `free`."""
    if wanted > free:
        raise ConfigError(
            f"data.keep=ram: the decoded images take {_gb(wanted)}, and {_gb(free)} of memory are free here "
            "(a container's limit included): set data.keep=packed, or pack smaller (data.pack_short_side)"
        )


def _gb(count: float) -> str:
    return f"{count / 2**30:.2f} GB"
