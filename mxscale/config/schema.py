"""The typed configuration, and its conversion from and to plain dictionaries.

Hydra composes YAML into a dictionary, `from_dict` turns it into the frozen `Config`, and `validation.validate` checks
the values. Ranks read the same dictionary from `config.yaml`.
"""

import dataclasses
import typing
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Dict, List, Optional, Tuple

from mxscale.config import removed
from mxscale.config.compressions import PRECISIONS
from mxscale.config.operation_settings import Budget, Launch, Machine, Rerun, Sweep, Tracking
from mxscale.config.setting import MAX_SEED, Rule, describe, setting
from mxscale.config.training_settings import Batch, Checkpoint, Comm, Data, Model, Optimizer, Schedule
from mxscale.util.errors import ConfigError, nearest


@dataclass(frozen=True)
class Config:
    """All settings of a run."""

    entry: str = setting("train", "kind of job; set by train.py and finetune.py", choices=("train", "finetune"))
    name: str = setting("run", "name of the run, part of its directory's name")
    seed: int = setting(1, "seed of initial weights, order, augmentation and dropout", low=0, high=MAX_SEED)
    epochs: int = setting(20, "length of the training", unit="epochs", low=1)
    max_steps: Optional[int] = setting(None, "end the training early, after this many steps", unit="steps", low=1)
    precision: str = setting("float32", "number format of the training", choices=PRECISIONS)
    label_smoothing: float = setting(0.0, "label smoothing (arXiv:1512.00567, sec. 7)", low=0, high=0.999)
    class_weights: Any = setting(
        None, "factor of an image's loss by its class: balanced, or a list in label order; null: 1", low=0
    )
    log_every: int = setting(10, "interval between two lines of metrics", unit="steps", low=1)
    validate_every: int = setting(
        1, "interval between validations; the last epoch always has one", unit="epochs", low=1
    )
    claims: List[str] = setting([], "published figures that the run repeats (mxscale/tables/claims.csv)")
    target_top1: Optional[float] = setting(
        None, "validation accuracy; time and cost to reach it are recorded", unit="%", low=0, high=100
    )
    stop_at_target: bool = setting(False, "end the training at the first validation that reaches target_top1")
    patience: Optional[int] = setting(
        None,
        "early stopping: end the training after this many validations without a higher top-1; null: never",
        unit="validations",
        low=1,
    )
    evaluation: str = setting(
        "none", "after the run: full evaluates its best checkpoint (docs/use-a-model.md)", choices=("none", "full")
    )
    runs: str = setting("runs", "folder for run directories")
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
    kind, _, rest = pretrained.partition(":")
    if kind in (("run", "symbol", "torch", "hf") if rest else ("latest", "zoo", "imagenet")):
        return kind, rest
    return "path", pretrained


def from_dict(values: Dict[str, Any], cls=Config, where: str = ""):
    """Return an instance of `cls` with these values; missing keys have their defaults.

    Args:
        where: Prefix of keys in error messages, such as "data.".

    Raises:
        ConfigError: A key is unknown or a value has the wrong type.
    """
    hints = typing.get_type_hints(cls)
    typed = {}
    for key, value in values.items():
        if key not in hints:
            gone = removed.refusal(f"{where}{key}")
            raise ConfigError(gone or f"unknown key {where}{key}{nearest(key, hints, where)}")
        typed[key] = _typed(value, hints[key], f"{where}{key}")
    return cls(**typed)


def checked(values: Dict[str, Any], cls: type) -> Any:
    """Return an instance of `cls` with these values. Raises ConfigError as `from_dict` does, and for a broken rule."""
    settings = from_dict(values, cls)
    check_rules(settings)
    return settings


def check_rules(settings) -> None:
    """Raise ConfigError if a setting breaks the rule of its field."""
    values = flatten(to_dict(settings))
    for key, rule in rules_of(type(settings)).items():
        rule.check(key, values.get(key))


def check_group(name: str, value: Any) -> None:
    """Raise ConfigError if a group of settings was given a value itself."""
    if not isinstance(value, dict):
        raise ConfigError(f"{name}={_shown(value)}: a group of settings: give {name}.KEY=VALUE")


def _typed(value, hint, where):
    if dataclasses.is_dataclass(hint):
        check_group(where, value)
        return from_dict(value, hint, where + ".")
    if hint is Any:
        return value
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Union:  # of a type and None, or of a list, the type of its elements, and None
        if value is None or type(value) in arguments:
            return value
        return _typed(value, arguments[0] if isinstance(value, list) else arguments[-2], where)
    if origin is list:
        if not isinstance(value, (list, tuple)):
            example = "[a,b]" if arguments[0] is str else "[1,2]"
            raise ConfigError(f"{where}={_shown(value)}: expected a list such as {example}")
        return [_typed(v, arguments[0], where) for v in value]
    if origin is dict:
        if not isinstance(value, dict):
            raise ConfigError(f"{where}={_shown(value)}: expected a mapping such as {{a:1}}")
        return dict(value)
    return _scalar(value, hint, where)


def _scalar(value, hint, where):
    if hint is float and isinstance(value, (int, float)) and not isinstance(value, bool):
        return float(value)
    if hint is str and isinstance(value, (int, float, str)) and not isinstance(value, bool):
        return str(value)
    if type(value) is hint:
        return value
    expected = {int: "a whole number", float: "a number", bool: "true or false", str: "a string"}[hint]
    raise ConfigError(f"{where}={_shown(value)}: expected {expected}")


def _shown(value):
    return "null" if value is None else value


def to_dict(config) -> Dict[str, Any]:
    """Return the settings as nested plain values, the inverse of `from_dict`."""
    return dataclasses.asdict(config)


def filled(values: Dict[str, Any], defaults: Dict[str, Any]) -> Dict[str, Any]:
    """Return nested values with the defaults of missing keys, such as `~sweep.resume` leaves."""
    complete = {**defaults, **values}
    groups = [key for key, default in defaults.items() if isinstance(default, dict) and isinstance(complete[key], dict)]
    return {**complete, **{key: filled(complete[key], defaults[key]) for key in groups}}


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
