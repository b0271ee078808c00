"""Registries of optimizers and of learning rate schedules.

`optimizer.name` accepts every optimizer of MXNet; one without an entry has no limits.
"""

from dataclasses import dataclass, field
from typing import Any, Mapping, Optional, Tuple


@dataclass(frozen=True)
class OptimizerEntry:
    """An optimizer and its limitations."""

    implementation: Optional[str] = None  # "module:Class" of this package; None: MXNet's own
    since: Optional[str] = None  # the MXNet version that has it
    repeatable: bool = True  # False: an update draws random numbers, which no checkpoint holds
    momentum: bool = True  # False: MXNet's fails with a momentum
    defaults: Mapping[str, Any] = field(default_factory=dict)  # arguments whose default in MXNet is wrong
    replicable: bool = True  # False: it keeps numbers that several devices of one process would share
    divides_by_lr: bool = False  # an update divides by the learning rate
    networks: bool = True  # False: it updates only matrices, without weight decay


OPTIMIZERS = {
    "rmsprop_warmup": OptimizerEntry("mxscale.train.optim.rmsprop_warmup:RMSpropWarmup", divides_by_lr=True),
    "dcasgd": OptimizerEntry(momentum=False),
    "groupadagrad": OptimizerEntry(networks=False),
    "lamb": OptimizerEntry(since="1.6"),
    # Its momentum correction applies to the first four arrays and the first device only
    "lars": OptimizerEntry(since="1.6", defaults={"momentum_correction": False}),
    "lbsgd": OptimizerEntry(replicable=False),
    "nadam": OptimizerEntry(replicable=False),
    "sgld": OptimizerEntry(repeatable=False),
}


def optimizer_entry(name: str) -> OptimizerEntry:
    """Return the entry of `optimizer.name`; MXNet ignores the case of names."""
    return OPTIMIZERS.get(name.lower(), OptimizerEntry())


@dataclass(frozen=True)
class ScheduleEntry:
    """A schedule after warm-up."""

    function: str  # "module:function" of (Position, settings of the group `schedule`) -> learning rate
    options: Tuple[str, ...] = ()  # keys of the group `schedule` that it reads


SCHEDULES = {
    "constant": ScheduleEntry("mxscale.train.optim.schedule:constant"),
    "step": ScheduleEntry("mxscale.train.optim.schedule:step", ("milestones", "factor", "factors")),
    "cosine": ScheduleEntry("mxscale.train.optim.schedule:cosine", ("final_lr", "steps")),
    "poly": ScheduleEntry("mxscale.train.optim.schedule:poly", ("final_lr", "power", "steps")),
}
