"""The optimizer of a run, clipping of its gradients and the loss that it minimises."""

from pkgutil import resolve_name
from typing import Optional, Sequence

import mxnet as mx
from mxnet import gluon, nd

from mxscale.config.optimizers import OPTIMIZERS, optimizer_entry
from mxscale.config.schema import Optimizer as OptimizerConfig
from mxscale.util.errors import ConfigError, nearest

for _name, _entry in OPTIMIZERS.items():
    if _entry.implementation:  # MXNet's `register` derives the name from the class and omits the underscore
        mx.optimizer.Optimizer.opt_registry[_name] = resolve_name(_entry.implementation)

# Arguments of MXNet's optimizers that have a key of their own
OWN_KEYS = {"learning_rate": "lr", "wd": "weight_decay", "momentum": "momentum", "clip_gradient": "clip_gradient",
            "multi_precision": "multi_precision", "mu1": "momentum"}  # fmt: skip

TINY = 1e-6  # keeps a norm of 0 from dividing; as in PyTorch's clip_grad_norm_


def make_trainer(parameters, config: OptimizerConfig, multi_precision: bool) -> gluon.Trainer:
    """Return a Trainer that updates locally (kvstore None); the training loop exchanges gradients before it.

    Args:
        parameters: gluon Parameters without those whose grad_req is "null".
    """
    trainer = gluon.Trainer(parameters, make_optimizer(config, multi_precision), kvstore=None, update_on_kvstore=False)
    # The ends of the parameters' names, by which MXNet's LARS exempts gamma, beta and biases
    trainer.optimizer.idx2name = {key: parameter.name.rpartition("_")[2] for key, parameter in enumerate(parameters)}
    return trainer


def make_optimizer(config: OptimizerConfig, multi_precision: bool = False) -> mx.optimizer.Optimizer:
    """Return the optimizer of that name.

    Raises:
        ConfigError: The name or an argument is unknown, or MXNet's version does not have the optimizer.
    """
    known = mx.optimizer.Optimizer.opt_registry
    if config.name.lower() not in known:
        if optimizer_entry(config.name).since:
            raise ConfigError(
                f"optimizer.name={config.name}: MXNet {mx.__version__} does not have it; use another, or MXNet 1.9.1"
            )
        raise ConfigError(f"optimizer.name={config.name}{nearest(config.name, known)}")
    if not optimizer_entry(config.name).networks:
        raise ConfigError(f"optimizer.name={config.name}: it updates embeddings only; use another")
    for name in config.params:
        if name in OWN_KEYS:
            raise ConfigError(f"optimizer.params.{name}: set optimizer.{OWN_KEYS[name]} instead")
    arguments = {**optimizer_entry(config.name).defaults, **config.params}
    arguments.update(learning_rate=config.lr, wd=config.weight_decay)
    if config.momentum is not None:
        arguments["momentum"] = config.momentum
    if config.clip_gradient is not None:
        arguments["clip_gradient"] = config.clip_gradient
    if multi_precision:
        arguments["multi_precision"] = config.multi_precision
    try:
        return mx.optimizer.create(config.name.lower(), **arguments)
    except (TypeError, ValueError, AssertionError) as error:
        raise ConfigError(
            f"optimizer.name={config.name} does not accept these settings ({error}); "
            "optimizer.momentum=null omits momentum, optimizer.params={...} adds arguments"
        ) from None


def clip_norm(trained, limit: Optional[float], images: float, trainer: gluon.Trainer) -> None:
    """Scale the summed gradients of parameters in place, so that their mean has a norm of at most `limit`; None: any.

    The norm is the 2-norm of all gradients together (arXiv:1211.5063, sec. 3.2). Nothing waits for the device.
    `nd.sum` compensates rounding and adds in one order for any number of threads; `nd.norm` and `nd.multi_sum_sq` are
    0.2 % off for two million values.

    Args:
        images: What the update divides the sums by for the mean over the global batch.
        trainer: Divides them by AMP's loss scale too.
    """
    if limit is None:
        return
    most = limit * images / trainer._scale
    for grads in zip(*(parameter.list_grad() for parameter in trained)):  # of each device
        squares = [nd.sum(nd.square(grad.astype("float32"))) for grad in grads]
        norm = nd.sqrt(nd.sum(nd.concat(*squares, dim=0)))
        factor = nd.minimum(most / (norm + TINY), 1)
        for grad in grads:
            grad *= factor.astype(grad.dtype)


class CrossEntropy(gluon.HybridBlock):
    """Softmax cross-entropy of each image against smoothed labels (arXiv:1512.00567, sec. 7).

    Inputs: logits (B, classes); labels (B,), class numbers. Output: losses (B,) in nats, float32.
    """

    def __init__(self, smoothing: float = 0.0, class_weights: Sequence[float] = (), **kwargs):
        """`class_weights`: factors of the losses by label, which `initialize` puts on each device; empty: none."""
        super().__init__(**kwargs)
        self.smoothing = smoothing
        if class_weights:
            self.class_weights = self.params.get_constant("class_weights", list(class_weights))

    def hybrid_forward(self, F, logits, labels, class_weights=None):
        log_p = F.log_softmax(F.cast(logits, "float32"), axis=-1)
        loss = -F.pick(log_p, labels, axis=-1)
        if self.smoothing:
            loss = (1 - self.smoothing) * loss - self.smoothing * F.mean(log_p, axis=-1)
        return loss if class_weights is None else loss * F.take(class_weights, labels)
