"""Networks by name: construction, initialisation, freezing.

Parameters are identified by structural name (`features.0.weight`), because Gluon's global names depend on a counter of
the process. Every network has `.features` and `.output`, the head.
"""

import zlib
from pkgutil import resolve_name
from typing import Dict, List

import mxnet as mx
import numpy as np
from mxnet.gluon import nn
from mxnet.gluon.model_zoo import vision
from mxnet.gluon.model_zoo.vision.resnet import BasicBlockV1, BottleneckV1, ResNetV1, ResNetV2

from mxscale.config.networks import network
from mxscale.models import symbol
from mxscale.models.networks import BottleneckV1b, Small
from mxscale.models.weights import parameters
from mxscale.util.errors import ConfigError


def build(name: str, classes: int, graph=None) -> nn.HybridBlock:
    """Return an uninitialised network: images (n, 3, side, side) to scores (n, classes).

    Args:
        graph: What `symbol.build` takes, for the network whose graph comes with its weights.

    Raises:
        ConfigError: The name is unknown, or the graph is invalid.
    """
    entry = network(name)
    arguments = {"saved": graph} if entry.from_weights else entry.arguments
    net = resolve_name(entry.builder)(classes=classes, **arguments)
    net.zoo_name = name
    return net


def gluon_network(name: str, classes: int) -> nn.HybridBlock:
    """Return a network of Gluon's model zoo with a global final pooling.

    Gluon's SqueezeNet, DenseNet and Inception end in a pooling for 224 or 299 pixels. A global one is equal at that
    size and correct at others: at 448 pixels Gluon's SqueezeNet has four scores per class.

    ResNet v2 normalises its input without parameters. MXNet updates running statistics in the backward pass, which such
    a layer does not have: Gluon's would normalise by each batch in training and not at all in inference. Here it uses
    its running statistics in both.
    """
    net = vision.get_model(name, classes=classes)
    if isinstance(net, ResNetV2):
        net.features[0]._kwargs["use_global_stats"] = True
    _pool_globally(net.features)
    _pool_globally(net.output)
    return net


def _pool_globally(layers: nn.HybridBlock) -> None:
    # Direct children only: poolings inside Inception's and DenseNet's blocks are not final
    for key, layer in list(layers._children.items()):
        if isinstance(layer, nn.AvgPool2D):
            layers._children[key] = nn.GlobalAvgPool2D()


class SeededNormal(mx.init.Initializer):
    """Gaussian values from a random stream of (seed, structural name).

    The values do not depend on the order of initialisation, on threads or on the device. (Hybridising changes the
    order of deferred parameters.) NumPy guarantees RandomState's values for all versions. `std` None: sqrt(2 / fan-in),
    arXiv:1502.01852, eq. 10.
    """

    def __init__(self, seed, name, std=None):
        super().__init__(seed=seed, name=name, std=std)
        self.seed, self.name, self.std = seed, name, std

    def _init_weight(self, _, array):
        std = self.std or np.sqrt(2.0 / np.prod(array.shape[1:]))
        stream = np.random.RandomState([self.seed, zlib.crc32(self.name.encode())])
        array[:] = (stream.standard_normal(array.shape) * std).astype(np.float32)


HEAD_STD = 0.01  # of the last layer's weights: arXiv:1706.02677, sec. 5.1

# last part of a structural name -> its constant; weights are random
CONSTANTS = {"bias": 0, "beta": 0, "gamma": 1, "running_mean": 0, "running_var": 1}


def initialise(net, seed: int, ctx, zero_gamma: bool, fitted: bool = False) -> None:
    """Initialise every parameter; the same seed gives the same bytes. Also seeds MXNet's and NumPy's generators.

    Weights of convolutions and hidden layers are Gaussian by fan-in (He), those of the head Gaussian with 0.01. Biases
    are 0 and batch normalisation is the identity. `finish` initialises parameters whose shape is inferred later.

    Args:
        ctx: A context or a list of contexts.
        zero_gamma: Set gamma of the last normalisation of each residual block to 0, so that the block starts as its
            shortcut (arXiv:1706.02677, sec. 5.1). It applies to ResNet v1, v1b and `small`.
        fitted: `weights.fit` follows, so that only the head needs random values.
    """
    mx.random.seed(seed)
    np.random.seed(seed)
    residual = _blocks(net, BasicBlockV1, BottleneckV1, BottleneckV1b) if zero_gamma else []
    zeroed = {id(block.body[-1].gamma) for block in residual}
    for name, parameter in parameters(net).items():
        zero = id(parameter) in zeroed or (fitted and not name.startswith("output."))
        value = mx.init.Zero() if zero else _initial(name, seed)
        parameter.initialize(value, ctx=ctx, default_init=value, force_reinit=True)


