"""Checks of a communication back end against this machine: builds of MXNet and Horovod, devices, ports.

Each function raises ConfigError.
"""

import math
import shutil
from pathlib import Path

import mxnet.runtime

from mxscale.config.backends import DEFAULT
from mxscale.config.optimizers import optimizer_entry
from mxscale.config.schema import Comm
from mxscale.config.sizes import server_count
from mxscale.distributed.communicators import horovod_build
from mxscale.environment.placement import Placement
from mxscale.util.errors import ConfigError

PORTS = Path("/proc/sys/net/ipv4/ip_local_port_range")  # ephemeral ports


def check_backend(comm: Comm, optimizer: str, device: str, ranks: int, hosts=()) -> None:
    """Check that a back end works with an optimizer and `ranks` ranks on the hosts of the plan; none: this machine."""
    entry = comm.entry
    if (entry.drives_all_devices or entry.process_per_node) and ranks > 1:
        check_replicas(optimizer)
    if entry.process_per_node:
        check_equal_nodes(comm, Placement(ranks, 1, hosts))
    if entry.mxnet_feature and not mxnet.runtime.Features().is_enabled(entry.mxnet_feature):
        raise ConfigError(
            f"comm={entry.name}: this MXNet was built without {entry.mxnet_feature}; "
            f"use comm={DEFAULT} or another build"
        )
    if entry.gpus_only and device != "gpu":
        raise ConfigError(f"comm={entry.name}: sums on GPUs only; use comm={DEFAULT}, or launch.device=gpu")
    if entry.uses_horovod:
        check_transport(comm)
    check_ports(comm, ranks, hosts)


def check_replicas(optimizer: str) -> None:
    """Check that an optimizer keeps nothing but its states: each device updates its own copy of the weights."""
    if not optimizer_entry(optimizer).replicable:
        raise ConfigError(
            f"optimizer.name={optimizer} keeps numbers that several devices of one process would share; "
            "use comm=horovod, or another optimizer"
        )


def check_equal_nodes(comm: Comm, placed: Placement) -> None:
    """Check that all machines train on as many devices, because each process reads as many shards."""
    if placed.unequal:
        counts = ", ".join(f"{host.address}:{host.slots}" for host in placed.occupied)
        raise ConfigError(
            f"comm={comm.backend}: every machine needs as many devices, but launch.ranks={placed.ranks} are {counts}; "
            "change launch.ranks or launch.hosts"
        )


def check_transport(comm: Comm) -> None:
    """Check that this Horovod supports comm.transport."""
    build, transport = horovod_build(), comm.transport
    if not build:
        raise ConfigError(f"comm={comm.backend}: Horovod is not installed; run make setup, or use comm=local")
    if not build[transport]:
        supported = [name for name in ("gloo", "mpi") if build[name]]
        raise ConfigError(f"comm.transport={transport}: this Horovod was built with {' and '.join(supported)} only")
    if transport == "mpi" and not shutil.which("mpirun"):
        raise ConfigError("comm.transport=mpi: mpirun is not on the PATH; install Open MPI, or use gloo")


def check_ports(comm: Comm, ranks: int, hosts=()) -> None:
    """Check that each machine has enough ports for its parameter servers and ranks.

    Each process listens on a port and connects to every process of the other kind. The scheduler and each process
    connect to each other.
    """
    processes = Placement(ranks, 1, hosts).processes(comm)
    servers = server_count(comm, processes)
    if not servers:
        return
    ranks = processes
    local_servers = math.ceil(servers / max(1, len(hosts)))
    local_ranks = min(ranks, max((host.slots for host in hosts), default=ranks))
    needed = local_servers * (ranks + 2) + local_ranks * (servers + 2) + servers + ranks + 1
    first, last = map(int, PORTS.read_text().split())
    available = last - first + 1
    if needed > available:
        raise ConfigError(
            f"comm.servers={comm.servers}: {servers} servers and {ranks} ranks need {needed:,} ports on one "
            f"machine, which has {available:,} ({PORTS}); use fewer servers"
        )
