"""MXNet's RecordIO files: written with every write checked, scanned without decoding an image.

A record is `magic, kind << 29 | length, body`, padded to 4 bytes; little-endian.  Its body is
`flag, label, id, id2` (IfQQ) and an encoded image.  Where a body holds the magic at a multiple of 4,
the record is cut there into pieces of kind 1, 2.., 3 and the magic is left out; else it is of kind 0.
(dmlc-core, include/dmlc/recordio.h; mxnet/recordio.py.)

MXNet's own writer does not look at what closing the file returns, so that a full disk goes unseen.
"""

import hashlib
import os
import struct
from typing import Callable, Iterator, List, NamedTuple, Tuple

MAGIC = struct.pack("<I", 0xCED7230A)
WORDS = struct.Struct("<4sI")
HEADER = struct.Struct("<IfQQ")
LENGTH = (1 << 29) - 1
BUFFER = 1 << 20


class BadRecords(ValueError):
    """A file that is no whole RecordIO file of images; one line."""


class Header(NamedTuple):
    flag: int  # 0: one label, in `label`; n: n labels at the start of the payload
    label: float
    id: int
    id2: int


class Writer:
    """A new .rec with its .idx.  `close` returns only when both are on the disk; raises OSError."""

    def __init__(self, rec: str, idx: str):
        self._rec, self._idx = open(rec, "xb", BUFFER), open(idx, "x")
        self._hash, self._offset, self.count = hashlib.sha256(), 0, 0

    def write(self, label: int, image_id: int, image: bytes) -> None:
        record = frame(HEADER.pack(0, float(label), image_id, 0) + image)
        self._rec.write(record)
        self._idx.write(f"{self.count}\t{self._offset}\n")
        self._hash.update(record)
        self._offset += len(record)
        self.count += 1

    def close(self) -> Tuple[str, int]:
        """SHA-256 and bytes of the .rec."""
        for file in (self._rec, self._idx):
            with file:
                file.flush()
                os.fsync(file.fileno())
        return self._hash.hexdigest(), self._offset

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._rec.close()
        self._idx.close()


def frame(body: bytes) -> bytes:
    """A body as it stands in the file."""
    pieces = _split(body)
    out = []
    for number, piece in enumerate(pieces):
        kind = 0 if len(pieces) == 1 else 1 if number == 0 else 3 if number == len(pieces) - 1 else 2
        if len(piece) > LENGTH:
            raise ValueError(f"a record of {len(body):,} bytes: RecordIO takes {LENGTH:,}")
        out += [WORDS.pack(MAGIC, kind << 29 | len(piece)), piece]
    return b"".join(out) + b"\0" * (-len(pieces[-1]) % 4)


def _split(body: bytes) -> List[bytes]:
    pieces, start, at = [], 0, body.find(MAGIC)
    while at >= 0:
        if at % 4:
            at = body.find(MAGIC, at + 1)
            continue
        pieces.append(body[start:at])
        start = at + 4
        at = body.find(MAGIC, start)
    return [*pieces, body[start:]]


class Record(NamedTuple):
    offset: int  # bytes from the start of the file
    header: Header
    payload: bytes


def scan(path: str, seen: Callable[[bytes], None] = lambda raw: None, start: int = 0) -> Iterator[Record]:
    """Every record in the file's order, from byte `start`.  `seen` is called with all raw bytes, piece by piece.

    Raises BadRecords naming the byte where the file is broken or cut off, and OSError.
    """
    with open(path, "rb", BUFFER) as file:
        file.seek(start)
        offset = start
        while True:
            body, read = _next(file, offset, seen)
            if body is None:
                return
            if len(body) < HEADER.size:
                raise BadRecords(f"the record at byte {offset} is no image record")
            yield Record(offset, Header(*HEADER.unpack_from(body)), body[HEADER.size :])
            offset += read


def _next(file, start: int, seen):
    """(body, bytes read) of the record at `start`; (None, 0) at the end of the file."""
    pieces, offset = [], start
    while True:
        words = file.read(WORDS.size)
        if not words and not pieces:
            return None, 0
        if len(words) < WORDS.size:
            raise BadRecords(f"cut off at byte {offset + len(words)}, inside a record")
        magic, word = WORDS.unpack(words)
        kind, length = word >> 29, word & LENGTH
        if magic != MAGIC or kind not in ((2, 3) if pieces else (0, 1)):
            raise BadRecords(f"no record at byte {offset}")
        padded = file.read(length + -length % 4)
        if len(padded) < length + -length % 4:
            raise BadRecords(f"cut off at byte {offset + WORDS.size + len(padded)}, inside a record")
        seen(words)
        seen(padded)
        pieces.append(padded[:length])
        offset += WORDS.size + len(padded)
        if kind in (0, 3):
            return MAGIC.join(pieces), offset - start


def read_index(path: str) -> List[int]:
    """The offsets of an .idx, ascending.  Raises BadRecords and OSError."""
    offsets = []
    with open(path, errors="replace") as file:
        for number, line in enumerate(file, 1):
            try:
                offsets.append(int(line.split("\t")[1]))
            except (IndexError, ValueError):
                raise BadRecords(f"line {number} is not `number<tab>offset`") from None
    return sorted(offsets)


def write_index(path: str, offsets: List[int]) -> None:
    """An .idx with the records' numbers as keys."""
    with open(path, "x") as file:
        file.writelines(f"{number}\t{offset}\n" for number, offset in enumerate(offsets))
        file.flush()
        os.fsync(file.fileno())
