"""Input benchmark: ranks read their batches and do not train.

`python -m mxscale.train.input_probe RUN_DIR ATTEMPT NAME`, started by diagnose/diagnosis.py with the settings of
RUN_DIR/probe/NAME.yaml.
"""

import itertools
import os
import sys
from pathlib import Path

import yaml

from mxscale.config.schema import Config, from_dict
from mxscale.data.reader.batches import rates
from mxscale.distributed.communicators import open_communicator
from mxscale.distributed.heartbeat import end_with_parent
from mxscale.rundir.directory import RunDir
from mxscale.rundir.plan import Plan
from mxscale.train import builders


def read(batches, step: int) -> int:
    """Read all of this rank's batches of a step; return the number of images."""
    images = 0
    for micro in batches.step(step):
        micro.images.wait_to_read()
        images += micro.labels.shape[0]
    return images


def measure(comm, config: Config, plan: Plan, seconds: float, warmup: int) -> list:
    """Return the images/s of all ranks, which start together, by interval. A collective."""
    shards = list(range(comm.rank, plan.sizes.shards, comm.size))
    batches = builders.training_data(config, plan, shards, comm.devices(plan.device))
    for step in range(warmup):  # a reader decodes some batches ahead, which then cost no time
        read(batches, step)
    comm.total([0.0])
    counts = (read(batches, step) for step in itertools.count(warmup))
    return [float(rate) for rate in comm.total(rates(counts, seconds))]


def main(run_path: str, attempt: int, name: str) -> None:
    run = RunDir(run_path)
    end_with_parent(run, attempt)
    request = yaml.safe_load(Path(run.path, "probe", f"{name}.yaml").read_text())
    config, plan = from_dict(request["config"]), run.plan()
    comm = open_communicator(config.comm, plan.sizes.ranks)
    speeds = measure(comm, config, plan, request["seconds"], request["warmup"])
    comm.close()
    if comm.rank == 0:
        run.write(f"probe/{name}.json", {"images_per_s": speeds})


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3])
    sys.stdout.flush()
    os._exit(0)  # as in rank.py
