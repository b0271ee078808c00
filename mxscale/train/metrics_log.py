"""metrics.jsonl, written by rank 0 as the run goes: the truth about it."""

import json
import os
import time
from dataclasses import dataclass
from typing import Callable, Dict, List, Optional, Tuple

import numpy as np

from mxscale.rundir.directory import RunDir


class Journal:
    """Appends one line per reading; every rank makes the readings, because they are sums over ranks."""

    def __init__(self, run: RunDir, comm, attempt: int):
        self.comm, self.attempt = comm, attempt
        self.apart = np.zeros(3)  # loss, right answers, images since ranks last met, of lines in between
        self.taken = self.sent = None  # readings on their way
        self.file = None
        if comm.rank == 0:
            _end_torn_line(run.metrics_file)
            self.file = open(run.metrics_file, "a")

    def line(self, step: int, metrics: dict, at: Optional[float] = None) -> None:
        """One line, flushed.  Only rank 0 writes.  at: of what time (time.time()), where not of now."""
        if self.file is None:
            return
        time_ms = int(1000 * (time.time() if at is None else at))
        entry = {"attempt": self.attempt, "step": step, "time_ms": time_ms, "metrics": metrics}
        self.file.write(json.dumps(entry, separators=(",", ":")) + "\n")
        self.file.flush()

    def sync(self) -> None:
        """To the disk: called with each checkpoint, so that no checkpoint is ahead of its metrics."""
        if self.file is not None:
            os.fsync(self.file.fileno())

    def take(self, step: int, tally, clock, samples, lr: float, together: bool = True) -> None:
        """The figures of an interval that ends with `step`; `follow` writes its line when they are there.

        together False: ranks are at different steps and don't wait for each other.  Then they are rank 0's own, and
        the clock goes on until they meet.
        """
        lap = clock.lap() if together else None
        self.taken = Reading(step, time.time(), lr, tally.take(), lap, samples.read())

    def follow(self) -> List[Tuple[int, float]]:
        """After each step, before `take`: send what was taken, write what was sent.  A collective.

        So nobody waits: the step that figures were taken after is done when they are sent, and the next one's exchange
        too when they are read.  Returns (step, mean loss over all ranks) of the line, in a list, where there is one.
        """
        written = [(self.sent.step, self._write(self.sent))] if self.sent else []
        self.sent, self.taken = self.taken, None
        if self.sent:
            self._send(self.sent)
        return written

    def finish(self) -> List[Tuple[int, float]]:
        """Wait for all that was taken.  A collective; as `follow`."""
        return [line for _ in range(2) for line in self.follow()]

    def _send(self, reading: "Reading") -> None:
        tallied = reading.tallied()
        if reading.lap is None:
            self.apart += tallied
            reading.totals = lambda: tallied
        else:
            reading.totals = self.comm.total_later(np.concatenate([self.apart + tallied, reading.lap()]), "reading")
            self.apart = np.zeros(3)

    def _write(self, reading: "Reading") -> float:
        loss, correct, seen, *times = reading.totals()
        metrics = {"train/loss": loss / seen, "train/top1": 100 * correct / seen, "lr": reading.lr}
        if times and times[0]:
            images, seconds, waited = times
            metrics["throughput/images_per_s"] = images / (seconds / self.comm.size)
            metrics["time/data_wait"] = waited / seconds
        self.line(reading.step, {**metrics, **reading.sampled}, reading.at)
        return metrics["train/loss"]


@dataclass
class Reading:
    """An interval of training, on its way to its line."""

    step: int
    at: float  # when it was taken (time.time())
    lr: float
    tallied: Callable[[], np.ndarray]  # see Tally.take
    lap: Optional[Callable[[], np.ndarray]]  # see Clock.lap
    sampled: Dict[str, float]
    totals: Optional[Callable[[], np.ndarray]] = None  # of all ranks, once they are sent


def _end_torn_line(path) -> None:
    """A writer that was killed may have left half a line: what follows must not be glued to it."""
    if path.exists() and path.stat().st_size:
        with open(path, "rb+") as file:
            file.seek(-1, os.SEEK_END)
            if file.read(1) != b"\n":
                file.write(b"\n")
