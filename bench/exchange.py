"""Images/s over a slow link, by how gradients are exchanged, beside the limit: the same ranks without any exchange.

    python bench/exchange.py [--quick] [--only resnet18] [--rate 2gbit] [--turns 8] [--save FILE.json]

Each rank, and each parameter server, is on a node of its own whose link is limited both ways (bench/network.py).
Workers' nodes share out the cores; a server's node has those of a worker's.
All rows are started, and take turns of --seconds (bench/watched.py), the limit before each of the others; a row's share
is that of the limit just before.  --save keeps what was measured, and another call adds to it.
Rates are the engine's own, from metrics.jsonl.

The limit is as many one-rank runs side by side (comm=local), so that cores are shared as they are with an exchange.
An exchange takes what a step is longer than the limit's when it is made after backward, where nothing overlaps.
--rate: where the machine is faster or slower, for an exchange that leaves half of the limit.
Of the limit, a row that overlaps can reach no more than its bound: min(1, compute / exchange).
CPU ms, of the limit's, cores, kernel: what the processes of all ranks take of the CPU, by step, and the kernel's share.
Where cores are all taken, a row reaches the limit's CPU ms over its own at most, whatever overlaps.
serving, others: cores that parameter servers take, and all else; where others is much, nothing is worth comparing.
"""

import json
import os
import re
import secrets
import statistics
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import measure
import network
import ranks
from network import Network
from watched import Reading, Training

from mxscale.diagnose.timing import RATE
from mxscale.rundir.directory import RunDir


@dataclass(frozen=True)
class Job:
    """A network at a size, its links, and the rows to measure: name -> switches of a run, or a loop of stock.py."""

    model: str
    side: int
    batch: int  # of each rank
    rate: str
    rows: dict
    workers: int = 2
    servers: int = 0  # nodes for them
    interval: int = 10  # steps between two lines of metrics


AFTER, FP16, DOUBLE = "comm.overlap=false", "comm.compression=fp16", "comm.double_buffering=true"
LIMIT, PLAIN, PLAIN_FP16 = "no exchange", "after backward", "after backward, fp16"
OPTIONS = {
    LIMIT: None,
    PLAIN: [AFTER],
    "overlapped": [],
    PLAIN_FP16: [AFTER, FP16],
    "overlapped, fp16": [FP16],
    "double buffering": [DOUBLE],
    "double buffering, fp16": [DOUBLE, FP16],
    "double buffering, fp16, MPI": [DOUBLE, FP16, "comm.transport=mpi"],
}
LOOPS = {"Horovod's DistributedTrainer": "horovod", "gluon's kvstore, 1 server": "kvstore"}


def beside_servers(workers: int, rate: str) -> Job:
    rows = {LIMIT: None, PLAIN: [AFTER], "overlapped": []}
    for count in ("1", "1x", "2x"):
        rows[f"servers: {count}"] = ["comm=parameter_server", f"comm.servers={count}", "comm.update_on=worker"]
    return Job("mobilenet0.25", 224, 32, rate, rows, workers, servers=2 * workers, interval=4)


JOBS = {
    "resnet18": Job("resnet18_v1b", 64, 16, "2gbit", {**OPTIONS, **LOOPS}, servers=1),
    "mobilenet": Job("mobilenet0.25", 96, 32, "600mbit", {**OPTIONS, **LOOPS}, servers=1, interval=20),
    # 5 MB of gradients, and a step of seconds: an exchange costs next to none of its CPU
    "squeezenet": Job("squeezenet1.0", 224, 32, "25mbit", OPTIONS, interval=1),
    "servers2": beside_servers(2, "100mbit"),
    "servers4": beside_servers(4, "50mbit"),
}


# ---------------------------------------------------------------- one row


