"""The status of a run (status.json) and of its ranks (ranks/<r>.json), and its summary (summary.json)."""

from dataclasses import dataclass, field, replace
from typing import Dict, Optional, Tuple

RUNNING, FINISHED, FAILED, KILLED = "RUNNING", "FINISHED", "FAILED", "KILLED"
ENDED = {FINISHED: "finished", FAILED: "failed", KILLED: "interrupted"}  # state -> word in tables
DONE, FAILURE, REFUSED, INTERRUPTED = 0, 1, 2, 75  # exit status
SPENT = "the budget was nearly spent"  # the reason of a finished training that its clock ended


@dataclass(frozen=True)
class Attempt:
    """One start of a run's ranks. Times are in milliseconds since 1970."""

    attempt: int
    started_ms: int
    nodes: Optional[int] = None  # billed machines; None: those of the price
    ranks: Optional[int] = None  # None: no rank was started
    ended_ms: Optional[int] = None  # None: it runs, or its parent was killed
    error: Optional[str] = None
    continues: bool = False  # a restart: the machines kept running since the attempt before


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
    reason: Optional[str] = None  # of a stop, or why a finished training ended before its last step

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
    reason: Optional[str] = None  # why the training ended before its last step
    consequence: bool = False  # whether the failure of another rank caused the error
    params_sha256: Optional[str] = None


@dataclass(frozen=True)
class Summary:
    """Content of summary.json: the figures of a whole run."""

    metrics: Dict[str, Optional[float]] = field(default_factory=dict)
    attempt: Optional[int] = None
    baseline: Optional[str] = None  # directory of the run that the scaling efficiency refers to
    energy_source: Optional[str] = None
