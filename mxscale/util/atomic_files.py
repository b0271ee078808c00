"""Atomic replacement of files, and their digests."""

import contextlib
import hashlib
import os
from typing import Callable, Iterator

from mxscale.util.regular_files import open_regular


def sync(path) -> None:
    """Flush a file's content, or a directory's names, to the disk. Raises OSError."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextlib.contextmanager
def replacing(path) -> Iterator[str]:
    """Yield a temporary path beside `path`; on exit the file written there is synced and replaces `path`.

    A reader, or a restart after a crash, sees either the complete old file or the complete new one. If the block
    raises, the temporary file is removed. Raises OSError.
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
    """Replace a file atomically with `text`. Raises OSError; its folder must exist, so that none is made anew."""
    with replacing(path) as new, open(new, "w", encoding="utf-8") as file:
        file.write(text)


def digest_of(path, seen: Callable[[int], None] = lambda count: None) -> str:
    """Return the SHA-256 of a file in hex. It is read in blocks, because it may exceed the memory. Raises OSError.

    `seen` is called with the number of bytes of each block.
    """
    digest = hashlib.sha256()
    with open_regular(path) as file:
        while block := file.read(1 << 20):
            digest.update(block)
            seen(len(block))
    return digest.hexdigest()
