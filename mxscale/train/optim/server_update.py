"""The update on parameter servers: gradients go there, weights come back.  The keys are the trained parameters.

A server has the optimizer, and its state, for its keys; of an array of a million numbers and more all have a part
(MXNET_KVSTORE_BIGARRAY_BOUND).  MXNet can't save that state, so nothing goes on from a checkpoint.
"""

from typing import Dict, List

from mxnet import nd

from mxscale.config.schema import Config
from mxscale.config.sizes import Sizes
from mxscale.train.optim.optimizer import make_optimizer
from mxscale.train.optim.schedule import UpdateSchedule


class ServerUpdate:
    """Stands where the exchange stands: call it once per step; there is never anything to update here.

    With dist_sync a step's gradients are summed over ranks and divided by the global batch.  With dist_async each
    rank's are an update of their own: of the mean over that rank's images, at lr / ranks, so that what all ranks do in
    a step moves (and decays) the weights as far as one update together would.
    """

    def __init__(self, comm, trained, config: Config, sizes: Sizes, shards: int = 1):
        self.comm, self.trained, self.shards, self.overlap = comm, trained, shards, config.comm.overlap
        self.kept: List[nd.NDArray] = []  # sums over the shards done
        updates = 1 if comm.in_step else comm.size
        if comm.rank == 0:
            comm.kvstore.set_optimizer(optimizer_of(trained, config, sizes, updates))
        comm.total([0])  # nobody pushes before the servers have it
        for key, parameter in enumerate(trained):
            comm.kvstore.init(key, parameter.data())

    def shard_done(self, lane: int = 0) -> None:
        """The gradients of one of this rank's shards are whole."""
        if self.shards == 1:
            return
        if not self.kept:
            self.kept = [parameter.grad().copy() for parameter in self.trained]
            return
        for total, parameter in zip(self.kept, self.trained):
            total += parameter.grad()

    def __call__(self) -> bool:
        if not self.overlap:
            nd.waitall()
        for key in reversed(range(len(self.trained))):  # as backward makes them
            parameter = self.trained[key]
            # What comes back goes through the array that was pushed: a gradient holds weights afterwards
            self.comm.kvstore.push(key, self.kept[key] if self.kept else parameter.grad())
            self.comm.kvstore.pull(key, out=parameter.data())
        self.kept = []
        return False

    def settle(self) -> None:
        """All ranks' gradients have been applied, and every rank has the same weights.  A collective."""
        nd.waitall()
        self.comm.total([0])
        for key, parameter in enumerate(self.trained):
            self.comm.kvstore.pull(key, out=parameter.data())
        nd.waitall()
        self.comm.total([0])

    def state(self) -> Dict[str, nd.NDArray]:
        return {}

    def restore(self, state: Dict[str, nd.NDArray]) -> None:
        pass


def optimizer_of(trained, config: Config, sizes: Sizes, updates: int):
    """The optimizer that servers get, pickled: for key i the weight decay of trained[i], and the schedule.

    updates: how many there are in one step.
    """
    optimizer = make_optimizer(config.optimizer)
    optimizer.rescale_grad = updates / sizes.global_batch
    optimizer.lr_scheduler = UpdateSchedule(config, sizes, updates)
    # A Parameter does not travel with the optimizer, so what it says of itself is said by key
    optimizer.lr_mult = {key: parameter.lr_mult for key, parameter in enumerate(trained)}
    optimizer.wd_mult = {key: parameter.wd_mult for key, parameter in enumerate(trained)}
    return optimizer
