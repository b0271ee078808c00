"""Updates on parameter servers: ranks push gradients and pull weights; the keys are the trained parameters.

Each server holds the optimizer and its state for its keys. Arrays of a million numbers and more are split over all
servers (MXNET_KVSTORE_BIGARRAY_BOUND). MXNet cannot save that state, so such a run cannot be resumed.
"""

from typing import List

from mxnet import nd

from mxscale.config.schema import Config
from mxscale.config.sizes import Sizes
from mxscale.distributed.exchange import Exchange
from mxscale.train.optim.optimizer import make_optimizer, name_parameters
from mxscale.train.optim.schedule import UpdateSchedule


class ServerUpdate(Exchange):
    """An exchange of gradients for weights; a call per step returns False, because the rank has nothing to update.

    With dist_sync a step's gradients are summed over ranks and divided by the global batch. With dist_async each rank's
    gradients are an update of their own: the mean over that rank's images, at lr / ranks. The updates of all ranks in a
    step then change (and decay) the weights as far as one common update does.
    """

    def __init__(self, comm, trained, config: Config, sizes: Sizes, shards: int = 1):
        super().__init__(comm, [], [], overlap=config.comm.overlap)
        self.trained, self.shards = trained, shards
        self.sums: List[nd.NDArray] = []  # over the shards that are done
        updates = 1 if comm.in_step else comm.size
        if comm.rank == 0:
            comm.kvstore.set_optimizer(optimizer_of(trained, config, sizes, updates))
        comm.total([0])  # no rank pushes before the servers have the optimizer
        for key, parameter in enumerate(trained):
            comm.kvstore.init(key, parameter.data())

    def pass_done(self, replica: int = 0, micro_batch: int = 0) -> None:
        """Add the gradients of one of this rank's shards."""
        if self.shards == 1:
            return
        if not self.sums:
            self.sums = [parameter.grad().copy() for parameter in self.trained]
            return
        for total, parameter in zip(self.sums, self.trained):
            total += parameter.grad()

    def __call__(self) -> bool:
        if not self.overlap:
            nd.waitall()
        for key in reversed(range(len(self.trained))):  # the order of backward
            parameter = self.trained[key]
            # The weights arrive through the pushed array: afterwards the gradient's array holds weights
            self.comm.kvstore.push(key, self.sums[key] if self.sums else parameter.grad())
            self.comm.kvstore.pull(key, out=parameter.data())
        self.sums = []
        return False

    def synchronise_weights(self) -> None:
        """Wait until all ranks' gradients are applied and every rank has the same weights. A collective."""
        nd.waitall()
        self.comm.total([0])
        for key, parameter in enumerate(self.trained):
            self.comm.kvstore.pull(key, out=parameter.data())
        nd.waitall()
        self.comm.total([0])


def optimizer_of(trained, config: Config, sizes: Sizes, updates: int):
    """Return the optimizer to pickle for the servers, with schedule and multipliers by key; updates: per step."""
    optimizer = make_optimizer(config.optimizer)
    optimizer.rescale_grad = updates / sizes.global_batch
    optimizer.lr_scheduler = UpdateSchedule(config, sizes, updates)
    # Parameters are not pickled with the optimizer, so their multipliers are passed by key
    optimizer.lr_mult = {key: parameter.lr_mult for key, parameter in enumerate(trained)}
    optimizer.wd_mult = {key: parameter.wd_mult for key, parameter in enumerate(trained)}
    name_parameters(optimizer, trained)
    return optimizer
