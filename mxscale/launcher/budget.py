"""The budget of a run: `budget.max_usd`, `max_eur` and `minutes`. A run stops before it exceeds one of them.

A run that is expected to end in time goes on. If only its last steps exceed the bound, a training whose schedule was
fitted to it (epochs=auto) ends without them, and is finished: with validation and test. Else the ranks are asked to
stop, as by a signal, while there is time for what a stop takes: two steps, a batch of an interrupted validation, a
checkpoint, the end of the processes. Each is estimated by the longest recent duration times 1.5. Ranks that are still
running `shutdown_s` before the bound are killed; their last checkpoint stays.
"""

import math
import statistics
import time
from typing import Iterable, List, Optional, Sequence

from mxscale.config.schema import Budget
from mxscale.cost import prices, run_cost
from mxscale.cost.prices import Usage
from mxscale.distributed.stop_consensus import Request
from mxscale.launcher.progress import Follower
from mxscale.rundir.directory import RunDir
from mxscale.rundir.plan import Plan
from mxscale.rundir.price import Price
from mxscale.util.errors import ConfigError
from mxscale.util.terminal import echo

REASON = "budget"  # in status.json and in `stop`
SHUTDOWN_S = 3.0  # between the ranks' status, or a kill, and the end of their processes
REMOTE_SHUTDOWN_S = 5.0  # more, if ranks of other hosts are ended by ssh
DEFAULT_S = 3.0  # of a step or a checkpoint before the first was observed
MARGIN = 1.5  # on observed durations
OMITTED = 0.25  # of the steps of a fitted training, at most, counted from the last line of metrics
RECENT = 20  # lines of metrics from which the step time is estimated


def check(budget: Budget, price: Price, earlier: Sequence[Usage] = ()) -> None:
    """Refuse bounds without a price, and a budget that the start of another attempt exceeds.

    Args:
        price: Content of price.json, with the number of nodes of that attempt.
        earlier: The attempts of a resumed run.

    Raises:
        ConfigError: The budget is refused.
    """
    bounds, following = budget.bounds, Usage(0, price.nodes)
    if minutes_left_s(budget, earlier) <= 0:
        raise ConfigError(f"budget.minutes={budget.minutes:g}: the earlier attempts have used it up; raise it")
    for currency, bound in bounds.items():
        setting = f"budget.max_{currency}={bound:g}"
        if not price.known:
            raise ConfigError(f"{setting} needs a price: {price.why}")
        if price.per_hour(currency) is None:
            other = "eur" if currency == "usd" else "usd"
            raise ConfigError(
                f"{setting}: {currency.upper()} unknown, no exchange rate on or before {price.date}; "
                f"use budget.max_{other}"
            )
        if prices.affordable_s(price, {currency: bound}, earlier, following) <= 0:
            least = prices.bill(price, [*earlier, following])[currency]
            billed = "the start with earlier attempts" if earlier else "the start alone (set-up, least billed time)"
            raise ConfigError(f"{setting}: {billed} costs {least:.4f} {currency.upper()}; raise it")


class BudgetMonitor:
    """Decides when an attempt has to stop to stay within its budget; never, if there is no bound."""

    def __init__(self, run: RunDir, budget: Budget, plan: Plan, attempt: int):
        self.reason: Optional[str] = None  # REASON, once the attempt has to stop
        self.budget, self.shutdown_s = budget, shutdown_s(plan)
        self.deadline = deadline(run, budget, attempt)
        self.durations = Durations(run, plan) if budget.stated else None
        self.fitted = bool(budget.stated) and run.config().schedule.steps is not None
        self.finishing = False  # the ranks were asked to end without the last steps

    def due(self) -> Request:
        """Return what the ranks have to be asked for now, each request once."""
        if self.reason or self.finishing or math.isinf(self.deadline):
            return Request.NONE
        self.durations.update()
        left_s = self.deadline - time.time()
        if self.durations.finish_s() < left_s:
            return Request.NONE
        nearly_done = self.durations.steps_left <= OMITTED * self.durations.sizes.total_steps
        if self.fitted and nearly_done and self.durations.finish_now_s() >= left_s:
            self.finishing = True
            return Request.FINISH
        if self.durations.stop_s() < left_s:
            return Request.NONE
        self.reason = REASON
        return Request.STOP

    def exhausted(self) -> bool:
        """Return whether the ranks have to be killed now."""
        if time.time() < self.deadline - self.shutdown_s:
            return False
        self.reason = REASON
        echo(f"{self.budget.stated} is spent: ending the ranks; the last checkpoint is complete")
        return True

    def message(self, request: Request) -> str:
        what = "finishing the step and writing a checkpoint" if request == Request.STOP else "omitting the last steps"
        return f"{self.budget.stated} is nearly spent: {what}"


def shutdown_s(plan: Plan) -> float:
    """Return the seconds between the ranks' status, or the decision to kill them, and the end of all of them."""
    return SHUTDOWN_S + (0.0 if all(host.here for host in plan.hosts) else REMOTE_SHUTDOWN_S)


