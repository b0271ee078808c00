"""Which image each thread of a rank decodes, in a file that outlives a crash of the process."""

import mmap
import os
import threading
from typing import Optional

SLOTS, WIDTH = 512, 256  # lines of the file, one for each thread, and their bytes
_file: Optional[mmap.mmap] = None
_own = threading.local()
_taken, _lock = 0, threading.Lock()


def open_at(path) -> None:
    """Begin to record to a new file. Raises OSError."""
    global _file
    with open(path, "w+b") as file:
        os.ftruncate(file.fileno(), SLOTS * WIDTH)
        _file = mmap.mmap(file.fileno(), SLOTS * WIDTH)


def now_decoding(image: str) -> None:
    """Record the image that this thread begins to decode, as `<thread> <image>`."""
    global _taken
    if _file is None:
        return
    if not hasattr(_own, "start"):
        with _lock:
            _own.start, _taken = _taken % SLOTS * WIDTH, _taken + 1
    line = f"{threading.get_ident():016x} {image}".encode(errors="backslashreplace")[: WIDTH - 1]
    _file[_own.start : _own.start + WIDTH] = line.ljust(WIDTH - 1) + b"\n"
