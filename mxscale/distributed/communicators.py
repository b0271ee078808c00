"""Communicators: how ranks exchange arrays. The only module that imports horovod.

Every method but `devices` is a collective: all ranks call it, in the same order.
"""

import os
from hashlib import sha256
from pkgutil import resolve_name
from typing import Callable, Optional

import mxnet as mx
import numpy as np
from mxnet import nd

from mxscale.config.schema import Comm
from mxscale.distributed.parameter_server import set_own_address
from mxscale.distributed.rendezvous import rendezvous
from mxscale.environment.gpus import library_version


def open_communicator(comm: Comm, devices: int):
    """Return this process's communicator, as the launcher's environment variables describe it.

    Args:
        devices: Total number of devices that train.
    """
    alone = comm.entry.uses_horovod and not comm.entry.connects(devices)
    return Local() if alone else resolve_name(comm.entry.implementation)(comm, devices)


def flatten(arrays) -> nd.NDArray:
    """Return the numbers of arrays of one type, one array after another."""
    return nd.concat(*(array.reshape((-1,)) for array in arrays), dim=0)


def views_of(flat, like) -> list:
    """Return arrays of the shapes of `like`, one after another in the memory of `flat`, of MXNet or numpy."""
    views, start = [], 0
    for array in like:
        views.append(flat[start : start + array.size].reshape(array.shape))
        start += array.size
    return views


class Local:
    """One rank without a communicator, and the interface of all communicators."""

    rank, size, local_rank = 0, 1, 0
    gathers = True  # whether `all_gather` is implemented

    def __init__(self, options: Optional[Comm] = None, devices: int = 1):
        pass

    def devices(self, kind: str) -> list:
        """Return the devices that this rank computes on; `kind` is cpu or gpu."""
        return [mx.gpu(self.local_rank) if kind == "gpu" else mx.cpu()]

    def broadcast(self, parameters) -> None:
        """Copy rank 0's values of `parameters` (name -> gluon Parameter) to all ranks."""

    def all_reduce(self, arrays, name: str) -> None:
        """Sum `arrays`, one for each device of this rank, over all devices of all ranks, in place, asynchronously."""

    def all_gather(self, arrays, name: str) -> list:
        """Return the arrays of all devices of all ranks, in the order of ranks, from those of this rank's devices."""
        return arrays

    def total(self, values: np.ndarray) -> np.ndarray:
        """Return the sum of float64 `values` over the ranks."""
        values = np.asarray(values, dtype=np.float64)
        return self.total_later(values.reshape(-1), "total")().reshape(values.shape)

    def total_later(self, values: np.ndarray, name: str) -> Callable[[], np.ndarray]:
        """Start `total` and return a function that waits for its result. At most one sum of a name is under way."""
        values = np.asarray(values, dtype=np.float64)
        return lambda: values

    def agree(self, content: bytes) -> bool:
        """Return whether all ranks pass the same content."""
        digests = np.zeros((self.size, 8))
        digests[self.rank] = np.frombuffer(sha256(content).digest(), ">u4")  # float64 holds 32 bits exactly
        return bool((self.total(digests) == digests[self.rank]).all())

    def close(self) -> None:
        """Disconnect in order."""


class KVStoreSums:
    """Sums arrays with one of MXNet's kvstores: a name is a key, and a pull returns the sum of all pushes."""

    def __init__(self, options: Comm, devices: int):
        super().__init__(options, devices)
        self.kvstore, self.known = mx.kv.create(options.entry.kvstore), set()

    def all_reduce(self, arrays, name):
        if name not in self.known:  # a kvstore needs an initial value
            self.kvstore.init(name, arrays[0])
            self.known.add(name)
        self.kvstore.push(name, arrays)
        self.kvstore.pull(name, out=arrays)


class OneProcess(KVStoreSums, Local):
    """One process that drives all devices. One of MXNet's kvstores sums their gradients."""

    def __init__(self, options: Comm, devices: int):
        super().__init__(options, devices)
        self.count = devices

    def devices(self, kind):
        return [mx.gpu(number) if kind == "gpu" else mx.cpu(number) for number in range(self.count)]

    def all_gather(self, arrays, name):
        return [array.as_in_context(arrays[0].context) for array in arrays]


class Horovod(Local):
    """Ranks started by horovodrun or mpirun, over Gloo, MPI or NCCL."""

    def __init__(self, options: Comm, devices: int):
        import horovod.mxnet as hvd

        rendezvous(os.environ)
        hvd.init()
        self.hvd = hvd
        self.rank, self.size, self.local_rank = hvd.rank(), hvd.size(), hvd.local_rank()

    def broadcast(self, parameters):
        # One message per type instead of one per array: less to wait for, and fewer of the calls in which crashes at
        # the start occurred (docs/experiments/crashes-and-hangs.md)
        arrays = [parameter.list_data()[0] for _, parameter in sorted(parameters.items())]
        for dtype in sorted({np.dtype(array.dtype).name for array in arrays}) if self.size > 1 else ():
            same_type = [array for array in arrays if np.dtype(array.dtype).name == dtype]
            flat = flatten(same_type)
            flat.wait_to_read()
            self.hvd.broadcast_(flat, root_rank=0, name=f"parameters.{dtype}")
            for array, view in zip(same_type, views_of(flat, same_type)):
                array[:] = view
            nd.waitall()
        for parameter in parameters.values():  # further devices of this rank
            first, *others = parameter.list_data()
            for other in others:
                first.copyto(other)

    def all_reduce(self, arrays, name):
        if self.size > 1:
            self.hvd.allreduce_(arrays[0], average=False, name=name)

    def all_gather(self, arrays, name):
        return list(self.hvd.allgather(arrays[0].reshape((1, -1)), name=name))

    def total_later(self, values, name):
        if self.size == 1:
            return super().total_later(values, name)
        # A float64 NDArray of at least one element: MXNet has no empty arrays
        sums = self.hvd.allreduce(nd.array(values, dtype="float64"), average=False, name=name)
        return lambda: sums.asnumpy()

    def close(self):
        nd.waitall()
        self.hvd.shutdown()


class ParameterServers(KVStoreSums, Horovod):
    """Parameter servers sum gradients in the order of arrival; all else goes through Horovod.

    With three and more ranks the last bit of a sum differs from run to run.
    """

    gathers = False

    def __init__(self, options: Comm, devices: int):
        set_own_address()
        super().__init__(options, devices)

    def close(self):
        nd.waitall()
        del self.kvstore  # servers end once every rank has disconnected
        super().close()


class NodeServers(ParameterServers):
    """One process of each machine sums the gradients of its devices; servers sum those of the machines."""

    def __init__(self, options: Comm, devices: int):
        super().__init__(options, devices)
        self.count = devices // self.size

    devices = OneProcess.devices


def horovod_build() -> dict:
    """Return Horovod's version and its build features (nccl: the version), without starting it; {} if not installed."""
    try:
        import horovod
        import horovod.mxnet as hvd
    except ImportError:
        return {}
    return {"version": horovod.__version__, "gloo": bool(hvd.gloo_built()), "mpi": bool(hvd.mpi_built()),
            "nccl": library_version(hvd.nccl_built())}  # fmt: skip
