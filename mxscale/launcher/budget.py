"""What a run may cost: `budget.max_usd` and `budget.max_eur`.  The run stops before its cost is more.

A run is told to stop, as by a signal, while there is still time for what the stop takes: two steps, a batch of a
validation that is broken off, a checkpoint, the end of the processes; each as long as the longest that was seen of
late, half as much again.  It is left alone where it will finish within the bound.  One that has not ended when the
bound is `end_s` away is ended without a checkpoint: then its last one stands.
"""

import math
import time
from typing import Dict, List, Optional, Set

from mxscale.config.schema import Budget, Config
from mxscale.cost import prices, run_cost
from mxscale.launcher.progress import Follower, say
from mxscale.rundir.directory import RunDir
from mxscale.rundir.plan import Plan
from mxscale.util.errors import ConfigError

REASON = "budget"  # in status.json and in `stop`
END_S = 3.0  # between the ranks' last words and their end, or that of a kill
ELSEWHERE_S = 5.0  # more, where ranks of other hosts are ended by ssh
UNSEEN_S = 3.0  # what a step, a validation or a checkpoint is taken to last before one was seen
MARGIN = 1.5  # on what was seen
RECENT = 20  # lines of metrics that steps are judged by


def check(budget: Budget, price: dict, attempts_s=(), nodes=(1,)) -> None:
    """Refuse bounds that can't be watched, or that another attempt would pass by its start alone.

    attempts_s: seconds of the attempts before; nodes: theirs, and those of the one to come.  Raises ConfigError.
    """
    bounds = budget.bounds
    for currency, most in bounds.items():
        setting = f"budget.max_{currency}={most:g}"
        if not price["known"]:
            raise ConfigError(f"{setting} needs a price: {price['why']}")
        if price[f"{currency}_per_hour"] is None:
            other = "eur" if currency == "usd" else "usd"
            raise ConfigError(
                f"{setting}: {currency.upper()} unknown, no exchange rate on or before {price['date']}; "
                f"use budget.max_{other}"
            )
        if prices.affordable_s(price, {currency: most}, attempts_s, nodes) <= 0:
            least = prices.cost(price, [*attempts_s, 0], nodes)[currency]
            raise ConfigError(f"{setting}: {_start(price, attempts_s)} {least:.4f} {currency.upper()}; give more")


def _start(price: dict, attempts_s) -> str:
    """What the least cost is made of, as it begins a sentence."""
    parts = []
    if attempts_s:
        parts.append("what is spent already")
    elif price["setup_minutes"]:
        parts.append(f"{price['setup_minutes']:g} minutes of set-up")
    if price["billing"] == "per_hour":
        parts.append("a started hour")
    elif price["minimum_s"]:
        parts.append(f"{price['minimum_s']} s at least")
    return f"the start alone ({', '.join(parts) or 'of it'}) comes to"


class Purse:
    """Watches the cost of an attempt.  Without a bound it never says anything."""

    def __init__(self, run: RunDir, config: Config, plan: Plan, attempt: int):
        self.reason: Optional[str] = None  # REASON, once the run was told to stop
        self.bounds, self.end_s = config.budget.bounds, end_s(plan)
        self.deadline = deadline(run, config.budget, attempt)
        self.pace = Pace(run, config, plan) if self.bounds else None

    def wants_stop(self) -> bool:
        """Whether it is time to ask the ranks to stop; true once."""
        if self.reason or math.isinf(self.deadline):
            return False
        self.pace.look()
        now = time.time()
        if now + self.pace.stopping_s() < self.deadline or now + self.pace.finishing_s() < self.deadline:
            return False
        self.reason = REASON
        return True

    def empty(self) -> bool:
        """Whether nothing may be waited for any more."""
        if time.time() < self.deadline - self.end_s:
            return False
        self.reason = REASON
        say(f"{told(self.bounds)} is spent: ending the ranks; the last checkpoint stands")
        return True

    def announcement(self) -> str:
        return f"{told(self.bounds)} is nearly spent: finishing the step and writing a checkpoint"


def end_s(plan: Plan) -> float:
    """Seconds between the ranks' last words, or the decision to kill them, and the end of all of them."""
    return END_S + (0.0 if all(host.here for host in plan.hosts) else ELSEWHERE_S)


def told(bounds: Dict[str, float]) -> str:
    return " and ".join(f"budget.max_{currency}={most:g}" for currency, most in bounds.items())


def deadline(run: RunDir, budget: Budget, attempt: int) -> float:
    """When the cost of the attempt under way passes a bound, in seconds since 1970; inf where there is none."""
    if not budget.bounds:
        return math.inf
    price, spans = run.read("price.json"), run_cost.Attempts(run)
    began = spans.spans[-1]["started_ms"]
    before = spans.seconds(began, attempt)[:-1]
    return began / 1000 + prices.affordable_s(price, budget.bounds, before, spans.nodes(attempt, price["nodes"]))


