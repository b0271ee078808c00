"""Time of an all-reduce by size, and the latency and bandwidth fitted to it.

    python bench/allreduce.py [--quick] [--ranks 2] [--transport gloo] [--rate 2gbit] [--write FILE.csv]

With --rate every rank runs on its own node whose link has that rate (mxscale/replay/network.py); without it all ranks
run on this machine. A ring of p ranks sends 2(p-1)/p of the M bytes through each link in 2(p-1) messages:

    seconds = 2(p-1) alpha + 2(p-1)/p M / bandwidth

alpha is the cost of a call that does not depend on its size, including Horovod's negotiation. The fit minimises the
relative errors of all sizes.

--write appends the row that the planner reads; columns: name (of the link), ranks, transport, alpha_s, bytes_per_s,
date (YYYY-MM-DD), source (the command).
"""

import contextlib
import csv
import datetime
import json
import sys
import tempfile
import time
from pathlib import Path

import measure
import numpy as np
import ranks

from mxscale.perfmodel import step_time
from mxscale.replay.network import Network

COLUMNS = ["name", "ranks", "transport", "alpha_s", "bytes_per_s", "date", "source"]
SIZES = [4**power for power in range(5, 14)]  # 1 KiB to 64 MiB


def rank_main(out: str, seconds: str, largest: str) -> None:
    """Run one rank; rank 0 writes {bytes: [seconds of each repetition, mean over ranks]}."""
    from mxnet import nd

    from mxscale.config.schema import Comm
    from mxscale.distributed.communicators import open_communicator

    comm, measured = open_communicator(Comm()), {}
    started = nd.ones((16,))
    comm.all_reduce([started], "check")
    assert (started.asnumpy() == comm.size).all(), "an all-reduce returned a wrong sum"
    for size in [size for size in SIZES if size <= int(largest)]:
        array = nd.zeros((size // 4,))
        times = [_once(comm, array, f"bytes.{size}") for _ in range(3)][2:]  # two to warm up
        repetitions = int(comm.total([float(seconds) / times[0]])[0] / comm.size)
        times = [_once(comm, array, f"bytes.{size}") for _ in range(min(max(repetitions, 5), 200))]
        measured[size] = list(comm.total(times) / comm.size)
    if comm.rank == 0:
        Path(out).write_text(json.dumps(measured))
    comm.close()


def _once(comm, array, name: str) -> float:
    comm.total([0.0])  # all ranks start together
    began = time.perf_counter()
    comm.all_reduce([array], name)
    array.wait_to_read()
    return time.perf_counter() - began


def fit(seconds: dict, ranks: int) -> tuple:
    """Return (alpha in seconds, bandwidth in bytes/s, predicted {bytes: seconds}) for measured {bytes: seconds}."""
    link, messages = step_time.calibrate(list(seconds.items()), ranks), 2 * (ranks - 1)
    predicted = {size: messages * (link.alpha_s + size / ranks / link.bytes_per_s) for size in seconds}
    return link.alpha_s, link.bytes_per_s, predicted


def measure_links(options) -> dict:
    """Return {bytes: spread of seconds}."""
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        network = stack.enter_context(Network(options.ranks, options.rate)) if options.rate else None
        out = Path(folder, "times.json")
        largest, seconds = (SIZES[-2], 0.3) if options.quick else (SIZES[-1], 2.0)
        ranks.run([__file__, "rank", out, seconds, largest], options.ranks, options.transport, network)
        return {int(size): measure.spread(times) for size, times in json.loads(out.read_text()).items()}


def main() -> None:
    options = measure.arguments(
        __doc__.splitlines()[0],
        ranks=(2, "number of ranks"),
        transport=("gloo", "gloo | mpi"),
        rate=("", "rate of each link in the notation of tc; empty: no limit, this machine"),
        write=("", "CSV file to append the row to"),
    )
    measured = measure_links(options)
    medians = {size: times["median"] for size, times in measured.items()}
    alpha, bandwidth, predicted = fit(medians, options.ranks)
    print(f"{'bytes':>10}  {'ms, median (smallest to largest)':34} {'fit, ms':>8} {'off':>5}")
    for size, times in measured.items():
        scaled = {key: value * (1e3 if key != "runs" else 1) for key, value in times.items()}
        off = predicted[size] / times["median"] - 1
        print(f"{size:10}  {measure.show(scaled, '{:.2f}'):34} {1e3 * predicted[size]:8.2f} {off:+5.0%}")
    residual = float(np.sqrt(np.mean([(predicted[size] / t - 1) ** 2 for size, t in medians.items()])))
    link = f"link of {options.rate}" if options.rate else "this machine"
    print(f"alpha {1e6 * alpha:.0f} us, bandwidth {bandwidth * 8 / 1e9:.3f} Gbit/s, residual {residual:.0%} ({link})")
    if options.write:
        append(options, link, alpha, bandwidth)
    figures = {"alpha_s": alpha, "bytes_per_s": bandwidth, "residual": residual, "link": link, "ranks": options.ranks,
               "transport": options.transport, "seconds": measured}  # fmt: skip
    measure.finish(figures)


def append(options, link: str, alpha: float, bandwidth: float) -> None:
    """Append the row that the planner reads; a new file starts with a header."""
    path = Path(options.write)
    new = not path.exists()
    rate = f" --rate {options.rate}" if options.rate else ""
    source = f"python bench/allreduce.py --ranks {options.ranks} --transport {options.transport}{rate}"
    with open(path, "a", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        if new:
            writer.writerow(COLUMNS)
        today = datetime.date.today().isoformat()
        writer.writerow([link, options.ranks, options.transport, f"{alpha:.3g}", f"{bandwidth:.4g}", today, source])


if __name__ == "__main__":
    if sys.argv[1:2] == ["rank"]:
        rank_main(*sys.argv[2:])
    else:
        main()
