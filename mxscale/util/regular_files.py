"""Opening of files that come from elsewhere: a FIFO, a device or a folder in their place is refused, not waited for."""

import errno
import os
import stat
from typing import IO

KINDS = {
    stat.S_IFIFO: "a FIFO", stat.S_IFCHR: "a device", stat.S_IFBLK: "a device", stat.S_IFSOCK: "a socket",
    stat.S_IFDIR: "a folder",
}  # fmt: skip


def open_regular(path, mode: str = "rb", **options) -> IO:
    """Open a regular file for reading, as `open` does; links are followed.

    Args:
        path: A file that a user or an earlier run has named.
        mode: "r" or "rb".
        **options: Of `open`, such as encoding.

    Raises:
        OSError: The file can't be read or is not a regular file; its message says what it is.
    """
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # a FIFO without a writer would block
    kind = stat.S_IFMT(os.fstat(handle).st_mode)
    if kind != stat.S_IFREG:
        os.close(handle)
        raise OSError(errno.EINVAL, f"{KINDS.get(kind, 'not a file')}, not a regular file", str(path))
    return os.fdopen(handle, mode, **options)


def read_regular(path, at_most: int) -> bytes:
    """Return the content of a regular file that must fit in memory.

    Raises:
        OSError: As of `open_regular`, or the file has more than `at_most` bytes.
    """
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size > at_most:
            raise OSError(errno.EFBIG, f"{size / 1e9:.1f} GB, expected at most {at_most / 1e9:.1f} GB", str(path))
        return file.read()


def read_text(path, encoding: str = "utf-8") -> str:
    """Return the text of a regular file. Raises OSError, as of `open_regular`, and UnicodeDecodeError."""
    with open_regular(path, "r", encoding=encoding) as file:
        return file.read()
