"""How ranks speak to each other.  The only module that imports horovod.

Every method is a collective: all ranks call it, in the same order.
"""

import numpy as np
from mxnet import nd

from mxscale.config import Comm
from mxscale.train.gpus import nccl_version


def open_communicator(comm: Comm):
    """The communicator of this process, as the launcher set its surroundings up."""
    return {"local": Local, "horovod": Horovod}[comm.backend]()


class Local:
    """One rank, nobody to speak to."""

    rank, size, local_rank = 0, 1, 0
    gathers = True  # whether `all_gather` is there

    def broadcast(self, parameters) -> None:
        """Rank 0's values of `parameters` (name -> gluon Parameter) to all."""

    def all_reduce(self, arrays, name: str) -> None:
        """Sum `arrays`, one for each device of this rank, over all devices of all ranks; in place, asynchronously."""

    def all_gather(self, arrays, name: str) -> list:
        """(values,) of each device -> those of all devices of all ranks, in the order of ranks."""
        return arrays

    def total(self, values: np.ndarray) -> np.ndarray:
        """Sum of float64 `values` over the ranks."""
        return np.asarray(values, dtype=np.float64)

    def vote(self, wish: bool):
        """Whether any rank wishes; a call of the result waits for the answer."""
        return lambda: wish

    def close(self) -> None:
        """Leave in order."""


class Horovod(Local):
    """Ranks started by horovodrun or mpirun, over Gloo, MPI or NCCL."""

    def __init__(self):
        import horovod.mxnet as hvd

        hvd.init()
        self.hvd = hvd
        self.rank, self.size, self.local_rank = hvd.rank(), hvd.size(), hvd.local_rank()

    def broadcast(self, parameters):
        # One message per type, not one per array: less to wait for, and less of what a crash at the start
        # was seen in (docs/log.md)
        arrays = [parameter.data() for _, parameter in sorted(parameters.items())]
        for dtype in sorted({np.dtype(array.dtype).name for array in arrays}) if self.size > 1 else ():
            alike = [array for array in arrays if np.dtype(array.dtype).name == dtype]
            flat = nd.concat(*(array.reshape((-1,)) for array in alike), dim=0)
            flat.wait_to_read()
            self.hvd.broadcast_(flat, root_rank=0, name=f"parameters.{dtype}")
            start = 0
            for array in alike:
                array[:] = flat[start : start + array.size].reshape(array.shape)
                start += array.size
            nd.waitall()

    def all_reduce(self, arrays, name):
        if self.size > 1:
            self.hvd.allreduce_(arrays[0], average=False, name=name)

    def all_gather(self, arrays, name):
        return list(self.hvd.allgather(arrays[0].reshape((1, -1)), name=name))

    def total(self, values):
        values = np.asarray(values, dtype=np.float64)
        if self.size == 1:
            return values
        # A float64 NDArray of at least one element: MXNet has no empty arrays.
        array = nd.array(values.reshape(-1), dtype="float64")
        return self.hvd.allreduce(array, average=False, name="total").asnumpy().reshape(values.shape)

    def vote(self, wish):
        if self.size == 1:
            return lambda: wish
        # One number, sent before the step's own work: when it is read, after that work has been
        # dispatched, it has long arrived, so agreeing on a stop at each step costs next to nothing.
        votes = self.hvd.allreduce(nd.array([float(wish)]), average=False, name="vote")
        return lambda: bool(votes.asscalar() > 0)

    def close(self):
        nd.waitall()
        self.hvd.shutdown()


def horovod_build() -> dict:
    """Horovod's version and what it was built with (nccl: its version), without starting it; {} where it is absent."""
    try:
        import horovod
        import horovod.mxnet as hvd
    except ImportError:
        return {}
    return {"version": horovod.__version__, "gloo": bool(hvd.gloo_built()), "mpi": bool(hvd.mpi_built()),
            "nccl": nccl_version(hvd.nccl_built())}  # fmt: skip
