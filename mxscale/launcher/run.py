"""A run as the parent sees it, attempt by attempt: prepare, start the ranks, watch, sum up.

The parent never imports mxnet: a child answers for it.
"""

import sys
import time
from dataclasses import replace
from typing import NamedTuple, Optional

import psutil

from mxscale.config.schema import Config, Machine
from mxscale.config.sizes import unsaved
from mxscale.cost import run_cost
from mxscale.environment import hosts
from mxscale.launcher import announcement, backend_probe, budget, container, dry_run, outcome, restart, setup
from mxscale.launcher.failure import Failure, Logs
from mxscale.launcher.progress import say
from mxscale.launcher.supervisor import Signals, Watched, supervise
from mxscale.records import claims, summary
from mxscale.rerun import rerun
from mxscale.rundir.directory import FINISHED, KILLED, RunDir, create
from mxscale.sweep.sweep import Cell
from mxscale.tracking import tracker
from mxscale.tracking.payload import note_params
from mxscale.tracking.sync_state import view_hint
from mxscale.util.errors import ConfigError

TRACKING_S = 30.0  # for what is unsent when the ranks have ended


def execute(
    config: Config, run: Optional[RunDir] = None, first: Optional[rerun.First] = None, cell: Optional[Cell] = None
) -> dict:
    """Start a run, or go on with `run`, or run `first` again; returns its status ({"state", "exit", ...}).

    cell: that of a sweep it is.

    Raises ConfigError before the first step, setup.DiskFailed where not even the status could be written.
    """
    began = (cell and cell.since) or psutil.Process().create_time()
    claims.check(config.claims)
    if first and config.budget.dry_run:
        raise ConfigError(f"budget.dry_run=true with {first.source}: what the first run cost is on its record")
    nodes = hosts.find(config)
    price = price_of(config, machine_of(config, nodes), run, first)
    if not config.budget.dry_run:  # a bound is no reason not to say what a run costs
        budget.check(config.budget, price, *run_cost.so_far(run, price))
    image = container.identify(config.launch.image) if config.launch.kind == "docker" else None
    weights_file = setup.pretrained_file(config, run)
    if config.tracking.enabled:
        tracker.store_uri(config)  # refuses what is none
    if config.budget.dry_run:
        if run:
            return dry_run.of_rest(run, config, price)
        return dry_run.of_new_run(config, nodes, image, price, weights_file, began)
    fresh = run is None
    run = run or create(config)
    with setup.locked(run), setup.disk_watched(run, config), Signals() as signals:
        with setup.undone_if_refused(run, config, fresh):
            if first:
                rerun.begin(run, first)
            if cell:
                cell.began(run)
                signals.reason = signals.reason or (cell.sweep.stop_reason() and "SIGTERM")  # of a moment ago
            ready = begin(run, config, nodes, image, price, weights_file, began, signals)
            note_params(run)
            mirror = tracker.open_mirror(run, config.tracking, run_cost.cost_of(run))
        status, failure = train(run, ready, signals, mirror)
        for number in range(1, config.launch.restarts + 1):
            if failure is None or not failure.outside or signals.reason:
                break
            try:
                ready = begin_again(run, config, nodes, price, failure, ready.logs, number, signals)
            except ConfigError as error:
                say(f"no restart: {error}")
                break
            mirror.next_attempt(run_cost.cost_of(run))
            status, failure = train(run, ready, signals, mirror)
        status = rerun.conclude(run, status)
        # Who presses Ctrl-C now does not want to wait for a slow server
        stopped = status["state"] == KILLED
        unsent = mirror.finish(TRACKING_S, unwanted=lambda: signals.urgent or bool(signals.reason and not stopped))
    if ready.trains:
        say(summary.table(run, view_hint(run)))
    if unsent:
        say(str(unsent))
    tell_how_it_ended(run, config, status, failure, ready.logs)
    return status


class Ready(NamedTuple):
    """An attempt whose ranks can be started."""

    config: Config  # the preparation may have put the input of pretrained weights into it
    attempt: int
    stamps: dict
    logs: Logs
    trains: bool  # False: stopped while it was prepared


