"""`mxscale test-allreduce`: measure the time of an all-reduce by message size, and record it."""

import math
import statistics
from dataclasses import asdict, replace
from typing import Dict, List, Sequence, Tuple

from mxscale.config.backends import BACKENDS, DEFAULT, RING
from mxscale.config.schema import Config
from mxscale.config.verbs.measurements import AllReduce
from mxscale.data.test_io import spread
from mxscale.diagnose import record as recording
from mxscale.diagnose.record import End, Kind
from mxscale.distributed.allreduce_probe import NAME
from mxscale.distributed.backend_checks import check_backend
from mxscale.distributed.communicators import horovod_build
from mxscale.environment import hosts, variables
from mxscale.environment.container_limits import available_cores
from mxscale.environment.placement import Placement, threads_per_rank
from mxscale.launcher import commands as launch
from mxscale.launcher import setup, trial
from mxscale.launcher.alive import kept_alive
from mxscale.launcher.context import NO_HOOK, Hook, Signals
from mxscale.launcher.progress import echo
from mxscale.perfmodel import step_time
from mxscale.rundir import directory, guards
from mxscale.rundir.directory import ALLREDUCE, FAILED, KILLED, RunDir
from mxscale.rundir.plan import Plan
from mxscale.train.prepare import choose_device, choose_ranks
from mxscale.util.errors import ConfigError

KIND = Kind("test-allreduce", ALLREDUCE, "test-allreduce.png")
MODULE = "mxscale.distributed.allreduce_probe"
HEAD = f"{'bytes':>12}  {'ms (smallest to largest)':34} {'Gbit/s':>8} {'fit, ms':>9}"


def main(config: Config, request: AllReduce, hook: Hook = NO_HOOK) -> int:
    """Measure, print and record the times, and return the exit status.

    Raises ConfigError before the first measurement.

    Args:
        hook: Has the time from which the run is billed; its `on_created` receives the run directory.
    """
    check(config)
    resources = setup.check(config, None, [hook])
    device, ranks = layout(config, resources.nodes)
    record = directory.create(replace(config, entry=KIND.name))
    with Signals() as signals:
        with guards.undone_if_refused(record, config, new=True):
            recording.begin(record, resources.price, resources.started)
            hook.on_created(record, signals)
            hosts.check(resources.nodes, record)
            placed, facts = describe(record, request, Plan(hosts=tuple(resources.nodes), device=device), ranks)
        end = measure(record, request, placed, signals)
        rows = rows_of(record)
        found = {**facts, **result(config, request, rows, ranks)}
        if rows:
            echo(table(found))
            recording.write_result(record, KIND, found, draw)
            recording.write_lines(record, [(row["bytes"], row["time_ms"], metrics("", row)) for row in rows])
        recording.close(record, end, headline(found))
        unsent = recording.send(record, config, signals)
    recording.show_end(record, KIND, end, unsent)
    return end.exit_status


def check(config: Config) -> None:
    """Raise ConfigError for settings that cannot be measured."""
    recording.check(config, "a measurement of all-reduces", "allreduce.seconds")
    comm = config.comm
    if comm.entry.single_rank or not comm.entry.in_step:
        able = [name for name, entry in BACKENDS.items() if entry.in_step and entry.exchange]
        raise ConfigError(f"comm={comm.backend}: has no all-reduce of its own; use one of {', '.join(able)}")
    if comm.compression != "none":
        raise ConfigError(f"comm.compression={comm.compression}: the arrays are float32; leave it out")


def layout(config: Config, nodes: Sequence[hosts.Host]) -> Tuple[str, int]:
    """Return the device, cpu or gpu, and the number of ranks. Raises ConfigError."""
    device, ranks = choose_device(config), choose_ranks(config, nodes)
    if ranks == 1:
        raise ConfigError("launch.ranks=1: one rank exchanges nothing; use launch.ranks=2 or more")
    check_backend(config, device, ranks, nodes)
    return device, ranks


def carrier(config: Config, device: str) -> str:
    """Return what sums the arrays: gloo, mpi or nccl, or another back end's name."""
    if config.comm.entry.name != DEFAULT:
        return config.comm.entry.name
    return "nccl" if device == "gpu" and horovod_build()["nccl"] else config.comm.transport


def describe(record: RunDir, request: AllReduce, plan: Plan, ranks: int) -> Tuple[Placement, Dict]:
    """Write and print what is measured; return where the ranks run, and the facts for the result."""
    config = record.config()
    plan = trial.with_scheduler(config, plan)
    placed = Placement(ranks, available_cores(), plan.hosts, plan.scheduler)
    plan = replace(plan, threads=threads_per_rank(config, placed))
    over = carrier(config, plan.device)
    tags = {"ranks": str(ranks), "allreduce.over": over}
    recording.describe(record, KIND, plan, {"allreduce": asdict(request)}, tags)
    where = f" on {', '.join(host.name for host in placed.occupied)}" if placed.hosts else ""
    echo(f"run       {record}\nranks     {ranks}{where}, {plan.device}, all-reduce over {over}")
    return placed, {"over": over, "device": plan.device, "nodes": max(1, len(placed.occupied))}


