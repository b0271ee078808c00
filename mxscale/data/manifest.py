"""manifest.json: the description of a packed set.

    {"format": 2, "kind": ..., "classes": [names in label order],
     "splits": {"train": {"count", "per_class": [..], "rec", "idx", "crc", "sha256", "bytes", "min_side",
                          "enlarged"},
                "val": .., "test": ..},
     "digest": .., "settings": {what determines the packed bytes}, "skipped": [{"path", "reason"}],
     "unused": {extension: files that are no images},
     "duplicates": {"across": n, "example": [name, split, name, split], "two_classes": n,
                    "two_classes_example": [name, name]}}

`rec` is a name in the set's folder, or the absolute path of a user's file; `idx` and `crc` are names in the folder, of
the records' offsets and checksums (recordio.py); `sha256` and `bytes` are those of the .rec. `min_side` is the smallest
shorter side of the split's images in pixels, or null if unknown. `test` is optional. `enlarged` images were smaller
than the network's input. `duplicates` counts exact copies of an earlier image, in another split or in another class of
the same one.
"""

import json
import os
from pathlib import Path
from typing import Any, Dict, List, Optional, Tuple

from mxscale.config import typed
from mxscale.config.schema import Data
from mxscale.config.signature import hash_of
from mxscale.rundir.plan import Split
from mxscale.util.atomic_files import digest_of, write_text
from mxscale.util.errors import ConfigError
from mxscale.util.regular_files import read_regular

FORMAT = 2
SPLIT = {
    "count": int, "per_class": List[int], "rec": str, "idx": str, "crc": Optional[str], "sha256": str, "bytes": int,
    "min_side": Optional[int], "enlarged": int,
}  # fmt: skip
FIELDS = {
    "classes": List[str], "splits": Dict[str, Any], "digest": str, "skipped": List[Any],
    "unused": Optional[Dict[str, int]],
    "duplicates": {"across": int, "example": Optional[List[str]], "two_classes": int,
                   "two_classes_example": Optional[List[str]]},
}  # fmt: skip
NAME = "manifest.json"
MAX_BYTES = 1 << 30  # a manifest lists every skipped file
MAX_LINE = 48  # bytes of a line of an .idx, two whole numbers


def load(folder) -> Dict[str, Any]:
    """Return the manifest in `folder`, with the folder's absolute path as "dir". Raises ConfigError."""
    path = Path(folder).absolute() / NAME
    try:
        manifest = json.loads(read_regular(path, MAX_BYTES))
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}; expected a packed set") from None
    except (ValueError, RecursionError):
        raise ConfigError(f"{path} is damaged: remove {path.parent}, and it is packed again") from None
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        raise ConfigError(f"{path} is of another version: remove {path.parent}, and it is packed again")
    try:
        typed.convert(manifest, FIELDS, "", record=True)
        for name, entry in manifest["splits"].items():
            typed.convert(entry, SPLIT, f"splits.{name}", record=True)
    except ConfigError as error:
        raise ConfigError(f"{path} is damaged ({error}): remove {path.parent}, and it is packed again") from None
    return {**manifest, "dir": str(path.parent)}


def split_of(manifest: Dict[str, Any], name: str) -> Split:
    """Return a split with absolute paths. Raises ConfigError if the set has no such split."""
    if name not in manifest["splits"]:
        raise ConfigError(f"{manifest['dir']} has no {name} split, only {', '.join(manifest['splits'])}")
    entry = manifest["splits"][name]
    keys = ("rec", "idx", "crc") if "crc" in entry else ("rec", "idx")
    files = {key: os.path.join(manifest["dir"], entry[key]) for key in keys}
    return Split(entry["count"], **files, classes=len(manifest["classes"]))


def intact(folder) -> Optional[Dict[str, Any]]:
    """Return the manifest if the set exists and is unchanged since it was packed; otherwise None.

    The files' sizes are checked here, and the checksum of each record when it is read.
    """
    try:
        manifest, written_ns = load(folder), os.stat(Path(folder) / NAME).st_mtime_ns
        for name, entry in manifest["splits"].items():
            split, status = split_of(manifest, name), os.stat(os.path.join(folder, entry["rec"]))
            if status.st_size != entry["bytes"]:
                return None
            if read_regular(split.idx, MAX_LINE * entry["count"]).count(b"\n") != entry["count"]:
                return None
            if split.crc:
                if os.path.getsize(split.crc) != 4 * entry["count"]:
                    return None
            elif status.st_mtime_ns > written_ns and digest_of(split.rec) != entry["sha256"]:
                return None
        return manifest
    except (ConfigError, OSError, KeyError):
        return None


