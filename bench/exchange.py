"""Images/s over a slow link, by how gradients are exchanged, beside the limit: the same ranks without any exchange.

    python bench/exchange.py [--quick] [--only resnet18] [--rate 2gbit] [--repeats 3] [--save FILE.json]

Each rank, and each parameter server, is on a node of its own whose link is limited both ways (bench/network.py).
Workers' nodes share out the cores; a server's node has those of a worker's.
Rows are measured in turn, --repeats times over; --save keeps what was measured, and another call adds to it.
Rates are the engine's own, from metrics.jsonl: the median of intervals of ten steps, without the first one.

The limit is as many one-rank runs side by side (comm=local), so that cores are shared as they are with an exchange.
An exchange takes what a step is longer than the limit's when it is made after backward, where nothing overlaps.
--rate: where the machine is faster or slower, for an exchange that leaves half of the limit.
Of the limit, a row that overlaps can reach no more than its bound: min(1, compute / exchange).
cores, CPU ms, kernel: what the processes of all ranks take of the CPU, by step, and the kernel's share of it.
Where cores are all taken, a row reaches the limit's CPU ms over its own at most, whatever overlaps.
others: cores that all else takes, parameter servers too; where it is much in other rows, nothing is worth comparing.
"""

import json
import os
import re
import secrets
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path

import measure
import network
import ranks
from network import Network
from watched import Reading, Training

INTERVAL = 10


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
ONE = {"overlapped, one bucket": ["comm.bucket_mb=1000"]}
LOOPS = {"Horovod's DistributedTrainer": "horovod", "gluon's kvstore, 1 server": "kvstore"}


def beside_servers(workers: int, rate: str) -> Job:
    rows = {LIMIT: None, PLAIN: [AFTER], "overlapped": []}
    for count in ("1", "1x", "2x"):
        rows[f"servers: {count}"] = ["comm=parameter_server", f"comm.servers={count}", "comm.update_on=worker"]
    return Job("mobilenet0.25", 224, 32, rate, rows, workers, servers=2 * workers)


JOBS = {
    "resnet18": Job("resnet18_v1b", 64, 16, "2gbit", {**OPTIONS, **LOOPS}, servers=1),
    "mobilenet": Job("mobilenet0.25", 96, 32, "250mbit", {**OPTIONS, **ONE, **LOOPS}, servers=1),
    # Photographs: the same gradients on a proportionally slower link cost a small share of a step's CPU
    "photos": Job("mobilenet0.25", 224, 32, "100mbit", {**OPTIONS, **LOOPS}, servers=1),
    "servers2": beside_servers(2, "100mbit"),
    "servers4": beside_servers(4, "50mbit"),
}


# ---------------------------------------------------------------- one run


def settings(job: Job, steps: int) -> list:
    return [
        "data=synthetic", f"data.image_size={job.side}", "data.num_images=1000000", f"model.name={job.model}",
        f"batch.per_device={job.batch}", "epochs=1", f"max_steps={steps}", f"log_every={INTERVAL}",
        "optimizer.lr=0.001", "schedule=constant", "launch.threads=1",
    ]  # fmt: skip


def product(job: Job, nodes: Network, switches, steps: int, folder: str) -> Reading:
    """The engine, with its ranks on the first nodes; servers have those without a rank."""
    count = job.workers + (job.servers if any("server" in switch for switch in switches) else 0)
    hosts = ",".join(f"{address}:1" for address in nodes.addresses[:count])
    where = [f"launch.hosts=[{hosts}]", f"launch.ranks={job.workers}"]
    return Training([*settings(job, steps), *where, *switches], folder, nodes.env()).read()


def side_by_side(job: Job, nodes: Network, steps: int, folder: str) -> Reading:
    """As many runs of one rank, which know nothing of each other."""
    alone = [*settings(job, steps), "comm=local"]
    runs = [Training(alone, f"{folder}/{node}", nodes.env(), nodes.inside(node)) for node in range(1, job.workers + 1)]
    readings = [run.read() for run in runs]
    cores = sum(reading.cores for reading in readings)
    kernel = sum(reading.kernel * reading.cores for reading in readings) / cores if cores else 0.0
    others = readings[0].others + readings[0].cores - cores
    return Reading(sum(reading.rate for reading in readings), cores, kernel, others, readings[0].threads)


def by_hand(kind: str, job: Job, nodes: Network, steps: int, folder: str) -> Reading:
    """A loop of bench/stock.py."""
    out = Path(folder, "rates.json")
    argv = [measure.ROOT / "bench/stock.py", kind, out, job.model, job.side, job.batch, steps]
    if kind == "horovod":
        ranks.run(argv, job.workers, network=nodes, threads=1, extra={"HOROVOD_FUSION_THRESHOLD": str(128 * 2**20)})
    else:
        with_server(argv, job.workers, nodes)
    return Reading(statistics.median(json.loads(out.read_text())))


def with_server(argv, workers: int, nodes: Network) -> None:
    """Scheduler and one server on the node after the workers'."""
    port = 10000 + secrets.randbelow(20000)
    meeting = {"DMLC_PS_ROOT_URI": nodes.addresses[workers], "DMLC_PS_ROOT_PORT": str(port),
               "DMLC_NUM_SERVER": "1", "DMLC_NUM_WORKER": str(workers), "OMP_NUM_THREADS": "1"}  # fmt: skip

    def start(role: str, node: int, words) -> subprocess.Popen:
        env = {**os.environ, **meeting, "DMLC_ROLE": role, "DMLC_NODE_HOST": nodes.addresses[node - 1]}
        return subprocess.Popen(nodes.inside(node, sys.executable, *words), env=env, cwd=measure.ROOT)

    serving = [start(role, workers + 1, ["-c", "import mxnet"]) for role in ("scheduler", "server")]
    try:
        working = [start("worker", node, argv) for node in range(1, workers + 1)]
        if any([worker.wait() for worker in working]):
            raise SystemExit("a worker of gluon's kvstore failed")
    finally:
        for process in serving:
            process.kill()
            process.wait()


