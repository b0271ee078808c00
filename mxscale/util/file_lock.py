"""Advisory file locks between processes. The kernel releases a lock when its process ends."""

import contextlib
import fcntl
import os
from typing import Iterator


def acquire(path, wait: bool = True, shared: bool = False) -> int:
    """Lock a file or a directory until the returned descriptor is closed.

    Args:
        path: A directory, or a file, which is created if it does not exist.
        wait: Whether to wait while another process holds the lock.
        shared: Whether other processes may hold a shared lock at the same time.

    Raises:
        BlockingIOError: `wait` is false and another process holds the lock.
        OSError: The file cannot be opened, or its file system has no locks.
    """
    # NFS grants an exclusive lock only on a file that is open for writing, and a shared one for reading.
    handle = os.open(path, os.O_RDONLY if os.path.isdir(path) else os.O_RDWR | os.O_CREAT, 0o666)
    try:
        fcntl.flock(handle, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | (0 if wait else fcntl.LOCK_NB))
    except BaseException:
        os.close(handle)
        raise
    return handle


@contextlib.contextmanager
def locked(path, wait: bool = True) -> Iterator[None]:
    """Hold an exclusive lock within the block. Arguments and errors are those of `acquire`."""
    handle = acquire(path, wait)
    try:
        yield
    finally:
        os.close(handle)
