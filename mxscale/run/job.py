"""One attempt at a run, as the parent sees it: prepare, start the ranks, watch, sum up.

The parent never imports mxnet: a child answers for it.
"""

import sys
import time
from datetime import date
from typing import Optional

import psutil

from mxscale.config import Config
from mxscale.run import costs, opening, summary, tracking
from mxscale.run.rundir import FAILED, FINISHED, INTERRUPTED, KILLED, RunDir
from mxscale.run.watch import Signals, supervise
from mxscale.scale import prices

TRACKING_S = 30.0  # for what is unsent when the ranks have ended


def execute(config: Config, run: Optional[RunDir] = None) -> dict:
    """Start a run, or go on with `run`; returns its status ({"state", "exit", ...}).

    Raises ConfigError before the first step, opening.DiskFailed where not even the status could be written.
    """
    began = psutil.Process().create_time()
    price = prices.freeze_price(config.machine, config.launch.setup_minutes, date.today())
    weights_file = opening.pretrained_file(config)
    if config.tracking.enabled:
        tracking.store_uri(config)  # refuses what is none
    fresh = run is None
    run = run or opening.create_run(config)
    with opening.locked(run), opening.disk_watched(run, config), Signals() as signals:
        with opening.undone_if_refused(run, config, fresh):
            attempt = opening.begin_attempt(run, config, price, weights_file, began)
            stamps = {"compose": time.time() - began}
            opening.prepare(run, signals)
            stamps["preparation"] = time.time() - began - sum(stamps.values())
            mirror = tracking.open_mirror(run, config.tracking, costs.cost_of(run))
        ranks, stopped = 0, signals.reason
        if not stopped:
            plan = run.read("plan.json")
            opening.announce(run, config, plan, run.read("price.json"))
            opening.record_environment(run, config, plan)
            ranks, stopped = plan["sizes"]["ranks"], supervise(run, config, plan, attempt, signals, mirror)
        status = end_attempt(run, ranks, attempt, stopped, {"began": began, **stamps})
        unsent = mirror.finish(TRACKING_S)
    if ranks:
        print(summary.table(run, tracking.view_hint(run)))
    if unsent:
        print(unsent)
    tell_how_it_ended(run, config, status)
    return status


def end_attempt(run: RunDir, ranks: int, attempt: int, stopped: Optional[str], stamps: dict) -> dict:
    """Merge the ranks' status (ranks 0: none was started), sum the run up, and write both."""
    status = run.read("status.json")
    status["attempts"][-1]["ended_ms"] = int(time.time() * 1000)
    status.update(merge([run.read(run.rank_status(r)) for r in range(ranks)], stopped))
    status["stamps"] = stamps
    run.write("status.json", status)
    if ranks:
        run.write("summary.json", summary.summarise(run, attempt))
    return {**status, "summary": (run.read("summary.json") or {"metrics": {}})["metrics"]}


def merge(ranks: list, stopped: Optional[str]) -> dict:
    """One status out of the ranks' (None: that rank wrote none).  The earliest real failure is the cause.

    A rank whose peer is gone fails as well, in Horovod; a rank that was killed writes nothing.
    """
    written = [r for r in ranks if r]
    if ranks and len(written) == len(ranks) and all(r["exit"] == 0 for r in written):
        return {
            "state": FINISHED,
            "exit": 0,
            "error": None,
            "step": written[0]["step"],
            "params_sha256": written[0]["params_sha256"],
        }
    failures = sorted((r for r in written if r["exit"] not in (0, INTERRUPTED)), key=lambda r: r["time_ms"])
    causes = [r for r in failures if not r["consequence"]]
    if causes:
        cause = causes[0]
        return {"state": FAILED, "exit": cause["exit"], "error": f"rank {cause['rank']}: {cause['error']}"}
    if stopped or any(r["exit"] == INTERRUPTED for r in written):
        return {"state": KILLED, "exit": INTERRUPTED, "error": None, "reason": stopped or "the parent was gone"}
    silent = [str(r) for r, status in enumerate(ranks) if status is None]
    if silent:
        return {
            "state": FAILED,
            "exit": 1,
            "error": f"rank {', '.join(silent)} ended without a word (killed, or out of memory?)",
        }
    return {"state": FAILED, "exit": 1, "error": f"rank {failures[0]['rank']}: {failures[0]['error']}"}


def tell_how_it_ended(run: RunDir, config: Config, status: dict) -> None:
    """The error last, and how to go on."""
    if status["state"] == FINISHED:
        return
    if status["state"] == KILLED:
        print(f"interrupted ({status['reason']}); go on with: python {config.entry}.py resume={run.path}")
        return
    print(f"the ranks' logs are in {run.path}/ranks; to go on: python {config.entry}.py resume={run.path}")
    print(f"error: {status['error']}", file=sys.stderr, flush=True)