def deadline(run: RunDir, budget: Budget, attempt: int) -> float:
    """Return when the current attempt exceeds its budget, in seconds since 1970; inf without a budget."""
    if not budget.stated:
        return math.inf
    price, attempts = run.price(), run.attempts
    began = attempts[-1].started_ms
    *before, following = run_cost.usage(attempts, price, attempt, began)
    return began / 1000 + allowed_s(budget, price, before, following)


def allowed_s(budget: Budget, price: Price, before: Sequence[Usage], following: Usage) -> float:
    """Return the wall time in seconds that an attempt may last; see prices.affordable_s."""
    return min(minutes_left_s(budget, before), prices.affordable_s(price, budget.bounds, before, following))


def minutes_left_s(budget: Budget, before: Sequence[Usage]) -> float:
    """Return the seconds that budget.minutes leaves after earlier attempts; inf without it."""
    return math.inf if budget.minutes is None else 60 * budget.minutes - sum(used.seconds for used in before)


def check_prepared(run: RunDir, budget: Budget, attempt: int) -> None:
    """Refuse a prepared attempt if the budget leaves no time for its ranks. Raises ConfigError."""
    left = deadline(run, budget, attempt) - time.time()
    least = DEFAULT_S + shutdown_s(run.plan())
    if left < least:
        raise ConfigError(
            f"{budget.stated}: it leaves {max(0.0, left):.0f} s after the preparation, and the "
            f"ranks' start and end take at least {least:.0f} s; raise it"
        )


class Durations:
    """The durations of steps and checkpoints of a run, from its metrics file and its checkpoints, in seconds."""

    def __init__(self, run: RunDir, plan: Plan):
        self.run, self.sizes, self.shutdown_s = run, plan.sizes, shutdown_s(plan)
        self.steps_s: List[float] = []  # of the last lines
        self.checkpoint_s: Optional[float] = None  # the longest; None before the first
        self.validation_s: Optional[float] = None  # of the last one
        images = {name: split.count for name, split in plan.splits.items()}
        # Of the last validation and the test, in times of a validation
        self.evaluations = 1 + images.get("test", 0) / max(1, images.get("val", 1))
        self._last: Optional[dict] = None
        self._add(run.history())  # of earlier attempts
        self.follower = Follower(run)

    def update(self) -> None:
        """Add the lines and the checkpoint that were written since the last call."""
        self._add(self.follower.new_lines())

    def _add(self, lines: Iterable[dict]) -> None:
        for line in lines:
            if self._last and self._last["step"] != line["step"]:
                self._add_checkpoint(self._last)
            rate = line["metrics"].get("throughput/images_per_s")
            if rate:
                self.steps_s = [*self.steps_s, self.sizes.global_batch / rate][-RECENT:]
            if self._last and "val/top1" in line["metrics"]:
                self.validation_s = (line["time_ms"] - self._last["time_ms"]) / 1000
            self._last = line
        if self._last:
            self._add_checkpoint(self._last)

    def _add_checkpoint(self, line: dict) -> None:
        """Measure from the last line of a checkpoint's step to its completion."""
        try:
            completed = (self.run.checkpoint(line["step"]) / "MANIFEST").stat().st_mtime
        except OSError:
            return
        took_s = completed - line["time_ms"] / 1000
        if 0 < took_s < 3600:  # else the storage has another clock, or an earlier attempt wrote the checkpoint
            self.checkpoint_s = max(self.checkpoint_s or 0.0, took_s)

    @property
    def steps_left(self) -> int:
        return self.sizes.total_steps - (self._last["step"] if self._last else 0)

    def finish_s(self) -> float:
        """Return the expected time until the run ends by itself; inf if it is unknown."""
        return self._after_s(self.steps_left) + self.shutdown_s

    def finish_now_s(self) -> float:
        """Return the longest time until a run has ended that is asked now to take no further step; inf if unknown."""
        # One step is under way, and the request may miss the next
        return MARGIN * self._after_s(min(2, self.steps_left)) + self.shutdown_s

    def _after_s(self, steps: int) -> float:
        """Return the time of `steps`, the last validation and the test, with checkpoints; inf if it is unknown."""
        if self.validation_s is None or not self.steps_s:
            return math.inf
        evaluations_s, checkpoints_s = self.evaluations * self.validation_s, 2 * (self.checkpoint_s or 0.0)
        return steps * statistics.mean(self.steps_s) + evaluations_s + checkpoints_s

    def stop_s(self) -> float:
        """Return the longest time until the processes of a run that is asked to stop now have ended."""
        step_s = MARGIN * max(self.steps_s) if self.steps_s else DEFAULT_S
        checkpoint_s = DEFAULT_S if self.checkpoint_s is None else MARGIN * self.checkpoint_s
        # Three steps, or two and a batch of a validation; fewer at the end
        steps = min(3, self.steps_left)
        return steps * step_s + checkpoint_s + self.shutdown_s
