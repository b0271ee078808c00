"""One rank of a run: `python -m mxscale.train.trainer RUN_DIR ATTEMPT`, started by the launcher.

Reads what the parent and the preparation wrote (config.yaml, plan.json); leaves checkpoints,
metrics.jsonl (rank 0) and ranks/<r>.json behind.
"""

import faulthandler
import math
import os
import sys
import time
import traceback
from typing import Optional

import mxnet as mx
import psutil
from mxnet import autograd

from mxscale.config.schema import Config
from mxscale.config.sizes import Sizes
from mxscale.distributed.communicators import open_communicator
from mxscale.distributed.exchange import make_exchange
from mxscale.distributed.heartbeat import (
    NO_HEARTBEAT,
    Heartbeat,
    NoHeartbeat,
    Phase,
    end_with_parent,
    rank_from_environment,
)
from mxscale.distributed.peer_loss import follows_from_lost_peer
from mxscale.distributed.stop_vote import StopVote
from mxscale.models import weights, zoo
from mxscale.rundir import directory
from mxscale.rundir.directory import RunDir
from mxscale.train import builders, first_loss, precision
from mxscale.train.checkpointer import Keeper, NotFinite
from mxscale.train.meters import Clock, Samples, Tally
from mxscale.train.metrics_log import Journal
from mxscale.train.optim.optimizer import CrossEntropy, advance, make_trainer
from mxscale.train.optim.schedule import learning_rate
from mxscale.train.optim.server_update import ServerUpdate
from mxscale.train.shard_statistics import ShardStatistics
from mxscale.util.errors import ConfigError

SAMPLE_EVERY = 50  # steps; one of them is timed apart


