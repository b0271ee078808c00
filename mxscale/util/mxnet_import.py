"""A quick `import mxnet`, in every process that imports mxscale: in a third of the time.

At its import MXNet 1.x generates and compiles a Python function for each operator, 2,556 of them, of which a training
calls some sixty. Here each is compiled at its first call. And MXNet imports libraries for its own tests.
"""

import re
import sys
from functools import partial
from importlib.machinery import PathFinder
from types import ModuleType
from typing import Callable

FOR_TESTS = ("scipy", "sklearn")
FUNCTION = re.compile(r"\s*def (\w+)\(")


class QuickImport:
    """A finder in sys.meta_path: it finds MXNet's modules as Python does, and has some executed as EXECUTED says."""

    @staticmethod
    def find_spec(name, path=None, target=None):
        if name not in EXECUTED:
            return None
        spec = PathFinder.find_spec(name, path, target)
        if spec:
            spec.loader.exec_module = partial(EXECUTED[name], spec.loader.exec_module)
        return spec


def execute_alone(exec_module: Callable[[ModuleType], None], module: ModuleType) -> None:
    """Execute MXNet as if FOR_TESTS were not installed, unless they are imported already."""
    hidden = [name for name in FOR_TESTS if name not in sys.modules]
    sys.modules.update(dict.fromkeys(hidden))
    try:
        exec_module(module)
    finally:
        for name in hidden:
            del sys.modules[name]


def execute_deferring(exec_module: Callable[[ModuleType], None], module: ModuleType) -> None:
    """Execute a module whose `exec`, which it calls for generated functions alone, defers their compilation."""
    module.exec = partial(define_deferred, vars(module))
    exec_module(module)


def define_deferred(namespace: dict, source: str, _: None, local: dict) -> None:
    """Add the function of `source` to `local`; it is compiled, with the names of `namespace`, at its first call."""
    name, defined = FUNCTION.match(source)[1], {}

    def operator(*args, **kwargs):
        if not defined:
            exec(source, namespace, defined)
        return defined[name](*args, **kwargs)

    local[name] = operator


EXECUTED = {
    "mxnet": execute_alone,
    "mxnet.ndarray.register": execute_deferring,
    "mxnet.symbol.register": execute_deferring,
}
