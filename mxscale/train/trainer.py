"""The training loop of one rank: set-up, one step, end of a step.

Ranks run each step together. A method marked "collective" waits for all of them. The process around the loop is in
rank.py; builders.py creates the parts that `__init__` connects.
"""

import math
from typing import List, Optional, Tuple

from mxnet import autograd
from mxnet.contrib import amp

from mxscale.config.precisions import PRECISIONS
from mxscale.config.schema import Config
from mxscale.config.sizes import Sizes
from mxscale.distributed.heartbeat import Heartbeat, Phase
from mxscale.distributed.stop_consensus import Request, StopConsensus
from mxscale.models import weights, zoo
from mxscale.rundir import directory
from mxscale.rundir.directory import RunDir
from mxscale.rundir.plan import Plan
from mxscale.rundir.status import DONE, INTERRUPTED, SPENT
from mxscale.train import builders
from mxscale.train.checkpointer import Checkpointer, NotFinite, Snapshot, TrainingState
from mxscale.train.evaluation import Evaluator
from mxscale.train.metrics import Accumulator, MetricsLog
from mxscale.train.optim.averaging import NoAverage, WeightAverage
from mxscale.train.optim.mixing import Mixing
from mxscale.train.optim.optimizer import clip_norm, make_trainer
from mxscale.train.optim.schedule import learning_rate
from mxscale.train.precision import Precision
from mxscale.train.shard_statistics import ShardStatistics
from mxscale.train.timing import StepMonitor


