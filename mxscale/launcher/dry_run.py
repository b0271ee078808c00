"""The cost of a run before anything is spent: `budget.dry_run=true`.

Data, network and weights are prepared as for a run, so that its steps are known. No rank is started, and nothing of
the run is left behind.
"""

import dataclasses
import statistics
from typing import NamedTuple, Optional

from mxscale.config.schema import Config
from mxscale.config.sizes import sizes
from mxscale.cost import prices, run_cost
from mxscale.cost.prices import Usage
from mxscale.launcher import budget, setup
from mxscale.launcher.context import Resources, RunContext, Signals
from mxscale.launcher.progress import echo
from mxscale.records import earlier_runs
from mxscale.rundir import directory, guards
from mxscale.rundir.directory import DONE, INTERRUPTED, RunDir
from mxscale.rundir.plan import Plan
from mxscale.rundir.price import Price
from mxscale.rundir.status import Status
from mxscale.util.errors import ConfigError


class Speed(NamedTuple):
    """How fast a run will be. Durations that are None are unknown and not counted."""

    images_per_s: float  # of all ranks together
    source: str
    start_s: Optional[float] = None  # from the parent's start to the first step
    validation_s: Optional[float] = None
    checkpoint_s: Optional[float] = None


def execute(config: Config, run: Optional[RunDir], resources: Resources) -> Status:
    """Print what a new run, or the rest of `run`, would cost; return the status. Raises ConfigError."""
    interrupted = False
    if run:
        _report_rest(run, config, resources.price)
    else:
        interrupted = _report_new_run(config, resources)
    return Status(state="DRY_RUN", exit=INTERRUPTED if interrupted else DONE)


def _report_new_run(config: Config, resources: Resources) -> bool:
    """Prepare a run, print its cost, remove its directory; return whether a signal interrupted it."""
    run = directory.create(config)
    with guards.locked(run), Signals() as signals, guards.undone_if_refused(run, config, new=True):
        context, plan = setup.prepared(setup.begin_attempt(RunContext(run, config, resources, signals)))
        if plan:
            echo(report(context.config, plan, resources.price, expected_speed(run, context.config, plan)))
        guards.discard(run)
    return signals.reason is not None


def _report_rest(run: RunDir, config: Config, price: Price) -> None:
    """Print what resuming `run` would cost. Writes nothing."""
    plan = run.plan()
    if plan.weak_signature is None:
        raise ConfigError(f"budget.dry_run=true with resume={run}: that run was never prepared; start a new one")
    before = plan.sizes
    ranks = config.launch.ranks if isinstance(config.launch.ranks, int) else before.ranks
    plan = dataclasses.replace(plan, sizes=sizes(config, ranks, before.train_images, before.shards))
    done = max((int(path.name) for path in run.checkpoints.glob("[0-9]*")), default=0)
    measured = run.figures.get("throughput/median")
    speed = Speed(measured, f"median of {run}", *_durations(run)) if measured else expected_speed(run, config, plan)
    echo(report(config, plan, price, speed, done, run_cost.so_far(run)))


def expected_speed(run: RunDir, config: Config, plan: Plan) -> Optional[Speed]:
    """Return the speed of a prepared run: budget.images_per_s, else the median of earlier runs; None if unknown."""
    if config.budget.images_per_s:
        return Speed(config.budget.images_per_s, "budget.images_per_s")
    same = earlier_runs.same_layout(earlier_runs.comparable(run, plan, "speed_signature"), config, plan)
    if not same:
        return None
    several = f"the median of {len(same)} earlier runs" if len(same) > 1 else "an earlier run"
    rate = statistics.median(other.figures["throughput/median"] for other in same)
    return Speed(rate, f"{several} of this configuration", *_durations(same[0]))


def _durations(run: RunDir) -> tuple:
    """Return the seconds of a run's start, of one validation and of one checkpoint; None for what is unknown."""
    durations = budget.Durations(run, run.config(), run.plan())
    first = next((line for line in run.lines() if line["attempt"] == 1), None)
    start_s = (first["time_ms"] - run.attempts[0].started_ms) / 1000 if first else None
    return start_s, durations.validation_s, durations.checkpoint_s


def report(config: Config, plan: Plan, price: Price, speed: Optional[Speed], done: int = 0, earlier=()) -> str:
    """Return the lines to print.

    Args:
        done: Steps that a resumed run has completed.
        earlier: The attempts of a resumed run.
    """
    hour = prices.cost(dataclasses.replace(price, setup_minutes=0), 3600)
    if speed is None:
        per_hour = f"{_money(hour)} per hour" if hour else f"unknown: {price.why}"
        unknown = f"hours unknown: no earlier run of this config in {config.runs}/{config.entry}"
        return f"cost      {per_hour}; {unknown}; give budget.images_per_s=N"
    parts, missing = _parts(budget.remaining(config, plan, done), plan.sizes.global_batch, speed)
    seconds = sum(parts.values())
    setup_s = 0 if earlier else 60 * config.launch.setup_minutes
    sums = ", ".join(f"{name} {value:.1f}" for name, value in {"set-up": setup_s, **parts}.items() if value)
    not_counted = f"; unknown and not counted: {', '.join(missing)}" if missing else ""
    lines = [
        f"rate      {speed.images_per_s:,.1f} images/s ({speed.source})",
        f"time      {(seconds + setup_s) / 3600:.4g} h = {seconds + setup_s:,.1f} s ({sums}{not_counted})",
    ]
    if hour is None:
        return "\n".join([*lines, f"cost      unknown: {price.why}"])
    total = prices.bill(price, [*earlier, Usage(seconds, price.nodes)])
    before = prices.bill(price, earlier) if earlier else None
    already = f", {_money(before)} of it spent" if before else ""
    lines.append(f"cost      {_money(total)} ({_money(hour)} per hour{already})")
    for currency, bound in config.budget.bounds.items():
        if total.get(currency) is None:
            verdict = "is not comparable: the cost is unknown in that currency"
        else:
            over = total[currency] > bound
            verdict = "is exceeded: the run would stop before its end" if over else "is enough"
        lines.append(f"budget    {budget.describe({currency: bound})} {verdict}")
    return "\n".join(lines)


def _parts(left: budget.Remaining, global_batch: int, speed: Speed):
    """Return ({part: seconds}, unknown parts) of what is left of a run."""
    parts = {"training": left.steps * global_batch / speed.images_per_s}
    counted = (
        ("start", speed.start_s, 1),
        ("validation and test", speed.validation_s, left.validations),
        ("checkpoints", speed.checkpoint_s, left.checkpoints),
    )
    parts.update({name: seconds * times for name, seconds, times in counted if seconds is not None})
    return parts, [name for name, seconds, _ in counted if seconds is None]


def _money(amounts: Optional[dict]) -> str:
    return " = ".join(f"{amount:.4f} {currency.upper()}" for currency, amount in (amounts or {}).items())
