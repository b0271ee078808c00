"""One rank of `mxscale test-allreduce`: it sums arrays of each size, and computes nothing else.

`python -m mxscale.distributed.allreduce_probe RUN_DIR ATTEMPT DEVICES SECONDS BYTES...`, started by
diagnose/all_reduce.py.
"""

import os
import sys
import time
from typing import List

from mxnet import nd

from mxscale.distributed.communicators import open_communicator
from mxscale.distributed.heartbeat import end_with_parent
from mxscale.rundir.directory import RunDir

NAME = "allreduce"  # of the files in RUN_DIR/probe
WARM, LEAST, MOST = 2, 5, 200  # all-reduces of a size: uncounted; counted


def measure(comm, devices: list, size: int, seconds: float) -> List[float]:
    """Return the seconds of each all-reduce of `size` bytes on each device, mean over the ranks. A collective."""
    arrays, name = [nd.ones((size // 4,), ctx=device) for device in devices], f"bytes.{size}"
    once(comm, arrays, name)
    expected = comm.total([len(devices)])[0]
    if not all((array == expected).asnumpy().all() for array in arrays):
        raise ValueError(f"an all-reduce of {size} bytes returned a wrong sum")
    for array in arrays:
        array[:] = 0  # sums of sums would overflow
    for _ in range(WARM):
        estimate = once(comm, arrays, name)
    count = int(comm.total([seconds / estimate])[0] / comm.size)
    times = [once(comm, arrays, name) for _ in range(min(max(count, LEAST), MOST))]
    return [float(mean) for mean in comm.total(times) / comm.size]


def once(comm, arrays: list, name: str) -> float:
    comm.total([0.0])  # all ranks start together
    nd.waitall()
    began = time.perf_counter()
    comm.all_reduce(arrays, name)
    nd.waitall()
    return time.perf_counter() - began


def main(run_path: str, attempt: int, count: int, seconds: float, sizes: List[int]) -> None:
    run = RunDir(run_path)
    end_with_parent(run, attempt)
    comm, rows = open_communicator(run.config().comm, count), []
    devices = comm.devices(run.plan().device)
    for size in sizes:
        times = measure(comm, devices, size, seconds)
        rows.append({"bytes": size, "seconds": times, "time_ms": int(1000 * time.time())})
        if comm.rank == 0:
            run.write(f"probe/{NAME}.json", {"sizes": rows})  # after each size, for a measurement that is interrupted
    comm.close()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4]), list(map(int, sys.argv[5:])))
    sys.stdout.flush()
    os._exit(0)  # as in rank.py
