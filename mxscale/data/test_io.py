"""The rate of the input pipeline without a network."""

import itertools
import statistics
from dataclasses import replace
from pkgutil import resolve_name
from typing import Callable, Dict, Iterator, List

import mxnet as mx

from mxscale.config.readers import READERS
from mxscale.config.schema import Config, Data
from mxscale.config.verb_settings import MAX_THREADS, InputRates
from mxscale.data import manifest
from mxscale.data.reader.batches import Reading, rates
from mxscale.rundir.plan import Split

TRAINING, VALIDATION = "training", "validation"  # what is measured


def resolved(request: InputRates, cores: int) -> InputRates:
    """Return the request with numbers of threads, and without repetitions."""
    counts = request.threads
    if not counts:
        counts = [*(2**power for power in range(MAX_THREADS.bit_length()) if 2**power < cores), min(cores, MAX_THREADS)]
    return replace(request, threads=list(dict.fromkeys(counts)), readers=list(dict.fromkeys(request.readers)))


def measure(
    config: Config, packed: Dict, request: InputRates, watched: Callable[[Iterator[int]], Iterator[int]] = iter
) -> Iterator[Dict]:
    """Yield a row for each reader, work and number of threads.

    Args:
        packed: The set's manifest.
        request: A resolved one, see `resolved`.
        watched: Returns the numbers of images of the batches that it receives; raises to end a measurement.
    """
    splits = ((what, manifest.split_of(packed, name)) for what, name in ((TRAINING, "train"), (VALIDATION, "val")))
    used = [(what, split) for what, split in splits if split.count]
    for reader, (what, split), threads in itertools.product(request.readers, used, request.threads):
        data = replace(config.data, reader=reader)
        counts = watched(read(split, data, what, config.batch.per_device, threads))
        next(counts)  # warm-up: the file cache, the threads
        measured = rates(counts, request.seconds)
        row = {"reader": reader, "what": what, "threads": threads}
        yield {**row, "images_per_s": spread(measured), "ms_per_image": 1000 / statistics.median(measured)}


def read(split: Split, data: Data, what: str, batch: int, threads: int) -> Iterator[int]:
    """Read a split without end, as one rank does; yield the number of images of each batch."""
    module, batch = READERS[data.reader].module, min(batch, split.count)
    if what == VALIDATION:
        evaluation = resolve_name(f"{module}:EvaluationData")(split, data, batch, (0, 1), mx.cpu(), threads)
        while True:
            for images, _, count in evaluation:
                images.wait_to_read()
                yield count
    reading = Reading(data, batch, [0], 1, 1, split.count // batch, 1, [mx.cpu()], threads)
    training = resolve_name(f"{module}:TrainData")(split, reading)
    for step in itertools.count():
        for micro in training.step(step):
            micro.images.wait_to_read()
            yield batch


def spread(values: List[float]) -> Dict:
    return {"median": statistics.median(values), "min": min(values), "max": max(values), "runs": len(values)}
