"""Times the parts of a step and reports its phases in the heartbeat, around the calls of `Trainer.train_step`."""

import time
from contextlib import contextmanager
from typing import Callable, Iterator, List

from mxscale.distributed.heartbeat import NoHeartbeat, Phase
from mxscale.train.timing import StepProfiler, ThroughputTimer, first_element

PROFILE_EVERY = 50  # steps


class StepMonitor:
    """Wraps the input and the exchange of a step, so that the step itself shows the learning algorithm alone.

    Args:
        passes: Forward and backward passes of a step on all devices of the rank.
        grads: The gradients of each device; backward ends with the first one.
        weights: The first layer's weights on each device, which an update writes last.
        double_buffering: The first step writes gradients alone.
    """

    def __init__(self, heartbeat: NoHeartbeat, passes: int, grads: List[list], weights: list, double_buffering: bool):
        self.heartbeat, self.grads, self.weights, self.double_buffering = heartbeat, grads, weights, double_buffering
        self.several_passes = passes > len(grads)
        self.timer = ThroughputTimer(len(grads))
        self.profiler = StepProfiler(PROFILE_EVERY, self.timer)

    @contextmanager
    def step(self, number: int) -> Iterator[None]:
        """Time the block, which takes a step."""
        self.profiler.begin(number)
        yield
        for array in self.written_last:
            self.timer.dispatched(first_element(array))
        self.profiler.end()
        self.heartbeat.progress(step=True)

    def input(self, read: Callable[[int], Iterator]) -> Callable[[int], Iterator]:
        """Return `read`, a function from a step to its micro-batches, timed. What follows a micro-batch is compute."""

        def timed(step: int) -> Iterator:
            self.heartbeat.phase, asked_at = Phase.INPUT, time.perf_counter()
            for micro in read(step):
                self.timer.fetched(asked_at, micro.labels.shape[0])
                self.heartbeat.phase = Phase.COMPUTE
                yield micro
                if self.several_passes:
                    self.heartbeat.phase = Phase.EXCHANGE  # a device may still be in the previous step's exchange
                    self.timer.dispatched(first_element(self.grads[micro.replica][0]))
                self.heartbeat.phase, asked_at = Phase.INPUT, time.perf_counter()
            self.heartbeat.phase = Phase.EXCHANGE

        return timed

    def exchange(self, exchange: Callable[[], bool]) -> Callable[[], bool]:
        """Return `exchange`, which returns whether the weights are updated, timed."""

        def timed() -> bool:
            self.profiler.record("time/compute")
            updates = exchange()
            self.profiler.record("time/exchange")
            buffers_only = self.double_buffering and not updates
            self.written_last = [replica[0] for replica in self.grads] if buffers_only else self.weights
            return updates

        return timed
