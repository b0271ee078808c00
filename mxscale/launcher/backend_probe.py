"""comm=auto: a short trial of each back end before the ranks start; the fastest is taken.

A trial measures the exchange alone, on real ranks that do nothing else (`mxscale.distributed.exchange_probe`).
"""

import time
from dataclasses import replace
from typing import Dict, List, Optional

from mxscale.config.backends import BACKENDS, CANDIDATES, DEFAULT, SINGLE_RANK
from mxscale.config.schema import Config
from mxscale.config.validation import validate
from mxscale.environment import hosts, variables
from mxscale.environment.placement import Placement
from mxscale.launcher import commands as launch
from mxscale.launcher.alive import kept_alive
from mxscale.launcher.context import Signals
from mxscale.launcher.processes import Processes
from mxscale.launcher.progress import echo
from mxscale.rundir.directory import RunDir
from mxscale.rundir.plan import Plan
from mxscale.util import text_table
from mxscale.util.errors import ConfigError

MODULE = "mxscale.distributed.exchange_probe"
RECORD = "probe.json"


def settle(run: RunDir, config: Config, attempt: int, signals: Signals) -> Config:
    """Return the config with the back end that comm=auto resolves to, and record it with all figures.

    Raises ConfigError if no back end works.
    """
    if not config.comm.entry.chosen_by_trial:
        return config
    plan, known = run.plan(), run.read(RECORD)
    if known and not BACKENDS[known["chosen"]["backend"]].single_rank and not _refusal(_with(config, known["chosen"])):
        return _apply(run, config, known)  # the choice is final, over restarts and resumes
    if plan.sizes.ranks == 1:
        alone = {"backend": DEFAULT if plan.hosts else SINGLE_RANK}  # Horovod starts ranks on other hosts
        return _apply(run, config, {"chosen": alone, "reason": "one rank exchanges nothing"})
    echo("comm=auto: trying the back ends")
    with kept_alive(run):
        figures = {name: _figures(run, config, plan, attempt, name, signals) for name in CANDIDATES}
    if signals.reason:
        return config
    chosen = choose(figures)
    echo(table(figures, chosen))
    if chosen is None:
        raise ConfigError("comm=auto: no back end works here, see the table above; set comm=local launch.ranks=1")
    record = {"chosen": CANDIDATES[chosen], "figures": figures, "reason": reason(figures, chosen)}
    return _apply(run, config, record)


def _apply(run: RunDir, config: Config, record: dict) -> Config:
    config = validate(_with(config, record["chosen"]))
    run.write(RECORD, record)
    run.write_config(config)
    run.write_plan(with_scheduler(config, run.plan()))
    return config


def _with(config: Config, chosen: dict) -> Config:
    return replace(config, comm=replace(config.comm, **chosen))


def _refusal(config: Config) -> Optional[str]:
    try:
        validate(config)
    except ConfigError as error:
        return str(error)
    return None


def choose(figures: Dict[str, dict]) -> Optional[str]:
    """Return the fastest candidate; None if none could be measured."""
    measured = [name for name, figure in figures.items() if "seconds" in figure]
    return min(measured, key=lambda name: figures[name]["seconds"], default=None)


def reason(figures: Dict[str, dict], chosen: str) -> str:
    """Return why `chosen` was taken, in one line."""
    others = [name for name, figure in figures.items() if "seconds" in figure and name != chosen]
    own = f"{1000 * figures[chosen]['seconds']:.1f} ms an exchange"
    if not others:
        return f"{chosen}: {own}, the only one that works here"
    next_best = choose({name: figures[name] for name in others})
    return f"{chosen}: {own}, against {1000 * figures[next_best]['seconds']:.1f} ms of {next_best}"


def table(figures: Dict[str, dict], chosen: Optional[str]) -> str:
    """Return one line per candidate: median and range, or why it was not measured."""
    rows = [[name, _described(figure) + "   <- chosen" * (name == chosen)] for name, figure in figures.items()]
    return "\n".join(text_table.columns(rows, indent="  "))


def _described(figure: dict) -> str:
    if "seconds" not in figure:
        return f"no: {figure['no']}"
    low, high = (1000 * bound for bound in figure["between"])
    return f"{1000 * figure['seconds']:.1f} ms ({low:.1f} to {high:.1f}, {figure['times']} times)"


def _figures(run: RunDir, config: Config, plan: Plan, attempt: int, name: str, signals: Signals) -> dict:
    """Return {"seconds", "between", "times"} of an exchange, or {"no": the reason}."""
    if plan.probe.no.get(name):
        return {"no": plan.probe.no[name]}
    candidate = _with(config, CANDIDATES[name])
    if refusal := _refusal(candidate):
        return {"no": refusal}
    try:
        placed = Placement.of(with_scheduler(candidate, plan))
    except ConfigError as error:
        return {"no": str(error)}
    environ = {
        "HOROVOD_CYCLE_TIME": "1",
        **variables.of_run(run),
    }  # each exchange is waited for: see launch.rank_environment
    commands = launch.commands(candidate, str(run), attempt, placed, environ, [MODULE, name])
    return measured(run, name, commands, config.comm.probe_s, signals)


def with_scheduler(config: Config, plan: Plan) -> Plan:
    """Return the plan with the address of the parameter servers' scheduler, if the back end has servers."""
    return replace(plan, scheduler=hosts.rendezvous_point(plan.hosts)) if config.comm.entry.needs_servers else plan


def measured(run: RunDir, name: str, commands: List[launch.Command], limit_s: float, signals: Signals,
             limited_by="comm.probe_s") -> dict:  # fmt: skip
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
    found = run.read(f"probe/{name}.json")
    if status == 0 and found:
        return found
    if lost:
        return {"no": lost.error}
    return {"no": signals.reason or f"ended with status {status}; see {log.name}"}