def settings(job: Job) -> list:
    return [
        "tracking=none", "data=synthetic", f"data.image_size={job.side}", "data.num_images=10000000",
        f"model.name={job.model}", f"batch.per_device={job.batch}", "epochs=1", f"log_every={job.interval}",
        "optimizer.lr=0.001", "schedule=constant", "launch.threads=1", "launch.stall_s=3600",
    ]  # fmt: skip


def product(job: Job, nodes: Network, switches, folder: str, before=()) -> Training:
    """A run as a user starts it.  before: words put before the command, such as `ip netns exec NAME`."""
    argv = [*before, sys.executable, "train.py", f"runs={folder}", *settings(job), *switches]

    def rates() -> list:
        found = list(Path(folder, "train").glob("*/metrics.jsonl"))
        lines = RunDir(found[0].parent).history() if found else []
        return [line["metrics"][RATE] for line in lines if RATE in line["metrics"]]

    return Training([argv], nodes.env(), rates, job.interval)


def exchanging(job: Job, nodes: Network, switches, folder: str) -> list:
    """The engine, with its ranks on the first nodes; servers have those without a rank."""
    count = job.workers + (job.servers if any("server" in switch for switch in switches) else 0)
    hosts = ",".join(f"{address}:1" for address in nodes.addresses[:count])
    return [product(job, nodes, [*switches, f"launch.hosts=[{hosts}]", f"launch.ranks={job.workers}"], folder)]


def side_by_side(job: Job, nodes: Network, folder: str) -> list:
    """As many runs of one rank, which know nothing of each other."""
    of_each = range(1, job.workers + 1)
    return [product(job, nodes, ["comm=local"], f"{folder}/{node}", nodes.inside(node)) for node in of_each]


def by_hand(kind: str, job: Job, nodes: Network, folder: str) -> list:
    """A loop of bench/stock.py."""
    out = Path(folder, "rates")
    out.parent.mkdir()
    argv = [measure.ROOT / "bench/stock.py", kind, out, job.model, job.side, job.batch, job.interval]
    if kind == "horovod":
        own = {"HOROVOD_FUSION_THRESHOLD": str(128 * 2**20), "HOROVOD_GLOO_TIMEOUT_SECONDS": "3600"}
        words, env = ranks.command(argv, job.workers, network=nodes, threads=1, extra=own)
        argvs = [words]
    else:
        argvs, env = with_server(argv, job.workers, nodes), nodes.env()

    def rates() -> list:
        return [float(line) for line in out.read_text().split()] if out.exists() else []

    return [Training(argvs, env, rates, job.interval)]


def with_server(argv, workers: int, nodes: Network) -> list:
    """The commands: scheduler and one server, on the node after the workers', and workers."""
    port = 10000 + secrets.randbelow(20000)
    meeting = {"DMLC_PS_ROOT_URI": nodes.addresses[workers], "DMLC_PS_ROOT_PORT": str(port),
               "DMLC_NUM_SERVER": "1", "DMLC_NUM_WORKER": str(workers), "OMP_NUM_THREADS": "1"}  # fmt: skip

    def command(role: str, node: int, words) -> list:
        told = {**meeting, "DMLC_ROLE": role, "DMLC_NODE_HOST": nodes.addresses[node - 1]}
        return nodes.inside(node, "env", *(f"{name}={value}" for name, value in told.items()), sys.executable, *words)

    serving = [command(role, workers + 1, ["-c", "import mxnet"]) for role in ("scheduler", "server")]
    return serving + [command("worker", node, argv) for node in range(1, workers + 1)]


def started(how, job: Job, nodes: Network, folder: str) -> list:
    """A row's trainings, warmed up and stopped: one, or as many as there are workers."""
    if how is None:
        return side_by_side(job, nodes, folder)
    if isinstance(how, str):
        return by_hand(how, job, nodes, folder)
    return exchanging(job, nodes, how, folder)


