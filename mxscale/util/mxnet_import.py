"""A quick `import mxnet`, in every process that imports mxscale.

At its import MXNet 1.x generates and compiles a Python function for each operator, 2,556 of them, of which a training
calls some sixty: half of the import's time. Here each is compiled at its first call.
"""

import re
from functools import partial
from importlib.abc import MetaPathFinder
from importlib.machinery import PathFinder
from types import ModuleType
from typing import Callable

GENERATORS = ("mxnet.ndarray.register", "mxnet.symbol.register")
FUNCTION = re.compile(r"\s*def (\w+)\(")


class DeferredOperators(MetaPathFinder):
    """Finds GENERATORS as Python does, and has them executed by `execute`."""

    def find_spec(self, name, path=None, target=None):
        if name not in GENERATORS:
            return None
        spec = PathFinder.find_spec(name, path, target)
        spec.loader.exec_module = partial(execute, spec.loader.exec_module)
        return spec


def execute(exec_module: Callable[[ModuleType], None], module: ModuleType) -> None:
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
