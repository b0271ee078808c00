"""Throughput of a rank, its wait for input, and the phases of its steps in the heartbeat."""

import queue
import threading
import time
from concurrent.futures import Future
from typing import Callable, Iterator, List, Optional

import numpy as np
from mxnet import nd

from mxscale.distributed.heartbeat import Heartbeat, Phase


class ThroughputTimer:
    """Measures the steps between two lines of metrics: images, seconds, seconds of waiting for input.

    A rank waits for input while none of its devices has work left; fetching a batch while a device computes costs no
    time. A thread records when the work of each step is done. An interval ends at that time and not when the work
    was dispatched, which may be long before its exchange.
    """

    def __init__(self, devices: int = 1):
        self._done_at = time.perf_counter()
        self._dispatched, self._done = 0, 0
        self._in_flight = queue.SimpleQueue()
        # On each device one step may be in flight while the next one is dispatched
        self._room = threading.Semaphore(devices)
        self._error: Optional[BaseException] = None
        threading.Thread(target=self._follow, daemon=True, name="throughput timer").start()
        self.restart()

    def restart(self) -> None:
        """Start a new interval now; the time since the last one (validation, a checkpoint) is excluded."""
        now = time.perf_counter()
        self._begin(lambda: now)

    def _begin(self, at: Callable[[], float]) -> None:
        self.began, self.images, self.waited_s = at, 0, 0.0

    def lap(self) -> Callable[[], np.ndarray]:
        """End the interval with the work dispatched so far and start the next one.

        Returns:
            A function that waits for that work and returns [images, seconds, seconds waited] of this rank. The wait is
            at most the interval: a batch may have been requested before the interval began.
        """
        began, ended, images, waited_s = self.began, Future(), self.images, self.waited_s
        self._in_flight.put(ended)
        self._begin(ended.result)

        def figures() -> np.ndarray:
            seconds = ended.result() - began()
            return np.array([images, seconds, min(waited_s, seconds)])

        return figures

    def fetched(self, asked_at: float, images: int) -> None:
        """Record that a batch requested at `asked_at` (perf_counter) has arrived."""
        if self._done == self._dispatched:  # else a device still computes
            self.waited_s += max(0.0, time.perf_counter() - max(asked_at, self._done_at))
        self.images += images

    def dispatched(self, result: nd.NDArray) -> None:
        """Record that a device's part of a step is dispatched; it is done when the array `result` is written.

        Returns when the step before it is done on that device, which bounds the memory of steps in flight.
        """
        self._dispatched += 1
        self._in_flight.put(result.reshape(-1)[:1].copy())  # of one number, for which no later write has to wait
        self._room.acquire()
        if self._error:
            raise self._error

    def _follow(self):
        while True:
            result = self._in_flight.get()
            if isinstance(result, Future):  # the end of an interval
                result.set_result(time.perf_counter())
                continue
            try:
                result.wait_to_read()
            except BaseException as error:
                self._error = error
            self._done_at = time.perf_counter()
            self._done += 1
            self._room.release()


class StepMonitor:
    """Times the steps of `Trainer.train_step` and reports their phases in the heartbeat.

    Args:
        passes: Forward and backward passes of a step on all devices of the rank.
        grads: The gradients of each device; backward ends with the first one.
        weights: The first layer's weights on each device, which an update writes last.
    """

    def __init__(self, heartbeat: Heartbeat, passes: int, grads: List[list], weights: list):
        self.heartbeat, self.grads, self.weights = heartbeat, grads, weights
        self.several_passes = passes > len(grads)
        self.timer = ThroughputTimer(len(grads))

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
                    self.timer.dispatched(self.grads[micro.replica][0])
                self.heartbeat.phase, asked_at = Phase.INPUT, time.perf_counter()
            self.heartbeat.phase = Phase.EXCHANGE

        return timed

    def step_dispatched(self) -> None:
        """Record that all work of a step is dispatched."""
        for array in self.weights:
            self.timer.dispatched(array)
        self.heartbeat.progress(step=True)
