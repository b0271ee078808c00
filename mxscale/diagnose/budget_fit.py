"""`epochs=auto`: a training that its budget leaves time for.

A short run of the same ranks measures steps, validation, test and end. The number of steps follows before the training
starts, and the schedule decays over them. The run records it as `epochs`, `max_steps` and `schedule.steps`, so a resume
and a rerun repeat it.
"""

import math
import shutil
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple, Tuple

from mxscale.config.optimizers import SCHEDULES
from mxscale.config.schema import Config
from mxscale.cost.prices import Usage
from mxscale.diagnose import timing
from mxscale.diagnose.probes import untimed
from mxscale.diagnose.record import ProbeFailed
from mxscale.environment import hosts
from mxscale.launcher import budget, setup
from mxscale.launcher.context import Signals
from mxscale.rundir.directory import RunDir
from mxscale.rundir.plan import Plan
from mxscale.util.errors import ConfigError, RunFailed
from mxscale.util.terminal import echo

WARMUP, TIMED = 2, 10  # steps: of photographs, one differs from the next by 5 %
LEAST_S = 3.0  # of timed steps: where they take less, a second short run takes more of them
SHARE = 0.03  # of the time left, for a second short run
RESERVE = 0.02  # of the time left, at least, for what goes slower than measured


class Durations(NamedTuple):
    """What the parts of a run take, in seconds."""

    start: float  # until the first step, and what the first validation takes longer than others
    step: float
    validation: float  # with a checkpoint
    end: float  # after the last validation: the test, until the last process has ended

    def steps_in(self, seconds: float, interval: int) -> int:
        """Return the most steps of a run of `seconds` that validates after each `interval` of them, and at its end."""
        free = seconds - self.start - self.end
        most = math.ceil(max(0.0, free) / (interval * self.step)) + 1  # validations
        return max(min(math.floor((free - n * self.validation) / self.step), n * interval) for n in range(1, most + 1))


def fitted(config: Config, started: float) -> Config:
    """Return the config with the number of steps that its budget leaves time for.

    Args:
        started: When the run began to be billed, in seconds since 1970.

    Raises:
        ConfigError: The short run is refused, or the budget is too small for a step.
        RunFailed: The short run failed.
        Stopped: A signal arrived.
    """
    price = setup.price_of(config, hosts.find(config))
    budget.check(config.budget, price)
    deadline = started + budget.allowed_s(config.budget, price, (), Usage(0, price.nodes))
    echo(f"epochs=auto: a short run measures what fits into {config.budget.stated}")
    plan, durations = measured(config, WARMUP + TIMED)
    if durations.step * TIMED < LEAST_S:
        steps = min(math.ceil(SHARE * (deadline - time.time()) / durations.step), 1000)
        plan, durations = measured(config, max(steps, WARMUP + TIMED))
    return fitted_to(config, plan, durations, deadline - time.time())


def measured(config: Config, steps: int) -> Tuple[Plan, Durations]:
    """Take steps in a short run, which then validates, and tests, as every run does at its end; discard it."""
    short = replace(untimed(config), max_steps=steps)
    Path(config.runs).mkdir(parents=True, exist_ok=True)
    folder = tempfile.mkdtemp(prefix=".short-run-", dir=config.runs)  # which all hosts see
    try:
        with Signals() as signals:
            run = timing.ShortRun(short, Path(folder) / "0")
            with timing.stopping([run], signals):
                timing.wait_for([run], signals, lambda _: run.process.poll() == 0)
            return run.run().plan(), durations_of(run.run(), time.time())
    except ProbeFailed as error:
        raise RunFailed(f"epochs=auto: the short run failed: {error}") from None
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def durations_of(run: RunDir, ended: float) -> Durations:
    """Return the durations of a run of some steps, whose process ended at `ended`, from its files."""
    lines, plan = list(run.lines()), run.plan()
    at = [(line["time_ms"] / 1000, line["step"], line["metrics"]) for line in lines]
    rates = [metrics[timing.RATE] for _, step, metrics in at if timing.RATE in metrics and step > WARMUP]
    trained = max(when for when, _, metrics in at if timing.RATE in metrics)
    validated = max(when for when, _, metrics in at if "val/top1" in metrics)
    tested = max((when for when, _, metrics in at if "test/top1" in metrics), default=None)
    first = validation = validated - trained
    if tested:  # the second evaluation, with the checkpoint before it, is typical
        validation = min(first, (tested - validated) * plan.splits["val"].count / plan.splits["test"].count)
    step = sum(plan.sizes.global_batch / rate for rate in rates) / len(rates)
    began = (run.path / "price.json").stat().st_mtime  # set-up begins
    return Durations(at[0][0] - began + first - validation, step, validation, ended - validated)


def fitted_to(config: Config, plan: Plan, durations: Durations, left_s: float) -> Config:
    """Return the config with as many steps as `left_s` seconds have room for. Raises ConfigError for less than one."""
    sizes = plan.sizes
    # After the last step a stop for the budget would come this long before its end
    reserve = max(budget.DEFAULT_S + budget.shutdown_s(plan), RESERVE * left_s)
    interval = config.validate_every * sizes.steps_per_epoch
    steps = durations.steps_in(left_s - reserve, interval)
    if steps < 1:
        fixed = durations.start + durations.validation + durations.end + reserve
        raise ConfigError(
            f"{config.budget.stated}: {left_s:.0f} s are left; start, validation and end take {fixed:.0f} s; raise it"
        )
    epochs = steps / sizes.steps_per_epoch
    echo(
        f"epochs=auto: {steps:,} steps, {epochs:.3g} epochs: a step takes {durations.step:.3g} s "
        f"({sizes.global_batch / durations.step:,.0f} images/s), a validation {durations.validation:.3g} s"
    )
    decays = "steps" in SCHEDULES[config.schedule.kind].options
    warmup = min(config.schedule.warmup_epochs, epochs / 3)
    schedule = replace(config.schedule, steps=steps if decays else None, warmup_epochs=warmup)
    log_every = min(config.log_every, max(1, steps // 10))  # the budget knows the step time from these lines
    return replace(config, epochs=math.ceil(epochs), max_steps=steps, log_every=log_every, schedule=schedule)
