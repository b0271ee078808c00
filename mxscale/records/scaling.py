"""Scaling efficiency: the rate of a run over that of as many devices at the rate of one, by a run with one device."""

import re
import shlex
from pathlib import Path
from typing import Dict, Optional, Tuple

from mxscale.records import earlier_runs
from mxscale.rundir.directory import RunDir
from mxscale.rundir.plan import Plan
from mxscale.rundir.status import Summary

EFFICIENCY = "scaling/efficiency"
RANKS = re.compile(r"(launch\.(ranks|hosts|threads)|data\.shards)=")


def efficiency(run: RunDir, plan: Plan, rate: Optional[float]) -> Tuple[Dict[str, float], Optional[RunDir]]:
    """Return the efficiency under its name, and the run that it refers to; ({}, None) without such a run.

    It is the finished run of the same work on one device: the newest with the same back end, else the newest.

    Args:
        rate: Images/s of the run; None: unknown.
    """
    if not (rate and applies(plan)):
        return {}, None
    runs = earlier_runs.comparable(run, plan)
    alone = [other for other in runs if other.plan().sizes.shards == 1]  # the newest first
    if not alone:
        return {}, None
    backend = run.config().comm.backend
    baseline = next((other for other in alone if other.config().comm.backend == backend), alone[0])
    return {EFFICIENCY: rate / (plan.sizes.ranks * baseline.figures["throughput/median"])}, baseline


def applies(plan: Plan) -> bool:
    """Return whether a run has an efficiency: several ranks, with one shard each (several are slower than one)."""
    return plan.sizes is not None and plan.sizes.shards == plan.sizes.ranks > 1


def described(run: RunDir, summary: Summary) -> Optional[str]:
    """Return the efficiency and its reference, or the command that makes one; None if the run has none."""
    plan, figures = run.plan(), summary.metrics
    if EFFICIENCY in figures:
        return f"{figures[EFFICIENCY]:.1%} of the 1-rank run {Path(summary.baseline).name}"
    if not applies(plan) or "throughput/median" not in figures:
        return None
    return f"unknown without a 1-rank run of this work:\n{command(run, plan)}"


def command(run: RunDir, plan: Plan) -> str:
    """Return the command that makes the reference of a run."""
    lines = run.read_yaml("overrides.yaml") or {}
    typed = [word for word in lines.get(1, []) if not RANKS.match(word)]
    threads = [f"launch.threads={plan.threads}"] if plan.device == "cpu" else []
    return shlex.join(["python", f"{run.config().entry}.py", *typed, "launch.ranks=1", *threads])
