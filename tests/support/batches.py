"""Batches as a rank reads them, with either reader."""

from dataclasses import replace
from pkgutil import resolve_name

import mxnet as mx
import numpy as np

from mxscale.config.readers import READERS
from mxscale.config.training_settings import Augment, Data
from mxscale.data.reader.batches import Reading

CPU = mx.cpu()
PLAIN = Augment(crop="center", flip=False)
RAW = Data(image_size=8, mean=[0.0, 0.0, 0.0], std=[1.0, 1.0, 1.0], augment=PLAIN)  # pixels as they are
AUGMENTED = replace(RAW, image_size=12, augment=Augment(brightness=0.4, contrast=0.4, saturation=0.4, hue=0.1))


def train_data(records, data=RAW, batch=4, rank=0, ranks=1, **reading):
    """Return training data; `reading` overrides one shard, no accumulation, an epoch of all images and seed 1."""
    shards, accumulation = reading.pop("of", 1), reading.pop("accumulation", 1)
    steps = reading.pop("steps_per_epoch", records.count // (batch * shards * accumulation))
    own = list(range(rank, shards, ranks))
    reading = {"seed": 1, "threads": 2, "devices": [CPU], **reading}
    kind = resolve_name(f"{READERS[data.reader].module}:TrainData")
    return kind(records, Reading(data, batch, own, shards, accumulation, steps, **reading))


def evaluation_data(records, data=RAW, batch=4, rank=0, ranks=1, threads=2):
    """Return one rank's images to evaluate on."""
    kind = resolve_name(f"{READERS[data.reader].module}:EvaluationData")
    return kind(records, data, batch, (rank, ranks), CPU, threads)


def micros(source, steps):
    """Return [(step, shard, labels, pixels)] of all batches, read after the last one is yielded."""
    taken = [(step, micro) for step in steps for micro in source.step(step)]
    return [(step, m.shard, m.labels.asnumpy().tolist(), m.images.asnumpy()) for step, m in taken]


def same(some, others) -> bool:
    """Return whether two results of `micros` are bit-identical."""
    return len(some) == len(others) and all(
        a[:3] == b[:3] and np.array_equal(a[3], b[3]) for a, b in zip(some, others, strict=True)
    )


def labels_of(found):
    return [label for _, _, labels, _ in found for label in labels]
