"""A hand-written training loop without metrics, checkpoints, validation or stop; part of benchmarks."""

import time

import mxnet as mx
from mxnet import autograd

from mxscale.train.optim.optimizer import CrossEntropy


def rates(training: tuple, batches, images: int, interval: int, steps: int):
    """Yield the images/s of each interval except the first one.

    Args:
        training: (network, trainer, batch size that its `step` takes).
        batches: an iterator over (images, labels).
        images: of a step of all ranks.
        interval: steps.
        steps: in total.
    """
    net, trainer, step_batch = training
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
