"""Registry of learning rate schedules: `schedule.kind` -> entry."""

from dataclasses import dataclass
from typing import Tuple


@dataclass(frozen=True)
class ScheduleEntry:
    """A schedule after warm-up.

    Attributes:
        function: `module:function` of (Position, settings of the group `schedule`) -> learning rate.
        options: Keys of the group `schedule` that it reads.
    """

    function: str
    options: Tuple[str, ...] = ()


SCHEDULES = {
    "constant": ScheduleEntry("mxscale.train.optim.schedule:constant"),
    "step": ScheduleEntry("mxscale.train.optim.schedule:step", ("milestones", "factor", "factors")),
    "cosine": ScheduleEntry("mxscale.train.optim.schedule:cosine", ("final_lr",)),
    "poly": ScheduleEntry("mxscale.train.optim.schedule:poly", ("final_lr", "power")),
}