def _initial(name: str, seed: int) -> mx.init.Initializer:
    kind = name.rpartition(".")[2]
    if kind in CONSTANTS:
        return mx.init.Constant(CONSTANTS[kind])
    return SeededNormal(seed, name, HEAD_STD if name.startswith("output.") else None)


def _blocks(net, *kinds) -> list:
    """Return the blocks of those classes in a network, at any depth."""
    blocks = []
    net.apply(blocks.append)
    return [block for block in blocks if isinstance(block, kinds)]


def finish(net, shape, ctx) -> None:
    """Infer the remaining shapes from the input `shape` (n, 3, height, width) and wait for all values.

    Shape inference needs no forward. A forward in training mode would change the running statistics of batch
    normalisation; in inference mode it would reorder convolution weights into oneDNN's layout, which a broadcast
    cannot read.

    Raises:
        ConfigError: The image is too small for the network (see `min_side` in config/networks.py).
    """
    deferred = [p for p in parameters(net).values() if p._deferred_init]
    try:
        if deferred:
            net.infer_shape(mx.nd.empty(shape, ctx=ctx[0] if isinstance(ctx, (list, tuple)) else ctx))
        for parameter in deferred:
            parameter._finish_deferred_init()
    except mx.MXNetError as error:
        reason = str(error).strip().splitlines()[-1]
        raise ConfigError(f"data.image_size={shape[-1]} does not fit model.name={net.zoo_name}: {reason}") from None
    mx.nd.waitall()


def freeze(net, what: str) -> None:
    """Freeze a part of the network. Call it after `weights.fit`.

    Frozen parameters have no gradient. Frozen batch normalisation uses its running statistics in training, too; MXNet
    would otherwise normalise by each batch. Dropout in the features (AlexNet, VGG, Inception, SqueezeNet) stays active
    in training.

    Args:
        what: "none"; "features" trains only the head; "stage2" trains what follows that stage.

    Raises:
        ConfigError: The network has no such stage.
    """
    if what == "none":
        return
    is_graph = isinstance(net.features, symbol.Features)
    stages = net.features.stages() if is_graph else _ends(net)
    known = ["none", "features", *stages]
    if what not in known:
        raise ConfigError(f"model.freeze={what}: expected one of {', '.join(known)} with this network")
    if is_graph:
        net.features.freeze(None if what == "features" else what)
    else:
        for block in [net.features] if what == "features" else list(net.features)[: stages[what]]:
            for parameter in block.collect_params().values():
                parameter.grad_req = "null"
            for norm in _blocks(block, nn.BatchNorm):
                norm._kwargs["use_global_stats"] = True
    _retrace(net)


def _retrace(net) -> None:
    """Drop graphs traced earlier, which have the old settings of batch normalisation."""
    net.apply(lambda block: block._clear_cached_op())


def choose_statistics(net, what: str) -> None:
    """Choose the running statistics of batch normalisation. Call it after `freeze`; frozen layers are unchanged.

    Args:
        what: "moving": a moving average; "last_batch": those of the last training batch (arXiv:1711.04325, sec. 2).

    Raises:
        ConfigError: "last_batch", and the network has no batch normalisation that is not frozen.
    """
    if what == "moving":
        return
    layers = [norm for norm in _blocks(net, nn.BatchNorm) if not norm._kwargs["use_global_stats"]]
    for layer in layers:
        layer._kwargs["momentum"] = 0.0
    inside_graph = net.features.keep_last_statistics() if isinstance(net.features, symbol.Features) else 0
    if not len(layers) + inside_graph:
        raise ConfigError(
            f"model.bn_statistics={what}: model.name={net.zoo_name} has no trained batch normalisation; use moving"
        )
    _retrace(net)


def _ends(net) -> Dict[str, int]:
    """Return the stages of a residual network, `stage1`, ... -> number of children of the features up to its end."""
    if not isinstance(net, (ResNetV1, ResNetV2, Small)):
        return {}
    after = [i + 1 for i, block in enumerate(net.features) if isinstance(block, nn.HybridSequential)]
    return {f"stage{number}": end for number, end in enumerate(after, 1)}


def exclude_norm_bias_from_decay(net) -> None:
    """Exclude gamma, beta and biases from weight decay (arXiv:1706.02677, sec. 5.1)."""
    for name, parameter in parameters(net).items():
        if name.rpartition(".")[2] in ("gamma", "beta", "bias"):
            parameter.wd_mult = 0.0


def running_statistics(net) -> List[str]:
    """Return the structural names of the running means and variances of batch normalisation, sorted."""
    return [n for n in parameters(net) if n.rpartition(".")[2] in ("running_mean", "running_var")]
