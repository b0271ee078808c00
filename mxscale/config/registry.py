"""Registries: tables whose entries are data and name their implementation as `module:attribute`."""

import importlib
from typing import Any


def implementation(path: str) -> Any:
    """Import and return what a registry entry names, such as "mxscale.distributed.communicators:Horovod".

    Entries are read by processes that must not import MXNet, so an implementation is imported only where it is used.
    """
    module, _, attribute = path.partition(":")
    return getattr(importlib.import_module(module), attribute)
