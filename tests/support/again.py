"""A run of one rank and its rerun in this process."""

import time
from dataclasses import replace

import in_process
from composed import composed

from mxscale.cli import settings
from mxscale.config.schema import to_dict
from mxscale.environment import description
from mxscale.launcher import setup
from mxscale.launcher.context import Resources, RunContext, Signals
from mxscale.rerun import rerun
from mxscale.rundir import directory
from mxscale.rundir.plan import Plan
from mxscale.rundir.price import Price
from mxscale.rundir.status import FINISHED, Attempt, Status, Summary
from mxscale.train import prepare


def train(run) -> Status:
    """Prepare and train `run`, and write the records that the parent writes."""
    run.write("environment.json", description.describe(run.path))
    prepare.prepare(run, run.config())
    plan = run.plan()
    began = int(time.time() * 1000)
    ended = in_process.trained(run)
    setup.record_environment(run, run.config(), plan)
    attempt = Attempt(1, ranks=1, started_ms=began, ended_ms=began + 1000)
    status = Status(FINISHED, attempts=(attempt,), step=ended["step"], params_sha256=ended["params_sha256"])
    run.save(status)
    run.save(Summary())
    run.save(Price(known=False, why="no price"))
    return status


def rerun_of(run, *overrides) -> dict:
    """Run `run` again and return rerun.json: {"verdict", "why", "differs", ...}."""
    asked = [f"rerun.run={run}", f"runs={run.path.parent}", *overrides]
    config, _, recorded = settings.configure(to_dict(composed(run.config().entry, *asked)), asked)
    again = directory.create(config)
    hook, context = rerun.Rerun(recorded), RunContext(again, config, Resources([], {}, 0.0), Signals())
    hook.on_created(again, context.signals)
    again.save(Plan(pretrained=setup.pretrained_file(config)))
    status = train(again)
    hook.before_ranks(replace(context, config=again.config()), again.plan())
    hook.on_finished(again, status)
    return again.read(directory.RERUN)
