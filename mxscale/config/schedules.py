"""Registry of learning rate schedules: `schedule.kind` -> entry."""

from dataclasses import dataclass
from typing import Tuple


@dataclass(frozen=True)
class ScheduleEntry:
    """A schedule after warm-up."""

    function: str  # "module:function" of (Position, settings of the group `schedule`) -> learning rate
    options: Tuple[str, ...] = ()  # keys of the group `schedule` that it reads
    ratio: bool = False  # it is a power of the ratio of final_lr to optimizer.lr, so both are above 0


SCHEDULES = {
    "constant": ScheduleEntry("mxscale.train.optim.schedule:constant"),
    "step": ScheduleEntry("mxscale.train.optim.schedule:step", ("milestones", "factor", "factors")),
    "cosine": ScheduleEntry("mxscale.train.optim.schedule:cosine", ("final_lr", "steps")),
    "poly": ScheduleEntry("mxscale.train.optim.schedule:poly", ("final_lr", "power", "steps")),
    "exponential": ScheduleEntry("mxscale.train.optim.schedule:exponential", ("final_lr", "steps"), ratio=True),
}
