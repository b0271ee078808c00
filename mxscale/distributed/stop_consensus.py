"""Stop consensus: rank 0 passes on its parent's request, and all ranks stop after the same step.

A scheduler preempts a run by a signal to one process, and its ranks read the stop request at different times. A rank
that stopped alone would leave the others waiting in the next step's exchange, and no checkpoint would be written.
"""

import time
from collections import deque
from enum import IntEnum
from typing import Callable

EVERY_S = 0.25  # between two rounds if steps are shorter
MOST_STEPS = 20  # between two rounds


class Request(IntEnum):
    """What the parent asks its ranks for."""

    NONE = 0
    STOP = 1  # write a checkpoint and end, to be resumed
    FINISH = 2  # take this step for the last one


class StopConsensus:
    """A round at each step, or about four times a second if steps are short.

    A sum over ranks takes CPU time from compute: a round at each step of 50 ms makes a run 3 % slower. Rank 0 measures
    the steps, so it sends with each round the number of steps until the next one.

    Args:
        requested: Returns what the parent asks for. Rank 0's answer counts.
    """

    def __init__(self, comm, requested: Callable[[], int]):
        self.comm, self.requested = comm, requested
        self.pending = None  # the round under way
        self.proposed_at, self.due = None, 0  # steps
        self.began = None  # time.monotonic() of the last round
        # Seconds per step. A step may have only been dispatched, so the longest of a few is used
        self.step_s = deque(maxlen=3)

    def propose(self, step: int) -> None:
        """Start a round if one is due, before the work of a step, so that its result has arrived when read.

        A collective.
        """
        if step < self.due:
            return
        now = time.monotonic()
        if self.began is not None:
            self.step_s.append((now - self.began) / (step - self.proposed_at))
        self.proposed_at, self.began = step, now
        proposal = [self.requested(), self._steps_to_the_next()] if self.comm.rank == 0 else [0, 0]
        self.pending = self.comm.total_later(proposal, "stop")

    def agreed(self) -> Request:
        """Return the request, the same on all ranks, after a step's work is dispatched. A collective."""
        if self.pending is None:
            return Request.NONE
        (requested, steps), self.pending = self.pending(), None
        self.due = self.proposed_at + int(steps)
        return Request(int(requested))

    def _steps_to_the_next(self) -> int:
        if len(self.step_s) < self.step_s.maxlen:
            return 1
        return max(1, round(EVERY_S / max(*self.step_s, EVERY_S / MOST_STEPS)))
