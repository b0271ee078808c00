"""What a rank measures: counts kept on the device, and a clock that knows what not to count."""

import queue
import statistics
import threading
import time
from typing import Callable, Dict, Optional

import mxnet as mx
import numpy as np
from mxnet import nd


class Tally:
    """Loss, right answers and images seen, summed on each device; taken once per line of metrics."""

    def __init__(self, devices):
        self.devices = devices
        self.reset()

    def reset(self):
        self.loss = {device: nd.zeros((1,), ctx=device) for device in self.devices}
        self.correct = {device: nd.zeros((1,), ctx=device) for device in self.devices}
        self.seen = 0

    def add(self, losses, logits, labels):
        """losses (B,), logits (B, classes), labels (B,), all on one of the devices."""
        self.loss[labels.context] += losses.sum()
        self.correct[labels.context] += (logits.argmax(axis=-1).astype("float32") == labels).sum()
        self.seen += labels.shape[0]

    def so_far(self) -> np.ndarray:
        """[sum of losses, seen] since they were last taken; they go on.  Waits for the devices."""
        return np.array([_total(self.loss), self.seen], dtype=np.float64)

    def take(self) -> Callable[[], np.ndarray]:
        """Begin anew; a call of the result waits for the devices: [sum of losses, right, seen] so far, float64."""
        loss, correct, seen = self.loss, self.correct, self.seen
        self.reset()
        return lambda: np.array([_total(loss), _total(correct), seen], dtype=np.float64)


def _total(sums: Dict[mx.Context, nd.NDArray]) -> float:
    return sum(float(one.asscalar()) for one in sums.values())


class Clock:
    """Times the steps between two lines of metrics: images, seconds, seconds waited for data.

    A batch is waited for from the moment that no device has anything left to do: fetching the next
    one while one still works costs nothing.  A thread notes when each step's work is done, and an interval
    ends there: not when it was dispatched, which may be long before its exchange.
    """

    def __init__(self, devices: int = 1):
        self._done_at = time.perf_counter()
        self._steps_out, self._steps_done = 0, 0
        self._under_way = queue.SimpleQueue()
        # On each device one step may be under way while the next is dispatched
        self._room = threading.Semaphore(devices)
        self._error: Optional[BaseException] = None
        threading.Thread(target=self._watch, daemon=True, name="clock").start()
        self.restart()

    def restart(self) -> None:
        """Begin a new interval: what came since the last one (validation, a checkpoint) is in none."""
        self._begin(Moment(time.perf_counter()))

    def _begin(self, moment: "Moment") -> None:
        self.began, self.seconds_out, self.images, self.waited = moment, 0.0, 0, 0.0

    def lap(self) -> Callable[[], np.ndarray]:
        """End the interval with the work dispatched so far, and begin the next one.

        A call of the result waits for that work: [images, seconds, seconds waited] of this rank.
        """
        began, ended = self.began, Moment()
        images, seconds_out, waited = self.images, self.seconds_out, self.waited
        self._under_way.put(ended)
        self._begin(ended)
        return lambda: np.array([images, ended.time() - began.time() - seconds_out, waited])

    def mark(self) -> tuple:
        """The state of the interval now, for `forget_since`."""
        return time.perf_counter(), self.images, self.waited

    def forget_since(self, mark: tuple) -> None:
        """What came since `mark` does not count: it was a sample."""
        then, self.images, self.waited = mark
        self.seconds_out += time.perf_counter() - then

    def fetched(self, asked_at: float, images: int) -> None:
        """A batch asked for at `asked_at` (perf_counter) has come."""
        if self._steps_done == self._steps_out:  # else the device is still at work
            self.waited += max(0.0, time.perf_counter() - max(asked_at, self._done_at))
        self.images += images

    def dispatched(self, result) -> None:
        """A device's part of a step is under way; `result` (NDArray) is ready when it is done.

        Returns when the step before it is done there: a bound on the memory of steps in flight.
        """
        self._steps_out += 1
        self._under_way.put(result)
        self._room.acquire()
        if self._error:
            raise self._error

    def _watch(self):
        while True:
            result = self._under_way.get()
            if isinstance(result, Moment):
                result.come()
                continue
            try:
                result.wait_to_read()
            except BaseException as error:
                self._error = error
            self._done_at = time.perf_counter()
            self._steps_done += 1
            self._room.release()


class Moment:
    """A time (perf_counter) that is yet to come, or is known."""

    def __init__(self, at: Optional[float] = None):
        self._at, self._there = at, threading.Event()
        if at is not None:
            self._there.set()

    def come(self) -> None:
        self._at = time.perf_counter()
        self._there.set()

    def time(self) -> float:
        """Waits for it."""
        self._there.wait()
        return self._at


class Samples:
    """Steps taken apart now and then: compute and exchange timed with a wait between them.

    Waiting keeps a step from overlapping with its neighbours, so throughput leaves these steps out.
    """

    def __init__(self, every: int, clock: Clock):
        self.every, self.clock = every, clock
        self.compute, self.exchange = [], []

    def begin(self, step: int):
        """A `Sample` for every `every`-th step, else a stand-in that does nothing."""
        return Sample(self) if step % self.every == self.every - 1 else NoSample()

    def read(self) -> Dict[str, float]:
        """Medians in seconds since the last reading; empty where no sample was taken."""
        if not self.compute:
            return {}
        read = {"time/compute": statistics.median(self.compute), "time/exchange": statistics.median(self.exchange)}
        self.compute, self.exchange = [], []
        return read


class Sample:
    def __init__(self, samples: Samples):
        nd.waitall()
        self.samples, self.mark = samples, samples.clock.mark()
        self.last = time.perf_counter()

    def computed(self):
        """Forward and backward have been dispatched."""
        self.samples.compute.append(self._lap())

    def exchanged(self):
        """The exchange has been dispatched."""
        self.samples.exchange.append(self._lap())

    def end(self):
        nd.waitall()
        self.samples.clock.forget_since(self.mark)

    def _lap(self) -> float:
        nd.waitall()
        then, self.last = self.last, time.perf_counter()
        return self.last - then


class NoSample:
    def computed(self):
        pass

    exchanged = end = computed
