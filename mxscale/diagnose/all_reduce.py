"""`mxscale test-allreduce`: measure the time of an all-reduce by message size, and record it."""

import math
import os
import statistics
from dataclasses import asdict, replace
from typing import Dict, List, Optional

from mxscale.config.backends import BACKENDS, DEFAULT, RING
from mxscale.config.schema import Config
from mxscale.config.verb_settings import AllReduce
from mxscale.data.test_io import spread
from mxscale.diagnose import record as recording
from mxscale.diagnose.record import Measurement, ProbeFailed, Result, Stopped
from mxscale.distributed.allreduce_probe import NAME
from mxscale.distributed.backend_checks import check_backend
from mxscale.distributed.communicators import horovod_build
from mxscale.environment import hosts
from mxscale.environment.container_limits import available_cores
from mxscale.environment.placement import Placement, threads_per_rank
from mxscale.launcher import commands as launch
from mxscale.launcher import setup
from mxscale.launcher.context import Signals
from mxscale.launcher.processes import run_to_end
from mxscale.perfmodel import step_time
from mxscale.rundir.directory import ALLREDUCE, RunDir
from mxscale.rundir.plan import Plan
from mxscale.train.prepare import choose_device, choose_ranks
from mxscale.util.errors import ConfigError
from mxscale.util.terminal import echo

MODULE = "mxscale.distributed.allreduce_probe"
HEAD = f"{'bytes':>12}  {'ms (smallest to largest)':34} {'Gbit/s':>8}"


def main(config: Config, request: AllReduce) -> int:
    """Measure, print and record the times, and return the exit status. Raises ConfigError before the first one."""
    comm = config.comm
    recording.check(config, "a measurement of all-reduces", "allreduce.seconds")
    if comm.entry.single_rank:
        able = [name for name, entry in BACKENDS.items() if entry.exchange]
        raise ConfigError(f"comm={comm.backend}: has no all-reduce of its own; use one of {', '.join(able)}")
    if comm.compression != "none":
        raise ConfigError(f"comm.compression={comm.compression}: the arrays are float32; leave it out")
    resources = setup.check(config, None, [])
    nodes, device = resources.nodes, choose_device(config)
    ranks = choose_ranks(config, nodes)
    if ranks == 1:
        raise ConfigError("launch.ranks=1: one rank exchanges nothing; use launch.ranks=2 or more")
    check_backend(comm, config.optimizer.name, device, ranks, nodes)
    plan = Plan(hosts=tuple(nodes), device=device)
    return recording.execute(Times, config, resources.price, request, plan, ranks)


def carrier(config: Config, device: str) -> str:
    """Return what sums the arrays: gloo, mpi or nccl, or another back end's name."""
    if config.comm.entry.name != DEFAULT:
        return config.comm.entry.name
    return "nccl" if device == "gpu" and horovod_build()["nccl"] else config.comm.transport


