"""The registry of gradient compressions: one entry for each value of comm.compression.

Standard library only. docs/extending.md shows how to add one.
"""

from dataclasses import dataclass
from typing import Dict, Tuple

PRECISIONS = ("float32", "float16", "amp")


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
