"""Networks by name; what is done to a network before it trains.

Parameters are known by structural name (`features.0.weight`): Gluon's global names count up within a process.
Every network has `.features` and `.output`, the head.
"""

import zlib
from typing import Dict, List

import mxnet as mx
import numpy as np
from mxnet.gluon import nn
from mxnet.gluon.model_zoo import vision
from mxnet.gluon.model_zoo.vision.resnet import BasicBlockV1, BottleneckV1, ResNetV1, ResNetV2

from mxscale.config.networks import network
from mxscale.config.registry import implementation
from mxscale.models import symbol
from mxscale.models.resnet_v1b import BottleneckV1b
from mxscale.models.small import Small
from mxscale.models.weights import parameters
from mxscale.util.errors import ConfigError

# ---------------------------------------------------------------- building


def build(name: str, classes: int, graph=None) -> nn.HybridBlock:
    """Return an uninitialised network: images (n, 3, side, side) to scores (n, classes).

    Args:
        name: A name of the registry (config/networks.py).
        classes: Number of classes.
        graph: What `symbol.build` takes, for the network whose graph comes with its weights.

    Raises:
        ConfigError: The name is unknown, or the graph is invalid.
    """
    entry = network(name)
    arguments = {"saved": graph} if entry.from_weights else entry.arguments
    net = implementation(entry.builder)(classes=classes, **arguments)
    net.zoo_name = name
    return net


def gluon_network(name: str, classes: int) -> nn.HybridBlock:
    """Return a network of Gluon's model zoo with a global final pooling.

    Gluon's SqueezeNet, DenseNet and Inception end in a pooling for 224 or 299 pixels. A global one is equal at that
    size and correct at others: at 448 pixels Gluon's SqueezeNet has four scores per class.
    """
    net = vision.get_model(name, classes=classes)
    _pool_globally(net.features)
    _pool_globally(net.output)
    return net


def _pool_globally(layers: nn.HybridBlock) -> None:
    # Direct children only: poolings inside Inception's and DenseNet's blocks are not final
    for key, layer in list(layers._children.items()):
        if isinstance(layer, nn.AvgPool2D):
            layers._children[key] = nn.GlobalAvgPool2D()


# ---------------------------------------------------------------- initial values


class SeededNormal(mx.init.Initializer):
    """Gaussian values of a stream of their own, made of (seed, structural name).

    So they depend neither on the order in which parameters are initialised (deferred ones come in the order of
    the first forward, which hybridising changes) nor on threads or device.  RandomState because numpy promises
    its values for all versions.  `std` None: He's, sqrt(2 / fan-in), arXiv:1502.01852, eq. 10.
    """

    def __init__(self, seed, name, std=None):
        super().__init__(seed=seed, name=name, std=std)
        self.seed, self.name, self.std = seed, name, std

    def _init_weight(self, _, array):
        std = self.std or np.sqrt(2.0 / np.prod(array.shape[1:]))
        stream = np.random.RandomState([self.seed, zlib.crc32(self.name.encode())])
        array[:] = (stream.standard_normal(array.shape) * std).astype(np.float32)


HEAD_STD = 0.01  # of the last layer's weights: arXiv:1706.02677, sec. 5.1

# last part of a structural name -> its constant; weights are drawn
CONSTANTS = {"bias": 0, "beta": 0, "gamma": 1, "running_mean": 0, "running_var": 1}


def initialise(net, seed: int, ctx, zero_gamma: bool, fitted: bool = False) -> None:
    """Give every parameter its initial value on `ctx` (a context or a list); same seed, same bytes.

    Weights of convolutions and hidden layers: He, gaussian, by fan-in; of the head: gaussian, 0.01; biases 0;
    batch normalisation the identity.  `zero_gamma`: the last normalisation of each residual block starts with
    gamma 0, so that the block starts as its shortcut (arXiv:1706.02677, sec. 5.1), in ResNet v1, v1b and
    `small`; a v2 block ends in a convolution and stays, and so do all other networks.
    `fitted`: `weights.fit` comes next, so that only the head's values, which it may leave, are worth drawing.
    Also seeds MXNet's and numpy's generators, whose next use is dropout's.
    Shapes that wait for the input are left to `finish`.
    """
    mx.random.seed(seed)
    np.random.seed(seed)
    zeroed = {id(gamma) for gamma in _last_gammas(net)} if zero_gamma else set()
    for name, parameter in parameters(net).items():
        zero = id(parameter) in zeroed or (fitted and not name.startswith("output."))
        value = mx.init.Zero() if zero else _initial(name, seed)
        parameter.initialize(value, ctx=ctx, default_init=value, force_reinit=True)


