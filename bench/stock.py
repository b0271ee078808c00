"""Two hand-written training loops as ranks: stock.py horovod|kvstore OUT MODEL SIDE BATCH INTERVAL

horovod: hvd.DistributedTrainer with Horovod's fusion. kvstore: gluon.Trainer over dist_sync. Neither has metrics,
checkpoints, validation or a stop. Every INTERVAL steps rank 0 appends a line to OUT, the images/s of all ranks, until
the process is killed.
"""

import itertools
import sys

import measure  # noqa: F401  (makes mxscale importable)
import mxnet as mx
from loop import rates
from mxnet import gluon

from mxscale.models import zoo

SETTINGS = {"learning_rate": 0.001, "momentum": 0.9, "wd": 1e-4}


def with_horovod(net, batch: int):
    """Return (trainer, batch size of its step, rank, ranks)."""
    import horovod.mxnet as hvd

    hvd.init()
    hvd.broadcast_parameters(net.collect_params(), root_rank=0)
    mx.nd.waitall()
    return hvd.DistributedTrainer(net.collect_params(), "nag", SETTINGS), batch, hvd.rank(), hvd.size()


def with_kvstore(net, batch: int):
    store = mx.kv.create("dist_sync")
    # A parameter without gradient ends the server
    trained = [p for p in net.collect_params().values() if p.grad_req != "null"]
    trainer = gluon.Trainer(trained, "nag", SETTINGS, kvstore=store)
    return trainer, batch * store.num_workers, store.rank, store.num_workers


def main(kind: str, out: str, model: str, side: int, batch: int, interval: int) -> None:
    net = zoo.build(model, 1000)
    zoo.initialise(net, 1, mx.cpu(), True)
    zoo.finish(net, (1, 3, side, side), mx.cpu())
    net.hybridize(static_alloc=True, static_shape=True)
    trainer, step_batch, rank, ranks = {"horovod": with_horovod, "kvstore": with_kvstore}[kind](net, batch)
    made = mx.nd.random.normal(shape=(batch, 3, side, side)), mx.nd.arange(batch) % 1000
    found = rates((net, trainer, step_batch), itertools.repeat(made), batch * ranks, interval, sys.maxsize)
    for rate in found:
        if rank == 0:
            with open(out, "a") as file:
                print(rate, file=file)


if __name__ == "__main__":
    main(*sys.argv[1:4], *map(int, sys.argv[4:]))
