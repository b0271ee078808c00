"""Throughput of a rank, wait for input, and the time of compute and exchange in sampled steps."""

import queue
import statistics
import threading
import time
from concurrent.futures import Future
from typing import Callable, Dict, List, Optional

import numpy as np
from mxnet import nd


def first_element(array: nd.NDArray) -> nd.NDArray:
    """Return a copy of an array's first number: ready when `array` is, and no later write has to wait for it."""
    return array.reshape(-1)[:1].copy()


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
        now = Future()
        now.set_result(time.perf_counter())
        self._begin(now)

    def _begin(self, at: Future) -> None:
        self.began, self.excluded_s, self.images, self.waited_s = at, 0.0, 0, 0.0

    def lap(self) -> Callable[[], np.ndarray]:
        """End the interval with the work dispatched so far and start the next one.

        Returns:
            A function that waits for that work and returns [images, seconds, seconds waited] of this rank. The wait is
            at most the interval: a batch may have been requested before the interval began.
        """
        began, ended = self.began, Future()
        images, excluded_s, waited_s = self.images, self.excluded_s, self.waited_s
        self._in_flight.put(ended)
        self._begin(ended)

        def figures() -> np.ndarray:
            seconds = ended.result() - began.result() - excluded_s
            return np.array([images, seconds, min(waited_s, seconds)])

        return figures

    def mark(self) -> tuple:
        """Return the current state of the interval, for `exclude_since`."""
        return time.perf_counter(), self.images, self.waited_s

    def exclude_since(self, mark: tuple) -> None:
        """Exclude from the interval what followed `mark`: a profiled step."""
        then, self.images, self.waited_s = mark
        self.excluded_s += time.perf_counter() - then

    def fetched(self, asked_at: float, images: int) -> None:
        """Record that a batch requested at `asked_at` (perf_counter) has arrived."""
        if self._done == self._dispatched:  # else a device still computes
            self.waited_s += max(0.0, time.perf_counter() - max(asked_at, self._done_at))
        self.images += images

    def dispatched(self, result: nd.NDArray) -> None:
        """Record that a device's part of a step is dispatched; `result` is ready when that part is done.

        Returns when the step before it is done on that device, which bounds the memory of steps in flight.
        """
        self._dispatched += 1
        self._in_flight.put(result)
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


class StepProfiler:
    """Times compute and exchange of every `every`-th step, with a wait between them.

    The wait prevents the step from overlapping with its neighbours, so throughput excludes these steps.
    """

    def __init__(self, every: int, timer: ThroughputTimer):
        self.every, self.timer = every, timer
        self.seconds: Dict[str, List[float]] = {}
        self._mark: Optional[tuple] = None  # of the timer, at the begin of a profiled step

    def begin(self, step: int) -> None:
        """Begin a step; the other methods do nothing unless it is an `every`-th one."""
        if step % self.every == self.every - 1:
            nd.waitall()
            self._mark, self._last = self.timer.mark(), time.perf_counter()

    def record(self, metric: str) -> None:
        """Record the time since the last call, until the work dispatched so far is done."""
        if self._mark:
            nd.waitall()
            then, self._last = self._last, time.perf_counter()
            self.seconds.setdefault(metric, []).append(self._last - then)

    def end(self) -> None:
        """End the step."""
        if self._mark:
            nd.waitall()
            self.timer.exclude_since(self._mark)
            self._mark = None

    def take(self) -> Dict[str, float]:
        """Return the medians in seconds since the last call by metric, {} if no step was profiled, and reset."""
        medians = {metric: statistics.median(seconds) for metric, seconds in self.seconds.items()}
        self.seconds = {}
        return medians