def turn(trainings: list, seconds: float) -> Reading:
    """Of all of them at once."""
    with ThreadPoolExecutor(len(trainings)) as pool:
        readings = list(pool.map(lambda training: training.turn(seconds), trainings))
    for training in trainings:
        training.stop()
    rate, cores, kernel = (sum(getattr(one, key) for one in readings) for key in ("rate", "cores", "kernel"))
    others = readings[0].others + readings[0].cores - cores
    return Reading(rate, cores, kernel, readings[0].serving, others, readings[0].threads)


# ---------------------------------------------------------------- all rows, and what they say


def measure_rows(job: Job, turns: int, seconds: float, found: dict, save) -> None:
    """Adds readings of `turns` turns of each row to `found`, each with the limit just before."""
    others = [row for row in job.rows if row != LIMIT]
    with Network(job.workers + job.servers, job.rate, machines=job.workers) as nodes, ExitStack() as going:
        folder = going.enter_context(tempfile.TemporaryDirectory(ignore_cleanup_errors=True))
        rows = {}
        for number, row in enumerate([LIMIT, *others]):
            rows[row] = started(job.rows[row], job, nodes, f"{folder}/{number}")
            for training in rows[row]:
                going.callback(training.end)
        for number in range(turns):
            for row in others if number % 2 == 0 else reversed(others):
                limit, read = (turn(rows[one], seconds) for one in (LIMIT, row))
                for one, what in ((LIMIT, limit), (row, read)):
                    found.setdefault(one, []).append({**asdict(what), "limit": asdict(limit)})
                save()
                print(f"  {row}: {read.rate:.1f} of {limit.rate:.1f}, {read}", file=sys.stderr, flush=True)


def of_limit(readings: list, quantity) -> dict:
    """Spread of a quantity's share of what it is at the limit of the same turn."""
    return measure.spread([quantity(one) / quantity(one["limit"]) for one in readings])


def table(name: str, job: Job, found: dict) -> dict:
    """Prints the rows; figures for the last line."""
    global_batch = job.batch * job.workers
    shares = {row: of_limit(found[row], lambda one: one["rate"]) for row in job.rows if row in found}
    compute = global_batch / statistics.median([one["rate"] for one in found[LIMIT]])
    exchange = {row: compute * (1 / shares[row]["median"] - 1) for row in (PLAIN, PLAIN_FP16) if row in shares}
    took = [f"{1e3 * seconds:.0f} ms{' in fp16' * (row == PLAIN_FP16)}" for row, seconds in exchange.items()]
    print(f"\n{name}: {job.model}, {job.side} px, {job.workers} ranks of {job.batch}, links of {job.rate}")
    print(f"a step computes for {1e3 * compute:.0f} ms, an exchange after backward takes {', '.join(took) or '?'}")
    heads = f"{'of bound':>9}{'CPU ms':>8}{'of limit':>9}{'cores':>7}{'kernel':>7}{'serving':>8}{'others':>7}"
    print(f"{'':30}{'images/s':34}{'of the limit':34}{heads}")
    figures = {"rate": job.rate, "compute_s": compute, "exchange_s": exchange, "rows": {}}
    for row, share in shares.items():
        rates = measure.spread([one["rate"] for one in found[row]])
        bound = bound_of(job.rows[row], compute, exchange)
        of_bound = share["median"] / bound if bound else None
        middle = {
            key: statistics.median([one[key] for one in found[row]]) for key in ("cores", "kernel", "serving", "others")
        }
        cpu = statistics.median([one["cores"] * global_batch / one["rate"] for one in found[row]])
        cpu_of_limit = of_limit(found[row], lambda one: one["cores"] / one["rate"])["median"]
        print(
            f"{row:30}{measure.show(rates, '{:.1f}'):34}{measure.show(share, '{:.0%}'):34}",
            f"{of_bound:9.0%}" if bound else f"{'':9}",
            f"{1e3 * cpu:8.0f}{cpu_of_limit:9.0%}{middle['cores']:7.2f}{middle['kernel'] / middle['cores']:7.0%}",
            f"{middle['serving']:8.2f}{middle['others']:7.2f}",
            sep="",
        )
        figures["rows"][row] = {
            "images_per_s": rates, "of_limit": share, "of_bound": of_bound, "cpu_s": cpu, "cpu_of_limit": cpu_of_limit,
            **middle, "threads": found[row][-1]["threads"],
        }  # fmt: skip
    return figures


