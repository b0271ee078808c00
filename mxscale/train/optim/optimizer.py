"""The optimizer of a run, and the objective that it lowers."""

import mxnet as mx
from mxnet import gluon

from mxscale.config.schema import Optimizer as OptimizerConfig
from mxscale.train.optim.rmsprop_warmup import RMSpropWarmup
from mxscale.util.errors import ConfigError, nearest

mx.optimizer.Optimizer.opt_registry["rmsprop_warmup"] = RMSpropWarmup  # MXNet's `register` would leave out the _

# MXNet's words for what has a key of its own.
ELSEWHERE = {"learning_rate": "lr", "wd": "weight_decay", "momentum": "momentum", "clip_gradient": "clip_gradient",
             "multi_precision": "multi_precision", "mu1": "momentum"}  # fmt: skip

NEWER = ("lamb", "lars")  # than MXNet 1.5


def make_trainer(parameters, config: OptimizerConfig, multi_precision: bool) -> gluon.Trainer:
    """A Trainer that updates locally (kvstore None); the engine exchanges gradients before it.

    parameters: gluon Parameters, those with grad_req 'null' left out by the caller.
    """
    return gluon.Trainer(parameters, make_optimizer(config, multi_precision), kvstore=None, update_on_kvstore=False)


def load_states(trainer: gluon.Trainer, path: str) -> None:
    """Go on from what `trainer.save_states` wrote, on whatever devices.

    MXNet counts updates by device.  One that the file does not know would begin at 0 again, and Adam's steps there
    would be others than on the rest.
    """
    trainer.load_states(path)
    counts = trainer.optimizer._all_index_update_counts
    known = max(counts.values(), key=len)
    for device in trainer._contexts:
        counts[device.device_id] = dict(known)


def advance(trainer: gluon.Trainer, lr: float, epoch: float) -> None:
    """Tell the optimizer what its next update goes by."""
    trainer.set_learning_rate(lr)
    trainer.optimizer.epoch = epoch  # read by rmsprop_warmup alone


def make_optimizer(config: OptimizerConfig, multi_precision: bool = False) -> mx.optimizer.Optimizer:
    """MXNet's optimizer of that name.  Raises ConfigError for a name or an argument it does not know."""
    known = mx.optimizer.Optimizer.opt_registry
    if config.name.lower() not in known:
        if config.name.lower() in NEWER:
            raise ConfigError(
                f"optimizer.name={config.name}: MXNet {mx.__version__} does not have it; use another, or MXNet 1.9.1"
            )
        raise ConfigError(f"optimizer.name={config.name}{nearest(config.name, known)}")
    for name in config.params:
        if name in ELSEWHERE:
            raise ConfigError(f"optimizer.params.{name}: set optimizer.{ELSEWHERE[name]} instead")
    arguments = dict(config.params, learning_rate=config.lr, wd=config.weight_decay)
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
            f"optimizer.name={config.name} does not take these settings ({error}); "
            "optimizer.momentum=null leaves momentum out, optimizer.params={...} adds others"
        ) from None


class CrossEntropy(gluon.HybridBlock):
    """Softmax cross-entropy of each image against smoothed labels (arXiv:1512.00567, sec. 7).

    logits (B, classes), labels (B,) as class numbers -> losses (B,), in nats, float32.
    """

    def __init__(self, smoothing: float = 0.0, **kwargs):
        super().__init__(**kwargs)
        self.smoothing = smoothing

    def hybrid_forward(self, F, logits, labels):
        log_p = F.log_softmax(F.cast(logits, "float32"), axis=-1)
        loss = -F.pick(log_p, labels, axis=-1)
        if self.smoothing:
            loss = (1 - self.smoothing) * loss - self.smoothing * F.mean(log_p, axis=-1)
        return loss
