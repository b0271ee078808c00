"""Unpickling that executes nothing from the file: only the names and opcodes that a format needs are accepted."""

import pickle
from typing import Any, Callable, Dict, Tuple

from mxscale.util.errors import short

# Opcodes of dictionaries, lists, tuples, numbers, texts and calls of the allowed names, protocols 2 to 4. Any other
# (new objects, extensions, byte arrays of a stated size, sets) is an error.
OPCODES = (
    "PROTO", "FRAME", "STOP", "MARK", "POP_MARK", "BINPUT", "LONG_BINPUT", "MEMOIZE", "BINGET", "LONG_BINGET",
    "NONE", "NEWTRUE", "NEWFALSE", "BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT",
    "SHORT_BINSTRING", "BINSTRING", "BINUNICODE", "SHORT_BINUNICODE",
    "EMPTY_DICT", "SETITEM", "SETITEMS", "EMPTY_LIST", "APPEND", "APPENDS",
    "EMPTY_TUPLE", "TUPLE", "TUPLE1", "TUPLE2", "TUPLE3", "GLOBAL", "STACK_GLOBAL", "REDUCE", "BUILD",
)  # fmt: skip


class Refused(ValueError):
    """A file that is not accepted; the message is short."""


def handlers(*names: str) -> Dict[int, Callable]:
    """Return Python's handlers of opcodes, for the attribute `dispatch`."""
    return {code: pickle._Unpickler.dispatch[code] for code in (getattr(pickle, name)[0] for name in names)}


class RestrictedUnpickler(pickle._Unpickler):
    """Python's unpickler restricted to the names `allowed` and the opcodes in `dispatch`.

    Subclasses define `allowed`, what a pickle's names stand for, and `build`. The C implementation is unsuitable: a
    number in the file makes it allocate without bound (LONG_BINPUT), and its opcodes cannot be restricted.
    """

    dispatch = handlers(*OPCODES)
    allowed: Dict[Tuple[str, str], Any] = {}
    unknown = "which is not part of the format and is not executed"  # why another name is refused

    def find_class(self, module: str, name: str):
        if (module, name) not in self.allowed:
            raise Refused(f"refers to {short(f'{module}.{name}')}, {self.unknown}")
        return self.allowed[module, name]

    def build(self, target, state) -> None:
        """Set the state of an object. Raises Refused if objects of its type have none."""
        raise Refused(f"is corrupt: it modifies a {type(target).__name__}")

    def load_build(self):
        state = self.stack.pop()
        self.build(self.stack[-1], state)

    dispatch[pickle.BUILD[0]] = load_build