class Times(Measurement):
    """Runs ranks, which write their times after each size."""

    name, group, file = "test-allreduce", "allreduce", ALLREDUCE

    def __init__(self, record: RunDir, signals: Signals, config: Config, settings: AllReduce, plan: Plan, ranks: int):
        super().__init__(record, signals, config, settings)
        self.plan, self.ranks = plan, ranks

    def measure(self) -> None:
        hosts.check(self.plan.hosts, self.record.path)
        plan = setup.with_scheduler(self.config.comm, self.plan)
        placed = Placement(self.ranks, available_cores(), plan.hosts, plan.scheduler)
        over = carrier(self.config, plan.device)
        self.facts = {"over": over, "device": plan.device, "nodes": max(1, len(placed.occupied))}
        tags = {"ranks": str(self.ranks), "allreduce.over": over}
        self.describe(replace(plan, threads=threads_per_rank(self.config, placed)), tags)
        where = f" on {', '.join(host.name for host in placed.occupied)}" if placed.hosts else ""
        echo(f"run       {self.record}\nranks     {self.ranks}{where}, {plan.device}, all-reduce over {over}")
        seconds, sizes = self.settings.seconds, self.settings.sizes
        command = [MODULE, *map(str, (placed.ranks, seconds, *sorted(set(sizes))))]
        commands = launch.commands(self.config, str(self.record), 1, placed, os.environ, command)
        limit_s = self.config.launch.start_timeout_s + 10 * seconds * len(sizes)
        log = self.record.path / "probe" / f"{NAME}.log"
        log.parent.mkdir(exist_ok=True)
        failure = run_to_end(commands, log, limit_s, self.signals)
        if self.signals.reason:
            raise Stopped(self.signals.reason)
        if failure:
            raise ProbeFailed(failure)

    def result(self) -> Optional[Result]:
        measured = self.record.read(f"probe/{NAME}.json")
        if not measured:
            return None
        rows = [{**row, "seconds": spread(row["seconds"])} for row in measured["sizes"]]
        content = {**self.facts, **result(self.config, self.settings, rows, self.ranks)}
        lines = [recording.line(row["bytes"], row["time_ms"], metrics("", row)) for row in rows]
        return Result(content, headline(content), lines, table(content))


def result(config: Config, request: AllReduce, rows: List[Dict], ranks: int) -> Dict:
    """Return the sizes and, for a ring, the link fitted to them: alpha_s, bytes_per_s, residual."""
    points = [(row["bytes"], row["seconds"]["median"]) for row in rows]
    content = {"ranks": ranks, "settings": asdict(request), "sizes": rows, "fit": None}
    try:
        if config.comm.entry.exchange != RING:
            return content
        link = step_time.calibrate(points, ranks)
    except ValueError:  # one size, or times that do not grow with the size
        return content
    errors = [(float(step_time.ring(ranks, size, link)) / seconds - 1) ** 2 for size, seconds in points]
    return {**content, "fit": {**link._asdict(), "residual": math.sqrt(statistics.mean(errors))}}


def metrics(suffix: str, row: Dict) -> Dict[str, float]:
    """Return the time of a size with its range, and the rate at which an array of that size is summed."""
    seconds, bits = row["seconds"], 8 * row["bytes"]
    values = {"ms": 1e3 * seconds["median"], "ms_low": 1e3 * seconds["min"], "ms_high": 1e3 * seconds["max"]}
    values["gbit_per_s"] = bits / seconds["median"] / 1e9
    values["gbit_per_s_low"], values["gbit_per_s_high"] = (bits / seconds[key] / 1e9 for key in ("max", "min"))
    return {f"allreduce/{name}{suffix}": value for name, value in values.items()}


def headline(content: Dict) -> Dict[str, float]:
    """Return the metrics of the run: those of each size, such as allreduce/ms/65536, and those of the link."""
    values = {name: value for row in content["sizes"] for name, value in metrics(f"/{row['bytes']}", row).items()}
    if fit := content["fit"]:
        values["allreduce/alpha_us"] = 1e6 * fit["alpha_s"]
        values["allreduce/link_gbit_per_s"] = 8 * fit["bytes_per_s"] / 1e9
        values["allreduce/fit_residual"] = fit["residual"]
    return values


def table(content: Dict) -> str:
    """Return a line for each size, and one for the fitted link."""
    lines = ["", HEAD]
    for row in content["sizes"]:
        values = metrics("", row)
        ms = "{:.3f} ({:.3f} to {:.3f})".format(*(values[f"allreduce/{name}"] for name in ("ms", "ms_low", "ms_high")))
        lines.append(f"{row['bytes']:12,}  {ms:34} {values['allreduce/gbit_per_s']:8.3f}")
    if fit := content["fit"]:
        link = f"{1e6 * fit['alpha_s']:.0f} us per message, {8 * fit['bytes_per_s'] / 1e9:.3g} Gbit/s"
        lines.append(f"fit: {link}, residual {fit['residual']:.0%}")
    return "\n".join(lines)