def summary(packed: Dict[str, Any], data: Data) -> str:
    """Return one line: images by split, where they are packed, how many were skipped, enlarged or are copies."""
    entries, copies = packed["splits"].values(), packed["duplicates"]
    counts = ", ".join(f"{entry['count']:,} {split}" for split, entry in packed["splits"].items())
    unused = ", ".join(f"{count:,} {kind}" for kind, count in packed.get("unused", {}).items())
    notes = {
        "bad images skipped, see its manifest.json": len(packed["skipped"]),
        f"images smaller than the network's input ({data.image_size}) enlarged": sum(e["enlarged"] for e in entries),
        "images are exact copies of images in another split": copies["across"],
        "images are exact copies of images in another class": copies["two_classes"],
        "images re-encoded that a reader would misread or refuse": sum(e.get("rewritten", 0) for e in entries),
    }
    for split, entry in packed["splits"].items():
        lacking = [name for name, count in zip(packed["classes"], entry["per_class"]) if not count]
        if 0 < len(lacking) < len(packed["classes"]):
            notes[f"classes have no {split} image, {lacking[0]} for one"] = len(lacking)
    shown = [f"{data.kind}: {len(packed['classes'])} classes, {counts} images in {packed['dir']}"]
    shown += [f"files not used: {unused}"] if unused else []
    return "; ".join(shown + [f"{count:,} {what}" for what, count in notes.items() if count])


def unusable(where: str, name: str, reason: str) -> ConfigError:
    """Return the refusal of an invalid image."""
    advice = "replace it, or set data.on_bad=skip, which lists all bad images"
    return ConfigError(f"{where}: cannot use {name} ({reason}): {advice}")


def refuse_copies(manifest: Dict[str, Any], where: str) -> None:
    """Raise ConfigError if an image is in two splits, where memorised images are measured, or in two classes."""
    copies = manifest["duplicates"]
    if copies["across"]:
        first, split, second, other = copies["example"]
        count, found = copies["across"], f"{first} ({split}) and {second} ({other}) are the same image in two splits"
    elif copies["two_classes"]:
        first, second = copies["two_classes_example"]
        count, found = copies["two_classes"], f"{first} and {second} are the same image in two classes"
    else:
        return
    more = f", one of {count:,}" if count > 1 else ""
    raise ConfigError(f"{where}: {found}{more}: remove the copies, or set data.allow_duplicates=true")


def save(folder, kind: str, classes: List[str], splits: Dict[str, Any], settings, **findings) -> None:
    """Write manifest.json durably. `findings` are its `skipped`, `duplicates` and `unused`. Raises OSError."""
    digests = {name: entry["sha256"] for name, entry in splits.items()}
    manifest = {
        "format": FORMAT,
        "kind": kind,
        "classes": classes,
        "splits": splits,
        "digest": hash_of({"classes": classes, "splits": digests}),  # independent of the files' location
        "settings": settings,
        **findings,
    }
    write_text(Path(folder) / NAME, json.dumps(manifest, indent=1) + "\n")


class Copies:
    """Counts exact copies among the images of a set, split after split, by the bytes of their files."""

    def __init__(self):
        self._first: Dict[bytes, Tuple[str, str, int]] = {}  # key -> name, split and label of its first image
        self.in_manifest = {"across": 0, "example": None, "two_classes": 0, "two_classes_example": None}

    def add(self, key: bytes, name: str, split: str, label: int) -> None:
        first, split_of_first, label_of_first = self._first.setdefault(key, (name, split, label))
        if split != split_of_first:
            self._count("across", "example", [first, split_of_first, name, split])
        elif label != label_of_first:
            self._count("two_classes", "two_classes_example", [first, name])

    def _count(self, kind: str, example: str, images: List[str]) -> None:
        self.in_manifest[kind] += 1
        self.in_manifest[example] = self.in_manifest[example] or images
