"""BN's running statistics, one set for each virtual shard.

They belong to the shard and not to the rank, so that 1, 2 and 4 ranks over 4 shards end with the same
ones.  What is evaluated and exported is their average, in a copy that is never written back.
"""

import math

import numpy as np
from mxnet import nd


class ShardStatistics:
    """parameters: the running means and variances, in a fixed order; shards: this rank's, of `of`.

    Of several devices each has its part of the shards: shard s is on device s modulo their number.
    """

    def __init__(self, parameters, shards, of: int):
        self.parameters, self.shards, self.of = parameters, list(shards), of
        self.devices = len(parameters[0].list_ctx()) if parameters else 1
        self.current = {self._device(shard): shard for shard in reversed(self.shards)}  # device -> shard
        start = self._copies(0)
        self.kept = {shard: start for shard in self.shards}

    def use(self, shard: int) -> None:
        """The BN layers of that shard's device go on with its statistics."""
        device = self._device(shard)
        if shard != self.current[device]:
            self.kept[self.current[device]] = self._copies(device)
            self._put(self.kept[shard], device)
            self.current[device] = shard

    def gather(self, comm) -> np.ndarray:
        """All shards' statistics, (shards, values) float32, the same on every rank.  A collective."""
        for device, shard in self.current.items():
            self.kept[shard] = self._copies(device)
        table = np.zeros((self.of, sum(math.prod(p.shape) for p in self.parameters)))
        for shard in self.shards:
            if self.parameters:
                table[shard] = np.concatenate([array.asnumpy().ravel() for array in self.kept[shard]])
        return comm.total(table).astype(np.float32) if table.size else table.astype(np.float32)

    def restore(self, table: np.ndarray) -> None:
        """This rank's shards go on from `table`, as `gather` made it."""
        self.kept = {shard: self._arrays(table[shard]) for shard in self.shards}
        for device, shard in self.current.items():
            self._put(self.kept[shard], device)

    def average(self, table: np.ndarray):
        """Arrays in the order of the parameters: the average of all shards' statistics."""
        return self._arrays(table.astype(np.float64).mean(axis=0).astype(np.float32)) if self.parameters else []

    def _device(self, shard: int) -> int:
        return shard % self.devices

    def _copies(self, device: int):
        # BN writes its running statistics in backward, and under static_alloc MXNet's engine does not
        # know: a copy asked for right after backward may be made before that write.  So wait.
        nd.waitall()
        return [p.list_data()[device].copy() for p in self.parameters]

    def _put(self, arrays, device: int):
        for parameter, array in zip(self.parameters, arrays):
            parameter.list_data()[device][:] = array

    def _arrays(self, row):
        arrays, start = [], 0
        for parameter in self.parameters:
            data = parameter.list_data()[0]
            arrays.append(
                nd.array(row[start : start + data.size].reshape(data.shape), dtype=data.dtype, ctx=data.context)
            )
            start += data.size
        return arrays
