"""How ranks speak to each other.  The only module that imports horovod.

Every method is a collective: all ranks call it, in the same order.
"""

import os
from typing import Callable, Optional

import mxnet as mx
import numpy as np
from mxnet import nd

from mxscale.config.schema import Comm
from mxscale.distributed.parameter_server import name_own_address
from mxscale.distributed.rendezvous import rendezvous
from mxscale.environment.gpus import nccl_version


def open_communicator(comm: Comm, devices: int = 1):
    """The communicator of this process, as the launcher set its surroundings up.

    devices: that train in all; with kvstore device or nccl this process drives every one of them.
    """
    if comm.drives_all:
        return Devices(comm.backend, devices)
    kinds = {"local": Local, "horovod": Horovod, "parameter_server": Served, "dist_async": ServedAsync}
    return kinds[comm.backend](comm)


class Local:
    """One rank, nobody to speak to."""

    rank, size, local_rank = 0, 1, 0
    gathers = True  # whether `all_gather` is there
    in_step = True  # ranks take each step together: after any of them all can meet

    def __init__(self, options: Optional[Comm] = None):
        pass

    def devices(self, kind: str) -> list:
        """What this rank computes on; kind: cpu | gpu."""
        return [mx.gpu(self.local_rank) if kind == "gpu" else mx.cpu()]

    def broadcast(self, parameters) -> None:
        """Rank 0's values of `parameters` (name -> gluon Parameter) to all."""

    def all_reduce(self, arrays, name: str) -> None:
        """Sum `arrays`, one for each device of this rank, over all devices of all ranks; in place, asynchronously."""

    def all_gather(self, arrays, name: str) -> list:
        """(values,) of each device -> those of all devices of all ranks, in the order of ranks."""
        return arrays

    def total(self, values: np.ndarray) -> np.ndarray:
        """Sum of float64 `values` over the ranks."""
        values = np.asarray(values, dtype=np.float64)
        return self.total_later(values.reshape(-1), "total")().reshape(values.shape)

    def total_later(self, values: np.ndarray, name: str) -> Callable[[], np.ndarray]:
        """`total`, on its way: a call of the result waits for it.  One of a name at a time."""
        values = np.asarray(values, dtype=np.float64)
        return lambda: values

    def close(self) -> None:
        """Leave in order."""


class Sums:
    """What a kvstore of MXNet's is used for: a name is a key, and what is pushed under it comes back added up."""

    def __init__(self, kvstore):
        self.kvstore, self.known = kvstore, set()

    def sum(self, arrays, name: str) -> None:
        """Over all devices of all ranks, in place, asynchronously.  All ranks have the same names in the same order."""
        if name not in self.known:  # a kvstore wants a first value
            self.kvstore.init(name, arrays[0])
            self.known.add(name)
        self.kvstore.push(name, arrays)
        self.kvstore.pull(name, out=arrays)


class Devices(Local):
    """One process that drives several devices, whose gradients a kvstore of MXNet's sums.

    kind: device (each sum on one of the devices, which take turns) | nccl.
    """

    def __init__(self, kind: str, count: int):
        self.sums, self.count = Sums(mx.kv.create(kind)), count

    def devices(self, kind):
        return [mx.gpu(number) if kind == "gpu" else mx.cpu(number) for number in range(self.count)]

    def all_reduce(self, arrays, name):
        self.sums.sum(arrays, name)

    def all_gather(self, arrays, name):
        return [array.as_in_context(arrays[0].context) for array in arrays]


class Horovod(Local):
    """Ranks started by horovodrun or mpirun, over Gloo, MPI or NCCL."""

    def __init__(self, options: Optional[Comm] = None):
        import horovod.mxnet as hvd

        rendezvous(os.environ)
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

    def total_later(self, values, name):
        if self.size == 1:
            return super().total_later(values, name)
        # A float64 NDArray of at least one element: MXNet has no empty arrays.
        sums = self.hvd.allreduce(nd.array(values, dtype="float64"), average=False, name=name)
        return lambda: sums.asnumpy()  # a frame of ours, where the watchdog sees who waits

    def close(self):
        nd.waitall()
        self.hvd.shutdown()


class Served(Horovod):
    """Gradients are summed by parameter servers, in the order in which they arrive; the rest goes by Horovod.

    With three and more ranks the last bit of a sum is another from run to run.
    """

    gathers = False
    kind = "dist_sync"

    def __init__(self, options: Comm):
        super().__init__(options)
        name_own_address()
        self.kvstore = mx.kv.create(self.kind)
        if options.compression == "2bit":
            self.kvstore.set_gradient_compression({"type": "2bit", "threshold": options.threshold})
        self.sums = Sums(self.kvstore)

    def all_reduce(self, arrays, name):
        self.sums.sum(arrays, name)

    def close(self):
        nd.waitall()
        del self.kvstore, self.sums  # the servers end once every rank has let go
        super().close()


class ServedAsync(Served):
    """Servers that apply each rank's gradients at once.  Ranks meet where the engine lets them, not at every step."""

    kind = "dist_async"
    in_step = False


def horovod_build() -> dict:
    """Horovod's version and what it was built with (nccl: its version), without starting it; {} where it is absent."""
    try:
        import horovod
        import horovod.mxnet as hvd
    except ImportError:
        return {}
    return {"version": horovod.__version__, "gloo": bool(hvd.gloo_built()), "mpi": bool(hvd.mpi_built()),
            "nccl": nccl_version(hvd.nccl_built())}  # fmt: skip
