"""The exponential moving average of a network, which is validated and exported in place of the trained weights."""

from typing import Dict, List, Optional

import numpy as np
from mxnet import gluon, nd

STATISTICS = "statistics"  # key of the averaged running statistics in `state`


class NoAverage:
    """The network itself."""

    def update(self, step: int) -> None:
        """Take the weights after `step` (from 0) into the average."""

    def evaluated(self, params: Dict[str, nd.NDArray], comm) -> Dict[str, nd.NDArray]:
        """Return what is validated and exported of a copy of the network's parameters. A collective."""
        return params

    def state(self) -> Dict[str, nd.NDArray]:
        """Return what a checkpoint must hold beside the average: the trained weights. Call it after `evaluated`."""
        return {}

    def restore(self, average: Dict[str, nd.NDArray], state: Dict[str, nd.NDArray]) -> None:
        """Continue from `evaluated()` and `state()` of a checkpoint."""


class WeightAverage(NoAverage):
    """average += (1 - d) (weights - average) after each step, with d = min(decay, (1 + step) / (10 + step)).

    The lower decay of the first steps is that of TensorFlow's ExponentialMovingAverage. Running statistics of batch
    normalisation are averaged as well, those of each shard by themselves, as timm's ModelEma averages buffers: the
    statistics of one step do not fit the weights of many.

    Args:
        parameters: Structural name -> Parameter, all of the network.
        running: Names of the parameters whose values `statistics` holds for each shard.
    """

    def __init__(self, parameters: Dict[str, gluon.Parameter], decay: float, running: List[str], statistics):
        self.decay, self.running, self.statistics = decay, running, statistics
        self.weights = {name: p for name, p in parameters.items() if p.grad_req != "null"}
        self.average = {name: p.list_data()[0].copy() for name, p in self.weights.items()}
        self.rows = statistics.rows()
        self.table: Optional[np.ndarray] = None  # the averaged statistics of all shards, when last gathered

    def update(self, step: int) -> None:
        share = 1 - min(self.decay, (1 + step) / (10 + step))
        for name, parameter in self.weights.items():
            self.average[name] += share * (parameter.list_data()[0] - self.average[name])
        for shard, row in self.statistics.rows().items():
            self.rows[shard] += np.float32(share) * (row - self.rows[shard])

    def evaluated(self, params: Dict[str, nd.NDArray], comm) -> Dict[str, nd.NDArray]:
        self.table = self.statistics.gather(comm, self.rows)
        averages = {name: average.copy() for name, average in self.average.items()}
        return {**params, **averages, **dict(zip(self.running, self.statistics.average(self.table)))}

    def state(self) -> Dict[str, nd.NDArray]:
        weights = {name: parameter.list_data()[0] for name, parameter in self.weights.items()}
        return {**weights, STATISTICS: nd.array(self.table)} if self.table.size else weights

    def restore(self, average: Dict[str, nd.NDArray], state: Dict[str, nd.NDArray]) -> None:
        for name, array in self.average.items():
            array[:] = average[name]
        if STATISTICS in state:
            table = state[STATISTICS].asnumpy()
            self.rows = {shard: table[shard] for shard in self.rows}
