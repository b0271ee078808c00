"""Terminal output of a run: a line for each validation and every 30 seconds."""

import json
import time
from typing import Callable, Iterator, Optional

from mxscale.cost import prices
from mxscale.environment.other_programs import OtherPrograms, remark
from mxscale.rundir.directory import RunDir
from mxscale.rundir.plan import Plan
from mxscale.util.terminal import echo

LINE_S = 30.0  # between two lines
BETWEEN_STEPS = ("validation", "checkpoint")  # phases of a heartbeat
SLOW_S = 10.0  # a step, or a validation batch, that takes as long is named
STOPPING_S = 5.0  # between two lines on what a stop waits for


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
    """Shows the progress of one attempt.

    Args:
        cost_at: A line of metrics.jsonl -> {"cost/usd": ...}, as run_cost.cost_of returns it.
    """

    def __init__(self, run: RunDir, plan: Plan, cost_at: Callable[[dict], dict]):
        self.follower, self.sizes, self.cost_at = Follower(run), plan.sizes, cost_at
        self.shown, self.step, self.printed = {}, 0, time.monotonic()
        self.first: Optional[int] = None  # step of the attempt's first line
        self.first_at = self.last_at = self.stop_asked_at = None  # in seconds: of the lines, of a stop request
        self.validated: Optional[int] = None  # step of the last validation
        self.run, self.others = run, OtherPrograms()

    def update(self) -> bool:
        """Show new lines; return whether the attempt has written a line."""
        for line in self.follower.new_lines():
            self.shown.update(line["metrics"], **self.cost_at(line))
            self.step, self.last_at = line["step"], time.monotonic()
            if "val/top1" in line["metrics"]:
                self.validated = self.step
            if self.first is None:
                self.first, self.first_at = self.step, self.last_at
            if "val/top1" in line["metrics"] or (self._due(LINE_S) and self.step % self.sizes.steps_per_epoch):
                self._print(self._progress())
        if self.first is None:
            return False
        if self.stop_asked_at:
            if self._due(STOPPING_S):
                self._print(f"stopping, asked {time.monotonic() - self.stop_asked_at:.0f} s ago; {self._under_way()}")
        elif self._due(LINE_S) and time.monotonic() >= self.last_at + LINE_S:
            self._print(self._under_way(SLOW_S))
        return True

    def stop_asked(self) -> None:
        """Say from now on what the stop waits for."""
        self.stop_asked_at = self.printed = time.monotonic()

    def _due(self, interval_s: float) -> bool:
        return time.monotonic() >= self.printed + interval_s

    def _print(self, text: str) -> None:
        epoch = round(self.step / self.sizes.steps_per_epoch, 2)
        echo(f"epoch {epoch:g}  step {self.step}/{self.sizes.total_steps}  {text}")
        self.printed = time.monotonic()
        self.shown.pop("val/top1", None)  # printed once, where it is new

    def _progress(self) -> str:
        """Return the figures of the last line, the time left, and whether the machine is busy with other programs."""
        return "  ".join(filter(None, (self._figures(), self._time_left(), remark(self.others.share()))))

    def _time_left(self) -> str:
        """Return the time until the last step at the attempt's rate so far, which includes its validations."""
        done, remaining = self.step - self.first, self.sizes.total_steps - self.step
        if not (done and remaining):
            return ""
        from tqdm import tqdm  # not at the start, whose time it would add to

        return f"about {tqdm.format_interval((time.monotonic() - self.first_at) / done * remaining)} left"

    def _under_way(self, least_s: float = 0.0) -> str:
        """Return what rank 0 is doing and for how long, by its heartbeat: lines of metrics may be ten steps apart.

        If it has not been doing that for `least_s`, return the progress.
        """
        try:
            now = json.loads(self.run.rank_alive(0).read_text())
        except (OSError, ValueError):  # just being written
            return self._progress()
        self.step = max(self.step, self.first + now["steps"])
        if self.step >= self.sizes.total_steps:
            return "test under way" if self.validated == self.step else "last validation and test under way"
        if now["idle_s"] < least_s:
            return self._progress()
        phase, since = now["phase"], f"under way for {now['idle_s']:.0f} s"
        return f"{phase} {since}" if phase in BETWEEN_STEPS else f"step {self.step + 1} {since} (rank 0: {phase})"

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
