"""Earlier runs of this machine with comparable work, for the scaling efficiency.

It is the rate of a run over that of as many devices at the rate of one, by a run with one device.
"""

from pathlib import Path
from typing import Dict, List, Optional, Tuple

from mxscale.rundir.directory import RunDir, runs_of
from mxscale.rundir.plan import Plan
from mxscale.rundir.status import FINISHED, Summary
from mxscale.util.errors import ConfigError

EFFICIENCY = "scaling/efficiency"


def comparable(run: RunDir, plan: Plan) -> List[RunDir]:
    """Return the finished runs that differ only in ranks, on the same hardware, with a known rate, newest first.

    On GPUs the hardware is their kind, and threads do not matter: the host only feeds them.
    """
    if plan.weak_signature is None:  # written by an older version
        return []
    equal = ("weak_signature", "device") if plan.device == "gpu" else ("weak_signature", "device", "threads")
    hardware, runs = _hardware(run, plan.device), []
    for other in runs_of(run.path.parents[1], run.path.parent.name):
        try:
            known = other.plan()
            same = all(getattr(known, key) == getattr(plan, key) for key in equal)
            if other.path == run.path or not same or other.state != FINISHED:
                continue
            other.config(repeats=True)  # raises ConfigError
            if other.figures.get("throughput/median") and _hardware(other, plan.device) == hardware:
                runs.append(other)
        except ConfigError:  # damaged, or written by a newer version
            continue
    return runs


def _hardware(run: RunDir, device: Optional[str]) -> list:
    tags = (run.read("environment.json") or {}).get("tags", {})
    return [tags.get(name) for name in ("gpu" if device == "gpu" else "machine", "build", "versions")]


def efficiency(run: RunDir, plan: Plan, rate: Optional[float]) -> Tuple[Dict[str, float], Optional[RunDir]]:
    """Return the efficiency under its name, and the run that it refers to; ({}, None) without such a run.

    It is the finished run of the same work on one device: the newest with the same back end, else the newest.

    Args:
        rate: Images/s of the run; None: unknown.
    """
    if not (rate and applies(plan)):
        return {}, None
    runs = comparable(run, plan)
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
    """Return the efficiency and its reference, or, if launch.ranks is set, what makes one; None if the run has none."""
    plan, figures = run.plan(), summary.metrics
    if EFFICIENCY in figures:
        return f"{figures[EFFICIENCY]:.1%} of the 1-rank run {Path(summary.baseline).name}"
    if not applies(plan) or run.config().launch.ranks == "auto" or "throughput/median" not in figures:
        return None
    threads = f" launch.threads={plan.threads}" if plan.device == "cpu" else ""
    return f"unknown without a run of this work with launch.ranks=1{threads}"
