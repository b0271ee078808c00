"""The rate of the input pipeline without a network: the verb `test-io`."""

import json
import math
import os
import re
import statistics
import tempfile
import time
from dataclasses import replace
from typing import Callable, Dict, Iterator, List

from mxscale.config.datasets import DATASETS
from mxscale.config.schema import Config, Data
from mxscale.config.training_settings import Augment
from mxscale.data import loader, manifest, pack
from mxscale.data.ram_cache import RamCache
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
    print(f"{config.data.image_size} px, batch {config.batch.per_device}, data.keep={config.data.keep}\n{HEAD}")
    rows = []
    for row in measure(config, packed, seconds, threads):
        print(line(row), flush=True)
        rows.append(row)
    about = {"digest": packed["digest"], "image_size": config.data.image_size, "batch": config.batch.per_device}
    print(json.dumps({**about, "keep": config.data.keep, "rates": rows}))


def check(config: Config, seconds, threads) -> None:
    if DATASETS[config.data.kind].generated:
        raise ConfigError(f"data={config.data.kind}: its images are generated, not read; use data=imagefolder")
    if type(seconds) not in (int, float) or not 0 < seconds < math.inf:
        raise ConfigError(f"io.seconds={seconds}: expected a number above 0")
    if not isinstance(threads, list) or not threads or any(type(one) is not int or one < 1 for one in threads):
        raise ConfigError(f"io.threads={threads}: expected a list of whole numbers of at least 1, such as '[1,2,4]'")


def measure(config: Config, packed: Dict, seconds: float, threads: List[int]) -> Iterator[Dict]:
    """Yield a row for each split, work and number of threads. `packed` is the set's manifest."""
    cache = RamCache()
    for split in ("train", "val"):
        records = manifest.split_of(packed, split)
        if not records.count:
            continue
        for work in WORK:
            for wanted in threads:
                data = replace(config.data, threads=wanted)
                open_pass = opener(records, data, split, work, config.batch.per_device, cache)
                rates = images_per_second(open_pass, seconds)
                row = {"split": split, "work": work, "threads": wanted, "used": used_threads(records, data, cache)}
                yield {**row, "images_per_s": spread(rates), "ms_per_image": 1000 / statistics.median(rates)}


def opener(records: Split, data: Data, split: str, work: str, batch: int, cache: RamCache) -> Callable:
    """Return a function from the number of a pass to an ImageRecordIter over the split, as one rank opens it."""
    if split == "train":
        augment = data.augment if work == "all" else Augment(crop="center", flip=False)
        settings = loader.augmentation(replace(data, augment=augment))
        return lambda pass_number: loader.open_reader(
            records, data, batch, (0, 1), cache, shuffle=True, seed=pass_number, seed_aug=pass_number, **settings
        )
    settings = {"resize": data.eval_resize} if data.eval_resize and work == "all" else {}
    return lambda pass_number: loader.open_reader(records, data, min(batch, records.count), (0, 1), cache, **settings)


def images_per_second(open_pass: Callable, seconds: float) -> List[float]:
    """Return the rate in each of `INTERVALS` equal parts of the time, over consecutive passes."""
    for one in open_pass(0):  # warm-up: the file cache, the threads, the decoding of data.keep=ram
        one.data[0].wait_to_read()
        break
    rates, pass_number = [], 0
    images, began = 0, time.perf_counter()
    while True:
        pass_number += 1
        for one in open_pass(pass_number):
            one.data[0].wait_to_read()
            images += one.data[0].shape[0] - one.pad
            took = time.perf_counter() - began
            if took >= seconds / INTERVALS:
                rates.append(images / took)
                if len(rates) == INTERVALS:
                    return rates
                images, began = 0, time.perf_counter()


def used_threads(records: Split, data: Data, cache: RamCache) -> int:
    """Return the number of decode threads that the reader uses, which it reports only in its log."""
    with tempfile.TemporaryFile() as log:
        stderr = os.dup(2)
        os.dup2(log.fileno(), 2)
        try:
            loader.open_reader(records, data, 1, (0, 1), cache, verbose=True)
        finally:
            os.dup2(stderr, 2)
            os.close(stderr)
        log.seek(0)
        return int(re.search(rb"use (\d+) threads", log.read())[1])


def spread(values: List[float]) -> Dict:
    return {"median": statistics.median(values), "min": min(values), "max": max(values), "runs": len(values)}


HEAD = f"{'split':6} {'work':7} {'threads':>7} {'used':>4}  {'images/s (smallest to largest)':32} {'ms per image':>12}"


def line(row: Dict) -> str:
    rate = "{median:,.0f} ({min:,.0f} to {max:,.0f})".format(**row["images_per_s"])
    return f"{row['split']:6} {row['work']:7} {row['threads']:7} {row['used']:4}  {rate:32} {row['ms_per_image']:12.3f}"
