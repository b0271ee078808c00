"""Recorded runs that a rerun asks for."""

import json

from composed import composed
from plans import make_sizes, make_splits

from mxscale.cli import main as command_line
from mxscale.cli import settings
from mxscale.config.schema import from_dict, to_dict
from mxscale.rundir import directory
from mxscale.rundir.plan import Plan
from mxscale.rundir.price import Price
from mxscale.tracking import tracker


def write_lines(run, lines):
    text = [{"attempt": a, "step": s, "time_ms": 1000 * s, "metrics": {"train/loss": loss}} for a, s, loss in lines]
    run.metrics_file.write_text("".join(json.dumps(line) + "\n" for line in text))


PLAN = Plan(
    sizes=make_sizes(2, per_device_batch=4, total_steps=3),
    threads=3,
    device="cpu",
    data_digest="d" * 64,
    splits=make_splits(val=200, test=200),
)


PRICE = Price(known=True, usd_per_hour=7.0, setup_minutes=2.0, billing="per_second")


def make_run(root, state="FINISHED", top1=99.0, sha="aaa", **values):
    run = directory.create(from_dict({"runs": str(root), **values}))
    run.save(PLAN)
    run.save(PRICE)
    run.write("environment.json", {"git": {}, "machine": {}, "mxnet": {}, "tags": {"data.digest": "d" * 64}})
    run.write("summary.json", {"metrics": {"test/top1": top1}})
    status = {"state": state, "attempts": [{"attempt": 1, "ranks": 2, "started_ms": 1, "ended_ms": 2}]}
    run.write("status.json", {**status, "params_sha256": sha})
    write_lines(run, [(1, 1, 1.5), (1, 2, 1.25)])
    return run


def send(run) -> str:
    """Send a run to MLflow and return its id."""
    assert tracker.sync(run) == 0
    return run.read("tracking.json")["run_id"]


def asked(given, *overrides, entry="train"):
    """Return (config, run to resume, RecordedRun) for rerun=GIVEN."""
    words = [command_line.canonical(f"rerun={given}"), *overrides]
    return settings.configure(to_dict(composed(entry, *words)), words)
