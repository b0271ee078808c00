"""A small network that trains and writes checkpoints in this process."""

import mxnet as mx
import numpy as np
from heartbeats import NO_HEARTBEAT

from mxscale.config.schema import from_dict
from mxscale.config.sizes import sizes
from mxscale.distributed.communicators import Local
from mxscale.distributed.exchange import make_exchange
from mxscale.models import weights
from mxscale.rundir.directory import RunDir
from mxscale.train.checkpointer import Checkpointer, TrainingState
from mxscale.train.metrics import MetricsLog
from mxscale.train.optim.averaging import NoAverage, WeightAverage
from mxscale.train.optim.optimizer import make_trainer
from mxscale.train.precision import Precision
from mxscale.train.shard_statistics import ShardStatistics

WIDTH = 64


class Training:
    """A small network with batch normalisation that trains on numbers drawn from the step."""

    def __init__(self, folder, seed=1, optimizer=None, **settings):
        self.net = mx.gluon.nn.HybridSequential()
        self.net.add(
            mx.gluon.nn.Dense(WIDTH, in_units=WIDTH),
            mx.gluon.nn.BatchNorm(in_channels=WIDTH),
            mx.gluon.nn.Dense(2, in_units=WIDTH),
        )
        mx.random.seed(seed)
        self.net.initialize(mx.init.Normal(0.1))
        self.config = from_dict({"batch": {"per_device": 4}, "optimizer": optimizer or {}, **settings})
        self.parameters = weights.parameters(self.net)
        self.trainer = make_trainer(
            [p for p in self.parameters.values() if p.grad_req != "null"], self.config.optimizer, False
        )
        running = [name for name in self.parameters if "running" in name]
        self.statistics = ShardStatistics([self.parameters[name] for name in running], [0, 1], 2)
        self.run = RunDir(folder)
        self.run.path.mkdir(exist_ok=True)
        self.metrics_log = MetricsLog(self.run, Local(), 1, NO_HEARTBEAT)
        exchange = make_exchange(Local(), [[]], self.config.comm, 8)
        decay, self.average = self.config.optimizer.ema_decay, NoAverage()
        if decay:
            self.average = WeightAverage(self.parameters, decay, running, self.statistics)
        precision = Precision("float32", None)
        state = TrainingState(
            self.parameters, running, self.trainer, self.statistics, precision, exchange, self.average
        )
        derived = sizes(self.config, 1, 80, shards=2)
        self.checkpointer = Checkpointer(self.run, self.config.checkpoint, derived, Local(), state)

    def step(self, *steps):
        for step in steps:
            for shard in (0, 1):
                self.statistics.use(shard)
                images = mx.nd.array(np.random.RandomState([step, shard]).rand(4, WIDTH))
                with mx.autograd.record():
                    loss = (self.net(images) ** 2).sum()
                loss.backward()
            self.trainer.update(8)
            self.average.update(step)
        return self

    def save(self, step):
        self.checkpointer.save(self.checkpointer.snapshot(step), self.metrics_log)
        self.checkpointer.finish()
        return self

    def digest(self):
        return weights.params_sha256(weights.arrays(self.net))

    def evaluated(self):
        """Return the parameters that a validation would use, by name."""
        params = self.checkpointer.snapshot(0).params
        return {name: array.asnumpy().tolist() for name, array in params.items()}