def begin(run, config, nodes, image, price, weights_file, began: float, signals: Signals, ranks=None) -> Ready:
    """All that comes before the ranks of an attempt.  Raises ConfigError.  ranks: see setup.place."""
    attempt = setup.begin_attempt(run, config, price, weights_file, began, signals)
    logs = Logs(run.path / "ranks")
    stamps = {"began": began, "compose": time.time() - began}
    setup.place(run, config, nodes, image, ranks)
    setup.prepare(run, config, attempt, signals)
    stamps["preparation"] = time.time() - began - stamps["compose"]
    config = run.config() if signals.reason else backend_probe.settle(run, run.config(), attempt, signals)
    if signals.reason:
        return Ready(config, attempt, stamps, logs, False)
    plan = run.plan()
    announcement.announce(run, config, plan, run.read("price.json"))
    if config.budget.bounds:
        budget.check_prepared(run, config, attempt)
    plan = setup.record_environment(run, config, plan)
    setup.note_ranks(run, plan.sizes.ranks)
    from mxscale.perfmodel import forecast  # loads NumPy: not before the preparation, which it would delay

    say(forecast.begin(run, config))
    rerun.compare(run, config)
    return Ready(config, attempt, stamps, logs, True)


def begin_again(run, config, nodes, price, failure: Failure, logs: Logs, number: int, signals: Signals) -> Ready:
    """The same after a failure, on the hosts that are left.  Raises ConfigError, the run left as it failed."""
    left = restart.left_over(nodes)
    if nodes and not left:
        raise ConfigError("no host can be reached")
    tell_last_lines(failure, logs)
    say(restart.announcement(failure, number, config, nodes, left))
    began = run.attempts[-1]["ended_ms"] / 1000  # the machines were paid for meanwhile
    price = {**price, "nodes": machine_of(config, left).nodes}
    image = run.plan().image
    # What was settled before (the back end of comm=auto, the input of pretrained weights) stays
    config, ranks = run.config(), restart.fitting(config.launch.ranks, left)
    with setup.undone_if_refused(run, config, fresh=False):
        return begin(run, config, left, image, price, setup.pretrained_file(config, run), began, signals, ranks)


def price_of(config: Config, machine: Machine, run: Optional[RunDir], first: Optional[rerun.First] = None) -> dict:
    """The price of a run, that of its first start where it goes on, or of `first`, on the machines that it has now.

    Raises ConfigError.
    """
    if first:
        return first.price(machine.nodes, config.launch.setup_minutes)
    known = run and run.read("price.json")
    if known:
        return {**known, "nodes": machine.nodes}
    return run_cost.pricing(config)(machine)


def machine_of(config: Config, nodes) -> Machine:
    """What is paid for: at least the hosts that ranks are on."""
    return replace(config.machine, nodes=max(config.machine.nodes, len(nodes)))


def train(run: RunDir, ready: Ready, signals: Signals, mirror):
    """Start the ranks, watch them to their end, sum up; (status, Failure or None)."""
    ranks, watched = 0, Watched(signals.reason, None)
    if ready.trains:
        plan = run.plan()
        ranks = ready.config.comm.processes(plan.sizes.ranks)
        watched = supervise(run, ready.config, plan, ready.attempt, signals, mirror)
    return outcome.end_attempt(run, ranks, ready.attempt, watched, ready.stamps, ready.logs)


def tell_how_it_ended(run: RunDir, config: Config, status: dict, failure: Optional[Failure], logs: Logs) -> None:
    """What the one that failed said last, how to go on, and the error as the last line."""
    if status["state"] == FINISHED:
        return
    if status["state"] == KILLED:
        higher = "with a higher bound, " if status["reason"] == budget.REASON else ""
        say(f"interrupted ({status['reason']}); {higher}{way_on(run, config, 'go on with')}")
        return
    tell_last_lines(failure, logs)
    say(f"the ranks' logs are in {run.path}/ranks; {way_on(run, config, 'to go on')}")
    say(f"error: {status['error']}", sys.stderr)


def tell_last_lines(failure: Failure, logs: Logs) -> None:
    for name in failure.of:
        lines = logs.last_lines(name)
        say("\n".join([f"the last lines of ranks/{name}.log:", *(f"  {line}" for line in lines)] if lines else
                      [f"ranks/{name}.log says nothing of this attempt"]))  # fmt: skip


def way_on(run: RunDir, config: Config, how: str) -> str:
    """`how`, and the command; or why there is none."""
    lost = unsaved(config.comm) if run.has_checkpoint() else None
    return f"it can't go on: {lost}" if lost else f"{how}: {setup.resume_command(run, config)}"
