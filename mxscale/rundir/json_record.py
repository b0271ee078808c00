"""Frozen dataclasses stored as JSON objects in a run directory.

Schema 1 files have no "schema_version" key and the same keys as schema 2.
"""

import dataclasses
import json
from pathlib import Path
from typing import Any, Optional, Type, TypeVar

from mxscale.config import typed
from mxscale.util.atomic_files import write_text
from mxscale.util.errors import ConfigError
from mxscale.util.regular_files import read_regular

SCHEMA_VERSION = 2
MAX_BYTES = 64 << 20
VERSION_KEY = "schema_version"

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


def read_object(path: Path, fields: Any) -> Optional[dict]:
    """Return the JSON object in a file, or None if the file does not exist.

    Args:
        fields: The types of its values, see json_fields.py and config/typed.py.

    Raises:
        ConfigError: The file holds no such object.
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
        return typed.convert(values, fields, "", record=True)
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
    values = read_object(path, {})
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
