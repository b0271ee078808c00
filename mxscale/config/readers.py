"""The registry of image readers: one entry for each value of data.reader."""

from dataclasses import dataclass, field
from typing import Mapping, Optional


@dataclass(frozen=True)
class Reader:
    """A reader of packed images and its properties."""

    name: str  # value of data.reader
    help: str
    module: str  # has the classes `TrainData` and `EvaluationData`, as mxscale.data.reader.turbojpeg has them
    normalised: bool = False  # batches are float32 and normalised; otherwise uint8, which the device normalises
    # Settings of `data` that it does not have -> the crop for which this holds: "any", or a value of data.augment.crop
    lacks: Mapping[str, str] = field(default_factory=dict)
    # What data.threads=auto is; None: the threads of the rank. A number if the result depends on it: it is then part of
    # the signature
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
            lacks={"sampling": "any", "augment.erase": "any", "augment.stretch": "random_resized"},
            threads=2,
        ),
    )
}
