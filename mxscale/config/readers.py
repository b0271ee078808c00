"""The registry of image readers: one entry for each value of data.reader."""

from dataclasses import dataclass, field
from typing import Mapping, Optional


@dataclass(frozen=True)
class Reader:
    """A reader of packed images and its properties.

    Attributes:
        name: Value of data.reader.
        help: One line for help texts.
        module: Module with its classes `TrainData` and `EvaluationData`, which have the arguments of those in
            mxscale.data.reader.turbojpeg.
        normalised: Batches are float32 and normalised; otherwise uint8, which the device normalises.
        contiguous_shards: A shard reads a contiguous part of the file; otherwise any images, in one common order.
        lacks: Settings of `data` that it does not have, with the crop for which this holds: "any", or a value of
            data.augment.crop.
        threads: What data.threads=auto is; None: the threads of the rank. A number if the result depends on it; it is
            then part of the signature.
    """

    name: str
    help: str
    module: str
    normalised: bool = False
    contiguous_shards: bool = False
    lacks: Mapping[str, str] = field(default_factory=dict)
    threads: Optional[int] = None


READERS = {
    entry.name: entry
    for entry in (
        Reader("turbojpeg", "libjpeg-turbo and OpenCV, uint8 batches", "mxscale.data.reader.turbojpeg"),
        Reader(
            "record_iter",
            "MXNet's ImageRecordIter, float32 batches",
            "mxscale.data.reader.record_iter",
            normalised=True,
            contiguous_shards=True,
            lacks={
                "sampling": "any",
                "augment.erase": "any",
                "augment.stretch": "random_resized",
            },
            threads=2,
        ),
    )
}