def train(run: RunDir, config: Config, plan: dict, comm, attempt: int, heartbeat: NoHeartbeat = NO_HEARTBEAT) -> dict:
    """Train this rank to the end or to a stop; returns what ranks/<r>.json says of it.

    plan: {"sizes": as sizes.Sizes, "splits": {name: {"rec", "idx", "count"}}, "classes": int,
    "device": "cpu" | "gpu", "pretrained": a .params file or None}.
    Raises NotFinite on a NaN or infinite loss, OSError where a checkpoint can't be written.
    """
    sizes = Sizes(**plan["sizes"])
    devices = comm.devices(plan["device"])  # one, or with kvstore device or nccl all of the run
    shards = list(range(comm.rank, sizes.shards, comm.size))
    turns = config.batch.accumulation

    # ---- data: each rank reads its own shards, each device computes its part of them
    batches = builders.training_data(config, plan, sizes, shards, devices)

    # ---- network: the same values on every rank and device
    precision.prepare(config.precision)
    net = builders.network(config, plan, devices)
    parameters = weights.parameters(net)
    comm.broadcast(parameters)
    trained = [p for p in parameters.values() if p.grad_req != "null"]
    if turns > 1:
        for parameter in trained:
            parameter.grad_req = "add"
    grads = builders.gradients(trained, devices)
    running = zoo.running_statistics(net)
    statistics = ShardStatistics([parameters[name] for name in running], shards, sizes.shards)
    examined = builders.copy_to_evaluate(config, plan, devices[0])

    # ---- optimizer
    objective = CrossEntropy(config.label_smoothing)
    objective.hybridize(static_alloc=True, static_shape=True)
    trainer = make_trainer(trained, config.optimizer, multi_precision=config.precision == "float16")
    scale = precision.Precision(config.precision, trainer)
    lr = learning_rate(config, sizes)
    ordered = config.data.shards is not None  # who fixes the shards wants the same weights from any number of ranks
    each = math.ceil(sizes.shards / sizes.ranks)  # shards of a device, or one less
    if config.comm.update_on == "server":
        exchange = ServerUpdate(comm, trained, config, sizes, len(shards))
    else:
        exchange = make_exchange(comm, grads, config.comm, each * turns * sizes.per_device_batch, each, ordered)
        grads = builders.move_gradients(trained, exchange.lanes)

    # ---- restore: starting is resuming from step 0
    keeper = Keeper(run, config, sizes, comm, parameters, running, trainer, statistics, scale, exchange)
    step = keeper.restore()
    reseed = builders.reseeder(net, config.seed)
    journal = Journal(run, comm, attempt)
    tally, clock = Tally(devices), Clock(len(devices))
    gate = first_loss.Gate(run, config, plan, comm) if step == 0 else first_loss.NoGate()
    samples = Samples(SAMPLE_EVERY, clock)
    vote = StopVote(comm, lambda: run.stop_reason() is not None)

    def validated(snapshot) -> bool:
        """Evaluate the network of `snapshot` and note the result; False where a stop broke it off."""
        builders.put(snapshot.params, examined)
        result = evaluate(examined, config, plan, "val", comm, devices[0], scale, heartbeat)
        if result:
            journal.line(snapshot.step, result)
        keeper.note(snapshot.step, result)
        return result is not None

    def finite(lines) -> None:
        """Ends the run where the loss of a line is no number."""
        for read_at, loss in lines:
            if not math.isfinite(loss):
                raise NotFinite(f"the loss is {loss} at step {read_at}; {keeper.last_good()}")

    journal.line(step, {"lr": lr(step)} if step == 0 else {})  # the parent sees that the ranks have begun
    if keeper.owes_validation:
        snapshot = keeper.snapshot(step)
        if not validated(snapshot):
            return interrupted(step)
        keeper.save(snapshot, journal)
        clock.restart()

    # ---- loop
    while step < sizes.total_steps:
        vote.cast(step)
        sample = samples.begin(step)

        # forward and backward of each of this rank's shards: dispatched, so that devices work side by side
        heartbeat.phase = Phase.INPUT
        asked_at = time.perf_counter()
        for micro in batches.step(step):
            clock.fetched(asked_at, micro.labels.shape[0])
            heartbeat.phase = Phase.COMPUTE
            if turns > 1 and micro.turn == 0:
                zero(grads[micro.lane])
            statistics.use(micro.shard)
            reseed(step, micro.shard, micro.turn, devices[micro.lane])
            with autograd.record():
                logits = net(scale.cast(micro.images))
                losses = objective(logits, micro.labels)
            scale.backward(losses)
            tally.add(losses, logits, micro.labels)
            if micro.turn == turns - 1:
                exchange.shard_done(micro.lane)
            if len(shards) * turns > len(devices):
                heartbeat.phase = Phase.EXCHANGE  # the device may still be at the exchange of the step before
                clock.dispatched(first_of(grads[micro.lane][0]))  # backward ends with the first layer
            heartbeat.phase = Phase.INPUT
            asked_at = time.perf_counter()

        heartbeat.phase = Phase.EXCHANGE
        gate.look(tally)

        # exchange and update: one sum over shards, devices and ranks, divided by the global batch
        sample.computed()
        summed = exchange()
        sample.exchanged()
        if summed:
            advance(trainer, lr(step), step / sizes.steps_per_epoch)
            trainer.update(sizes.global_batch)
        alone = config.comm.double_buffering and not summed  # the first step exchanges alone, and writes no weights
        # The first layer's gradient is the last one to be there
        for array in [lane[0] for lane in grads] if alone else trained[0].list_data():
            clock.dispatched(first_of(array))
        sample.end()
        step += 1
        heartbeat.progress()
        heartbeat.phase = Phase.METRICS

        # metrics, validation, checkpoint, stop: all ranks take the same turn
        last = step == sizes.total_steps
        validates = last or step % (config.validate_every * sizes.steps_per_epoch) == 0
        saves = last or keeper.due(step)
        heartbeat.phase = Phase.EXCHANGE  # the stop vote and the metrics wait for all ranks
        together = comm.in_step or validates or saves
        stop = together and vote.stop()
        saves = saves or stop
        finite(journal.follow())
        if validates or saves or step % config.log_every == 0:
            journal.take(step, tally, clock, samples, lr(step - 1), together)
        if not (validates or saves):
            continue
        finite(journal.finish())
        heartbeat.phase = Phase.METRICS
        snapshot = keeper.snapshot(step)
        if validates and not validated(snapshot):
            stop = True
        if saves or stop or keeper.best_step == step:
            with heartbeat.checkpointing():
                keeper.save(snapshot, journal)
        if keeper.owes_validation or (stop and not last):
            return interrupted(step)
        clock.restart()

    # ---- test: once, with the best
    if plan["splits"].get("test"):
        with heartbeat.checkpointing():
            builders.put(keeper.best_params(), examined)
        result = evaluate(examined, config, plan, "test", comm, devices[0], scale, heartbeat)
        if result is None:
            return interrupted(step)
        journal.line(step, result)
    journal.sync()
    return {"state": "done", "exit": directory.DONE, "step": step, "params_sha256": keeper.params_sha256}


