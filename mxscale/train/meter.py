"""What a rank measures: counts kept on the device, and a clock that knows what not to count."""

import queue
import statistics
import threading
import time
from typing import Dict, Optional

import mxnet as mx
import numpy as np
from mxnet import nd


class Tally:
    """Loss, right answers and images seen, summed on each device; read once per line of metrics."""

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
        """[sum of losses, seen] since the last reading, which goes on; waits for the devices."""
        return np.array([_total(self.loss), self.seen], dtype=np.float64)

    def read(self) -> np.ndarray:
        """[sum of losses, right, seen] since the last reading, float64; waits for the devices."""
        values = np.array([_total(self.loss), _total(self.correct), self.seen], dtype=np.float64)
        self.reset()
        return values


def _total(sums: Dict[mx.Context, nd.NDArray]) -> float:
    return sum(float(one.asscalar()) for one in sums.values())


class Clock:
    """Times the steps between two lines of metrics: images, seconds, seconds waited for data.

    A batch is waited for from the moment that no device has anything left to do: fetching the next
    one while one still works costs nothing.  A thread notes when each step's work is done.
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
        """Begin a new interval: what came since the last reading (validation, a checkpoint) is not in it."""
        self.seconds_out, self.images, self.waited = 0.0, 0, 0.0
        self.started = time.perf_counter()

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

    def read(self) -> np.ndarray:
        """[images, seconds, seconds waited] of this rank since `restart`; the device must have nothing left to do."""
        return np.array([self.images, time.perf_counter() - self.started - self.seconds_out, self.waited])

    def _watch(self):
        while True:
            result = self._under_way.get()
            try:
                result.wait_to_read()
            except BaseException as error:
                self._error = error
            self._done_at = time.perf_counter()
            self._steps_done += 1
            self._room.release()


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
