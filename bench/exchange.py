"""Images/s over a slow link by kind of gradient exchange, relative to the same ranks without an exchange (the limit).

    python bench/exchange.py [--quick] [--only resnet18] [--rate 2gbit] [--turns 8] [--save FILE.json]

Each rank and each parameter server runs on its own node, whose link is limited both ways (bench/emulated_network.py).
The workers' nodes divide the cores; a server's node shares those of a worker's node. All rows are started and take
turns of --seconds (bench/watched.py). The limit runs before each other row, whose share refers to it. --save stores the
readings, and a further call adds to them. Rates are those of metrics.jsonl.

The limit is the same number of one-rank runs side by side (comm=local), so that cores are shared as with an exchange.
The duration of an exchange is the difference between the step time of the limit and that of "after backward", where
nothing overlaps. Use --rate on a faster or slower machine, so that the exchange leaves about half of the limit.

of bound         a row that overlaps reaches at most min(1, compute / exchange) of the limit
CPU ms, of limit, cores, kernel
                 CPU time of all ranks per step, and the kernel's share; with all cores in use a row reaches at most the
                 limit's CPU ms over its own
serving, others  cores used by parameter servers and by all other processes; with many others no row is comparable
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

import emulated_network as network
import measure
import ranks
from emulated_network import Network
from watched import Reading, Training

from mxscale.diagnose.timing import RATE
from mxscale.rundir.directory import RunDir


@dataclass(frozen=True)
class Job:
    """A network at a size, its links, and the rows to measure: name -> overrides of a run, or a loop of stock.py."""

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


def server_job(workers: int, rate: str) -> Job:
    rows = {LIMIT: None, PLAIN: [AFTER], "overlapped": []}
    for count in ("1", "1x", "2x"):
        rows[f"servers: {count}"] = ["comm=parameter_server", f"comm.servers={count}"]
    return Job("mobilenet0.25", 224, 32, rate, rows, workers, servers=2 * workers, interval=4)


JOBS = {
    "resnet18": Job("resnet18_v1b", 64, 16, "2gbit", {**OPTIONS, **LOOPS}, servers=1),
    "mobilenet": Job("mobilenet0.25", 96, 32, "600mbit", {**OPTIONS, **LOOPS}, servers=1, interval=20),
    # 5 MB of gradients and steps of seconds: an exchange needs almost no CPU
    "squeezenet": Job("squeezenet1.0", 224, 32, "25mbit", OPTIONS, interval=1),
    "servers2": server_job(2, "100mbit"),
    "servers4": server_job(4, "50mbit"),
}


# ---------------------------------------------------------------- one row


def settings(job: Job) -> list:
    return [
        "tracking=none", "data=synthetic", f"data.image_size={job.side}", "data.num_images=10000000",
        f"model.name={job.model}", f"batch.per_device={job.batch}", "epochs=1", f"log_every={job.interval}",
        "optimizer.lr=0.001", "schedule=constant", "launch.threads=1", "launch.stall_s=3600",
    ]  # fmt: skip


def product(job: Job, nodes: Network, overrides, folder: str, before=()) -> Training:
    """Start a run as a user does; `before` precedes the command, such as `ip netns exec NAME`."""
    argv = [*before, sys.executable, "train.py", f"runs={folder}", *settings(job), *overrides]

    def rates() -> list:
        found = list(Path(folder, "train").glob("*/metrics.jsonl"))
        lines = RunDir(found[0].parent).history() if found else []
        return [line["metrics"][RATE] for line in lines if RATE in line["metrics"]]

    return Training([argv], nodes.env(), rates, job.interval)


def exchanging(job: Job, nodes: Network, overrides, folder: str) -> list:
    """Start a run with its ranks on the first nodes and servers on the nodes without a rank."""
    count = job.workers + (job.servers if any("server" in switch for switch in overrides) else 0)
    hosts = ",".join(f"{address}:1" for address in nodes.addresses[:count])
    return [product(job, nodes, [*overrides, f"launch.hosts=[{hosts}]", f"launch.ranks={job.workers}"], folder)]


def side_by_side(job: Job, nodes: Network, folder: str) -> list:
    """Start the same number of independent runs of one rank."""
    of_each = range(1, job.workers + 1)
    return [product(job, nodes, ["comm=local"], f"{folder}/{node}", nodes.inside(node)) for node in of_each]


def by_hand(kind: str, job: Job, nodes: Network, folder: str) -> list:
    """Start a loop of bench/stock.py."""
    out = Path(folder, "rates")
    out.parent.mkdir()
    argv = [measure.ROOT / "bench/stock.py", kind, out, job.model, job.side, job.batch, job.interval]
    if kind == "horovod":
        own = {"HOROVOD_FUSION_THRESHOLD": str(128 * 2**20), "HOROVOD_GLOO_TIMEOUT_SECONDS": "3600"}
        command, env = ranks.command(argv, job.workers, network=nodes, threads=1, extra=own)
        argvs = [command]
    else:
        argvs, env = with_server(argv, job.workers, nodes), nodes.env()

    def rates() -> list:
        return [float(line) for line in out.read_text().split()] if out.exists() else []

    return [Training(argvs, env, rates, job.interval)]


def with_server(argv, workers: int, nodes: Network) -> list:
    """Return the commands of scheduler and server (on the node after the workers) and of the workers."""
    port = 10000 + secrets.randbelow(20000)
    rendezvous = {"DMLC_PS_ROOT_URI": nodes.addresses[workers], "DMLC_PS_ROOT_PORT": str(port),
               "DMLC_NUM_SERVER": "1", "DMLC_NUM_WORKER": str(workers), "OMP_NUM_THREADS": "1"}  # fmt: skip

    def command(role: str, node: int, argv) -> list:
        variables = {**rendezvous, "DMLC_ROLE": role, "DMLC_NODE_HOST": nodes.addresses[node - 1]}
        return nodes.inside(
            node, "env", *(f"{name}={value}" for name, value in variables.items()), sys.executable, *argv
        )

    serving = [command(role, workers + 1, ["-c", "import mxnet"]) for role in ("scheduler", "server")]
    return serving + [command("worker", node, argv) for node in range(1, workers + 1)]


def started(how, job: Job, nodes: Network, folder: str) -> list:
    """Start the jobs of a row, one or as many as workers, and stop them after warm-up."""
    if how is None:
        return side_by_side(job, nodes, folder)
    if isinstance(how, str):
        return by_hand(how, job, nodes, folder)
    return exchanging(job, nodes, how, folder)


def turn(trainings: list, seconds: float) -> Reading:
    """Run all jobs of a row for one turn; return their common reading."""
    with ThreadPoolExecutor(len(trainings)) as pool:
        readings = list(pool.map(lambda training: training.turn(seconds), trainings))
    for training in trainings:
        training.stop()
    rate, cores, kernel = (sum(getattr(one, key) for one in readings) for key in ("rate", "cores", "kernel"))
    others = readings[0].others + readings[0].cores - cores
    return Reading(rate, cores, kernel, readings[0].serving, others, readings[0].threads)


# ---------------------------------------------------------------- all rows


def measure_rows(job: Job, turns: int, seconds: float, found: dict, save) -> None:
    """Add the readings of `turns` turns of each row to `found`, each with that of the limit before it."""
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
    """Return the spread of a quantity relative to the limit of the same turn."""
    return measure.spread([quantity(one) / quantity(one["limit"]) for one in readings])


def table(name: str, job: Job, found: dict) -> dict:
    """Print the rows; return the figures for the last line."""
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
    """Return the largest share of the limit of a row that overlaps; None for other rows."""
    if not isinstance(how, list) or AFTER in how or any("server" in switch for switch in how):
        return None
    taken = exchange.get(PLAIN_FP16 if FP16 in how else PLAIN)
    return min(1.0, compute / taken) if taken else None


def main() -> None:
    options = measure.arguments(
        __doc__.splitlines()[0],
        rate=("", "rate of all links, such as 600mbit, in place of the job's"),
        only=("", f"one of {', '.join(JOBS)}; empty: all"),
        rows=("", "regular expression: rows whose names match, and the limit; empty: all"),
        turns=(8, "turns of all rows"),
        seconds=(3.0, "duration of each turn"),
        save=("", "JSON file that stores the readings"),
    )
    reason = network.possible()
    if reason:
        print(f"not measured: {reason}")
        return measure.finish({"not measured": reason})
    turns, seconds = (2, 1.0) if options.quick else (options.turns, options.seconds)
    pattern = options.rows or ("^(after backward|double buffering)$" if options.quick else "")
    stored = json.loads(Path(options.save).read_text()) if options.save and os.path.exists(options.save) else {}

    def save():
        if options.save:
            Path(options.save).write_text(json.dumps(stored))

    readings = [one for known in stored.values() for row in known["rows"].values() for one in row]
    if not set(stored) <= set(JOBS) or any("serving" not in one for one in readings):
        raise SystemExit(f"--save={options.save} was written by an earlier version; use another file")
    figures, every = {}, list(JOBS if turns else stored)
    for name in [options.only] if options.only else ["mobilenet"] if options.quick else every:
        known = stored.setdefault(name, {"rate": options.rate or JOBS[name].rate, "rows": {}})
        if options.rate not in ("", known["rate"]):
            raise SystemExit(f"--save={options.save} has {name} over links of {known['rate']}; use another file")
        job = replace(JOBS[name], rate=known["rate"])
        wanted = {row: how for row, how in job.rows.items() if re.search(pattern, row) or row == LIMIT}
        if turns:
            measure_rows(replace(job, rows=wanted), turns, seconds, known["rows"], save)
        figures[name] = table(name, job, known["rows"])
    measure.finish(figures)


if __name__ == "__main__":
    main()