def check_prepared(run: RunDir, config: Config, attempt: int) -> None:
    """Before the ranks are started: refuse where no time is left for them.  Raises ConfigError."""
    left = deadline(run, config.budget, attempt) - time.time()
    least = UNSEEN_S + end_s(run.plan())
    if left < least:
        raise ConfigError(
            f"{told(config.budget.bounds)}: after the preparation it pays for {max(0.0, left):.0f} s more, and the "
            f"ranks' start and end take {least:.0f} s or longer; give more"
        )


class Pace:
    """How long steps, validations and checkpoints of a run take, off its metrics file and its checkpoints.

    All in seconds, each the longest seen, times MARGIN; UNSEEN_S where none was.
    """

    def __init__(self, run: RunDir, config: Config, plan: Plan):
        self.run, self.config, self.sizes, self.end_s = run, config, plan.sizes, end_s(plan)
        self.images = {name: split.count for name, split in plan.splits.items()}
        self.step, self.steps_s, self.validation_s, self.checkpoint_s = 0, [], None, None
        self._last = None
        for line in run.history():  # of earlier attempts
            self._note(line)
        if self._last:
            self._note_checkpoint(self._last)
        self.follower = Follower(run)

    def look(self) -> None:
        """Take in what is new."""
        for line in self.follower.new_lines():
            self._note(line)
        if self._last:
            self._note_checkpoint(self._last)

    def _note(self, line: dict) -> None:
        before, metrics = self._last, line["metrics"]
        if before is not None and before["step"] != line["step"]:
            self._note_checkpoint(before)
        same = before is not None and before["attempt"] == line["attempt"]
        if same and before["step"] == line["step"] and "val/loss" in metrics:
            self.validation_s = max(self.validation_s or 0.0, _between(before, line))
        rate = metrics.get("throughput/images_per_s")
        if rate:
            self.steps_s = [*self.steps_s, self.sizes.global_batch / rate][-RECENT:]
        elif same and "train/loss" in metrics and line["step"] > before["step"]:  # ranks that don't wait for each other
            self.steps_s = [*self.steps_s, _between(before, line) / (line["step"] - before["step"])][-RECENT:]
        self._last, self.step = line, line["step"]

    def _note_checkpoint(self, line: dict) -> None:
        """How long after the last line of its step a checkpoint was whole."""
        try:
            whole = (self.run.checkpoint(line["step"]) / "MANIFEST").stat().st_mtime
        except OSError:
            return
        took = whole - line["time_ms"] / 1000
        if 0 < took < 3600:  # else the storage has another clock, or it is one of an earlier attempt
            self.checkpoint_s = max(self.checkpoint_s or 0.0, took)

    def step_s(self) -> float:
        return MARGIN * max(self.steps_s, default=UNSEEN_S / MARGIN)

    def one_validation_s(self) -> float:
        """Before one was seen: as if its images were trained on, which takes longer."""
        if self.validation_s is not None:
            return MARGIN * self.validation_s
        return max(UNSEEN_S, self.images["val"] / self.sizes.global_batch * self.step_s())

    def one_checkpoint_s(self) -> float:
        return MARGIN * self.checkpoint_s if self.checkpoint_s is not None else UNSEEN_S

    def test_s(self) -> float:
        return self.one_validation_s() * self.images.get("test", 0) / max(1, self.images["val"])

    def stopping_s(self) -> float:
        """Until the processes of a run that is asked to stop now are gone, at the worst."""
        steps = 3  # or two, and a batch of a validation
        if not self.config.comm.entry.in_step:  # its ranks meet only to validate or to write a checkpoint
            steps = 1 + min(n - self.step % n for n in self._meetings())
        return steps * self.step_s() + self.one_checkpoint_s() + self.end_s

    def finishing_s(self) -> float:
        """Until a run that is left alone has ended."""
        done, total = self.step, self.sizes.total_steps
        validations = len(turns(done, total, self._meetings()[0]))
        checkpoints = len(turns(done, total, *self._meetings()))  # after a validation too, where it is the best
        return (
            (total - done) * self.step_s()
            + validations * self.one_validation_s()
            + checkpoints * self.one_checkpoint_s()
            + self.test_s()
            + self.end_s
        )

    def _meetings(self) -> List[int]:
        """Steps between two validations, and between two checkpoints."""
        epoch, every = self.sizes.steps_per_epoch, self.config.checkpoint
        return [n * epoch for n in (self.config.validate_every, every.every_epochs)] + (
            [every.every_steps] if every.every_steps else []
        )


def _between(before: dict, line: dict) -> float:
    return max(0.0, (line["time_ms"] - before["time_ms"]) / 1000)


def turns(done: int, total: int, *every: int) -> Set[int]:
    """The steps after `done` that are a multiple of one of `every`, and the last."""
    found = {step for each in every for step in range(each * (done // each + 1), total + 1, each)}
    return found | {total} if total > done else found
