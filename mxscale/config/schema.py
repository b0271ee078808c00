"""The typed configuration, and its conversion from and to plain dictionaries.

Hydra composes YAML into a dictionary, `from_dict` turns it into the frozen `Config`, and `validation.validate` checks
the values. Ranks read the same dictionary from `config.yaml`.
"""

import dataclasses
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Dict, List, Optional, Tuple

from mxscale.config import typed
from mxscale.config.operation_settings import Budget, Launch, Machine, Rerun, Sweep, Tracking
from mxscale.config.precisions import PRECISIONS
from mxscale.config.setting import FOLDER, MAX_SEED, Rule, describe, setting
from mxscale.config.training_settings import Batch, Checkpoint, Comm, Data, Model, Optimizer, Schedule


@dataclass(frozen=True)
class Config:
    """All settings of a run."""

    entry: str = setting("train", "kind of job; mxscale train or mxscale finetune", choices=("train", "finetune"))
    name: str = setting(
        "run", "part of the name of its directory", pattern=r"(?!\.{1,2}\Z)[^/]+", form="a plain file name"
    )
    seed: int = setting(1, "seed of initial weights, order, augmentation and dropout", low=0, high=MAX_SEED)
    epochs: Any = setting(
        20, "length of the training; auto: what the budget leaves time for", unit="epochs", keyword="auto", low=1
    )
    max_steps: Optional[int] = setting(None, "end the training early, after this many steps", unit="steps", low=1)
    precision: str = setting("float32", "number format of the training", choices=tuple(PRECISIONS))
    label_smoothing: float = setting(0.0, "label smoothing (arXiv:1512.00567, sec. 7)", low=0, high=0.999)
    class_weights: Any = setting(None, "factors of the loss: balanced, or one for each class; null: 1", low=0)
    log_every: int = setting(10, "interval between two lines of metrics", unit="steps", low=1)
    validate_every: int = setting(1, "interval between validations; the last epoch has one", unit="epochs", low=1)
    claims: List[str] = setting([], "published figures that the run repeats (mxscale/tables/claims.csv)")
    target_top1: Optional[float] = setting(
        None, "validation accuracy whose time is recorded", unit="%", low=0, high=100
    )
    stop_at_target: bool = setting(False, "end the training at the first validation that reaches target_top1")
    patience: Optional[int] = setting(
        None, "early stopping: end after this many validations without a higher top-1", unit="validations", low=1
    )
    runs: str = setting("runs", "folder for run directories", **FOLDER)
    resume: Optional[str] = setting(None, "run directory to resume; auto: the newest unfinished run of this config")
    batch: Batch = field(default_factory=Batch)
    data: Data = field(default_factory=Data)
    model: Model = field(default_factory=Model)
    optimizer: Optimizer = field(default_factory=Optimizer)
    schedule: Schedule = field(default_factory=Schedule)
    comm: Comm = field(default_factory=Comm)
    launch: Launch = field(default_factory=Launch)
    machine: Machine = field(default_factory=Machine)
    budget: Budget = field(default_factory=Budget)
    tracking: Tracking = field(default_factory=Tracking)
    checkpoint: Checkpoint = field(default_factory=Checkpoint)
    rerun: Rerun = field(default_factory=Rerun)
    sweep: Sweep = field(default_factory=Sweep)

    @property
    def augmented_epochs(self) -> int:
        """Return the epochs before those of data.augment.off_epochs; 0 or less: none."""
        return self.epochs - self.data.augment.off_epochs


@cache
def rules_of(cls: type) -> Dict[str, Rule]:
    """Return the rules of a dataclass of settings by key, such as "optimizer.lr"."""
    return {setting.key: setting.rule for setting in describe(cls)}


RULES = rules_of(Config)


def origin_of(pretrained: str) -> Tuple[str, str]:
    """Return the kind and the rest of `model.pretrained`: ("symbol", "x/resnet-50") for symbol:x/resnet-50.

    The kind is "run", "symbol", "torch", "hf", "latest", "zoo", "imagenet", or "path" for any other value.
    """
    kind, _, name = pretrained.partition(":")
    if kind in (("run", "symbol", "torch", "hf") if name else ("latest", "zoo", "imagenet")):
        return kind, name
    return "path", pretrained


def from_dict(values: Dict[str, Any]) -> Config:
    """Return the config of nested plain values; missing keys have their defaults. Raises ConfigError."""
    return typed.instance(Config, values)


def checked(values: Dict[str, Any], cls: type) -> Any:
    """Return an instance of `cls` with these values. Raises ConfigError, also for a broken rule."""
    settings = typed.instance(cls, values)
    check_rules(settings)
    return settings


def check_rules(settings) -> None:
    """Raise ConfigError if a setting breaks the rule of its field."""
    values = flatten(to_dict(settings))
    for key, rule in rules_of(type(settings)).items():
        rule.check(key, values.get(key))


def to_dict(config) -> Dict[str, Any]:
    """Return the settings as nested plain values, the inverse of `from_dict`."""
    return dataclasses.asdict(config)


def flatten(values: Dict[str, Any], where: str = "") -> Dict[str, Any]:
    """Return nested values by dotted key: {"a": {"b": 1}} -> {"a.b": 1}; an empty mapping stays a value."""
    flat = {}
    for key, value in values.items():
        if isinstance(value, dict) and value:
            flat.update(flatten(value, f"{where}{key}."))
        else:
            flat[f"{where}{key}"] = value
    return flat


def unflatten(flat: Dict[str, Any]) -> Dict[str, Any]:
    """Return nested values from dotted keys, the inverse of `flatten`."""
    values: Dict[str, Any] = {}
    for key, value in flat.items():
        node = values
        *groups, last = key.split(".")
        for group in groups:
            node = node.setdefault(group, {})
        node[last] = value
    return values
