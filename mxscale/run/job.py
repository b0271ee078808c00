"""One attempt at a run, as the parent sees it: prepare, start the ranks, watch, sum up.

The parent never imports mxnet: a child answers for it.
"""

import sys
import time
from dataclasses import replace
from datetime import date
from typing import Optional

import psutil

from mxscale.config import Config
from mxscale.run import container, costs, hosts, opening, outcome, probe, summary, tracking
from mxscale.run.progress import say
from mxscale.run.record import view_hint
from mxscale.run.rundir import FINISHED, KILLED, RunDir
from mxscale.run.watch import Signals, Watched, supervise
from mxscale.scale import claims, prices

TRACKING_S = 30.0  # for what is unsent when the ranks have ended


def execute(config: Config, run: Optional[RunDir] = None) -> dict:
    """Start a run, or go on with `run`; returns its status ({"state", "exit", ...}).

    Raises ConfigError before the first step, opening.DiskFailed where not even the status could be written.
    """
    began = psutil.Process().create_time()
    claims.check(config.claims)
    nodes = hosts.find(config)
    machine = replace(config.machine, nodes=max(config.machine.nodes, len(nodes)))
    price = prices.freeze_price(machine, config.launch.setup_minutes, date.today())
    image = container.identify(config.launch.image) if config.launch.kind == "docker" else None
    weights_file = opening.pretrained_file(config, run)
    if config.tracking.enabled:
        tracking.store_uri(config)  # refuses what is none
    fresh = run is None
    run = run or opening.create_run(config)
    with opening.locked(run), opening.disk_watched(run, config), Signals() as signals:
        with opening.undone_if_refused(run, config, fresh):
            attempt = opening.begin_attempt(run, config, price, weights_file, began)
            stamps = {"compose": time.time() - began}
            opening.place(run, config, nodes, image)
            opening.prepare(run, config, attempt, signals)
            config = run.config()  # the preparation may have put the input of pretrained weights into it
            stamps["preparation"] = time.time() - began - sum(stamps.values())
            config = probe.settle(run, config, attempt, signals)
            mirror = tracking.open_mirror(run, config.tracking, costs.cost_of(run))
        ranks, watched = 0, Watched(signals.reason, None)
        if not watched.stopped:
            plan = run.read("plan.json")
            opening.announce(run, config, plan, run.read("price.json"))
            opening.record_environment(run, config, plan)
            opening.note_ranks(run, plan["sizes"]["ranks"])
            ranks = config.comm.processes(plan["sizes"]["ranks"])
            watched = supervise(run, config, plan, attempt, signals, mirror)
        status = outcome.end_attempt(run, ranks, attempt, watched, {"began": began, **stamps})
        # Who presses Ctrl-C now does not want to wait for a slow server
        unsent = mirror.finish(
            TRACKING_S, unwanted=lambda: signals.urgent or bool(signals.reason and not watched.stopped)
        )
    if ranks:
        say(summary.table(run, view_hint(run)))
    if unsent:
        say(str(unsent))
    tell_how_it_ended(run, config, status)
    return status


def tell_how_it_ended(run: RunDir, config: Config, status: dict) -> None:
    """The error last, and how to go on."""
    if status["state"] == FINISHED:
        return
    go_on = opening.resume_command(run, config)
    if status["state"] == KILLED:
        say(f"interrupted ({status['reason']}); go on with: {go_on}")
        return
    say(f"the ranks' logs are in {run.path}/ranks; to go on: {go_on}")
    say(f"error: {status['error']}", sys.stderr)
