"""Random access to the images of a record file."""

import os
from typing import Tuple

import numpy as np

from mxscale.data import recordio
from mxscale.data.reader import decoder
from mxscale.rundir.plan import Split


class RecordFile:
    """The records of a split by number; threads may read at the same time.

    A record is read with one `pread`, which releases the interpreter's lock while a disk is slow, and reports a
    truncated file as an error. (Reading through a memory map takes as long, waits for the disk with the lock held, and
    ends the process if the file shrinks.)

    A record's checksum proves that its image is the one that was decoded completely, without a warning, when the set
    was packed. Of a set without checksums each image is decoded completely here, because a reader decodes only parts.
    """

    def __init__(self, split: Split):
        """Raises OSError and BadRecords."""
        self.split, self.path = split, split.rec
        self._file = os.open(split.rec, os.O_RDONLY | os.O_CLOEXEC)
        try:
            offsets = recordio.read_index(split.idx)
            self._offsets = np.array([*offsets, os.fstat(self._file).st_size], "int64")
        except (recordio.BadRecords, OverflowError) as bad:
            raise recordio.BadRecords(f"{split.idx} is damaged: {bad}; {self._remedy()}") from None
        self._checksums = recordio.read_checksums(split.crc) if split.crc else None
        if split.crc and len(self._checksums) != len(self):
            found = f"{len(self._checksums)} checksums of {len(self)} records"
            raise recordio.BadRecords(f"{split.crc}: {found}; {self._remedy()}")

    def __len__(self) -> int:
        return len(self._offsets) - 1

    def __getitem__(self, number: int) -> Tuple[float, bytes]:
        """Return (label, encoded image) of a record. Raises BadRecords, BadImage and OSError."""
        start, end = self._offsets[number : number + 2].tolist()
        try:
            record = recordio.parse(os.pread(self._file, end - start, start), start)
        except recordio.BadRecords as bad:
            raise recordio.BadRecords(f"{bad}; {self._remedy()}") from None
        if self._checksums is None:
            decoder.decode(record.payload)
            record.class_number(self.split.classes)
        elif record.crc != self._checksums[number]:
            raise recordio.BadRecords(f"its checksum differs: it was damaged after packing; {self._remedy()}")
        return record.label, record.payload

    def _remedy(self) -> str:
        folder = os.path.dirname(self.split.crc or self.split.idx)
        if os.path.dirname(self.path) == folder:
            return f"remove {folder}, and the set is packed again"
        return "copy the file again, or create it again with im2rec"

    def labels(self) -> np.ndarray:
        """Return the label of each record, (n,) float32, from its header. Raises OSError."""
        return self._values(recordio.LABEL_OFFSET, "<f4")

    def ids(self) -> np.ndarray:
        """Return the id of each record, (n,) uint64, from its header. Raises OSError."""
        return self._values(recordio.LABEL_OFFSET + 4, "<u8")

    def _values(self, place: int, dtype: str) -> np.ndarray:
        size, starts = np.dtype(dtype).itemsize, (self._offsets[:-1] + place).tolist()
        return np.frombuffer(b"".join(os.pread(self._file, size, start) for start in starts), dtype)

    def name_of(self, number: int) -> str:
        return f"record {number} at byte {self._offsets[number]} of {self.path}"

    def __del__(self):
        if hasattr(self, "_file"):
            os.close(self._file)
