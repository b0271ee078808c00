"""What is written stays: through to the disk, not only to the system's memory."""

import os


def sync(path) -> None:
    """A file's content, or a folder's names, to the disk.  Raises OSError."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
