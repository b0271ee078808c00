"""The registry of gradient compressions: one entry for each value of comm.compression.

Standard library only. docs/extending.md shows how to add one.
"""

from dataclasses import dataclass
from typing import Dict

PRECISIONS = ("float32", "float16", "amp")


@dataclass(frozen=True)
class Compression:
    """What ranks send in place of float32 gradients."""

    name: str  # value of comm.compression
    help: str
    implementation: str  # "module:Class" of a distributed.compression.Wire
    bytes_each: float  # bytes of a gradient on the network, for the performance model


COMPRESSIONS: Dict[str, Compression] = {
    entry.name: entry
    for entry in (
        Compression("none", "float32", "mxscale.distributed.compression:Wire", bytes_each=4),
        Compression("fp16", "float16", "mxscale.distributed.compression:Float16", bytes_each=2),
    )
}
