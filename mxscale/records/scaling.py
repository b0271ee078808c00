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
UNEQUAL = "scaling/efficiency_unequal_threads"  # on a CPU, if the ranks of the two runs have unequal numbers of threads
THREADS = "scaling/baseline_threads"  # of the rank of that run
RANKS = re.compile(r"(launch\.(ranks|hosts|threads)|data\.shards)=")


def efficiency(run: RunDir, plan: Plan, rate: Optional[float]) -> Tuple[Dict[str, float], Optional[RunDir]]:
    """Return the efficiency under its name, and the run that it refers to; ({}, None) without such a run.

    Args:
        rate: Images/s of the run; None: unknown.
    """
    baseline = one_device_run(run, plan) if rate and applies(plan) else None
    if baseline is None:
        return {}, None
    value = rate / (plan.sizes.ranks * baseline.figures["throughput/median"])
    if _equal_threads(baseline, plan):
        return {EFFICIENCY: value}, baseline
    return {UNEQUAL: value, THREADS: baseline.plan().threads}, baseline


def applies(plan: Plan) -> bool:
    """Return whether a run has an efficiency: several ranks, with one shard each (several are slower than one)."""
    return plan.sizes is not None and plan.sizes.shards == plan.sizes.ranks > 1


def one_device_run(run: RunDir, plan: Plan) -> Optional[RunDir]:
    """Return the finished run of the same work on one device that is most alike: in threads, back end and age."""
    runs = earlier_runs.comparable(run, plan)
    alone = [other for other in runs if other.plan().sizes.shards == 1]  # the newest first
    backend = run.config().comm.backend
    unlike = [(not _equal_threads(other, plan), other.config().comm.backend != backend) for other in alone]
    return alone[unlike.index(min(unlike))] if alone else None


def _equal_threads(other: RunDir, plan: Plan) -> bool:
    return plan.device == "gpu" or other.plan().threads == plan.threads


def described(run: RunDir, summary: Summary) -> Optional[str]:
    """Return the efficiency and its reference, or the command that makes one; None if the run has none."""
    plan, figures = run.plan(), summary.metrics
    if EFFICIENCY in figures:
        return f"{figures[EFFICIENCY]:.1%} of the 1-rank run {Path(summary.baseline).name}"
    if UNEQUAL in figures:
        threads = f"{figures[THREADS]} threads there, {plan.threads} in each rank here"
        return f"{figures[UNEQUAL]:.1%} of the 1-rank run {Path(summary.baseline).name} ({threads})"
    if not applies(plan) or "throughput/median" not in figures:
        return None
    return f"unknown without a 1-rank run of this work:\n{command(run, plan)}"


def command(run: RunDir, plan: Plan) -> str:
    """Return the command that makes the reference of a run."""
    lines = run.read_yaml("overrides.yaml") or {}
    typed = [word for word in lines.get(1, []) if not RANKS.match(word)]
    threads = [f"launch.threads={plan.threads}"] if plan.device == "cpu" else []
    return shlex.join(["python", f"{run.config().entry}.py", *typed, "launch.ranks=1", *threads])
