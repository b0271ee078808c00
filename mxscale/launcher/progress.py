"""Terminal output of a run: a progress bar on a terminal, else a line for each validation and every 30 seconds.

A closed terminal or an unread pipe does not end the run.
"""

import contextlib
import json
import os
import sys
import time
from typing import Callable, Iterator

from tqdm import tqdm

from mxscale.cost import prices
from mxscale.rundir.directory import RunDir
from mxscale.rundir.plan import Plan
from mxscale.util.redaction import shown

LINE_S = 30.0  # between two lines where there is no terminal


def echo(text: str, stream=None) -> None:
    """Print to `stream` (stdout); if it is closed, drop this and all later output."""
    try:
        print(shown(text), file=stream, flush=True)
    except OSError:
        drop(stream or sys.stdout)


def drop(stream) -> None:
    """Redirect `stream` to /dev/null, so that flushing its buffer does not fail at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


class Follower:
    """Reads the complete lines that were added to metrics.jsonl since the last call."""

    def __init__(self, run: RunDir):
        self.run = run
        self.offset = run.metrics_file.stat().st_size if run.metrics_file.exists() else 0

    def new_lines(self) -> Iterator[dict]:
        for line, end in self.run.lines_from(self.offset):
            self.offset = end
            yield line


class Progress:
    """Shows the progress of one attempt; a context manager.

    Args:
        cost_at: A line of metrics.jsonl -> {"cost/usd": ...}, as run_cost.cost_of returns it.
    """

    def __init__(self, run: RunDir, plan: Plan, cost_at: Callable[[dict], dict]):
        self.follower, self.sizes, self.cost_at = Follower(run), plan.sizes, cost_at
        self.shown, self.step, self.printed = {}, 0, time.monotonic()
        self.begun, self.bar = False, None
        self.run = run

    def update(self) -> bool:
        """Show new lines; return whether the attempt has written a line."""
        for line in self.follower.new_lines():
            first, self.begun = not self.begun, True
            self.shown.update(line["metrics"], **self.cost_at(line))
            self.step = line["step"]
            if sys.stderr.isatty():
                self._move_bar(first)
            elif "val/top1" in line["metrics"] or self._due():
                self._print(self._figures())
        if self.begun and not sys.stderr.isatty() and self._due():  # slow steps, or a long validation
            self._print(f"no new line; rank 0: {self._phase()}")
        return self.begun

    def _due(self) -> bool:
        return time.monotonic() >= self.printed + LINE_S

    def _print(self, text: str) -> None:
        epoch = round(self.step / self.sizes.steps_per_epoch, 2)
        echo(f"epoch {epoch:g}  step {self.step}/{self.sizes.total_steps}  {text}")
        self.printed = time.monotonic()

    def _phase(self) -> str:
        """Return what rank 0 is doing, as it states in its heartbeat."""
        with contextlib.suppress(OSError, ValueError):  # just being written
            return json.loads(self.run.rank_alive(0).read_text())["phase"]
        return "unknown"

    def _move_bar(self, first: bool) -> None:
        try:
            if first:  # created now, so that the time left does not include start-up
                self.bar = tqdm(total=self.sizes.total_steps, initial=self.step, unit="step", dynamic_ncols=True)
            self.bar.n = self.step
            self.bar.set_postfix_str(self._figures(), refresh=True)
        except OSError:
            drop(sys.stderr)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.bar is not None:
            with contextlib.suppress(OSError):
                self.bar.close()

    def _figures(self) -> str:
        parts = [
            ("throughput/images_per_s", "{:,.0f} images/s"),
            ("train/loss", "loss {:.3f}"),
            ("train/top1", "top-1 {:.1f} %"),
            ("val/top1", "val {:.2f} %"),
        ]
        texts = [form.format(self.shown[name]) for name, form in parts if name in self.shown]
        costs = {currency: self.shown.get(f"cost/{currency}") for currency in ("usd", "eur")}
        return "  ".join([*texts, *prices.in_currencies(costs)])
