"""JSON files in a run directory: objects, and frozen dataclasses stored as objects.

Schema 1 files have no "schema_version" key and the same keys as schema 2.
"""

import dataclasses
import json
from pathlib import Path
from typing import Any, Dict, Optional, Tuple, Type, TypeVar

from mxscale.config import typed
from mxscale.util.atomic_files import write_text
from mxscale.util.errors import ConfigError
from mxscale.util.regular_files import read_regular

SCHEMA_VERSION = 2
MAX_BYTES = 64 << 20
VERSION_KEY = "schema_version"

# The fields that are relied on in files without a record type: file -> {field: type}, or the type of all fields.
# Optional: the field may be missing.
FIELDS: Dict[str, Any] = {
    "best.json": {"step": int, "val/top1": float, "checkpoint": str},
    "state.json": {
        "step": int,
        "shards": int,
        "global_batch": int,
        "best": Optional[Dict[str, Any]],
        "loss_scale": Dict[str, Any],
        "params_sha256": str,
        "unsaved": Optional[str],
        "validation_pending": Optional[bool],
        "owes_validation": Optional[bool],  # validation_pending in checkpoints written before 2026-11-26
        "under_way": Optional[bool],
    },
    "environment.json": {
        "tags": Optional[Dict[str, Any]],
        "git": Optional[Dict[str, Any]],
        "machine": Optional[Dict[str, Any]],
        "mxnet": {"features": Optional[Tuple[str, ...]], "linked": Optional[Dict[str, Any]]},
        "variables": Optional[Dict[str, Any]],
        "code": Optional[str],
    },
    "params.json": Dict[str, str],
    "refused.json": {"error": Optional[str]},
    "rerun.json": {
        "of": str,
        "parent": Optional[str],
        "seeds": Tuple[Dict[str, float], ...],
        "asked": Dict[str, Tuple[Any, ...]],
        "differs": Tuple[str, ...],
        "verdict": Optional[str],
        "why": Optional[str],
    },
    "test-allreduce.json": {"nodes": int, "fit": {"alpha_s": Optional[float], "bytes_per_s": Optional[float]}},
    "cell.json": {"sweep": str, "number": int, "name": str},
    "sweep.json": {"attempt": int, "process": Tuple[Any, ...], "swept": Optional[Dict[str, Any]]},
    "tracking.json": {"id": str, "dir": Optional[str], "uri": Optional[str], "experiment": Optional[str]},
}

T = TypeVar("T")


def read_bytes(path: Path) -> bytes:
    """Return the content of a small file of a run directory.

    Raises:
        FileNotFoundError: It does not exist.
        ConfigError: It cannot be read.
    """
    try:
        return read_regular(path, MAX_BYTES)
    except (FileNotFoundError, NotADirectoryError):
        raise FileNotFoundError(f"{path} does not exist") from None
    except OSError as error:
        raise ConfigError(f"{path} is damaged: {error.strerror}") from None


def read_object(path: Path) -> Optional[dict]:
    """Return the JSON object in a file, or None if the file does not exist.

    Raises:
        ConfigError: The file holds no object with the fields of FIELDS.
    """
    try:
        values = json.loads(read_bytes(path))
    except FileNotFoundError:
        return None
    except (json.JSONDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ConfigError(f"{path} is damaged: {error}") from None
    if not isinstance(values, dict):
        raise ConfigError(f"{path} is damaged: expected a JSON object")
    try:
        return typed.convert(values, FIELDS.get(path.name, {}), "", record=True)
    except ConfigError as error:
        raise ConfigError(f"{path} is damaged: {error}") from None


def write_object(path: Path, values: dict) -> None:
    """Replace a file atomically with a JSON object. Raises OSError."""
    write_text(path, json.dumps(values, indent=1, sort_keys=True) + "\n")


def save(path: Path, record) -> None:
    """Write a dataclass instance and the schema version. Raises OSError."""
    write_object(path, {**dataclasses.asdict(record), VERSION_KEY: SCHEMA_VERSION})


def load(path: Path, cls: Type[T]) -> Optional[T]:
    """Return the record in a file, or None if the file does not exist.

    Keys that `cls` lacks are ignored; keys that the file lacks take their defaults.

    Raises:
        ConfigError: If the file is damaged or a newer version wrote it.
    """
    values = read_object(path)
    if values is None:
        return None
    version = values.get(VERSION_KEY, 1)
    if not isinstance(version, int) or version > SCHEMA_VERSION:
        raise ConfigError(
            f"{path} has schema version {version}, this mxscale reads up to {SCHEMA_VERSION}; use a newer mxscale"
        )
    try:
        return typed.instance(cls, values, record=True)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{path} is damaged: {error}") from None
