"""Random access to the images of a record file."""

import os
from typing import Tuple

import numpy as np

from mxscale.data import recordio


class RecordFile:
    """The records of a .rec file by number; threads may read at the same time.

    A record is read with one `pread`, which releases the interpreter's lock while a disk is slow, and reports a
    truncated file as an error. (Reading through a memory map takes as long, waits for the disk with the lock held, and
    ends the process if the file shrinks.)
    """

    def __init__(self, rec: str, idx: str):
        """Raises OSError and BadRecords."""
        self.path = rec
        self._file = os.open(rec, os.O_RDONLY | os.O_CLOEXEC)
        self._offsets = np.array([*recordio.read_index(idx), os.fstat(self._file).st_size], "int64")

    def __len__(self) -> int:
        return len(self._offsets) - 1

    def __getitem__(self, number: int) -> Tuple[float, bytes]:
        """Return (label, encoded image) of a record. Raises BadRecords and OSError."""
        start, end = self._offsets[number : number + 2].tolist()
        record = recordio.parse(os.pread(self._file, end - start, start), start)
        return record.header.label, record.payload

    def labels(self) -> np.ndarray:
        """Return the label of each record, (n,) float32, from its header. Raises OSError."""
        starts = (self._offsets[:-1] + recordio.LABEL_OFFSET).tolist()
        return np.frombuffer(b"".join(os.pread(self._file, 4, start) for start in starts), "<f4")

    def ids(self) -> np.ndarray:
        """Return the id of each record, (n,) uint64, from its header. Raises OSError."""
        starts = (self._offsets[:-1] + recordio.LABEL_OFFSET + 4).tolist()
        return np.frombuffer(b"".join(os.pread(self._file, 8, start) for start in starts), "<u8")

    def name_of(self, number: int) -> str:
        return f"record {number} at byte {self._offsets[number]} of {self.path}"

    def __del__(self):
        if hasattr(self, "_file"):
            os.close(self._file)
