"""Decoded images as records that MXNet's reader takes in by copying: BMP, in files without a name.

Their memory goes when nobody has them open any more, however a process ends.
"""

import contextlib
import os
import struct
import tempfile

import mxnet as mx
import numpy as np

from mxscale.data import recordio

BMP = struct.Struct("<2sIIIIiiHHIIiiII")  # file header (14 bytes), BITMAPINFOHEADER (40)


def bitmap(content: bytes) -> bytes:
    """An encoded image -> the same pixels as a BMP, decoded as an ImageRecordIter does."""
    pixels = mx.image.imdecode(content, to_rgb=0).asnumpy()
    height, width, _ = pixels.shape
    rows = np.zeros((height, row_bytes(width)), "uint8")
    rows[:, : 3 * width] = pixels.reshape(height, 3 * width)
    return _header(width, height) + rows.tobytes()


def _header(width: int, height: int) -> bytes:
    size = height * row_bytes(width)
    # A negative height: from the top row down.
    return BMP.pack(b"BM", BMP.size + size, 0, BMP.size, 40, width, -height, 1, 24, 0, size, 0, 0, 0, 0)


def row_bytes(width: int) -> int:
    return (3 * width + 3) // 4 * 4


class Memory:
    """A .rec and an .idx that only this process has."""

    def __init__(self):
        self.rec, self.idx = (os.fdopen(os.memfd_create(name), "wb") for name in ("part.rec", "part.idx"))
        self._count, self._at = 0, 0

    def add(self, header: recordio.Header, content: bytes) -> None:
        record = recordio.frame(recordio.HEADER.pack(*header) + content)
        self.rec.write(record)
        self.idx.write(b"%d\t%d\n" % (self._count, self._at))
        self._count += 1
        self._at += len(record)

    @contextlib.contextmanager
    def names(self):
        """(.rec, .idx) to open them by.  They hold within the `with`; who opened them there may go on reading."""
        self.rec.flush()
        self.idx.flush()
        # A folder of its own: MXNet looks at everything beside a file that it opens.
        with tempfile.TemporaryDirectory(prefix="mxscale-") as folder:
            names = os.path.join(folder, "part.rec"), os.path.join(folder, "part.idx")
            for name, file in zip(names, (self.rec, self.idx), strict=True):
                os.symlink(f"/proc/{os.getpid()}/fd/{file.fileno()}", name)
            yield names
