"""Damage to bytes, to values of JSON and YAML, and to what lies at a path."""

import copy
import os
import pickle
import zipfile
from pathlib import Path

import numpy as np

from .case import choice

EXTREME = (0, 1, -1, 2**31 - 1, -(2**31), 2**62, 2**63 - 1, 10**30, 1e308, float("nan"), float("inf"))
OTHER_TYPES = (None, True, 5, -1.5, "x", "", [], [1, 2], {}, {"a": 1})
BYTES = ("cut", "flipped", "zeroed", "inserted", "appended", "large numbers")
CANARY = "executed"  # a file in the working directory, which exists if a file's content was executed
NODES = ("empty", "missing", "directory", "fifo", "broken link", "link to itself", "link to /dev/zero", "sparse")


def damaged_bytes(draw, content: bytes, how: str) -> bytes:
    """Return the content with one kind of BYTES. A cut removes at least a tenth."""
    size, at = len(content), int(draw.integers(max(1, len(content))))
    if how == "cut":
        return content[: int(size * draw.uniform(0, 0.9))]
    if how == "appended":
        return content + draw.bytes(int(draw.integers(1, 64)))
    if how == "inserted":
        return content[:at] + draw.bytes(int(draw.integers(1, 16))) + content[at:]
    damaged = bytearray(content)
    if how == "flipped":
        for place in draw.integers(size, size=int(draw.integers(1, 9))):
            damaged[place] ^= int(draw.integers(1, 256))
    elif how == "zeroed":
        damaged[at : at + 32] = bytes(len(damaged[at : at + 32]))
    else:  # a length or a size in the header
        width = choice(draw, (4, 8))
        at = int(draw.integers(min(size, 256) // 4 + 1)) * 4
        number = choice(draw, (0, 1, 2**31 - 1, 2**32 - 1, 2**62, 2**63, 2**64 - 1)) % 256**width
        damaged[at : at + width] = number.to_bytes(width, "little")
    return bytes(damaged)


def damaged_value(draw, value):
    """Return (nested value with one leaf or branch replaced or removed, what was done)."""
    value = copy.deepcopy(value)
    node, path = value, []
    while isinstance(node, (dict, list)) and node:
        keys = sorted(node) if isinstance(node, dict) else range(len(node))
        key = choice(draw, keys)
        path.append(key)
        if not isinstance(node[key], (dict, list)) or not node[key] or draw.random() < 0.3:
            break
        node = node[key]
    if not path:
        return choice(draw, OTHER_TYPES), "replaced"
    where = ".".join(map(str, path))
    if draw.random() < 0.2:
        del node[path[-1]]
        return value, f"{where} removed"
    node[path[-1]] = choice(draw, OTHER_TYPES if draw.random() < 0.6 else EXTREME)
    return value, f"{where} = {node[path[-1]]!r}"


def place(path: Path, how: str) -> None:
    """Put one kind of NODES in place of a file, which may be missing."""
    path.unlink(missing_ok=True)
    if how == "empty":
        path.write_bytes(b"")
    elif how == "directory":
        path.mkdir()
    elif how == "fifo":
        os.mkfifo(path)
    elif how == "sparse":
        path.write_bytes(b"")
        os.truncate(path, 20 * 2**30)
    elif how != "missing":
        target = {"broken link": "/nowhere", "link to itself": path.name, "link to /dev/zero": "/dev/zero"}[how]
        path.symlink_to(target)


class _Canary:
    def __reduce__(self):
        return os.system, (f"touch {CANARY}",)


def canary(draw, path: Path) -> str:
    """Replace a file by one that creates CANARY when it is unpickled; return its form."""
    form = choice(draw, ("pickle", "npy", "zip"))
    with open(path, "wb") as file:
        if form == "pickle":
            pickle.dump(_Canary(), file)
        elif form == "npy":
            np.save(file, np.array([_Canary()], object), allow_pickle=True)
        else:
            with zipfile.ZipFile(file, "w") as archive:
                archive.writestr("net/data.pkl", pickle.dumps(_Canary()))
    return f"a canary as {form}"
