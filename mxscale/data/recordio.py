"""MXNet's RecordIO files: writing with every error reported, and scanning without decoding images.

A record is `magic, kind << 29 | length, body`, little-endian, padded to 4 bytes. Its body is `flag, label, id, id2`
(IfQQ) and an encoded image. If the body holds the magic number at a multiple of 4, the record is divided there into
pieces of kind 1, 2.., 3 without the number; otherwise it is of kind 0.
(dmlc-core, include/dmlc/recordio.h; mxnet/recordio.py.)

A packed set also has a .crc, which MXNet ignores: the CRC-32 of each record with its header and padding, as 4 bytes,
little-endian, in the file's order.

MXNet's own writer ignores the result of closing the file and does not report a full disk.
"""

import hashlib
import io
import os
import re
import struct
import zlib
from array import array
from contextlib import AbstractContextManager
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Optional, Sequence

from mxscale.util.regular_files import open_regular

MAGIC = struct.pack("<I", 0xCED7230A)
ANY_MAGIC = re.compile(re.escape(MAGIC))
PREFIX = struct.Struct("<4sI")
HEADER = struct.Struct("<IfQQ")
WHOLE = struct.Struct("<4sIIfQQ")  # both, as in a record of one piece
LABEL_OFFSET = PREFIX.size + 4  # bytes from the start of a record
LENGTH = (1 << 29) - 1
BUFFER = 1 << 20
MAX_CLASSES = 1 << 24  # labels are float32, which is exact for integers up to this


class BadRecords(ValueError):
    """A file that is not a complete RecordIO file of images; the message is one line."""


