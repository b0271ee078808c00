"""The two loops that people write by hand, as ranks: stock.py horovod|kvstore OUT MODEL SIDE BATCH STEPS

horovod: hvd.DistributedTrainer, with Horovod's own fusion.  kvstore: gluon.Trainer over dist_sync.  Nothing around
them: no records, no checkpoints, no validation, no stop.  Rank 0 writes images/s of all ranks, one figure each
INTERVAL steps.
"""

import itertools
import json
import os
import sys
from pathlib import Path

import measure  # noqa: F401  (where mxscale is)
import mxnet as mx
from loop import rates
from mxnet import gluon

from mxscale.nets import zoo

INTERVAL = 10
SETTINGS = {"learning_rate": 0.001, "momentum": 0.9, "wd": 1e-4}


def with_horovod(net, batch: int):
    """(trainer, batch that it takes, rank, ranks)."""
    import horovod.mxnet as hvd

    hvd.init()
    hvd.broadcast_parameters(net.collect_params(), root_rank=0)
    mx.nd.waitall()
    return hvd.DistributedTrainer(net.collect_params(), "nag", SETTINGS), batch, hvd.rank(), hvd.size()


def with_kvstore(net, batch: int):
    store = mx.kv.create("dist_sync")
    trained = [p for p in net.collect_params().values() if p.grad_req != "null"]  # others end the server
    trainer = gluon.Trainer(trained, "nag", SETTINGS, kvstore=store)
    return trainer, batch * store.num_workers, store.rank, store.num_workers


def measured(kind: str, model: str, side: int, batch: int, steps: int):
    """(rank, images/s of each interval)."""
    net = zoo.build(model, 1000)
    zoo.initialise(net, 1, mx.cpu(), True)
    zoo.finish(net, (1, 3, side, side), mx.cpu())
    net.hybridize(static_alloc=True, static_shape=True)
    trainer, step_batch, rank, ranks = {"horovod": with_horovod, "kvstore": with_kvstore}[kind](net, batch)
    made = mx.nd.random.normal(shape=(batch, 3, side, side)), mx.nd.arange(batch) % 1000
    return rank, rates(net, trainer, step_batch, itertools.repeat(made), batch * ranks, INTERVAL, steps)


def main(kind, out, model, side, batch, steps) -> None:
    rank, found = measured(kind, model, int(side), int(batch), int(steps))
    if rank == 0:
        Path(out).write_text(json.dumps(found))
    if kind == "horovod":
        sys.modules["horovod.mxnet"].shutdown()  # or the other rank would miss this one
    os._exit(0)  # a kvstore's own end waits for servers that are ended from outside


if __name__ == "__main__":
    main(*sys.argv[1:])
