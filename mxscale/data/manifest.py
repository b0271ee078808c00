"""manifest.json: what a packed set is.  Pure.

    {"format": 2, "kind": ..., "classes": [names in label order],
     "splits": {"train": {"count", "per_class": [..], "rec", "idx", "sha256", "bytes", "min_side"},
                "val": .., "test": ..},
     "digest": .., "settings": {what made it}, "skipped": [{"path", "reason"}],
     "duplicates": {"within": {"train": n, ..}, "across": n, "example": [name, split, name, split]}}

`rec` and `idx` are names in the set's folder, or absolute paths of the user's own files; `sha256` and
`bytes` are the .rec's; `min_side` is the smallest shorter side of the split's images in pixels, null
where it isn't known; `test` may be missing.  `duplicates` counts exact copies: images that
an earlier one of their split equals, and images of a later split that are in an earlier one.
"""

import contextlib
import json
import os
from pathlib import Path
from typing import Any, Dict, List, Optional, Tuple

from mxscale.config.signature import hash_of
from mxscale.util.atomic_files import digest_of
from mxscale.util.errors import ConfigError

FORMAT = 2
NAME = "manifest.json"


def load(folder) -> Dict[str, Any]:
    """The manifest in `folder`, with the folder's absolute path as "dir".  Raises ConfigError."""
    path = Path(folder).absolute() / NAME
    try:
        manifest = json.loads(path.read_text())
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}; it is not a packed set") from None
    except ValueError:
        raise ConfigError(f"{path} is damaged: remove {path.parent} and it is packed again") from None
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        raise ConfigError(f"{path} is of another version: remove {path.parent} and it is packed again")
    return {**manifest, "dir": str(path.parent)}


def path_of(manifest: Dict[str, Any], split: str) -> Tuple[str, str]:
    """Absolute paths of a split's (.rec, .idx).  Raises ConfigError where the set has no such split."""
    if split not in manifest["splits"]:
        raise ConfigError(f"{manifest['dir']} has no {split} split, only {', '.join(manifest['splits'])}")
    entry = manifest["splits"][split]
    return os.path.join(manifest["dir"], entry["rec"]), os.path.join(manifest["dir"], entry["idx"])


def intact(folder) -> Optional[Dict[str, Any]]:
    """The manifest where the set is there and is what was packed; else None."""
    try:
        manifest, written_ns = load(folder), os.stat(Path(folder) / NAME).st_mtime_ns
        for split, entry in manifest["splits"].items():
            rec, idx = path_of(manifest, split)
            if not _same(rec, entry, written_ns) or not os.path.isfile(idx):
                return None
        return manifest
    except (ConfigError, OSError, KeyError):
        return None


def _same(rec: str, entry: Dict[str, Any], written_ns: int) -> bool:
    """Whether a .rec is the one that was packed: of its size and older than its manifest, else by its digest."""
    status = os.stat(rec)
    if status.st_size != entry["bytes"]:
        return False
    if status.st_mtime_ns <= written_ns:
        return True
    if digest_of(rec) != entry["sha256"]:
        return False
    if not os.path.isabs(entry["rec"]):  # a copy of the set: the next start needn't read all of it again
        with contextlib.suppress(OSError):
            os.utime(rec, ns=(status.st_atime_ns, written_ns))
    return True


def refuse_copies(manifest: Dict[str, Any], where: str) -> None:
    """Raises ConfigError where an image is in two splits: the later one would measure what was learnt by heart."""
    copies = manifest["duplicates"]
    if copies["across"]:
        first, split, second, other = copies["example"]
        more = f" ({copies['across']:,} images are in two splits)" if copies["across"] > 1 else ""
        raise ConfigError(
            f"{where}: {first} ({split}) and {second} ({other}) are the same image{more}: "
            "remove the copies, or set data.allow_duplicates=true"
        )


def save(folder, kind: str, classes: List[str], splits: Dict[str, Any], settings, **findings) -> None:
    """Write manifest.json durably. `findings` are its `skipped` and `duplicates`. Raises OSError."""
    manifest = {
        "format": FORMAT,
        "kind": kind,
        "classes": classes,
        "splits": splits,
        "digest": digest(classes, splits),
        "settings": settings,
        **findings,
    }
    with open(Path(folder) / NAME, "w") as file:
        json.dump(manifest, file, indent=1)
        file.write("\n")
        file.flush()
        os.fsync(file.fileno())


def digest(classes: List[str], splits: Dict[str, Any]) -> str:
    """SHA-256 of the classes' names and the splits' digests; where the files lie is no part of it."""
    return hash_of({"classes": classes, "splits": {name: entry["sha256"] for name, entry in splits.items()}})


class Copies:
    """Counts exact copies among the images of a set, split after split, by the bytes of their files."""

    def __init__(self):
        self._names: Dict[str, Dict[bytes, str]] = {}  # split -> key -> the first of that content
        self.within: Dict[str, int] = {}
        self.across = 0
        self.example: Optional[Tuple[str, str, str, str]] = None

    def add(self, key: bytes, name: str, split: str) -> None:
        here = self._names.setdefault(split, {})
        self.within.setdefault(split, 0)
        if key in here:
            self.within[split] += 1
            return
        here[key] = name
        for earlier, names in self._names.items():
            if earlier != split and key in names:
                self.across += 1
                self.example = self.example or (names[key], earlier, name, split)
                return

    def in_manifest(self) -> Dict[str, Any]:
        return {"within": self.within, "across": self.across, "example": self.example and list(self.example)}