def _initial(name: str, seed: int) -> mx.init.Initializer:
    kind = name.rpartition(".")[2]
    if kind in CONSTANTS:
        return mx.init.Constant(CONSTANTS[kind])
    return SeededNormal(seed, name, HEAD_STD if name.startswith("output.") else None)


def _last_gammas(net) -> list:
    gammas = []

    def collect(block):
        if isinstance(block, (BasicBlockV1, BottleneckV1, BottleneckV1b)):
            gammas.append(block.body[-1].gamma)

    net.apply(collect)
    return gammas


def finish(net, shape, ctx) -> None:
    """Settle the shapes that wait for the input, of `shape` (n, 3, height, width), and wait for the values.

    By shape inference, without a forward: one in training mode would move BN's running statistics, one in
    inference mode reorders convolution weights into oneDNN's layout, which a broadcast then can't read.
    Raises MXNetError if the image is too small for the network (see `min_side` in config/networks.py).
    """
    waiting = [p for p in parameters(net).values() if p._deferred_init]
    if waiting:
        net.infer_shape(mx.nd.empty(shape, ctx=ctx[0] if isinstance(ctx, (list, tuple)) else ctx))
    for parameter in waiting:
        parameter._finish_deferred_init()
    mx.nd.waitall()


# ---------------------------------------------------------------- what trains, and how


def freeze(net, what: str) -> None:
    """'none': leave all as it is; 'features': train the head alone; 'stage2': train what comes after that stage.

    Frozen parameters get no gradient, and frozen batch normalisation uses its running statistics in training
    too: without gradients MXNet would still normalise by each batch, other than in validation.  Dropout in the
    features (AlexNet, VGG, Inception, SqueezeNet) stays on in training.  Do it after `fit`.
    """
    if what == "none":
        return
    known = ["none", "features", *stages(net)]
    if what not in known:
        raise ConfigError(f"model.freeze={what}: expected one of {', '.join(known)} with this network")
    if isinstance(net.features, symbol.Features):
        net.features.freeze(None if what == "features" else what)
    else:
        for block in [net.features] if what == "features" else list(net.features)[: _ends(net)[what]]:
            _freeze_block(block)
    net.apply(lambda block: block._clear_cached_op())  # a graph traced before has the old setting


def _freeze_block(block) -> None:
    for parameter in block.collect_params().values():
        parameter.grad_req = "null"

    def use_running_statistics(block):
        if isinstance(block, nn.BatchNorm):
            block._kwargs["use_global_stats"] = True

    block.apply(use_running_statistics)


def choose_statistics(net, what: str) -> None:
    """'moving': leave BN as it is; 'last_batch': its running statistics are those of the last batch it trained on, and
    no average over the past (arXiv:1711.04325, sec. 2).

    Frozen layers keep what they have.  Raises ConfigError where no other is left.  Do it after `freeze`.
    """
    if what == "moving":
        return
    layers = []

    def collect(block):
        if isinstance(block, nn.BatchNorm) and not block._kwargs["use_global_stats"]:
            layers.append(block)

    net.apply(collect)
    for layer in layers:
        layer._kwargs["momentum"] = 0.0
    inside_graph = net.features.keep_last_statistics() if isinstance(net.features, symbol.Features) else 0
    if not len(layers) + inside_graph:
        raise ConfigError(
            f"model.bn_statistics={what}: model.name={net.zoo_name} has no batch normalisation that trains; use moving"
        )
    net.apply(lambda block: block._clear_cached_op())  # a graph traced before has the old setting


def stages(net) -> List[str]:
    """The stages of a residual network, `stage1` ...; none of another."""
    return net.features.stages() if isinstance(net.features, symbol.Features) else list(_ends(net))


def _ends(net) -> Dict[str, int]:
    """stage -> how many children of the features come up to its end."""
    if not isinstance(net, (ResNetV1, ResNetV2, Small)):
        return {}
    after = [i + 1 for i, block in enumerate(net.features) if isinstance(block, nn.HybridSequential)]
    return {f"stage{number}": end for number, end in enumerate(after, 1)}


def exclude_norm_bias_from_decay(net) -> List[str]:
    """No weight decay of BN's gamma and beta and of biases (arXiv:1706.02677, sec. 5.1); returns their names."""
    excluded = [n for n in parameters(net) if n.rpartition(".")[2] in ("gamma", "beta", "bias")]
    for name in excluded:
        parameters(net)[name].wd_mult = 0.0
    return excluded


def running_statistics(net) -> List[str]:
    """Structural names of BN's running means and variances, sorted."""
    return [n for n in parameters(net) if n.rpartition(".")[2] in ("running_mean", "running_var")]
