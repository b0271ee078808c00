"""Running statistics of batch normalisation, one set for each virtual shard.

They belong to the shard and not to the rank, so 1, 2 and 4 ranks over 4 shards end with the same values. Evaluation and
export use their average, in a copy that is never written back.
"""

import math
from typing import Dict, Optional

import numpy as np
from mxnet import nd

from mxscale.data.reader.batches import replica_of
from mxscale.distributed.communicators import views_of


class ShardStatistics:
    """The statistics of this rank's shards.

    A rank's shards are computed on its devices in turn.

    Args:
        parameters: The running means and variances, in a fixed order.
        shards: The shards of this rank, of `of` in total.
    """

    def __init__(self, parameters, shards, of: int):
        self.parameters, self.shards, self.of = parameters, list(shards), of
        self.devices = len(parameters[0].list_ctx()) if parameters else 1
        self.current = {self._device(shard): shard for shard in reversed(self.shards)}  # device -> shard
        start = self._copies(0)
        self.saved = {shard: start for shard in self.shards}

    def use(self, shard: int) -> None:
        """Load the statistics of `shard` into the batch normalisation layers of its device."""
        device = self._device(shard)
        if shard != self.current[device]:
            self.saved[self.current[device]] = self._copies(device)
            self._put(self.saved[shard], device)
            self.current[device] = shard

    def rows(self) -> Dict[int, np.ndarray]:
        """Return the statistics of this rank's shards: shard -> (values,) float32."""
        for device, shard in self.current.items():
            self.saved[shard] = self._copies(device)
        if not self.parameters:
            return {}
        return {shard: np.concatenate([a.asnumpy().ravel() for a in self.saved[shard]]) for shard in self.shards}

    def gather(self, comm, rows: Optional[Dict[int, np.ndarray]] = None) -> np.ndarray:
        """Return the rows of all shards, (shards, values) float32, equal on every rank. A collective.

        Args:
            rows: Those of this rank's shards; by default the statistics.
        """
        rows = self.rows() if rows is None else rows
        table = np.zeros((self.of, sum(math.prod(p.shape) for p in self.parameters)))
        if table.size:
            for shard, row in rows.items():
                table[shard] = row
            table = comm.total(table)
        return table.astype(np.float32)

    def restore(self, table: np.ndarray) -> None:
        """Restore the statistics of this rank's shards from a table that `gather` returned."""
        self.saved = {shard: self._arrays(table[shard]) for shard in self.shards}
        for device, shard in self.current.items():
            self._put(self.saved[shard], device)

    def average(self, table: np.ndarray):
        """Return the average of all shards' statistics: arrays in the order of the parameters."""
        return self._arrays(table.astype(np.float64).mean(axis=0).astype(np.float32))

    def _device(self, shard: int) -> int:
        return replica_of(shard, self.shards, self.devices)

    def _copies(self, device: int):
        # Backward writes the running statistics. Under static_alloc MXNet's engine does not track that write, so a
        # copy without this wait may be made before it
        nd.waitall()
        return [p.list_data()[device].copy() for p in self.parameters]

    def _put(self, arrays, device: int):
        for parameter, array in zip(self.parameters, arrays):
            parameter.list_data()[device][:] = array

    def _arrays(self, row):
        like = [parameter.list_data()[0] for parameter in self.parameters]
        views = views_of(row, like)
        return [nd.array(view, dtype=array.dtype, ctx=array.context) for array, view in zip(like, views)]
