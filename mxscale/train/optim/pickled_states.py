"""Reading of the file `trainer` of earlier checkpoints, a pickle of MXNet's optimizer and its states.

MXNet's own `load_states` would execute what the file names.
"""

import io
from pathlib import Path
from typing import Any

import mxnet as mx
from mxnet import nd

from mxscale.models import weights
from mxscale.rundir.checkpoints import MAX_BYTES
from mxscale.train.optim.states import OptimizerState, checked, mapped
from mxscale.util.errors import ConfigError, short
from mxscale.util.regular_files import read_regular
from mxscale.util.restricted_pickle import Refused, RestrictedUnpickler, handlers


class _Object:
    """An object in the pickle, and what it says of its state; its class is a name."""

    def __init__(self, kind: str):
        self.kind, self.state = kind, None


class _Class(str):
    """The name of an optimizer's class."""


def _array(*_) -> _Object:
    return _Object("NDArray")


def _bytearray(content: bytes) -> bytes:
    if not isinstance(content, bytes):
        raise Refused("is corrupt: a bytearray without its bytes")
    return content


class _Unpickler(RestrictedUnpickler):
    """The unpickler of (states, optimizer)."""

    allowed = {("mxnet.ndarray.ndarray", "NDArray"): _array, ("builtins", "bytearray"): _bytearray}
    unknown = "which is not part of an optimizer and is not executed"
    dispatch = {
        **RestrictedUnpickler.dispatch,
        **handlers("BINBYTES", "SHORT_BINBYTES", "BINBYTES8"),
    }

    def find_class(self, module: str, name: str):
        # Modules move from version to version; none is imported
        if name in {known.__name__ for known in mx.optimizer.Optimizer.opt_registry.values()}:
            return _Class(name)
        return super().find_class(module, name)

    def load_newobj(self):
        arguments, kind = self.stack.pop(), self.stack.pop()
        if not isinstance(kind, _Class) or arguments != ():
            raise Refused("is corrupt: a new object that is no optimizer")
        self.append(_Object(str(kind)))

    dispatch[0x81] = load_newobj  # NEWOBJ

    def build(self, target, state) -> None:
        if not isinstance(target, _Object):
            super().build(target, state)
        target.state = state


def read(path: Path) -> OptimizerState:
    """Return the content of a file `trainer`. Raises ConfigError; nothing in the file is executed."""
    try:
        states, optimizer = _Unpickler(io.BytesIO(read_regular(path, MAX_BYTES))).load()
        return checked(optimizer.kind, mapped(optimizer.state, _value), mapped(states, _value))
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror or error}") from None
    except Refused as error:
        raise ConfigError(f"{path} {error}") from None
    except Exception as error:  # the unpickler raises many types for damaged files
        raise ConfigError(f"{path} is corrupt: {type(error).__name__} {short(error)}") from None


def _value(value: Any) -> Any:
    """Return a number or text as it is, and the array of an object."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, _Object) and value.kind == "NDArray" and isinstance(value.state, dict):
        array = weights.array_of(value.state["handle"])
        return nd.array(array, ctx=mx.cpu(), dtype=array.dtype)
    raise Refused(f"is corrupt: it holds a {type(value).__name__}")