def bound_of(how, compute: float, exchange: dict):
    """The share of the limit that a row which overlaps can reach; None of the others."""
    if not isinstance(how, list) or AFTER in how or any("server" in switch for switch in how):
        return None
    taken = exchange.get(PLAIN_FP16 if FP16 in how else PLAIN)
    return min(1.0, compute / taken) if taken else None


def draw(figures: dict, path: str) -> None:
    """Each row's share of the limit, and the bound of those that overlap."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    rows = max(len(one["rows"]) for one in figures.values())
    axes = plt.subplots(1, len(figures), figsize=(8 * len(figures), 1 + 0.4 * rows), squeeze=False)[1][0]
    for axis, (name, one) in zip(axes, figures.items()):
        for place, value in enumerate(one["rows"].values()):
            share = value["of_limit"]["median"]
            axis.barh(place, share, color="tab:blue")
            axis.text(0.01, place, f"{share:.0%}", va="center", color="white")
            if value["of_bound"]:
                bound = share / value["of_bound"]
                axis.plot([bound, bound], [place - 0.4, place + 0.4], color="tab:orange")
        axis.set_yticks(range(len(one["rows"])), list(one["rows"]))
        axis.invert_yaxis()
        axis.set_xlim(0, 1)
        title = f"{JOBS[name].model}, {JOBS[name].workers} ranks, links of {one['rate']}"
        axis.set_title(f"{title}: of the images/s without exchange", fontsize=10)
        axis.set_xlabel("orange: what the network would allow")
    plt.tight_layout()
    plt.savefig(path, dpi=110)


def main() -> None:
    options = measure.arguments(
        __doc__.splitlines()[0],
        rate=("", "of all links, such as 600mbit, in place of the network's own"),
        only=("", f"one of {', '.join(JOBS)}; nothing: all"),
        rows=("", "a pattern: rows that have it in their names, and the limit; nothing: all"),
        turns=(8, "of all rows"),
        seconds=(3.0, "of each turn"),
        save=("", "JSON file that keeps the readings"),
        figure=("", "file to draw the shares into; with --turns 0 those that --save has"),
    )
    reason = network.possible()
    if reason:
        print(f"not measured: {reason}")
        return measure.finish({"not measured": reason})
    turns, seconds = (2, 1.0) if options.quick else (options.turns, options.seconds)
    pattern = options.rows or ("^(after backward|double buffering)$" if options.quick else "")
    kept = json.loads(Path(options.save).read_text()) if options.save and os.path.exists(options.save) else {}

    def save():
        if options.save:
            Path(options.save).write_text(json.dumps(kept))

    readings = [one for known in kept.values() for row in known["rows"].values() for one in row]
    if not set(kept) <= set(JOBS) or any("serving" not in one for one in readings):
        raise SystemExit(f"--save={options.save} is of an earlier version of this bench: name another file")
    figures, every = {}, list(JOBS if turns else kept)
    for name in [options.only] if options.only else ["mobilenet"] if options.quick else every:
        known = kept.setdefault(name, {"rate": options.rate or JOBS[name].rate, "rows": {}})
        if options.rate not in ("", known["rate"]):
            raise SystemExit(f"--save={options.save} has {name} over links of {known['rate']}: name another file")
        job = replace(JOBS[name], rate=known["rate"])
        wanted = {row: how for row, how in job.rows.items() if re.search(pattern, row) or row == LIMIT}
        if turns:
            measure_rows(replace(job, rows=wanted), turns, seconds, known["rows"], save)
        figures[name] = table(name, job, known["rows"])
    if options.figure:
        draw(figures, options.figure)
    measure.finish(figures)


if __name__ == "__main__":
    main()