def interrupted(step: int) -> dict:
    """What ranks/<r>.json says of a rank that stopped as it was asked to."""
    return {"state": "interrupted", "exit": directory.INTERRUPTED, "step": step}


def evaluate(net, config: Config, plan: dict, name: str, comm, device, scale, heartbeat: NoHeartbeat) -> Optional[dict]:
    """Loss, top-1 and top-5 in percent over the split `name`, every image once.  A collective.

    Integers per rank, summed, asserted to equal the set's size, divided once.  None where the parent asked to stop
    meanwhile: the grace time of a machine that is about to go is for a checkpoint.
    """
    objective = CrossEntropy()
    loss, top1, top5, seen, left = 0.0, 0, 0, 0, False
    heartbeat.phase = Phase.VALIDATION
    for images, labels, count in builders.evaluation_data(config, plan, name, comm, device):
        logits = net(scale.cast(images)).astype("float32")
        ranked = mx.nd.topk(logits, k=min(5, plan["classes"]), axis=-1)[:count]
        right = ranked == labels[:count].reshape((-1, 1))
        loss += objective(logits, labels)[:count].sum().asscalar()
        top1 += int(right[:, 0].sum().asscalar())
        top5 += int(right.sum().asscalar())
        seen += count
        heartbeat.progress()
        left = heartbeat.stop_requested()
        if left:
            break
    heartbeat.phase = Phase.EXCHANGE
    loss, top1, top5, seen, left = comm.total([loss, top1, top5, seen, left])
    if left:
        return None
    wanted = plan["splits"][name]["count"]
    if seen != wanted:
        raise RuntimeError(f"{name}: {seen:.0f} images counted of {wanted}")
    metrics = {f"{name}/loss": loss / seen, f"{name}/top1": 100 * top1 / seen}
    if plan["classes"] > 5:  # with five or fewer, top-5 is always 100 %
        metrics[f"{name}/top5"] = 100 * top5 / seen
    return metrics


def zero(grads) -> None:
    """Make way for gradients that are added up (grad_req="add")."""
    for grad in grads:
        grad[:] = 0


def first_of(array):
    """Its first number in an array of its own: ready when `array` is, and nothing that comes after waits for it."""
    return array.reshape(-1)[:1].copy()


def main(run_path: str, attempt: int) -> int:
    """Run one rank; its exit status.  Whatever happens is in ranks/<r>.json before it ends."""
    stamps = {"started": psutil.Process().create_time(), "imported": time.time()}
    run = RunDir(run_path)
    faulthandler.enable()  # a crash in MXNet's or Horovod's C++ says where Python was
    end_with_parent(run, attempt)
    heartbeat = Heartbeat(run, rank_from_environment(), attempt)
    config, plan = run.config(), run.read("plan.json")
    comm = open_communicator(config.comm, plan["sizes"]["ranks"])
    stamps["communicator"] = time.time()
    print_to(run.rank_log(comm.rank))
    try:
        outcome = train(run, config, plan, comm, attempt, heartbeat)
        comm.close()
    except NotFinite as error:
        outcome = failure(directory.FAILURE, str(error))
    except ConfigError as error:
        outcome = failure(directory.REFUSED, str(error))
    except Exception as error:
        traceback.print_exc()
        outcome = failure(directory.FAILURE, one_line(error))
    outcome.update(rank=comm.rank, attempt=attempt, time_ms=int(time.time() * 1000), stamps=stamps)
    run.write(run.rank_status(comm.rank), outcome)
    return outcome["exit"]


def failure(status: int, error: str) -> dict:
    """Return the status of a failed rank; `consequence`: see `follows_from_lost_peer`."""
    state = "failed" if status == directory.FAILURE else "refused"
    return {"state": state, "exit": status, "error": error, "consequence": follows_from_lost_peer(error)}


def one_line(error: BaseException) -> str:
    """MXNet's messages begin with pages of stack; the last line is the message."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[-1] if lines else 'no message'}"


def print_to(path) -> None:
    """Whatever this process prints from now on, MXNet's C++ included, goes to the end of `path`."""
    log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(log, 1)
    os.dup2(log, 2)


if __name__ == "__main__":
    exit_status = main(sys.argv[1], int(sys.argv[2]))
    sys.stdout.flush()
    # Not sys.exit: where a peer is gone, MXNet would wait at exit for an exchange that never ends.
    os._exit(exit_status)
