"""Registries: tables whose entries are data and name their implementation as `module:attribute`."""

import importlib
from typing import Any


def implementation(path: str) -> Any:
    """Import and return the implementation of a registry entry.

    Processes that must not import MXNet read the entries, so an implementation is imported only by its user.

    Args:
        path: "module:attribute", such as "mxscale.distributed.communicators:Horovod".
    """
    module, _, attribute = path.partition(":")
    return getattr(importlib.import_module(module), attribute)
