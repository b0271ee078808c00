"""The registries of the exchange: of gradient compressions (comm.compression), and of back ends (comm.backend).

docs/extending.md shows how to add one.
"""

from dataclasses import dataclass
from typing import Dict, Optional, Tuple

from mxscale.config.precisions import PRECISIONS


@dataclass(frozen=True)
class Compression:
    """What ranks send in place of float32 gradients."""

    name: str  # value of comm.compression
    help: str
    implementation: str  # "module:Class" of a distributed.compression.Wire
    bytes_each: float  # bytes of a gradient on the network, for the performance model
    # What an exchange rounds off is kept in float32 and added in the next step. Checkpoints hold it
    error_feedback: bool = False

    @property
    def accepted(self) -> Tuple[str, ...]:
        """The values of precision that it accepts. With amp the loss scale of a residual may be an earlier one."""
        return tuple(name for name in PRECISIONS if not (self.error_feedback and name == "amp"))


COMPRESSIONS: Dict[str, Compression] = {
    entry.name: entry
    for entry in (
        Compression("none", "float32", "mxscale.distributed.compression:Wire", bytes_each=4),
        Compression("fp16", "float16", "mxscale.distributed.compression:Float16", bytes_each=2),
    )
}

# How gradients travel, as perfmodel/step_time.py models it
RING, ALL_TO_ALL, SERVERS = "ring", "all_to_all", "servers"


@dataclass(frozen=True)
class Backend:
    """A communication back end and its capabilities."""

    name: str  # value of comm.backend
    help: str
    implementation: str  # "module:class" of a communicator, which is called with (Comm, number of devices)
    exchange: Optional[str] = None  # pattern in the performance model: RING, ALL_TO_ALL or SERVERS; None: not modelled
    uses_horovod: bool = False  # ranks are started by horovodrun or mpirun and connect through Horovod
    single_rank: bool = False  # supports exactly one rank
    drives_all_devices: bool = False  # one process drives all devices; otherwise each device has a rank of its own
    process_per_node: bool = False  # one process of each machine drives its devices
    needs_servers: bool = False  # parameter servers and their scheduler run beside the ranks
    repeatable_ranks: Optional[int] = None  # most ranks whose results are bit-identical between runs; None: any number
    not_repeatable: str = ""  # why runs with more ranks than that differ
    kvstore: str = ""  # type of MXNet's kvstore that the implementation creates
    mxnet_feature: str = ""  # feature that MXNet must be built with, as mxnet.runtime.Features names it
    gpus_only: bool = False  # does not train on a CPU
    aliases: Tuple[str, ...] = ()  # MXNet's kvstore types that are refused with a pointer to this back end

    def connects(self, ranks: int) -> bool:
        """Return whether ranks need Horovod: one rank alone has nobody to exchange gradients with."""
        return self.uses_horovod and (ranks > 1 or self.needs_servers)

    def repeats(self, ranks: int) -> bool:
        """Return whether two runs of one configuration with this number of ranks give the same bits."""
        return self.repeatable_ranks is None or ranks <= self.repeatable_ranks


COMMUNICATORS = "mxscale.distributed.communicators"
BACKENDS: Dict[str, Backend] = {
    entry.name: entry
    for entry in (
        Backend("horovod", "a ring of ranks over Gloo, MPI or NCCL", f"{COMMUNICATORS}:Horovod",
                exchange=RING, uses_horovod=True, aliases=("byteps",)),
        Backend("local", "one rank without a communicator; MXNet's kvstore `local` is kvstore_local",
                f"{COMMUNICATORS}:Local", single_rank=True),
        Backend("device", "one process drives all devices of a machine; MXNet's kvstore sums on the devices",
                f"{COMMUNICATORS}:OneProcess", exchange=ALL_TO_ALL, drives_all_devices=True, kvstore="device"),
        Backend("kvstore_local",
                "one process drives all devices of a machine; MXNet's kvstore sums in the memory of the CPU",
                f"{COMMUNICATORS}:OneProcess", drives_all_devices=True, kvstore="local"),
        Backend("nccl", "one process drives all GPUs of a machine; NCCL sums, called by MXNet's kvstore",
                f"{COMMUNICATORS}:OneProcess", exchange=RING, drives_all_devices=True, kvstore="nccl",
                mxnet_feature="NCCL", gpus_only=True),
        Backend("parameter_server", "parameter servers sum the gradients of each step",
                f"{COMMUNICATORS}:ParameterServers", exchange=SERVERS, uses_horovod=True, needs_servers=True,
                repeatable_ranks=2,
                not_repeatable="not repeatable to the last bit: servers add in the order of arrival",
                kvstore="dist_sync", mxnet_feature="DIST_KVSTORE",
                aliases=("dist", "dist_sync", "p3", "dist_async", "async", "dist_device_async", "dist_async_device")),
        Backend("dist_device_sync",
                "one process of each machine sums the gradients of its devices, and servers sum those of the machines",
                f"{COMMUNICATORS}:NodeServers", exchange=SERVERS, uses_horovod=True, needs_servers=True,
                process_per_node=True, repeatable_ranks=0,
                not_repeatable="not repeatable to the last bit with three machines: servers add as gradients arrive",
                kvstore="dist_device_sync", mxnet_feature="DIST_KVSTORE", aliases=("dist_sync_device",)),
    )
}  # fmt: skip

DEFAULT = "horovod"
SINGLE_RANK = next(entry.name for entry in BACKENDS.values() if entry.single_rank)

# MXNet 1.9.1 treats most unknown kvstore types (p3, horovod) as `local` and trains each rank alone without a warning
# (src/kvstore/kvstore.cc, KVStore::Create). Its types are therefore refused by name.
ALIASES = {alias: entry.name for entry in BACKENDS.values() for alias in entry.aliases}

# Back end -> how the performance model calculates its exchange
MODELLED = {entry.name: entry.exchange for entry in BACKENDS.values() if entry.exchange}
