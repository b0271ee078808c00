"""What a run would cost, said before anything is spent: `budget.dry_run=true`.

Data, network and weights are prepared as for a run, so that its steps are known; no rank is started, and nothing of
the run is left behind.
"""

import dataclasses
from typing import NamedTuple, Optional

from mxscale.config import signature as identity
from mxscale.config.schema import Config
from mxscale.config.sizes import sizes
from mxscale.cost import prices, run_cost
from mxscale.launcher import announcement, backend_probe, budget, setup
from mxscale.launcher.progress import say
from mxscale.launcher.supervisor import Signals
from mxscale.records import summary
from mxscale.rundir import directory
from mxscale.rundir.directory import DONE, FINISHED, INTERRUPTED, RunDir
from mxscale.rundir.plan import Plan
from mxscale.util.errors import ConfigError

ENDED = {"state": "DRY_RUN", "exit": DONE, "summary": {}}  # in place of a run's status


class Rate(NamedTuple):
    """How fast a run will be, and what else takes time.  None: not known, and not counted."""

    images_per_s: float  # of all ranks together
    source: str
    start_s: Optional[float] = None  # from the parent's start to the first step
    validation_s: Optional[float] = None
    checkpoint_s: Optional[float] = None


def of_new_run(config: Config, nodes, image, price: dict, weights_file: Optional[str], began: float) -> dict:
    """Prepare a run, say what it would cost, take its directory away again.  Raises ConfigError."""
    run = directory.create(config)
    with setup.locked(run), Signals() as signals, setup.undone_if_refused(run, config, fresh=True):
        setup.begin_attempt(run, config, price, weights_file, began, signals)
        setup.place(run, config, nodes, image)
        setup.prepare(run, config, 1, signals)
        if not signals.reason:
            config = backend_probe.settle(run, run.config(), 1, signals)
            plan = run.plan()
            announcement.announce(run, config, plan, price)
            plan = setup.record_environment(run, config, plan)
            say(told(config, plan, price, expected_rate(run, config, plan)))
        setup.discard(run)
    return {**ENDED, "exit": INTERRUPTED} if signals.reason else ENDED


def of_rest(run: RunDir, config: Config, price: dict) -> dict:
    """Say what going on with `run` would cost.  Nothing is written."""
    plan = run.plan()
    if plan.weak_signature is None:
        raise ConfigError(f"budget.dry_run=true with resume={run}: that run was never prepared; start a new one")
    before = plan.sizes
    ranks = config.launch.ranks if isinstance(config.launch.ranks, int) else before.ranks
    planned = sizes(config, ranks, before.train_images, before.shards)
    done = max((int(path.name) for path in run.checkpoints.glob("[0-9]*")), default=0)
    rate = _rate_of(run, f"median of {run}") or expected_rate(run, config, plan)
    say(told(config, dataclasses.replace(plan, sizes=planned), price, rate, done, run_cost.so_far(run, price)))
    return ENDED


def told(config: Config, plan: Plan, price: dict, rate: Optional[Rate], done: int = 0, spent=((), (1,))) -> str:
    """What is to be said.  done: steps of a run that goes on; spent: run_cost.so_far of it."""
    attempts_s, nodes = spent[0], [*spent[1][:-1], price.get("nodes", 1)]
    hour = prices.cost({**price, "setup_minutes": 0}, [3600]) if price["known"] else None
    if rate is None:
        unknown = f"hours unknown: no earlier run of this config in {config.runs}/{config.entry}; "
        lines = [("cost", f"{_money(hour)} per hour; {unknown}give budget.images_per_s=N")]
        if hour is None:
            lines = [("cost", f"unknown: {price['why']}; {unknown}give budget.images_per_s=N")]
        return _table(lines)
    parts, missing = _parts(config, plan, rate, done)
    seconds = sum(parts.values())
    setup_s = 0 if attempts_s else 60 * config.launch.setup_minutes
    sums = ", ".join(f"{name} {value:.1f}" for name, value in {"set-up": setup_s, **parts}.items() if value)
    not_counted = f"; not counted, because not known: {', '.join(missing)}" if missing else ""
    lines = [
        ("rate", f"{rate.images_per_s:,.1f} images/s ({rate.source})"),
        ("time", f"{(seconds + setup_s) / 3600:.4g} h = {seconds + setup_s:,.1f} s ({sums}{not_counted})"),
    ]
    if hour is None:
        return _table([*lines, ("cost", f"unknown: {price['why']}")])
    total = prices.cost(price, [*attempts_s, seconds], nodes)
    before = prices.cost(price, attempts_s, nodes[:-1]) if attempts_s else None
    already = f", {_money(before)} of it spent already" if before else ""
    lines.append(("cost", f"{_money(total)} ({_money(hour)} per hour{already})"))
    for currency, most in config.budget.bounds.items():
        over = total[currency] > most
        verdict = "less than that: the run would stop before its end" if over else "enough"
        lines.append(("budget", f"{budget.told({currency: most})} is {verdict}"))
    return _table(lines)


