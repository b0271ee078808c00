"""The source of an image before packing: a file, a part of an archive, or bytes; and how a worker packs it.

Only Pillow is imported, as in workers.py. Archives are not unpacked: a worker reads its image inside the archive.
"""

import hashlib
from typing import NamedTuple, Tuple, Union

from mxscale.data.images import BadImage, Examined, Recipe, examine, read, repack


class Slice(NamedTuple):
    """A range of bytes in a file, such as a member of a tar."""

    path: str
    offset: int
    size: int


Source = Union[str, bytes, Slice]  # a path, content, or a part of a file


class Packed(NamedTuple):
    image: bytes  # encoded
    size: Tuple[int, int]  # height, width
    key: bytes  # of the bytes before packing: equal for exact copies


def load(source: Source) -> bytes:
    """Return the content of an image file. Raises BadImage."""
    if isinstance(source, bytes):
        return source
    if isinstance(source, str):
        return read(source)
    try:
        with open(source.path, "rb") as file:
            file.seek(source.offset)
            content = file.read(source.size)
    except OSError as error:
        raise BadImage(error.strerror or str(error)) from None
    if len(content) < source.size:
        raise BadImage("its archive is truncated inside it")
    return content


def key_of(content: bytes) -> bytes:
    """Return half of a SHA-256, which identifies an image and saves memory: one key per image is stored."""
    return hashlib.sha256(content).digest()[:16]


def pack(source: Source, recipe: Recipe) -> Packed:
    """Return the image packed by `recipe`. Raises BadImage."""
    content = load(source)
    return Packed(*repack(content, recipe), key_of(content))


def check(content: bytes, min_side: int) -> Tuple[Examined, bytes]:
    """Return the image's properties and its key. Raises BadImage."""
    return examine(content, min_side), key_of(content)
