"""Training metrics: sums on the devices, and metrics.jsonl, which rank 0 writes while the run trains."""

import os
import time
from typing import Callable, Dict, List, Optional, Tuple

import mxnet as mx
import numpy as np
from mxnet import nd

from mxscale.distributed.heartbeat import Heartbeat, Phase
from mxscale.rundir import metrics_file
from mxscale.rundir.directory import RunDir


class Accumulator:
    """Sums of the loss, of correct predictions and of images, kept on each device."""

    def __init__(self, devices):
        self.devices = devices
        self._reset()

    def _reset(self):
        self.loss = {device: nd.zeros((1,), ctx=device) for device in self.devices}
        self.correct = {device: nd.zeros((1,), ctx=device) for device in self.devices}
        self.seen = 0

    def add(self, losses, logits, labels):
        """Add a batch on one of the devices: losses (B,), logits (B, classes), labels (B,)."""
        self.loss[labels.context] += losses.sum()
        self.correct[labels.context] += (logits.astype("float32", copy=False).argmax(axis=-1) == labels).sum()
        self.seen += labels.shape[0]

    def take(self) -> Callable[[], np.ndarray]:
        """Reset the sums; return a function that waits for the devices.

        The function returns [sum of losses, correct predictions, images] until now, float64.
        """
        loss, correct, seen = self.loss, self.correct, self.seen
        self._reset()
        return lambda: np.array([_total(loss), _total(correct), seen], dtype=np.float64)


def _total(sums: Dict[mx.Context, nd.NDArray]) -> float:
    return sum(float(total.asscalar()) for total in sums.values())


class MetricsLog:
    """Appends one line per interval. Every rank calls the methods: metrics are sums over ranks."""

    def __init__(self, run: RunDir, comm, attempt: int, heartbeat: Heartbeat):
        self.comm, self.attempt, self.heartbeat = comm, attempt, heartbeat
        self.recorded: Optional[Callable] = None  # requests the sums of an interval over ranks, and returns a function:
        self.requested: Optional[Callable] = None  # waits for the sums and writes the line
        self.file = None
        if comm.rank == 0:
            self.file = metrics_file.appended(run.metrics_file)

    def write(self, step: int, metrics: dict, at: Optional[float] = None) -> None:
        """Write and flush one line on rank 0; `at` is its time (time.time()), by default now."""
        if self.file is None:
            return
        entry = metrics_file.entry(self.attempt, step, time.time() if at is None else at, metrics)
        phase, self.heartbeat.phase = self.heartbeat.phase, Phase.METRICS  # a stalled disk is this rank's own stall
        self.file.write(entry)
        self.file.flush()
        self.heartbeat.phase = phase

    def sync(self) -> None:
        """Synchronise the file to the disk, before each checkpoint: no checkpoint is ahead of its metrics."""
        if self.file is not None:
            os.fsync(self.file.fileno())

    def record(self, step: int, lr: float, sums: Callable, times: Callable) -> None:
        """Record the interval that ends with `step`; `poll` writes it later.

        Args:
            sums: As Accumulator.take returns it.
            times: As ThroughputTimer.lap returns it.
        """
        recorded_at = time.time()

        def request() -> Callable:
            totals = self.comm.total_later(np.concatenate([sums(), times()]), "reading")
            return lambda: self._write(step, recorded_at, lr, totals())

        self.recorded = request

    def poll(self) -> List[Tuple[int, float]]:
        """After each step, before `record`: request the sums of a recorded interval, write those requested before.

        No rank waits: when the sums are requested, the interval's last step is done, and when they are read, so is the
        exchange of the next step. A collective.

        Returns:
            (step, mean loss over all ranks) of the line that was written, in a list; [] if none was.
        """
        written = [self.requested()] if self.requested else []
        self.requested, self.recorded = self.recorded and self.recorded(), None
        return written

    def drain(self) -> List[Tuple[int, float]]:
        """Write all recorded intervals; return as `poll`. A collective."""
        return [line for _ in range(2) for line in self.poll()]

    def _write(self, step: int, recorded_at: float, lr: float, totals: np.ndarray) -> Tuple[int, float]:
        loss, correct, seen, images, seconds, waited = totals
        metrics = {
            "train/loss": loss / seen,
            "train/top1": 100 * correct / seen,
            "lr": lr,
            "throughput/images_per_s": images / (seconds / self.comm.size),
            "time/data_wait": waited / seconds,
        }
        self.write(step, metrics, recorded_at)
        return step, metrics["train/loss"]
