"""The registry of gradient compressions: one entry for each value of comm.compression.

Standard library only. docs/extending.md shows how to add one.
"""

from dataclasses import dataclass
from typing import Dict, Tuple

PRECISIONS = ("float32", "float16", "amp")


@dataclass(frozen=True)
class Compression:
    """What ranks send in place of float32 gradients.

    Attributes:
        name: Value of comm.compression.
        help: One-line description for --help.
        implementation: "module:Class" of a distributed.compression.Wire.
        bytes_each: Bytes of a gradient on the network, for the performance model.
        error_feedback: What an exchange rounds off is kept in float32 and added in the next step. Checkpoints hold it.
    """

    name: str
    help: str
    implementation: str
    bytes_each: float
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
