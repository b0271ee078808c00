"""Whether to stop: asked by the parent of rank 0, agreed on by all ranks at the end of the same step."""

import time
from collections import deque
from typing import Callable

EVERY_S = 0.25  # between two votes, where steps are shorter
MOST_STEPS = 20  # from one to the next


class Ballot:
    """A vote at each step, or where steps are short about four times a second.

    A sum over ranks takes their cores from what they were at: at each step of 50 ms it made a run 3 % slower.  So
    rank 0, which knows how long steps are, says with each vote how many steps later the next one is.

    wished: whether the parent asked to stop; rank 0's answer counts.
    """

    def __init__(self, comm, wished: Callable[[], bool]):
        self.comm, self.wished = comm, wished
        self.votes = None  # on their way
        self.cast_at, self.due = None, 0  # steps
        self.began = None  # time.monotonic() of the last one
        # Seconds of a step, of late: dispatching alone may have been all of it, so the longest of some is right
        self.step_s = deque(maxlen=3)

    def cast(self, step: int) -> None:
        """Before the work of a step: sent now, the answer has long arrived when it is read.  A collective."""
        if not self.comm.in_step or step < self.due:
            return
        now = time.monotonic()
        if self.began is not None:
            self.step_s.append((now - self.began) / (step - self.cast_at))
        self.cast_at, self.began = step, now
        mine = [self.wished(), self._steps_to_the_next()] if self.comm.rank == 0 else [0, 0]
        self.votes = self.comm.total_later(mine, "vote")

    def stop(self) -> bool:
        """After that work has been dispatched: True on all ranks, or on none.  A collective."""
        if not self.comm.in_step:
            return bool(self.comm.total([self.comm.rank == 0 and self.wished()])[0])
        if self.votes is None:
            return False
        (wished, steps), self.votes = self.votes(), None
        self.due = self.cast_at + int(steps)
        return bool(wished)

    def _steps_to_the_next(self) -> int:
        if len(self.step_s) < self.step_s.maxlen:
            return 1
        return max(1, round(EVERY_S / max(*self.step_s, EVERY_S / MOST_STEPS)))
