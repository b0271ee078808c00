"""float32, float16 with float32 master weights, or automatic mixed precision."""

import mxnet as mx
from mxnet import autograd
from mxnet.contrib import amp


class Precision:
    """Scales losses, and holds the loss scale that a checkpoint saves."""

    def __init__(self, precision: str, trainer):
        self.trainer = trainer
        self.amp = precision == "amp"
        if self.amp:
            amp.init_trainer(trainer)  # trainer.update checks for overflow, after the exchange

    def backward(self, losses: mx.nd.NDArray) -> None:
        """Compute the gradients of the sum of `losses`."""
        if not self.amp:
            losses.backward()
            return
        with autograd.record(), amp.scale_loss(losses, self.trainer) as scaled:
            pass
        autograd.backward(scaled)

    def state(self) -> dict:
        return dict(vars(self.trainer._amp_loss_scaler)) if self.amp else {}

    def restore(self, state: dict) -> None:
        if self.amp:
            vars(self.trainer._amp_loss_scaler).update(state)