def measure(record: RunDir, request: AllReduce, placed: Placement, signals: Signals) -> End:
    """Run the ranks, which write their times after each size; return how they ended."""
    config = record.config()
    what = [MODULE, *map(str, (placed.ranks, request.seconds, *sorted(set(request.sizes))))]
    commands = launch.commands(config, str(record), 1, placed, variables.of_run(record), what)
    limit_s = config.launch.start_timeout_s + 10 * request.seconds * len(request.sizes)
    with kept_alive(record):
        ended = trial.measured(record, NAME, commands, limit_s, signals, "launch.start_timeout_s")
    if signals.reason:
        return End(KILLED, signals.reason)
    return End(FAILED, ended["no"]) if "no" in ended else End()


def rows_of(record: RunDir) -> List[Dict]:
    """Return the measured sizes with the spread of their seconds."""
    measured = record.read(f"probe/{NAME}.json") or {"sizes": []}
    return [{**row, "seconds": spread(row["seconds"])} for row in measured["sizes"]]


def result(config: Config, request: AllReduce, rows: List[Dict], ranks: int) -> Dict:
    """Return the sizes and, for a ring, the link fitted to them: alpha_s, bytes_per_s, residual and its seconds."""
    points = [(row["bytes"], row["seconds"]["median"]) for row in rows]
    found = {"ranks": ranks, "settings": asdict(request), "sizes": rows, "fit": None}
    try:
        if config.comm.entry.exchange != RING:
            return found
        link = step_time.calibrate(points, ranks)
    except ValueError:  # one size, or times that do not grow with the size
        return found
    seconds = [2 * (ranks - 1) * (link.alpha_s + size / ranks / link.bytes_per_s) for size, _ in points]
    errors = [(fitted / measured - 1) ** 2 for fitted, (_, measured) in zip(seconds, points)]
    fit = {**asdict(link), "residual": math.sqrt(statistics.mean(errors)), "seconds": seconds}
    return {**found, "fit": fit}


def metrics(suffix: str, row: Dict) -> Dict[str, float]:
    """Return the time of a size with its range, and the rate at which an array of that size is summed."""
    seconds, bits = row["seconds"], 8 * row["bytes"]
    found = {"ms": 1e3 * seconds["median"], "ms_low": 1e3 * seconds["min"], "ms_high": 1e3 * seconds["max"]}
    found["gbit_per_s"] = bits / seconds["median"] / 1e9
    found["gbit_per_s_low"], found["gbit_per_s_high"] = (bits / seconds[key] / 1e9 for key in ("max", "min"))
    return {f"allreduce/{name}{suffix}": value for name, value in found.items()}


def headline(found: Dict) -> Dict[str, float]:
    """Return the metrics of the run: those of each size, such as allreduce/ms/65536, and those of the link."""
    own = {name: value for row in found["sizes"] for name, value in metrics(f"/{row['bytes']}", row).items()}
    if fit := found["fit"]:
        own["allreduce/alpha_us"] = 1e6 * fit["alpha_s"]
        own["allreduce/link_gbit_per_s"] = 8 * fit["bytes_per_s"] / 1e9
        own["allreduce/fit_residual"] = fit["residual"]
    return own


def table(found: Dict) -> str:
    """Return a line for each size, and one for the fitted link."""
    lines, fit = [HEAD], found["fit"]
    for number, row in enumerate(found["sizes"]):
        one = metrics("", row)
        ms = "{:.3f} ({:.3f} to {:.3f})".format(*(one[f"allreduce/{name}"] for name in ("ms", "ms_low", "ms_high")))
        fitted = f"{1e3 * fit['seconds'][number]:9.3f}" if fit else ""
        lines.append(f"{row['bytes']:12,}  {ms:34} {one['allreduce/gbit_per_s']:8.3f} {fitted}".rstrip())
    return "\n".join(["", *lines, *([describe_fit(fit)] if fit else [])])


def describe_fit(fit: Dict) -> str:
    rate = 8 * fit["bytes_per_s"] / 1e9
    return f"fit: {1e6 * fit['alpha_s']:.0f} us per message, {rate:.3g} Gbit/s, residual {fit['residual']:.0%}"


def draw(found: Dict, path: str) -> None:
    """Draw the time by size on logarithmic axes, with the range of each measurement; the fit as a dashed line."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 4.5), layout="constrained")
    axes = figure.subplots()
    sizes = [row["bytes"] for row in found["sizes"]]
    times = [{key: 1e3 * value for key, value in row["seconds"].items()} for row in found["sizes"]]
    median = [one["median"] for one in times]
    ranges = [[one["median"] - one["min"] for one in times], [one["max"] - one["median"] for one in times]]
    axes.errorbar(sizes, median, ranges, marker="o", capsize=3, label=f"{found['over']}, median and range")
    if fit := found["fit"]:
        axes.plot(sizes, [1e3 * seconds for seconds in fit["seconds"]], "--", color="grey", label=describe_fit(fit))
    axes.set(xscale="log", yscale="log", xlabel="bytes of the array", ylabel="ms of an all-reduce")
    axes.set_xticks(sizes, [in_units(size) for size in sizes])
    axes.minorticks_off()
    axes.set_title(f"all-reduce over {found['over']}, {found['ranks']} ranks on {found['device']}", fontsize=11)
    axes.yaxis.set_major_formatter("{x:g}")
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
    figure.savefig(path, dpi=120)


def in_units(size: int) -> str:
    """Return 64 KiB for 65536."""
    power = min(3, int(math.log2(size) // 10))
    return f"{size / 2 ** (10 * power):.4g} {('B', 'KiB', 'MiB', 'GiB')[power]}"