class Trainer:
    """The state and the loop of one rank.

    Raises:
        NotFinite: The loss, or a weight at a checkpoint, is NaN or infinite.
        OSError: Rank 0 cannot write a checkpoint.
    """

    def __init__(self, run: RunDir, config: Config, plan: Plan, comm, attempt: int, heartbeat: Heartbeat):
        """Build the rank's data, network and optimizer, and restore the newest checkpoint. A collective."""
        self.run, self.config, self.plan, self.comm, self.heartbeat = run, config, plan, comm, heartbeat
        self.sizes = sizes = plan.sizes
        self.devices = devices = comm.devices(plan.device)  # one; all of the run with kvstore device and nccl
        shards = list(range(comm.rank, sizes.shards, comm.size))
        passes = len(shards) * config.batch.accumulation  # forward and backward passes of a step

        # Data: each rank reads its own shards, each device computes its part of them
        batches = builders.training_data(config, plan, shards, devices)

        # Network: the same values on every rank and device
        if amp_type := PRECISIONS[config.precision].amp_type:
            amp.init(amp_type)  # it changes MXNet's operators
        self.net = builders.network(config, plan, devices)
        self.forward = builders.with_input(self.net, config.data, config.precision)
        parameters = weights.parameters(self.net)
        comm.broadcast(parameters)
        self.trained = [p for p in parameters.values() if p.grad_req != "null"]
        # Backward adds the gradients of several passes, but the exchange those of float16 networks, in float32
        self.adds = config.batch.accumulation > 1 and config.precision != "float16"
        for parameter in self.trained if self.adds else ():
            parameter.grad_req = "add"
        running = zoo.running_statistics(self.net)
        self.statistics = ShardStatistics([parameters[name] for name in running], shards, sizes.shards)
        self.evaluate = Evaluator(config, plan, comm, devices[0], heartbeat)
        self.reseed = builders.reseeder(self.net, config.seed)

        # Loss, optimizer, learning rate
        self.mix = Mixing(config, sizes.steps_per_epoch)
        self.objective = builders.objective(config, plan, devices)
        self.optimizer = make_trainer(self.trained, config.optimizer, multi_precision=config.precision == "float16")
        self.precision = Precision(config.precision, self.optimizer)
        self.lr = learning_rate(config, sizes)

        # Gradient exchange; grads: of each device, in buckets
        self.exchange = builders.gradient_exchange(comm, self.net, self.trained, config, sizes)
        self.grads = self.exchange.replicas
        self.divides_by = sizes.global_batch / self.exchange.divisor

        # Start from the newest checkpoint, or from step 0
        decay = config.optimizer.ema_decay
        self.average = WeightAverage(parameters, decay, running, self.statistics) if decay else NoAverage()
        state = TrainingState(
            parameters, running, self.optimizer, self.statistics, self.precision, self.exchange, self.average
        )
        self.checkpointer = Checkpointer(run, config.checkpoint, sizes, comm, state)
        self.step = self.checkpointer.restore()

        # Metrics, times of the steps, and the stop consensus
        self.metrics_log, self.accumulator = MetricsLog(run, comm, attempt, heartbeat), Accumulator(devices)
        self.monitor = StepMonitor(heartbeat, passes, self.grads, self.trained[0].list_data())
        self.micro_batches = self.monitor.input(batches.step)
        self.stop_consensus, self.finishing = StopConsensus(comm, lambda: request_of(run)), False

    def train(self) -> dict:
        """Train to the end, or until the ranks agree to stop; then evaluate the best network on the test set.

        Returns:
            The outcome as ranks/<r>.json records it.
        """
        try:
            return self._train()
        finally:
            self.checkpointer.wait()  # after an error, too, the checkpoint that is under way becomes complete

    def _train(self) -> dict:
        # The first line tells the parent that training has begun
        self.metrics_log.write(self.step, {"lr": self.lr(0)} if self.step == 0 else {})
        if self.checkpointer.validation_pending and not self.resume_validation():
            return self.interrupted()
        while not self.ended():
            self.stop_consensus.propose(self.step)
            self.train_step()
            self.monitor.step_dispatched()
            if not self.end_step():
                return self.interrupted()
        self.finish_checkpoint()
        if self.plan.splits.get("test") and not self.test():
            return self.interrupted()
        self.metrics_log.sync()
        sha256 = self.checkpointer.params_sha256
        done = {"state": "done", "exit": DONE, "step": self.step, "params_sha256": sha256}
        return {**done, "reason": self.early_end()}

    def train_step(self) -> None:
        """Compute the gradients of one global batch, sum them over all ranks and update the weights. A collective."""
        # Forward and backward of each of this rank's shards; calls return early, so that devices work in parallel
        for micro in self.micro_batches(self.step):
            if self.adds and micro.micro_batch == 0:
                for grad in self.grads[micro.replica]:
                    grad[:] = 0
            self.statistics.use(micro.shard)
            self.reseed(self.step, micro.shard, micro.micro_batch, device=self.devices[micro.replica])
            mixed = self.mix(self.step, micro)
            with autograd.record():
                logits = self.forward(mixed.images)
                losses = mixed.loss(self.objective, logits)
            self.precision.backward(losses)
            self.accumulator.add(losses, logits, mixed.labels)
            if not self.adds:
                self.exchange.pass_done(micro.replica, micro.micro_batch)
            elif micro.micro_batch == self.config.batch.accumulation - 1:
                self.exchange.pass_done(micro.replica)

        # Gradients: one sum over shards, devices and ranks; the update divides it by the global batch
        if self.exchange():
            clip_norm(self.trained, self.config.optimizer.clip_norm, self.divides_by, self.optimizer)
            self.optimizer.set_learning_rate(self.lr(self.step))
            self.optimizer.optimizer.epoch = self.step / self.sizes.steps_per_epoch  # rmsprop_warmup reads it
            self.optimizer.update(self.divides_by)
        self.average.update(self.step)
        self.step += 1

    def end_step(self) -> bool:
        """Record metrics, validate and write a checkpoint where they are due. A collective.

        Returns:
            Whether training continues; the same on all ranks.
        """
        self.heartbeat.phase = Phase.METRICS  # no rank waits for another here
        step, last = self.step, self.step == self.sizes.total_steps
        validates = last or step % (self.config.validate_every * self.sizes.steps_per_epoch) == 0
        saves = last or self.checkpointer.due(step)
        self.heartbeat.phase = Phase.EXCHANGE  # the stop consensus and the metrics wait for all ranks
        request = self.stop_consensus.agreed()
        stop, self.finishing = request == Request.STOP, request == Request.FINISH
        validates, saves = validates or self.finishing, saves or stop or self.finishing

        self.require_finite(self.metrics_log.poll())
        if validates or saves or step % self.config.log_every == 0:
            self.metrics_log.record(step, self.lr(step - 1), self.accumulator.take(), self.monitor.timer.lap())
        if not (validates or saves):
            return True
        self.require_finite(self.metrics_log.drain())

        snapshot = self.checkpointer.snapshot(step)
        if validates and not self.validate(snapshot):
            stop = True
        ended = self.ended()
        if saves or stop or ended or self.checkpointer.best_step == step:
            with self.heartbeat.checkpointing():
                self.checkpointer.save(snapshot, self.metrics_log)
        self.monitor.timer.restart()
        return not (self.checkpointer.validation_pending or (stop and not ended))

    def ended(self) -> bool:
        """Return whether no further step follows."""
        return self.step == self.sizes.total_steps or self.early_end() is not None

    def early_end(self) -> Optional[str]:
        """Return why training ends before its last step, None if it does not."""
        if self.finishing and self.step < self.sizes.total_steps:
            return SPENT
        return reason_to_end(self.config, self.sizes, self.step, self.checkpointer.best)

    def validate(self, snapshot: Snapshot) -> bool:
        """Evaluate a snapshot on the validation set; return False if a stop request interrupted it. A collective."""
        result = self.evaluate("val", snapshot.params)
        if result:
            self.metrics_log.write(snapshot.step, result)
        self.checkpointer.record_validation(snapshot.step, result)
        return result is not None

    def resume_validation(self) -> bool:
        """Repeat the validation that a stop request interrupted; return False if another one interrupts it."""
        snapshot = self.checkpointer.snapshot(self.step)
        if not self.validate(snapshot):
            return False
        self.checkpointer.save(snapshot, self.metrics_log)
        self.monitor.timer.restart()
        return True

    def test(self) -> bool:
        """Evaluate the best checkpoint on the test set; return False if a stop request interrupted it."""
        with self.heartbeat.checkpointing():
            params = self.checkpointer.best_params()
        result = self.evaluate("test", params)
        if result:
            self.metrics_log.write(self.step, result)
        return result is not None

    def require_finite(self, losses: List[Tuple[int, float]]) -> None:
        """Raise NotFinite if a recorded (step, loss) is NaN or infinite. A collective then."""
        for step, loss in losses:
            if not math.isfinite(loss):
                self.checkpointer.finish()
                raise NotFinite(f"the loss is {loss} at step {step}; {self.checkpointer.last_valid()}")

    def finish_checkpoint(self) -> None:
        """Wait until the last checkpoint is complete. A collective. Raises OSError."""
        with self.heartbeat.checkpointing():
            self.checkpointer.finish()

    def interrupted(self) -> dict:
        """Return the outcome of a rank that stopped on request. A collective."""
        self.finish_checkpoint()
        return {"state": "interrupted", "exit": INTERRUPTED, "step": self.step}


def request_of(run: RunDir) -> Request:
    """Return what the parent asks the ranks for."""
    return {None: Request.NONE, directory.FINISH: Request.FINISH}.get(run.stop_reason(), Request.STOP)


def reason_to_end(config: Config, sizes: Sizes, step: int, best: Optional[dict]) -> Optional[str]:
    """Return why training ends after `step`, or None if it continues, or if that was its last step.

    A checkpoint holds the arguments, so a resumed run ends at the step of an uninterrupted one.

    Args:
        best: The best validation until now, {"step", "val/top1", ...}; None before the first.
    """
    if best is None or step >= sizes.total_steps:
        return None
    if config.stop_at_target and best["val/top1"] >= config.target_top1:
        return f"val top-1 reached target_top1={config.target_top1:g}"
    interval = config.validate_every * sizes.steps_per_epoch
    # Whole intervals, because a resume may have changed max_steps or validate_every
    if config.patience is not None and step // interval - best["step"] // interval >= config.patience:
        return f"no higher val top-1 in patience={config.patience} validations"
    return None
