"""Lines for the user. A closed terminal, or a pipe that nobody reads, ends neither a run nor a verb."""

import os
import sys
from typing import List

from mxscale.util.redaction import shown

LOST: List[OSError] = []  # why standard output was not written, such as a full disk; a reader that stops is no reason


def echo(text: str, stream=None) -> None:
    """Print to `stream` (stdout); if it cannot be written, drop this and all later output."""
    stream = stream or sys.stdout
    try:
        print(shown(text), file=stream, flush=True)
    except OSError as error:
        if stream is sys.stdout and not isinstance(error, BrokenPipeError):
            LOST.append(error)
        # To /dev/null, so that flushing its buffer does not fail at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
