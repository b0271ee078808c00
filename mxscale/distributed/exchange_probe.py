"""One rank of a back end's trial: `python -m mxscale.distributed.exchange_probe RUN_DIR ATTEMPT NAME`.

It exchanges as many numbers as the run's network has gradients, in the same buckets, and computes nothing else.
"""

import os
import statistics
import sys
import time
from dataclasses import replace

from mxnet import nd

from mxscale.config.backends import CANDIDATES
from mxscale.config.schema import Comm
from mxscale.distributed.communicators import open_communicator
from mxscale.distributed.exchange import Share, make_exchange
from mxscale.distributed.heartbeat import end_with_parent
from mxscale.rundir.directory import RunDir
from mxscale.rundir.plan import Plan

WARM, TIMES = 2, 10  # exchanges: uncounted, counted


def measure(comm, options: Comm, plan: Plan, ordered: bool) -> dict:
    """Return seconds per exchange: median, range and number, at most TIMES. A collective."""
    shapes, dtype = plan.probe.gradients, plan.probe.dtype
    lanes = [[nd.zeros(shape, ctx=device, dtype=dtype) for shape in shapes] for device in comm.devices(plan.device)]
    exchange = make_exchange(comm, lanes, options, Share(), ordered=ordered)
    seconds, began = [], time.perf_counter()
    while len(seconds) < WARM + TIMES:
        enough = len(seconds) > WARM and time.perf_counter() - began > options.probe_s / 3
        if comm.total([enough])[0]:  # waits for all ranks, so that all start each exchange together
            break
        nd.waitall()
        started_at = time.perf_counter()
        exchange()
        nd.waitall()
        seconds.append(time.perf_counter() - started_at)
    seconds = seconds[WARM:]
    return {"seconds": statistics.median(seconds), "between": [min(seconds), max(seconds)], "times": len(seconds)}


def main(run_path: str, attempt: int, name: str) -> None:
    run = RunDir(run_path)
    end_with_parent(run, attempt)
    plan, config = run.plan(), run.config()
    options = replace(config.comm, **CANDIDATES[name])
    comm = open_communicator(options, plan.sizes.ranks)
    found = measure(comm, options, plan, ordered=config.data.shards is not None)
    comm.close()
    if comm.rank == 0:
        run.write(f"probe/{name}.json", found)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3])
    sys.stdout.flush()
    os._exit(0)  # as in rank.py