def reading(how, job: Job, nodes: Network, steps: int) -> Reading:
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        if how is None:
            return side_by_side(job, nodes, steps, folder)
        if isinstance(how, str):
            return by_hand(how, job, nodes, steps, folder)
        return product(job, nodes, how, steps, folder)


# ---------------------------------------------------------------- all rows, and what they say


def measure_rows(job: Job, repeats: int, steps: int, found: dict, save) -> None:
    """Adds `repeats` readings of each row to `found`, each with the limit of its turn, because a machine drifts."""
    with Network(job.workers + job.servers, job.rate, machines=job.workers) as nodes:
        for turn in range(repeats):
            others, limit = [row for row in job.rows if row != LIMIT], None
            for row in [LIMIT, *(others if turn % 2 == 0 else reversed(others))]:
                read = vars(reading(job.rows[row], job, nodes, steps))
                limit = limit or read["rate"]
                found.setdefault(row, []).append({**read, "limit": limit})
                save()
                print(f"  {row}: {found[row][-1]}", file=sys.stderr, flush=True)


def table(name: str, job: Job, found: dict) -> dict:
    """Prints the rows; figures for the last line."""
    global_batch = job.batch * job.workers
    rates = {row: [one["rate"] for one in found[row]] for row in job.rows if row in found}
    compute = global_batch / statistics.median(rates[LIMIT])
    exchange = {
        row: global_batch / statistics.median(rates[row]) - compute for row in (PLAIN, PLAIN_FP16) if row in rates
    }
    took = [f"{1e3 * seconds:.0f} ms{' in fp16' * (row == PLAIN_FP16)}" for row, seconds in exchange.items()]
    print(f"\n{name}: {job.model}, {job.side} px, {job.workers} ranks of {job.batch}, links of {job.rate}")
    print(f"a step computes for {1e3 * compute:.0f} ms, an exchange after backward takes {', '.join(took) or '?'}")
    print(
        f"{'':32}{'images/s':32}{'of the limit':32}{'of bound':>9}{'cores':>7}{'CPU ms':>8}{'kernel':>7}{'others':>7}"
    )
    figures = {"rate": job.rate, "compute_s": compute, "exchange_s": exchange, "rows": {}}
    for row, values in rates.items():
        share = measure.spread([one["rate"] / one["limit"] for one in found[row]])
        bound = bound_of(job.rows[row], compute, exchange)
        of_bound = share["median"] / bound if bound else None
        cores, kernel, others = (
            statistics.median([one[key] for one in found[row]]) for key in ("cores", "kernel", "others")
        )
        cpu = statistics.median([one["cores"] * global_batch / one["rate"] for one in found[row]])
        cells = [f"{of_bound:9.0%}" if bound else f"{'':9}"]
        cells += [f"{cores:7.2f}{1e3 * cpu:8.0f}{kernel:7.0%}{others:7.2f}"] if cores else []
        print(
            f"{row:32}{measure.show(measure.spread(values), '{:.1f}'):32}{measure.show(share, '{:.0%}'):32}",
            *cells,
            sep="",
        )
        of_cpu = {
            "cores": cores,
            "cpu_s": cpu,
            "kernel": kernel,
            "others": others,
            "threads": found[row][-1]["threads"],
        }
        figures["rows"][row] = {
            "images_per_s": measure.spread(values), "of_limit": share, "of_bound": of_bound, **of_cpu
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
        repeats=(3, "of all rows"),
        steps=(50, "of each run"),
        save=("", "JSON file that keeps the readings"),
        figure=("", "file to draw the shares into; with --repeats 0 those that --save has"),
    )
    reason = network.possible()
    if reason:
        print(f"not measured: {reason}")
        return measure.finish({"not measured": reason})
    repeats, steps = (1, 3 * INTERVAL) if options.quick else (options.repeats, options.steps)
    pattern = options.rows or ("^(after backward|double buffering)$" if options.quick else "")
    kept = json.loads(Path(options.save).read_text()) if options.save and os.path.exists(options.save) else {}

    def save():
        if options.save:
            Path(options.save).write_text(json.dumps(kept))

    figures, every = {}, list(JOBS if repeats else kept)
    for name in [options.only] if options.only else ["mobilenet"] if options.quick else every:
        known = kept.setdefault(name, {"rate": options.rate or JOBS[name].rate, "rows": {}})
        if options.rate not in ("", known["rate"]):
            raise SystemExit(f"--save={options.save} has {name} over links of {known['rate']}: name another file")
        job = replace(JOBS[name], rate=known["rate"])
        wanted = {row: how for row, how in job.rows.items() if re.search(pattern, row) or row == LIMIT}
        measure_rows(replace(job, rows=wanted), repeats, steps, known["rows"], save)
        figures[name] = table(name, job, known["rows"])
    if options.figure:
        draw(figures, options.figure)
    measure.finish(figures)


if __name__ == "__main__":
    main()
