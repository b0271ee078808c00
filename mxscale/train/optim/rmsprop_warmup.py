"""RMSprop warm-up: an optimizer that starts as RMSprop and becomes SGD with momentum (arXiv:1711.04325, sec. 2)."""

import mxnet as mx
from mxnet import nd

from mxscale.train.optim.schedule import sgd_share


class RMSpropWarmup(mx.optimizer.Optimizer):
    """RMSprop warm-up. For a gradient g and a learning rate lr:

        m     = mu2 m + (1 - mu2) g^2
        delta = mu1 delta - (a_SGD + a_RMS / (sqrt(m) + eps)) g
        w     = w + lr delta

    a_SGD is `schedule.sgd_share` of the epoch and a_RMS = (1 - a_SGD) eta_rms / lr. The first steps are thus RMSprop's
    at the learning rate eta_rms, independent of lr. m and delta start at 0, without bias correction. They are float32
    for weights of any type. g is clipped, then weight decay is added, as in MXNet's SGD.

    The training loop sets `epoch` and lr before each update; lr must be above 0 until a_SGD is 1.

    Args:
        momentum: mu1. The defaults are the paper's, for 90 epochs.
        mu2: Decay of the mean square m.
        eta_rms: Learning rate of RMSprop.
        beta_center: Epoch at which both shares are 1/2.
        beta_period: Length of the transition, in epochs.
    """

    def __init__(self, momentum=0.9, mu2=0.99, eps=1e-8, eta_rms=3e-4, beta_center=10.0, beta_period=5.0, **settings):
        super().__init__(**settings)
        for name, value in (("momentum", momentum), ("mu2", mu2)):
            if not 0 <= value < 1:
                raise ValueError(f"{name}={value}: expected at least 0 and less than 1")
        for name, value in (("eta_rms", eta_rms), ("beta_center", beta_center)):
            if not 0 <= value < float("inf"):
                raise ValueError(f"{name}={value}: expected at least 0")
        for name, value in (("eps", eps), ("beta_period", beta_period)):
            if not 0 < value < float("inf"):
                raise ValueError(f"{name}={value}: expected more than 0")
        self.momentum, self.mu2, self.eps, self.eta_rms = momentum, mu2, eps, eta_rms
        self.beta_center, self.beta_period = beta_center, beta_period
        self.epoch = 0.0

    def create_state(self, index, weight):
        """Return (m, delta), both 0."""
        return tuple(nd.zeros(weight.shape, ctx=weight.context, dtype="float32") for _ in range(2))

    def update(self, index, weight, grad, state):
        self._update_count(index)
        lr, wd = self._get_lr(index), self._get_wd(index)
        mean_square, delta = state
        grad = grad.astype("float32") * self.rescale_grad
        if self.clip_gradient is not None:
            grad = nd.clip(grad, -self.clip_gradient, self.clip_gradient)
        if wd:
            grad += wd * weight.astype("float32")
        sgd = sgd_share(self.epoch, self.beta_center, self.beta_period)
        if sgd < 1:
            mean_square *= self.mu2
            mean_square += (1 - self.mu2) * grad * grad
            # A layer's lr_mult scales the whole step, RMSprop's part as well
            grad *= sgd + (1 - sgd) * self.eta_rms / self.learning_rate / (nd.sqrt(mean_square) + self.eps)
        delta *= self.momentum
        delta -= grad
        weight += (lr * delta).astype(weight.dtype)