def _parts(config: Config, plan: Plan, rate: Rate, done: int):
    """({what: seconds}, what is not known) of the steps after `done`."""
    size, every = plan.sizes, config.checkpoint
    total, epoch = size.total_steps, size.steps_per_epoch
    validations = len(budget.turns(done, total, config.validate_every * epoch))
    tests = (plan.splits["test"].count if "test" in plan.splits else 0) / max(1, plan.splits["val"].count)
    saved = {n for n in (every.every_epochs * epoch, every.every_steps) if n}
    checkpoints = len(budget.turns(done, total, *saved))
    parts = {"training": max(0, total - done) * size.global_batch / rate.images_per_s}
    counted = (
        ("start", rate.start_s, 1),
        ("validation and test", rate.validation_s, validations + tests),
        ("checkpoints", rate.checkpoint_s, checkpoints),
    )
    parts.update({name: each * times for name, each, times in counted if each is not None})
    return parts, [name for name, each, _ in counted if each is None]


def _money(amounts: Optional[dict]) -> str:
    return " = ".join(f"{amount:.4f} {currency.upper()}" for currency, amount in (amounts or {}).items())


def _table(lines) -> str:
    return "\n".join(f"{name:<9} {text}" for name, text in lines)


# ---------------------------------------------------------------- how fast


def expected_rate(run: RunDir, config: Config, plan: Plan) -> Optional[Rate]:
    """What is known of the speed of a prepared run: given by hand, or that of an earlier one; None: nothing is."""
    if config.budget.images_per_s:
        return Rate(config.budget.images_per_s, "budget.images_per_s")
    earlier = alike(run, config, plan)
    if earlier:
        return _rate_of(earlier, f"median of {earlier}")
    from mxscale.perfmodel import forecast  # loads NumPy

    made = forecast.predict(run, config)
    return Rate(made["plan/images_per_s"], made["source"]) if made["known"] else None


def alike(run: RunDir, config: Config, plan: Plan) -> Optional[RunDir]:
    """The newest finished run that is as fast: the same but for its length, seed, learning rate and price."""
    wanted = _speed_key(run, config, plan)
    for other in directory.runs_of(run.path.parents[1], run.path.parent.name):
        try:
            known = other.plan()
            if other.path == run.path or not known.sizes or known.sizes.global_batch != plan.sizes.global_batch:
                continue
            if other.state != FINISHED:
                continue
            if _speed_key(other, other.config(), known) == wanted:
                return other
        except ConfigError:  # of another version
            continue
    return None


def _speed_key(run: RunDir, config: Config, plan: Plan) -> tuple:
    """What a run's speed depends on: all but what this puts to one side."""
    launch = dataclasses.replace(config.launch, ranks=plan.sizes.ranks)
    same = dataclasses.replace(summary.for_speed(config), launch=launch)
    tags = (run.read("environment.json") or {}).get("tags", {})
    where = config.machine.instance or tags.get("machine")
    signature = identity.signature(same, plan.data_digest, plan.pretrained_sha256)
    return signature, where, tags.get("build"), plan.device, plan.threads


def _rate_of(run: RunDir, source: str) -> Optional[Rate]:
    median = run.figures.get("throughput/median")
    if not median:
        return None
    config, plan = run.config(), run.plan()
    pace = budget.Pace(run, config, plan)
    attempt = run.attempts[0]
    first = [line for line in run.lines() if line["attempt"] == 1]
    start = (first[0]["time_ms"] - attempt["started_ms"]) / 1000 if first else None
    return Rate(median, source, start, pace.validation_s, pace.checkpoint_s)
