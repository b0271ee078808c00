"""Standard output whose reader may stop, as `| head` does, or whose disk may be full."""

import contextlib
import sys
from typing import Iterator, Optional

from mxscale.launcher.progress import drop


class Output:
    """Standard output that drops what cannot be written, and remembers the error."""

    def __init__(self, stream):
        self._stream = stream
        self.error: Optional[OSError] = None  # None for a reader that has stopped

    def write(self, text: str) -> int:
        self._attempt(self._stream.write, text)
        return len(text)

    def flush(self) -> None:
        self._attempt(self._stream.flush)

    def _attempt(self, action, *arguments) -> None:
        try:
            action(*arguments)
        except BrokenPipeError:
            drop(self._stream)
        except OSError as error:
            self.error = error
            drop(self._stream)

    def __getattr__(self, name: str):
        return getattr(self._stream, name)


@contextlib.contextmanager
def guarded() -> Iterator[Output]:
    """Make sys.stdout an Output within the block; it is flushed at its end."""
    output = Output(sys.stdout)
    with contextlib.redirect_stdout(output):
        try:
            yield output
        finally:
            output.flush()
