"""The first training images as the network sees them, for people to look at."""

from pkgutil import resolve_name
from typing import Tuple

import mxnet as mx
import numpy as np

from mxscale.config.readers import READERS
from mxscale.config.schema import Data
from mxscale.data.reader.batches import Reading
from mxscale.rundir.plan import Split


def first_batch(data: Data, train: Split, most: int, seed: int) -> Tuple[np.ndarray, np.ndarray]:
    """Return up to `most` augmented images (n, height, width, 3) uint8, before normalisation, and their labels."""
    batch = min(most, train.count)
    reading = Reading(
        data=data, batch=batch, shards=[0], total_shards=1, accumulation=1,
        steps_per_epoch=max(1, train.count // batch), seed=seed, devices=[mx.cpu()], threads=1,
    )  # fmt: skip
    reader = READERS[data.reader]
    micro = next(iter(resolve_name(f"{reader.module}:TrainData")(train, reading).step(0)))
    pixels = micro.images.asnumpy().transpose(0, 2, 3, 1)
    if reader.normalised:
        pixels = np.clip(pixels * np.array(data.std) + np.array(data.mean), 0, 255)
    return pixels.astype(np.uint8), micro.labels.asnumpy().astype(int)
