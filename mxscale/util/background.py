"""A thread for the time of a block."""

import threading
from contextlib import contextmanager
from typing import Callable, Optional


@contextmanager
def background_thread(work: Callable[[threading.Event], None], name: str, wait_s: Optional[float] = None):
    """Run work(ended) in a thread while the block runs; at its end, set the event and join the thread.

    Args:
        wait_s: Longest wait for the thread; None: until it ends.
    """
    ended = threading.Event()
    thread = threading.Thread(target=work, args=(ended,), daemon=True, name=name)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join(wait_s)
