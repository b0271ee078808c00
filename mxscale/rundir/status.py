"""The status of a run (status.json) and of its ranks (ranks/<r>.json).

Only this module reads and writes these files.
"""

from dataclasses import dataclass, field, replace
from typing import Any, Dict, Optional, Tuple

from mxscale.rundir import json_record

FILE = "status.json"

RUNNING, FINISHED, FAILED, KILLED = "RUNNING", "FINISHED", "FAILED", "KILLED"
DONE, FAILURE, REFUSED, INTERRUPTED = 0, 1, 2, 75  # exit status


@dataclass(frozen=True)
class Attempt:
    """One start of a run's machines. Times are in milliseconds since 1970."""

    attempt: int
    started_ms: int
    nodes: Optional[int] = None  # billed machines; None: those of the price
    ranks: Optional[int] = None  # None: no rank was started
    ended_ms: Optional[int] = None  # None: it runs, or its parent was killed
    error: Optional[str] = None


@dataclass(frozen=True)
class Status:
    """Content of status.json."""

    state: str = RUNNING
    attempts: Tuple[Attempt, ...] = ()
    attempt: Optional[int] = None  # the last one
    exit: Optional[int] = None
    error: Optional[str] = None
    step: Optional[int] = None
    params_sha256: Optional[str] = None
    reason: Optional[str] = None  # of a stop
    stamps: Dict[str, float] = field(default_factory=dict)  # of the last attempt's set-up
    rerun: Optional[Dict[str, Any]] = None  # the verdict of a rerun

    def with_attempt(self, **changes) -> "Status":
        """Return the status with changed fields of the last attempt."""
        return replace(self, attempts=(*self.attempts[:-1], replace(self.attempts[-1], **changes)))


@dataclass(frozen=True)
class RankStatus:
    """Content of ranks/<r>.json: how a rank ended."""

    rank: int
    attempt: int
    exit: int
    time_ms: int
    state: Optional[str] = None
    step: Optional[int] = None
    error: Optional[str] = None
    consequence: bool = False  # whether the failure of another rank caused the error
    params_sha256: Optional[str] = None
    stamps: Dict[str, float] = field(default_factory=dict)


def load(run) -> Optional[Status]:
    """Return the status of a run; None before its first attempt. Raises ConfigError if it is damaged."""
    return json_record.load(run.path / FILE, Status)


def save(run, status: Status) -> None:
    """Write status.json. Raises OSError."""
    json_record.save(run.path / FILE, status)


def load_rank(run, rank: int, attempt: int) -> Optional[RankStatus]:
    """Return how a rank of `attempt` ended; None if it has not ended. Raises ConfigError if the file is damaged."""
    status = json_record.load(_rank_file(run, rank), RankStatus)
    return status if status and status.attempt == attempt else None


def save_rank(run, status: RankStatus) -> None:
    """Write ranks/<r>.json. Raises OSError."""
    json_record.save(_rank_file(run, status.rank), status)


def _rank_file(run, rank: int):
    return run.path / "ranks" / f"{rank}.json"
