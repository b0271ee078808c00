"""A training loop as one would write it by hand: no records, no checkpoints, no validation, no stop.

Part of benches."""

import time

import mxnet as mx
from mxnet import autograd

from mxscale.train.optim.optimizer import CrossEntropy


def rates(net, trainer, step_batch: int, batches, images: int, interval: int, steps: int):
    """Yields images/s of each `interval` of `steps`, but for the first one.

    trainer: its `step` takes step_batch; batches: an iterator over (images, labels); images: of a step of all ranks.
    """
    objective = CrossEntropy()
    objective.hybridize(static_alloc=True, static_shape=True)
    started = time.perf_counter()
    for step in range(1, steps + 1):
        inputs, labels = next(batches)
        with autograd.record():
            losses = objective(net(inputs), labels)
        losses.backward()
        trainer.step(step_batch)
        if step % interval == 0:
            mx.nd.waitall()
            if step > interval:
                yield interval * images / (time.perf_counter() - started)
            started = time.perf_counter()
