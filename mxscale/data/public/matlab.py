"""Reader of structure arrays in MATLAB 5 files, such as ImageNet's meta.mat, without SciPy.

Format: "MAT-File Format", MathWorks, chapter 1. Only little-endian files, real numbers and text are
supported.
"""

import math
import struct
import zlib
from typing import Any, Dict, Iterator, List, Tuple

HEADER_BYTES = 128
MATRIX, COMPRESSED = 14, 15  # data types of elements
STRUCT, CHAR = 2, 4  # classes of matrices
NUMBERS = {1: "b", 2: "B", 3: "h", 4: "H", 5: "i", 6: "I", 7: "f", 9: "d", 12: "q", 13: "Q", 16: "B", 17: "H"}


def read_structs(content: bytes, name: str, max_bytes: int) -> List[Dict[str, Any]]:
    """Return the elements of a structure array as dictionaries; scalars as numbers, text as str.

    Args:
        max_bytes: Limit of a decompressed variable.

    Raises:
        ValueError: The file has no such variable.
        struct.error, zlib.error: The file is damaged.
    """
    for kind, data in _elements(content[HEADER_BYTES:]):
        if kind == COMPRESSED:
            (kind, data), *_ = _elements(zlib.decompressobj().decompress(data, max_bytes))
        if kind == MATRIX:
            found, value = _matrix(data)
            if found == name and isinstance(value, list):
                return value
    raise ValueError(f"no structure array {name}")


def _elements(data: bytes) -> Iterator[Tuple[int, bytes]]:
    """Yield (data type, content) of consecutive elements."""
    at = 0
    while at < len(data):
        kind, size = struct.unpack_from("<II", data, at)
        if kind >> 16:  # a small element: type, size and up to four bytes in one tag
            yield kind & 0xFFFF, data[at + 4 : at + 4 + (kind >> 16)]
            at += 8
        else:
            yield kind, data[at + 8 : at + 8 + size]
            at += 8 + (size if kind == COMPRESSED else -(-size // 8) * 8)


def _matrix(data: bytes) -> Tuple[str, Any]:
    """Return name and value of a matrix: a list of dictionaries, text, a number, or a list of numbers."""
    if not data:
        return "", []
    parts = list(_elements(data))
    kind, shape = parts[0][1][0], _numbers(*parts[1])
    name, parts = parts[2][1].decode("latin-1"), parts[3:]
    if kind == STRUCT:
        width, names = _numbers(*parts[0])[0], parts[1][1]
        keys = [names[at : at + width].partition(b"\0")[0].decode("latin-1") for at in range(0, len(names), width)]
        values = [_matrix(content)[1] for _, content in parts[2:]]
        rows = [values[at * len(keys) : (at + 1) * len(keys)] for at in range(math.prod(shape))]
        return name, [dict(zip(keys, row, strict=True)) for row in rows]
    numbers = _numbers(*parts[0]) if parts else []
    if kind == CHAR:
        return name, "".join(map(chr, numbers))
    return name, numbers[0] if len(numbers) == 1 else numbers


def _numbers(kind: int, data: bytes) -> List[float]:
    code = NUMBERS[kind]
    return list(struct.unpack(f"<{len(data) // struct.calcsize(code)}{code}", data))
