"""Distributed training against a plain loop: the settings, the loop in numpy, and the distance."""

import mxnet as mx
import numpy as np
from run_files import params

from mxscale.config.schema import from_dict
from mxscale.environment.placement import Placement
from mxscale.launcher import commands as launch
from mxscale.models import weights, zoo
from mxscale.rundir.plan import Address
from mxscale.train import builders


def commands(ranks, hosts=(), **comm):
    config = from_dict({"comm": {"backend": "parameter_server", **comm}})
    placed = Placement(ranks, 8, hosts, Address("10.0.0.2", 12345))
    return launch.commands(config, "/runs/a", 3, placed, {"PATH": "/bin", "DMLC_ROLE": "server"})


STEPS = 20
SHARDS = 4
CASE = [
    "data.train_per_class=24", "batch.per_device=4", f"data.shards={SHARDS}", "epochs=4", f"max_steps={STEPS}",
    "optimizer=sgd", "optimizer.lr=0.02", "optimizer.momentum=0.9", "optimizer.weight_decay=0.01", "schedule=cosine",
    "schedule.reference_batch=null", "schedule.warmup_epochs=0", "tracking=none", "launch.threads=1",
    "data.image_size=16", "comm.bucket_mb=0.1", "validate_every=4", "checkpoint.every_epochs=4",
]  # fmt: skip
LR, MOMENTUM, DECAY, BATCH, EPOCHS = 0.02, 0.9, 0.01, 4, 4


def train_plainly(run) -> dict:
    """Return the weights of one process that sums the shards' gradients itself and applies momentum SGD in numpy."""
    config, plan = run.config(), run.plan()
    net = zoo.build("small", plan.classes)
    zoo.initialise(net, config.seed, mx.cpu(), config.model.zero_gamma, fitted=False)
    zoo.finish(net, (1, 3, 16, 16), mx.cpu())
    trained = {name: p for name, p in weights.parameters(net).items() if p.grad_req != "null"}
    values = {name: p.data().asnumpy().astype("float64") for name, p in trained.items()}
    speed = {name: np.zeros_like(value) for name, value in values.items()}
    batches = builders.training_data(config, plan, list(range(SHARDS)), [mx.cpu()])
    network = builders.with_input(net, config.data, config.precision)
    objective = mx.gluon.loss.SoftmaxCrossEntropyLoss()
    for step in range(STEPS):
        total = {name: np.zeros_like(value) for name, value in values.items()}
        for micro in batches.step(step):
            with mx.autograd.record():
                loss = objective(network(micro.images), micro.labels)
            loss.backward()
            for name, parameter in trained.items():
                total[name] += parameter.grad().asnumpy()
        lr = LR / 2 * (1 + np.cos(np.pi * step / (EPOCHS * plan.sizes.steps_per_epoch)))
        for name, parameter in trained.items():
            decay = DECAY if name.endswith(".weight") else 0.0
            speed[name] = MOMENTUM * speed[name] - lr * (total[name] / (SHARDS * BATCH) + decay * values[name])
            values[name] += speed[name]
            parameter.set_data(mx.nd.array(values[name]))
    return values


def distance(run, plain):
    """Return the largest difference of a trained weight."""
    found = params(run)
    return max(np.abs(found[name] - value).max() for name, value in plain.items())
