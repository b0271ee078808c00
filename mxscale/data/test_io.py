"""The rate of the input pipeline without a network: the verb `test-io`."""

import itertools
import json
import math
import os
import statistics
import time
from dataclasses import dataclass, replace
from pkgutil import resolve_name
from typing import Any, Dict, Iterator, List, Optional, Sequence, Tuple

import mxnet as mx
import numpy as np

from mxscale.config.datasets import DATASETS
from mxscale.config.readers import READERS
from mxscale.config.schema import RULES, Config, Data
from mxscale.data import manifest, pack
from mxscale.data.reader.batches import Reading
from mxscale.data.reader.decoder import decode
from mxscale.data.reader.turbojpeg import BatchReader, Wanted
from mxscale.rundir.plan import Split
from mxscale.util.errors import ConfigError, nearest

MOST = RULES["data.threads"].high
INTERVALS = 5  # of each measurement, for its spread
DECODER, TRAINING, VALIDATION = "decoder alone", "training", "validation"  # what is measured


@dataclass(frozen=True)
class Request:
    """What to measure: `io` of conf/test-io.yaml. Raises ConfigError."""

    seconds: float  # of each measurement
    threads: List[int]  # values of data.threads
    readers: List[str]  # values of data.reader
    figure: Optional[str] = None  # PNG to write

    def __post_init__(self):
        if type(self.seconds) not in (int, float) or not 0 < self.seconds < math.inf:
            raise ConfigError(f"io.seconds={self.seconds}: expected a number above 0")
        if not isinstance(self.threads, list) or not self.threads or not all(map(_is_count, self.threads)):
            raise ConfigError(f"io.threads={self.threads}: expected a list of whole numbers of 1 to {MOST}: '[1,2,4]'")
        if not isinstance(self.readers, list) or not self.readers:
            raise ConfigError(f"io.readers={self.readers}: expected a list, such as '[{','.join(READERS)}]'")
        for reader in self.readers:
            if reader not in READERS:
                raise ConfigError(f"io.readers={reader}{nearest(str(reader), READERS)}")
        if self.figure is not None and not str(self.figure).endswith(".png"):
            raise ConfigError(f"io.figure={self.figure}: expected a name that ends in .png")
        if self.figure is not None and not os.access(os.path.dirname(self.figure) or ".", os.W_OK):
            raise ConfigError(f"io.figure={self.figure}: its folder does not exist or cannot be written")


def _is_count(value: Any) -> bool:
    return type(value) is int and 1 <= value <= MOST


def show(config: Config, request: Request) -> None:
    """Print the rates of each reader and number of threads: a table, then one JSON object; draw the figure.

    The data set is packed if necessary. Raises ConfigError.
    """
    if DATASETS[config.data.kind].generated:
        raise ConfigError(f"data={config.data.kind}: its images are generated, not read; use data=imagefolder")
    packed = pack.prepare(config.data)
    print(f"{config.data.image_size} px, batch {config.batch.per_device}\n{HEAD}")
    rows = []
    for row in measure(config, packed, request):
        print(line(row), flush=True)
        rows.append(row)
    about = {"digest": packed["digest"], "image_size": config.data.image_size, "batch": config.batch.per_device}
    print(json.dumps({**about, "rates": rows}))
    if request.figure:
        draw(rows, request.figure)


def measure(config: Config, packed: Dict, request: Request) -> Iterator[Dict]:
    """Yield a row for each reader, work and number of threads. `packed` is the set's manifest."""
    splits = {what: manifest.split_of(packed, name) for what, name in ((TRAINING, "train"), (VALIDATION, "val"))}
    works = [(DECODER, "turbojpeg", splits[TRAINING])]
    works += [(what, reader, split) for reader in request.readers for what, split in splits.items() if split.count]
    for what, reader, split in works:
        data = replace(config.data, reader=reader)
        for threads in request.threads:
            rates = images_per_second(read(split, data, what, config.batch.per_device, threads), request.seconds)
            row = {"reader": reader, "what": what, "threads": threads}
            yield {**row, "images_per_s": spread(rates), "ms_per_image": 1000 / statistics.median(rates)}


class Decoding:
    """Decodes an image and drops it."""

    draws, side = 0, 1

    def __call__(self, content: bytes, draws: Sequence[float], out: np.ndarray) -> None:
        decode(content)


def read(split: Split, data: Data, what: str, batch: int, threads: int) -> Iterator[int]:
    """Read a split without end, as one rank does; yield the number of images of each batch."""
    module, batch = READERS[data.reader].module, min(batch, split.count)
    if what == DECODER:
        starts = range(0, split.count - batch + 1, batch)
        batches = (Wanted(np.arange(start, start + batch)) for start in itertools.cycle(starts))
        for _ in BatchReader(split, Decoding(), threads).read(batches):
            yield batch
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


HEAD = f"{'what':13} {'reader':11} {'threads':>7}  {'images/s (smallest to largest)':32} {'ms per image':>12}"


def line(row: Dict) -> str:
    rate = "{median:,.0f} ({min:,.0f} to {max:,.0f})".format(**row["images_per_s"])
    return f"{row['what']:13} {row['reader']:11} {row['threads']:7}  {rate:32} {row['ms_per_image']:12.3f}"


def draw(rows: List[Dict], path: str) -> None:
    """Draw images/s by threads, with the range of each measurement."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 4.5), layout="constrained")
    axes = figure.subplots()
    series: Dict[Tuple[str, str], List[Dict]] = {}
    for row in rows:
        series.setdefault((row["what"], row["reader"]), []).append(row)
    for (what, reader), points in series.items():
        rates = [point["images_per_s"] for point in points]
        median = [rate["median"] for rate in rates]
        ranges = [[rate["median"] - rate["min"] for rate in rates], [rate["max"] - rate["median"] for rate in rates]]
        style = {DECODER: "--", TRAINING: "-", VALIDATION: ":"}[what]
        colour = "black" if what == DECODER else f"C{list(READERS).index(reader)}"
        threads = [point["threads"] for point in points]
        label = what if what == DECODER else f"{reader}, {what}"
        axes.errorbar(threads, median, ranges, fmt=style, color=colour, marker="o", capsize=3, label=label)
    axes.set(xlabel="data.threads", ylabel="images/s", ylim=(0, None), xticks=sorted({row["threads"] for row in rows}))
    axes.grid(alpha=0.3)
    figure.legend(loc="outside right upper")
    figure.savefig(path, dpi=120)
