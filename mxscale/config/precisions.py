"""The values of precision: where each trains, and what MXNet's AMP casts its matrix products to."""

from typing import NamedTuple, Optional, Tuple


class NumberFormat(NamedTuple):
    """A number format of the training."""

    devices: Tuple[str, ...]  # cpu | gpu
    amp_type: Optional[str] = None  # number format of the operators that AMP casts; None: without AMP


PRECISIONS = {
    "float32": NumberFormat(("cpu", "gpu")),
    "float16": NumberFormat(("gpu",)),
    "amp": NumberFormat(("gpu",), "float16"),
    "bf16": NumberFormat(("cpu",), "bfloat16"),  # MXNet has no GPU kernels for it
}
