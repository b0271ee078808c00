"""Gradient clipping by global norm."""

from typing import Callable, Optional

from mxnet import gluon, nd

TINY = 1e-6  # keeps a norm of 0 from dividing; as in PyTorch's clip_grad_norm_


def clipping(limit: Optional[float], images: float, trainer: gluon.Trainer) -> Callable:
    """Return a function that clips the summed gradients of parameters before the update; None clips nothing.

    Args:
        limit: Largest norm of the mean gradient over the global batch.
        images: What the update divides the sums by for this mean.
        trainer: Divides them by AMP's loss scale too.
    """
    if limit is None:
        return lambda trained: None
    return lambda trained: clip_norm(trained, limit * images / trainer._scale)


def clip_norm(trained, limit: float) -> None:
    """Scale the gradients of parameters in place so that the 2-norm of all together is at most `limit`.

    Source: arXiv:1211.5063, sec. 3.2. Nothing waits for the device. `nd.sum` compensates rounding and adds in one order
    for any number of threads; `nd.norm` and `nd.multi_sum_sq` are 0.2 % off for two million values.
    """
    for grads in zip(*(parameter.list_grad() for parameter in trained)):  # of each device
        squares = [nd.sum(nd.square(grad.astype("float32"))) for grad in grads]
        norm = nd.sqrt(nd.sum(nd.concat(*squares, dim=0)))
        factor = nd.minimum(limit / (norm + TINY), 1)
        for grad in grads:
            grad *= factor.astype(grad.dtype)
