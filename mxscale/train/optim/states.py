"""The optimizer's part of a checkpoint: its attributes and states as JSON, their arrays in a file of weights.

optimizer.json  {"class", "attributes", "states"}: numbers and texts as in JSON; {"dict": [[key, value], ...]},
                {"list": [...]}, {"tuple": [...]}, and {"array": name} of an array in the file `optimizer`
optimizer       the arrays; missing if there are none

Checkpoints of earlier versions have a pickle instead, see `pickled_states`.
"""

import json
from pathlib import Path
from typing import Any, Callable, Dict, NamedTuple

import mxnet as mx
from mxnet import gluon, nd

from mxscale.util.errors import ConfigError, short
from mxscale.util.regular_files import read_regular

MAX_BYTES = 64 << 20  # of optimizer.json
MAX_NODES = 1_000_000  # values in the states; a network has a few for each of its arrays
# Attributes that depend on the process: the trainer's parameters, and the entry of the current device in another one
OWN = ("param_dict", "_index_update_count")


class OptimizerState(NamedTuple):
    """An optimizer after a step."""

    kind: str  # name of its class
    attributes: Dict[str, Any]
    states: Dict[int, Any]  # number of the parameter -> arrays in tuples or lists, None without any

    def check(self, optimizer: mx.optimizer.Optimizer, path: Path) -> None:
        """Raise ConfigError if this is the state of another optimizer."""
        expected = type(optimizer).__name__
        if self.kind != expected:
            raise ConfigError(f"{path} holds the state of {self.kind}, and the run's optimizer is {expected}")

    def restore(self, trainer: gluon.Trainer) -> None:
        """Set the state of a trainer, on any number of devices.

        MXNet counts updates by device. The count of a device that the file does not list would restart at 0. Adam's
        bias correction would then differ between devices.
        """
        optimizer, devices = trainer.optimizer, trainer._contexts
        existing = vars(optimizer).keys() - set(OWN)  # another version of MXNet may have others
        attributes = {name: value for name, value in self.attributes.items() if name in existing}
        vars(optimizer).update(mapped(attributes, _copy_on(devices[0])))
        counts = optimizer._all_index_update_counts
        most = max(counts.values(), key=len)
        for device, updater in zip(devices, trainer._updaters):
            counts[device.device_id] = dict(most)
            updater.states = mapped(self.states, _copy_on(device))
            updater.states_synced = dict.fromkeys(updater.states, True)
        optimizer._index_update_count = counts[devices[0].device_id]


def of_trainer(trainer: gluon.Trainer) -> OptimizerState:
    """Return the state of a trainer. Its arrays are those of the first device, not copies."""
    optimizer = trainer.optimizer
    attributes = {name: value for name, value in vars(optimizer).items() if name not in OWN}
    return OptimizerState(type(optimizer).__name__, attributes, trainer._updaters[0].states)


def encoded(state: OptimizerState) -> tuple:
    """Return the text of optimizer.json, and the arrays by name. Raises ConfigError if a value cannot be saved."""
    arrays: Dict[str, nd.NDArray] = {}

    def json_of(value):
        if value is None or isinstance(value, (bool, int, float, str)):
            return value
        if isinstance(value, nd.NDArray):
            arrays[str(len(arrays))] = value
            return {"array": str(len(arrays) - 1)}
        if isinstance(value, dict):
            return {"dict": [[key, json_of(item)] for key, item in value.items()]}
        if isinstance(value, (list, tuple)):
            return {type(value).__name__: [json_of(item) for item in value]}
        raise ConfigError(f"the optimizer's state has a {type(value).__name__}, which a checkpoint cannot hold")

    values = {"class": state.kind, "attributes": json_of(state.attributes), "states": json_of(state.states)}
    return json.dumps(values) + "\n", arrays


def read(path: Path, arrays: Dict[str, nd.NDArray]) -> OptimizerState:
    """Return what `encoded` wrote to optimizer.json. Raises ConfigError if it is damaged."""

    def value_of(saved):
        if saved is None or isinstance(saved, (bool, int, float, str)):
            return saved
        [(kind, content)] = saved.items()
        if kind == "array":
            return arrays[content]
        if kind == "dict":
            return {key: value_of(value) for key, value in content}
        return {"list": list, "tuple": tuple}[kind](value_of(item) for item in content)

    try:
        values = json.loads(read_regular(path, MAX_BYTES))
        return checked(values["class"], value_of(values["attributes"]), value_of(values["states"]))
    except OSError as error:
        raise ConfigError(f"{path} is damaged: {error.strerror}") from None
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise ConfigError(f"{path} is damaged: {type(error).__name__} {short(error)}") from None


def checked(kind, attributes, states) -> OptimizerState:
    """Return the state if it has the types that `restore` relies on. Raises ValueError."""
    counts = attributes.get("_all_index_update_counts") if isinstance(attributes, dict) else None
    counted = isinstance(counts, dict) and counts and all(isinstance(count, dict) for count in counts.values())
    numbered = isinstance(states, dict) and all(type(key) is int for key in states)
    if not (isinstance(kind, str) and counted and numbered):
        raise ValueError("it holds no optimizer")
    return OptimizerState(kind, attributes, states)


def mapped(value: Any, change: Callable) -> Any:
    """Return a copy of dictionaries, lists and tuples in which `change` has replaced the values.

    Raises ValueError if they are more than MAX_NODES: a file may contain one list many times in another.
    """
    left = MAX_NODES

    def copy(value):
        nonlocal left
        left -= 1
        if left < 0:
            raise ValueError("it has too many values")
        if isinstance(value, dict):
            return {key: copy(item) for key, item in value.items()}
        if isinstance(value, (list, tuple)):
            return type(value)(copy(item) for item in value)
        return change(value)

    return copy(value)


def _copy_on(device) -> Callable:
    return lambda value: value.copyto(device) if isinstance(value, nd.NDArray) else value
