"""Measurements by ranks outside a training: `mxscale test-allreduce`."""

import time
from dataclasses import replace
from typing import List

from mxscale.config.schema import Config
from mxscale.environment import hosts
from mxscale.launcher.commands import Command
from mxscale.launcher.context import Signals
from mxscale.launcher.processes import Processes
from mxscale.rundir.directory import RunDir
from mxscale.rundir.plan import Plan


def with_scheduler(config: Config, plan: Plan) -> Plan:
    """Return the plan with the address of the parameter servers' scheduler, if the back end has servers."""
    return replace(plan, scheduler=hosts.rendezvous_point(plan.hosts)) if config.comm.entry.needs_servers else plan


def measured(run: RunDir, name: str, commands: List[Command], limit_s: float, signals: Signals,
             limited_by: str) -> dict:  # fmt: skip
    """Run the commands for at most `limit_s`; return what rank 0 wrote, or {"no": the reason}."""
    (run.path / "probe").mkdir(exist_ok=True)
    deadline = time.monotonic() + limit_s
    with open(run.path / "probe" / f"{name}.log", "wb") as log:
        processes = Processes(commands, log)
        try:
            while processes.ended() is None and not (processes.lost() or signals.reason):
                if time.monotonic() > deadline:
                    return {"no": f"not finished in {limit_s:g} s ({limited_by})"}
                time.sleep(0.05)
            status, lost = processes.ended(), processes.lost()
        finally:
            processes.stop()
    result = run.read(f"probe/{name}.json")
    if status == 0 and result:
        return result
    if lost:
        return {"no": lost.error}
    return {"no": signals.reason or f"ended with status {status}; see {log.name}"}