class Writer(AbstractContextManager):
    """Writes `<name>.rec`, `<name>.idx` and `<name>.crc`. `close` returns when they are on disk. Raises OSError."""

    def __init__(self, folder, name: str):
        self._path = os.path.join(folder, name)
        # not truncated: it may hold the first records already
        rec = os.open(f"{self._path}.rec", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        self._rec = os.fdopen(rec, "r+b", BUFFER)
        self._hash, self._end, self._offsets, self._checksums = hashlib.sha256(), 0, [], []

    @property
    def count(self) -> int:
        return len(self._offsets)

    def write(self, label: int, image_id: int, image: bytes, written: bool = False) -> int:
        """Write a record, or pass it if it is `written` already, and return its CRC-32."""
        record = frame(HEADER.pack(0, float(label), image_id, 0) + image)
        self._offsets.append(self._end)
        self._end += len(record)
        if written:
            self._rec.seek(self._end)
        else:
            self._rec.write(record)
        self._hash.update(record)
        self._checksums.append(zlib.crc32(record))
        return self._checksums[-1]

    def close(self) -> Dict[str, Any]:
        """Return the files' entries of a manifest: rec, idx, crc, sha256 and bytes."""
        self._rec.truncate(self._end)
        self._rec.flush()
        os.fsync(self._rec.fileno())
        rec = os.path.basename(f"{self._path}.rec")
        files = write_companions(self._path, self._offsets, self._checksums)
        return {"rec": rec, **files, "sha256": self._hash.hexdigest(), "bytes": self._end}

    def __exit__(self, *_):
        self._rec.close()


def write_companions(path: str, offsets: Sequence[int], checksums: Sequence[int]) -> Dict[str, str]:
    """Write `<path>.idx`, the records' offsets with their numbers as keys, and `<path>.crc`; return both names.

    Raises OSError.
    """
    index = "".join(f"{number}\t{offset}\n" for number, offset in enumerate(offsets))
    contents = {"idx": index.encode(), "crc": array("I", checksums).tobytes()}
    for end, content in contents.items():
        with open(f"{path}.{end}", "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
    return {end: os.path.basename(f"{path}.{end}") for end in contents}


def frame(body: bytes) -> bytes:
    """Return the record of a body."""
    pieces = _split(body)
    out = []
    for number, piece in enumerate(pieces):
        kind = 0 if len(pieces) == 1 else 1 if number == 0 else 3 if number == len(pieces) - 1 else 2
        if len(piece) > LENGTH:
            raise ValueError(f"a record of {len(body):,} bytes: RecordIO allows {LENGTH:,}")
        out += [PREFIX.pack(MAGIC, kind << 29 | len(piece)), piece]
    return b"".join(out) + b"\0" * (-len(pieces[-1]) % 4)


def _split(body: bytes) -> List[bytes]:
    cuts = [match.start() for match in ANY_MAGIC.finditer(body) if match.start() % 4 == 0]
    starts, ends = [0, *(cut + 4 for cut in cuts)], [*cuts, len(body)]
    return [body[start:end] for start, end in zip(starts, ends, strict=True)]


class Record(NamedTuple):
    offset: int  # bytes from the start of the file
    crc: int  # CRC-32 of its bytes in the file
    payload: bytes
    flag: int  # 0: one label, in `label`; n: n labels at the start of the payload
    label: float
    id: int
    id2: int

    def class_number(self, classes: Optional[int]) -> int:
        """Return its label. Raises BadRecords if it is not one class number; None: of any number of classes."""
        if self.flag:
            raise BadRecords(f"has {self.flag} labels; expected one class number per image")
        if not 0 <= self.label < (classes or MAX_CLASSES) or self.label != int(self.label):  # NaN too
            known = "0, 1, 2, ..." if classes is None else f"from 0 to {classes - 1}"
            raise BadRecords(f"has the label {self.label:g}; expected a class number {known}")
        return int(self.label)


def scan(path: str, seen: Callable[[bytes], None] = lambda raw: None) -> Iterator[Record]:
    """Yield every record in the file's order.

    Args:
        seen: Called with all raw bytes, piece by piece.

    Raises:
        BadRecords: The file is damaged or truncated; the message names the byte.
        OSError: The file cannot be read.
    """
    with open_regular(path, "rb", buffering=BUFFER) as file:
        offset = 0
        while True:
            body, read, crc = _next(file, offset, seen)
            if body is None:
                return
            yield _record(body, offset, crc)
            offset += read


def parse(raw: bytes, offset: int) -> Record:
    """Return the record in `raw`, which was read from byte `offset` of a file. Its payload can be a view of `raw`.

    Raises:
        BadRecords: It is not one complete record.
    """
    if len(raw) >= WHOLE.size:
        magic, length, *header = WHOLE.unpack_from(raw)
        if magic == MAGIC and HEADER.size <= length <= LENGTH and PREFIX.size + length <= len(raw):  # in one piece
            return Record(offset, zlib.crc32(raw), memoryview(raw)[WHOLE.size : PREFIX.size + length], *header)
    body, _, crc = _next(io.BytesIO(raw), offset, lambda piece: None)
    if body is None:
        raise BadRecords(f"truncated at byte {offset}")
    return _record(body, offset, crc)


def _record(body: bytes, offset: int, crc: int) -> Record:
    if len(body) < HEADER.size:
        raise BadRecords(f"the record at byte {offset} is not an image record")
    return Record(offset, crc, body[HEADER.size :], *HEADER.unpack_from(body))


def _next(file, start: int, seen):
    """Return (body, bytes read, their CRC-32) of the record at `start`; the body is None at the end of the file."""
    pieces, offset, crc = [], start, 0
    while True:
        prefix = file.read(PREFIX.size)
        if not prefix and not pieces:
            return None, 0, 0
        if len(prefix) < PREFIX.size:
            raise BadRecords(f"truncated at byte {offset + len(prefix)}, inside a record")
        magic, kind_and_length = PREFIX.unpack(prefix)
        kind, length = kind_and_length >> 29, kind_and_length & LENGTH
        if magic != MAGIC or kind not in ((2, 3) if pieces else (0, 1)):
            raise BadRecords(f"no record at byte {offset}")
        padded = file.read(length + -length % 4)
        if len(padded) < length + -length % 4:
            raise BadRecords(f"truncated at byte {offset + PREFIX.size + len(padded)}, inside a record")
        for read in (prefix, padded):
            seen(read)
            crc = zlib.crc32(read, crc)
        pieces.append(padded[:length])
        offset += PREFIX.size + len(padded)
        if kind in (0, 3):
            return MAGIC.join(pieces), offset - start, crc


def read_index(path: str) -> List[int]:
    """Return the offsets of an .idx, ascending. Raises BadRecords and OSError."""
    offsets = []
    with open_regular(path, "r", errors="replace") as file:
        for number, line in enumerate(file, 1):
            try:
                offsets.append(int(line.split("\t")[1]))
            except (IndexError, ValueError):
                raise BadRecords(f"line {number} is not `number<tab>offset`") from None
    return sorted(offsets)


def read_checksums(path: str) -> array:
    """Return the checksums of a .crc. Raises BadRecords and OSError."""
    with open_regular(path) as file:
        try:
            return array("I", file.read())
        except ValueError:
            raise BadRecords(f"{path} is truncated") from None
