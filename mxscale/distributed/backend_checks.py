"""Checks of a communication back end against this machine: builds of MXNet and Horovod, devices, number of servers.

Each function raises ConfigError.
"""

import math
import shutil

import mxnet.runtime

from mxscale.config.backends import DEFAULT
from mxscale.config.optimizers import optimizer_entry
from mxscale.config.schema import Comm
from mxscale.config.sizes import server_count
from mxscale.distributed.communicators import horovod_build
from mxscale.environment.placement import Placement
from mxscale.util.errors import ConfigError

MOST_SERVERS = 128  # of a machine: each connects to every rank, and a machine has about 28,000 ports


def check_backend(comm: Comm, optimizer: str, device: str, ranks: int, hosts=()) -> None:
    """Check that a back end works with an optimizer and `ranks` ranks on the hosts of the plan; none: this machine."""
    entry, placed = comm.entry, Placement(ranks, 1, hosts)
    shares = (entry.drives_all_devices or entry.process_per_node) and ranks > 1
    if shares and not optimizer_entry(optimizer).replicable:
        raise ConfigError(
            f"optimizer.name={optimizer} keeps numbers that several devices of one process would share; "
            "use comm=horovod, or another optimizer"
        )
    if entry.process_per_node and placed.unequal:  # each process reads as many shards
        counts = ", ".join(f"{host.address}:{host.slots}" for host in placed.occupied)
        raise ConfigError(
            f"comm={comm.backend}: every machine needs as many devices, but launch.ranks={ranks} are {counts}; "
            "change launch.ranks or launch.hosts"
        )
    if entry.mxnet_feature and not mxnet.runtime.Features().is_enabled(entry.mxnet_feature):
        raise ConfigError(
            f"comm={entry.name}: this MXNet was built without {entry.mxnet_feature}; "
            f"use comm={DEFAULT} or another build"
        )
    if entry.gpus_only and device != "gpu":
        raise ConfigError(f"comm={entry.name}: sums on GPUs only; use comm={DEFAULT}, or launch.device=gpu")
    if entry.connects(ranks):
        check_transport(comm)
    servers = math.ceil(server_count(comm, placed.processes(comm)) / max(1, len(hosts)))
    if servers > MOST_SERVERS:
        raise ConfigError(f"comm.servers={comm.servers}: {servers:,} servers on a machine, at most {MOST_SERVERS}")


def check_transport(comm: Comm) -> None:
    """Check that this Horovod supports comm.transport."""
    build, transport = horovod_build(), comm.transport
    if not build:
        raise ConfigError(f"comm={comm.backend}: Horovod is not installed; run make setup, or use launch.ranks=1")
    if not build[transport]:
        supported = [name for name in ("gloo", "mpi") if build[name]]
        raise ConfigError(f"comm.transport={transport}: this Horovod was built with {' and '.join(supported)} only")
    if transport == "mpi" and not shutil.which("mpirun"):
        raise ConfigError("comm.transport=mpi: mpirun is not on the PATH; install Open MPI, or use gloo")
