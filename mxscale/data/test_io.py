"""The rate of the input pipeline without a network: the verb `test-io`."""

import itertools
import json
import math
import statistics
import time
from dataclasses import replace
from pkgutil import resolve_name
from typing import Dict, Iterator, List

import mxnet as mx

from mxscale.config.datasets import DATASETS
from mxscale.config.readers import READERS
from mxscale.config.schema import Config, Data
from mxscale.config.training_settings import Augment
from mxscale.data import manifest, pack
from mxscale.data.reader.batches import Reading
from mxscale.rundir.plan import Split
from mxscale.util.errors import ConfigError

INTERVALS = 5  # of each measurement, for its spread
# decode: decoding and a centre crop. all: everything that training, or validation, does to an image.
WORK = ("decode", "all")


def show(config: Config, seconds, threads) -> None:
    """Print the rates of each split, work and number of threads: a table, then one JSON object.

    Args:
        config: A run's configuration. Its data set is packed if necessary.
        seconds: Duration of each measurement.
        threads: Numbers of decode threads.

    Raises:
        ConfigError: An argument or the data set is invalid.
    """
    check(config, seconds, threads)
    packed = pack.prepare(config.data)
    print(f"{config.data.image_size} px, batch {config.batch.per_device}, data.reader={config.data.reader}\n{HEAD}")
    rows = []
    for row in measure(config, packed, seconds, threads):
        print(line(row), flush=True)
        rows.append(row)
    about = {"digest": packed["digest"], "image_size": config.data.image_size, "batch": config.batch.per_device}
    print(json.dumps({**about, "rates": rows}))


def check(config: Config, seconds, threads) -> None:
    if DATASETS[config.data.kind].generated:
        raise ConfigError(f"data={config.data.kind}: its images are generated, not read; use data=imagefolder")
    if type(seconds) not in (int, float) or not 0 < seconds < math.inf:
        raise ConfigError(f"io.seconds={seconds}: expected a number above 0")
    if not isinstance(threads, list) or not threads or any(type(one) is not int or one < 1 for one in threads):
        raise ConfigError(f"io.threads={threads}: expected a list of whole numbers of at least 1, such as '[1,2,4]'")


def measure(config: Config, packed: Dict, seconds: float, threads: List[int]) -> Iterator[Dict]:
    """Yield a row for each split, work and number of threads. `packed` is the set's manifest."""
    for split in ("train", "val"):
        records = manifest.split_of(packed, split)
        if not records.count:
            continue
        for work in WORK:
            data = config.data if work == "all" else decoding_alone(config.data)
            for wanted in threads:
                rates = images_per_second(read(records, data, split, config.batch.per_device, wanted), seconds)
                row = {"reader": data.reader, "split": split, "work": work, "threads": wanted}
                yield {**row, "images_per_s": spread(rates), "ms_per_image": 1000 / statistics.median(rates)}


def decoding_alone(data: Data) -> Data:
    """Return settings with which images are decoded and cropped only."""
    return replace(data, augment=Augment(crop="center", flip=False), eval_resize=None)


def read(records: Split, data: Data, split: str, batch: int, threads: int) -> Iterator[int]:
    """Read a split without end, as one rank does; yield the number of images of each batch."""
    module, batch = READERS[data.reader].module, min(batch, records.count)
    if split == "val":
        evaluation = resolve_name(f"{module}:EvaluationData")(records, data, batch, (0, 1), mx.cpu(), threads)
        while True:
            for images, _, count in evaluation:
                images.wait_to_read()
                yield count
    reading = Reading(data, batch, [0], 1, 1, records.count // batch, 1, [mx.cpu()], threads)
    training = resolve_name(f"{module}:TrainData")(records, reading)
    for step in itertools.count():
        for micro in training.step(step):
            micro.images.wait_to_read()
            yield batch


def images_per_second(counts: Iterator[int], seconds: float) -> List[float]:
    """Return the rate in each of `INTERVALS` equal parts of the time."""
    next(counts)  # warm-up: the file cache, the threads
    rates, images, began = [], 0, time.perf_counter()
    while len(rates) < INTERVALS:
        images += next(counts)
        took = time.perf_counter() - began
        if took >= seconds / INTERVALS:
            rates.append(images / took)
            images, began = 0, time.perf_counter()
    return rates


def spread(values: List[float]) -> Dict:
    return {"median": statistics.median(values), "min": min(values), "max": max(values), "runs": len(values)}


HEAD = f"{'split':6} {'work':7} {'threads':>7}  {'images/s (smallest to largest)':32} {'ms per image':>12}"


def line(row: Dict) -> str:
    rate = "{median:,.0f} ({min:,.0f} to {max:,.0f})".format(**row["images_per_s"])
    return f"{row['split']:6} {row['work']:7} {row['threads']:7}  {rate:32} {row['ms_per_image']:12.3f}"
