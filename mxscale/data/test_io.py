"""The input pipeline without a network: the rate at which one rank reads, and the first images that it reads."""

import itertools
import statistics
from dataclasses import replace
from pkgutil import resolve_name
from typing import Callable, Dict, Iterator, List, Tuple

import mxnet as mx
import numpy as np

from mxscale.config.readers import READERS
from mxscale.config.schema import Config, Data
from mxscale.config.verb_settings import MAX_THREADS, InputRates
from mxscale.data import manifest
from mxscale.data.reader.batches import Micro, Reading, rates
from mxscale.rundir.plan import Split


def resolved(request: InputRates, cores: int) -> InputRates:
    """Return the request with numbers of threads, and without repetitions."""
    counts = request.threads
    if not counts:
        counts = [*(2**power for power in range(MAX_THREADS.bit_length()) if 2**power < cores), min(cores, MAX_THREADS)]
    return replace(request, threads=list(dict.fromkeys(counts)), readers=list(dict.fromkeys(request.readers)))


def measure(
    config: Config, packed: Dict, request: InputRates, watched: Callable[[Iterator[int]], Iterator[int]] = iter
) -> Iterator[Dict]:
    """Yield a row for each reader and number of threads.

    Args:
        packed: The set's manifest.
        request: A resolved one, see `resolved`.
        watched: Returns the numbers of images of the batches that it receives; raises to end a measurement.
    """
    split = manifest.split_of(packed, "train")
    for reader, threads in itertools.product(request.readers, request.threads):
        counts = watched(read(split, replace(config.data, reader=reader), config.batch.per_device, threads))
        next(counts)  # warm-up: the file cache, the threads
        measured = rates(counts, request.seconds)
        row = {"reader": reader, "threads": threads, "images_per_s": spread(measured)}
        yield {**row, "ms_per_image": 1000 / statistics.median(measured)}


def read(split: Split, data: Data, batch: int, threads: int) -> Iterator[int]:
    """Read training images without end, as one rank does; yield the number of images of each batch."""
    for micro in _micros(split, data, batch, 1, threads):
        micro.images.wait_to_read()
        yield len(micro.labels)


def first_batch(data: Data, train: Split, most: int, seed: int) -> Tuple[np.ndarray, np.ndarray]:
    """Return up to `most` augmented images (n, height, width, 3) uint8, before normalisation, and their labels."""
    micro = next(_micros(train, data, most, seed, 1))
    pixels = micro.images.asnumpy().transpose(0, 2, 3, 1)
    if READERS[data.reader].normalised:
        pixels = np.clip(pixels * np.array(data.std) + np.array(data.mean), 0, 255)
    return pixels.astype(np.uint8), micro.labels.asnumpy().astype(int)


def _micros(split: Split, data: Data, most: int, seed: int, threads: int) -> Iterator[Micro]:
    """Yield batches of up to `most` training images without end."""
    batch = min(most, split.count)
    reading = Reading(data, batch, [0], 1, 1, split.count // batch, seed, [mx.cpu()], threads)
    training = resolve_name(f"{READERS[data.reader].module}:TrainData")(split, reading)
    for step in itertools.count():
        yield from training.step(step)


def spread(values: List[float]) -> Dict:
    return {"median": statistics.median(values), "min": min(values), "max": max(values), "runs": len(values)}
