"""What an image is before it is packed: a file, a part of an archive, or bytes; how a worker packs it.

Pillow alone, as in workers.py.  Archives are not unpacked: a worker reads its image where it lies.
"""

import hashlib
from typing import NamedTuple, Tuple, Union

from mxscale.data.images import BadImage, Examined, Recipe, examine, read, repack


class Slice(NamedTuple):
    """Bytes of a file, such as a member of a tar."""

    path: str
    offset: int
    size: int


Source = Union[str, bytes, Slice]  # path, content, or a part of a file


class Packed(NamedTuple):
    image: bytes  # encoded
    size: Tuple[int, int]  # height, width
    key: bytes  # of the bytes before packing: the same for exact copies


def load(source: Source) -> bytes:
    """The image file's content.  Raises BadImage."""
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
        raise BadImage("its archive ends inside it")
    return content


def key_of(content: bytes) -> bytes:
    """Half of a SHA-256: enough to tell any number of images apart, and they are kept in memory."""
    return hashlib.sha256(content).digest()[:16]


def pack(source: Source, recipe: Recipe) -> Packed:
    """Raises BadImage."""
    content = load(source)
    return Packed(*repack(content, recipe), key_of(content))


def check(content: bytes, min_side: int) -> Tuple[Examined, bytes]:
    """(what there is to know of the image, its key).  Raises BadImage."""
    return examine(content, min_side), key_of(content)
