"""metrics.jsonl, written by rank 0 as the run goes: the truth about it."""

import json
import os
import time

import numpy as np

from mxscale.run.rundir import RunDir


class Journal:
    """Appends one line per reading; every rank makes the readings, because they are sums over ranks."""

    def __init__(self, run: RunDir, comm, attempt: int):
        self.comm, self.attempt = comm, attempt
        self.apart = np.zeros(3)  # loss, right answers, images since ranks last met, of lines in between
        self.file = None
        if comm.rank == 0:
            _end_torn_line(run.metrics_file)
            self.file = open(run.metrics_file, "a")

    def line(self, step: int, metrics: dict) -> None:
        """One line, flushed.  Only rank 0 writes."""
        if self.file is None:
            return
        entry = {"attempt": self.attempt, "step": step, "time_ms": int(time.time() * 1000), "metrics": metrics}
        self.file.write(json.dumps(entry, separators=(",", ":")) + "\n")
        self.file.flush()

    def sync(self) -> None:
        """To the disk: called with each checkpoint, so that no checkpoint is ahead of its metrics."""
        if self.file is not None:
            os.fsync(self.file.fileno())

    def reading(self, step: int, tally, clock, samples, lr: float, together: bool = True) -> float:
        """The line of an interval of training; returns its mean loss over all ranks.  A collective.

        together False: ranks are at different steps and don't wait for each other.  Then it is rank 0's own loss, and
        the clock goes on until they meet.
        """
        tallied = tally.read()
        if not together:
            self.apart += tallied
            loss, correct, seen = tallied
            self.line(step, {"train/loss": loss / seen, "train/top1": 100 * correct / seen, "lr": lr})
            return loss / seen
        both = np.concatenate([self.apart + tallied, clock.read()])
        loss, correct, seen, images, seconds, waited = self.comm.total(both)
        self.apart = np.zeros(3)
        metrics = {"train/loss": loss / seen, "train/top1": 100 * correct / seen, "lr": lr}
        if images:
            metrics["throughput/images_per_s"] = images / (seconds / self.comm.size)
            metrics["time/data_wait"] = waited / seconds
        self.line(step, {**metrics, **samples.read()})
        return metrics["train/loss"]


def _end_torn_line(path) -> None:
    """A writer that was killed may have left half a line: what follows must not be glued to it."""
    if path.exists() and path.stat().st_size:
        with open(path, "rb+") as file:
            file.seek(-1, os.SEEK_END)
            if file.read(1) != b"\n":
                file.write(b"\n")
