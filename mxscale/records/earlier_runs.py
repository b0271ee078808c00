"""Earlier runs of this machine with comparable work: for the scaling efficiency."""

from typing import List, Optional

from mxscale.rundir.directory import FINISHED, RunDir, runs_of
from mxscale.rundir.plan import Plan
from mxscale.util.errors import ConfigError


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
