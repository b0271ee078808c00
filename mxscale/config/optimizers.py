"""Registry of optimizers: those of this package, and those of MXNet whose use is limited.

`optimizer.name` accepts every optimizer of MXNet; one without an entry has no limits.
"""

from dataclasses import dataclass, field
from typing import Any, Mapping, Optional


@dataclass(frozen=True)
class OptimizerEntry:
    """An optimizer and its limitations.

    Attributes:
        implementation: `module:Class` of this package; None: MXNet's own.
        since: The MXNet version that has it.
        elementwise: False if an update needs the norm of a whole array.
        repeatable: False if an update draws random numbers, which no checkpoint holds.
        momentum: False if MXNet's fails with a momentum.
        defaults: Arguments whose default in MXNet is wrong.
        replicable: False if it keeps numbers that several devices of one process would share.
        uses_epoch: True if an update depends on the epoch.
        divides_by_lr: True if an update divides by the learning rate.
        networks: False if it updates only matrices, without weight decay.
    """

    implementation: Optional[str] = None
    since: Optional[str] = None
    elementwise: bool = True
    repeatable: bool = True
    momentum: bool = True
    defaults: Mapping[str, Any] = field(default_factory=dict)
    replicable: bool = True
    uses_epoch: bool = False
    divides_by_lr: bool = False
    networks: bool = True


OPTIMIZERS = {
    "rmsprop_warmup": OptimizerEntry(
        "mxscale.train.optim.rmsprop_warmup:RMSpropWarmup", uses_epoch=True, divides_by_lr=True
    ),
    "dcasgd": OptimizerEntry(momentum=False),
    "groupadagrad": OptimizerEntry(networks=False),
    "lamb": OptimizerEntry(since="1.6", elementwise=False),
    # Its momentum correction applies to the first four arrays and the first device only
    "lars": OptimizerEntry(since="1.6", elementwise=False, defaults={"momentum_correction": False}),
    "lbsgd": OptimizerEntry(elementwise=False, replicable=False),
    "nadam": OptimizerEntry(replicable=False),
    "sgld": OptimizerEntry(repeatable=False),
}


def optimizer_entry(name: str) -> OptimizerEntry:
    """Return the entry of `optimizer.name`; MXNet ignores the case of names."""
    return OPTIMIZERS.get(name.lower(), OptimizerEntry())
