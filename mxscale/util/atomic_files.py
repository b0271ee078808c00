"""Files that stay: written whole and through to the disk, known by their digest.  Pure: standard library alone."""

import contextlib
import hashlib
import os
from typing import Iterator


def sync(path) -> None:
    """A file's content, or a folder's names, to the disk and not only to the system's memory.  Raises OSError."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextlib.contextmanager
def replacing(path) -> Iterator[str]:
    """A name beside `path` to write a file to; at the end it is synced and takes the place of `path`.

    A reader or a crash sees the old file or the new one, never half of it; where the block fails nothing is left.
    Raises OSError.
    """
    folder, name = os.path.split(path)
    new = os.path.join(folder, f".{name}.{os.getpid()}")
    try:
        yield new
        sync(new)
        os.replace(new, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.remove(new)
        raise


def write_text(path, text: str) -> None:
    """Replace a file atomically with `text`; create its folder if needed. Raises OSError."""
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with replacing(path) as new, open(new, "w") as file:
        file.write(text)


def digest_of(path, algorithm: str = "sha256") -> str:
    """A file's digest in hex, read piece by piece: it may be larger than the memory that is free.  Raises OSError."""
    digest = hashlib.new(algorithm)
    with open(path, "rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()
