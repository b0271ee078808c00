"""The state of one invocation of the command line."""

from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, List, Optional

if TYPE_CHECKING:
    from mxscale.cli.multirun import OpenSweep


@dataclass
class Session:
    """What an invocation has run so far."""

    statuses: List[int] = field(default_factory=list)  # exit statuses: of one run, or of the cells of a sweep
    stopped: bool = False  # a stop request ended a run: no further cell starts
    sweep: Optional["OpenSweep"] = None  # in the sweep's own process


# Hydra creates its callbacks and calls the task function itself, in other processes too (joblib, submitit), without an
# object of ours. A context variable holds the session of the invocation.
_SESSION: ContextVar[Session] = ContextVar("session")


def begin() -> Session:
    """Return a new session, which becomes the current one."""
    session = Session()
    _SESSION.set(session)
    return session


def current() -> Session:
    """Return the session of this process; a new one in a process that a Hydra launcher started."""
    return _SESSION.get(None) or begin()
