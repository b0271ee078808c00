"""Earlier runs of this machine with a comparable speed: for efficiency and dry run."""

from dataclasses import replace
from typing import List, Optional

from mxscale.config.schema import Config
from mxscale.environment.placement import Placement
from mxscale.rundir.directory import FINISHED, RunDir, runs_of
from mxscale.rundir.plan import Plan
from mxscale.util.errors import ConfigError


def comparable(run: RunDir, plan: Plan, signature: str) -> List[RunDir]:
    """Return the finished runs with the same signature, hardware and threads and a known rate, newest first.

    On GPUs the hardware is the kind of GPU, and threads do not matter: the host only feeds them.

    Args:
        signature: "weak_signature": runs differ only in their ranks and machine. "speed_signature": runs may also
            differ in settings that do not affect their speed (see for_speed).
    """
    if getattr(plan, signature) is None:  # written by an older version
        return []
    equal = (signature, "device") if plan.device == "gpu" else (signature, "device", "threads")
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


def same_layout(runs: List[RunDir], config: Config, plan: Plan) -> List[RunDir]:
    """Return those of the comparable runs with as many ranks on each host, as many shards, and the same exchange."""
    return [run for run in runs if _layout(run.plan()) == _layout(plan) and run.config().comm == config.comm]


def _layout(plan: Plan) -> tuple:
    """Return what a rate depends on besides settings and kind of machine; all hosts of one run count as one."""
    placed = Placement.of(plan)
    on_each = [host.slots for host in placed.occupied] if len(placed.hosts) > 1 else []
    return plan.sizes.ranks, plan.sizes.shards, on_each, len(placed.hosts) if on_each else 1


def for_speed(config: Config) -> Config:
    """Return the config with defaults for what its speed does not depend on: length, seed, learning rate, price."""
    plain = Config()
    length = ("epochs", "max_steps", "target_top1", "stop_at_target", "patience")
    names = (*length, "seed", "log_every", "validate_every", "checkpoint", "schedule")
    same = {name: getattr(plain, name) for name in names}
    return replace(config, **same, optimizer=replace(config.optimizer, lr=1.0), machine=plain.machine)


def _hardware(run: RunDir, device: Optional[str]) -> list:
    tags = (run.read("environment.json") or {}).get("tags", {})
    return [tags.get(name) for name in ("gpu" if device == "gpu" else "machine", "build", "versions")]
