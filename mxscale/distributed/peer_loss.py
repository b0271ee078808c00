"""Errors that follow from the loss of another rank, recognised by their text."""

import re
from typing import Optional

_HOROVOD = "orovod"
_SIGNS = (_HOROVOD, "Connection reset", "Connection closed", "Broken pipe", "gloo", "rank 0 could not write")
# What Horovod's background thread writes if a peer no longer answers or has closed its connection
_REASON = re.compile(r"(?:background loop uncaught exception|could not be initialized): (?:\[[^\]]*\] )?(.*)")


def follows_from_lost_peer(error: str, run: str) -> bool:
    """Return whether a rank's error is a consequence: another rank ended first, or rank 0 could not write.

    Args:
        run: Path of the run directory, which an error may state and whose name may hold that of a back end.
    """
    return any(sign in error.replace(run, "") for sign in _SIGNS)


def reason_of_communicator(error: str, log: str) -> Optional[str]:
    """Return why Horovod lost its peers, from the rank's log, if `error` is Horovod's own; else None."""
    match = _REASON.search(log) if _HOROVOD in error else None
    return match[1].strip() if match else None
