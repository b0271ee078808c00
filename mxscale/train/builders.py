"""Build the parts of a rank from its configuration: batches, networks, gradient exchange."""

import math
from pkgutil import resolve_name

import mxnet as mx
from mxnet import autograd, gluon

from mxscale.config.datasets import DATASETS
from mxscale.config.readers import READERS
from mxscale.config.schema import Config, Data
from mxscale.config.sizes import Sizes
from mxscale.data.reader.batches import Reading, seed_of
from mxscale.distributed.exchange import Exchange, make_exchange
from mxscale.models import symbol, weights, zoo
from mxscale.models.networks import InputLayer
from mxscale.rundir.plan import Plan
from mxscale.train.optim.optimizer import CrossEntropy
from mxscale.util.atomic_files import digest_of
from mxscale.util.errors import ConfigError


def training_data(config: Config, plan: Plan, shards, devices):
    """Return this rank's training batches, read from records or generated."""
    sizes = plan.sizes
    reading = Reading(
        data=config.data,
        batch=sizes.per_device_batch,
        shards=shards,
        total_shards=sizes.shards,
        accumulation=config.batch.accumulation,
        steps_per_epoch=sizes.steps_per_epoch,
        seed=config.seed,
        devices=devices,
        threads=decoding_threads(config.data, plan),
        augmented_epochs=config.augmented_epochs,
    )
    entry = DATASETS[config.data.kind]
    if entry.generated:
        return resolve_name(entry.implementation)(reading, plan.classes)
    return resolve_name(f"{READERS[config.data.reader].module}:TrainData")(plan.splits["train"], reading)


def evaluation_data(config: Config, plan: Plan, name: str, comm, device):
    """Return this rank's part of a split: each iteration yields (images, labels, number of valid images)."""
    batch, split = config.batch.per_device, plan.splits[name]
    entry = DATASETS[config.data.kind]
    if entry.generated:
        batches = resolve_name(entry.implementation)
        return batches.evaluation(config.data, plan.classes, split.count, comm.rank, config.seed, device)
    batches = resolve_name(f"{READERS[config.data.reader].module}:EvaluationData")
    return batches(split, config.data, batch, (comm.rank, comm.size), device, decoding_threads(config.data, plan))


def decoding_threads(data: Data, plan: Plan) -> int:
    """Return data.threads as a number."""
    return data.threads if data.threads != "auto" else READERS[data.reader].threads or plan.threads or 1


def with_input(net, data: Data, precision: str) -> InputLayer:
    """Return a network that takes the images of the reader, hybridised."""
    normalised = DATASETS[data.kind].generated or READERS[data.reader].normalised
    dtype = "float16" if precision == "float16" else "float32"
    whole = InputLayer(net, data, dtype, normalised)
    whole.hybridize(static_alloc=True, static_shape=True)
    return whole


def initial_network(config: Config, plan: Plan, devices):
    """Return the network with its initial weights on each device, its layers frozen as configured.

    Raises:
        ConfigError: The weights or the image size do not fit the network.
    """
    net, pretrained = zoo.build(config.model.name, plan.classes, plan.graph), plan.pretrained
    size = config.data.image_size
    zoo.initialise(net, config.seed, devices, config.model.zero_gamma, fitted=bool(pretrained))
    zoo.finish(net, (1, 3, size, size), devices)
    if pretrained:
        weights.fit(net, weights.load(pretrained), config.model.pretrained, plan.head)
    zoo.freeze(net, config.model.freeze)
    zoo.choose_statistics(net, config.model.bn_statistics)
    return net


def network(config: Config, plan: Plan, devices):
    """Return the network to train, with its precision and weight decay set."""
    digest = plan.origin and plan.origin.files.get(plan.pretrained)  # as the preparation verified the file
    if digest and digest_of(plan.pretrained) != digest:
        raise ConfigError(f"{plan.pretrained} has changed since the preparation read it")
    net = initial_network(config, plan, devices)
    if not config.optimizer.decay_norm_bias:
        zoo.exclude_norm_bias_from_decay(net)
    if config.precision == "float16":
        net.cast("float16")
    return net


def objective(config: Config, plan: Plan, devices) -> CrossEntropy:
    """Return the loss that training minimises, hybridised."""
    loss = CrossEntropy(config.label_smoothing, plan.class_weights)
    loss.initialize(ctx=devices)
    loss.hybridize(static_alloc=True, static_shape=True)
    return loss


def gradient_exchange(comm, net, trained, config: Config, sizes: Sizes) -> Exchange:
    """Return the exchange of the gradients of `trained`, its `replicas`, which backward writes from now on.

    Call it before the first backward pass: a network hybridised with static_shape keeps the buffers of that pass.

    Args:
        trained: The trained parameters of `net`, in any order.
    """
    devices = trained[0].list_ctx()
    shards = math.ceil(sizes.shards / sizes.ranks)  # of a device, or one less
    images = shards * config.batch.accumulation * sizes.per_device_batch
    ordered = config.data.shards is not None  # with fixed shards the weights do not depend on the number of ranks
    forward = weights.trained_in_forward_order(net)
    passes = shards if forward[0].grad_req == "add" else shards * config.batch.accumulation
    exchange = make_exchange(comm, gradients(forward, devices), config.comm, images, passes, ordered)
    move_gradients(forward, exchange.replicas)
    exchange.replicas = gradients(trained, devices)
    return exchange


def gradients(trained, devices) -> list:
    """Return for each device the gradients of `trained`, in its order."""
    return [[parameter.grad(device) for parameter in trained] for device in devices]


def move_gradients(trained, replicas) -> None:
    """Make backward write the gradients of `trained` to `replicas`: for each device one array per parameter."""
    for place, parameter in enumerate(trained):
        # As Parameter._init_grad does it, which takes no arrays
        parameter._grad = [replica[place] for replica in replicas]
        autograd.mark_variables(parameter.list_data(), parameter._grad, parameter.grad_req)


def reseeder(net, seed: int):
    """Return reseed(step, shard, micro_batch, device=...): set the device's random state if the network has dropout.

    MXNet cannot save its random state. A resumed run repeats it, because it is a function of step, shard and index of
    the micro-batch. Only the one device is seeded: others may be computing, and MXNet seeds each device differently.
    """
    if not has_dropout(net):
        return lambda step, shard, micro_batch, device: None
    return lambda step, shard, micro_batch, device: mx.random.seed(
        seed_of(seed, step, shard, micro_batch, 1), ctx=device
    )


def has_dropout(block) -> bool:
    """Return whether a block, or one within it, has dropout of a rate above 0."""
    if isinstance(block, symbol.Features):
        return block.has_dropout()
    active = isinstance(block, gluon.nn.Dropout) and block._rate > 0
    return active or any(has_dropout(child) for child in block._children.values())
