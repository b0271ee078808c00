"""Frozen dataclasses stored as JSON objects in a run directory.

Schema 1 files have no "schema_version" key and the same keys as schema 2.
"""

import dataclasses
import json
import typing
from pathlib import Path
from typing import Any, Dict, Optional, Type, TypeVar

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


def read_object(path: Path, fields: Dict[str, Any]) -> Optional[dict]:
    """Return the JSON object in a file, or None if the file does not exist.

    Args:
        fields: The types of its values, see json_fields.py.

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
        _check(values, fields, "")
    except TypeError as error:
        raise ConfigError(f"{path} is damaged: {error}") from None
    return values


def _check(values: Any, fields: Dict[str, Any], where: str) -> None:
    if not isinstance(values, dict):
        raise TypeError(f"{where}: expected an object")
    named = dict.fromkeys(values, fields["*"]) if "*" in fields else fields
    for key, hint in named.items():
        if isinstance(hint, dict):
            _check(values.get(key) or {}, hint, f"{where}{key}.")
        elif values.get(key) is not None:
            _value(values[key], hint, f"{where}{key}")
        elif type(None) not in typing.get_args(hint):
            raise TypeError(f"no {where}{key}")


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
        return typed(values, cls)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{path} is damaged: {error}") from None


def typed(values: Any, cls: Type[T], where: str = "") -> T:
    """Return an instance of a dataclass; other keys are ignored. Raises TypeError if a value has the wrong type."""
    if not isinstance(values, dict):
        raise TypeError(f"{where}: expected an object")
    hints, taken = typing.get_type_hints(cls), {}
    for field in dataclasses.fields(cls):
        optional = field.default is not dataclasses.MISSING or field.default_factory is not dataclasses.MISSING
        if values.get(field.name) is not None:
            taken[field.name] = _value(values[field.name], hints[field.name], f"{where}{field.name}")
        elif field.name in values and type(None) in typing.get_args(hints[field.name]):
            taken[field.name] = None
        elif not optional:
            raise TypeError(f"no {where}{field.name}")
    return cls(**taken)


def _value(value: Any, hint: Any, where: str) -> Any:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if dataclasses.is_dataclass(hint):
        return typed(value, hint, f"{where}.")
    if hint is Any:
        return value
    if origin is typing.Union:  # Optional
        return None if value is None else _value(value, arguments[0], where)
    expected = {tuple: list, list: list, dict: dict, float: (int, float)}.get(origin or hint, hint)
    if not isinstance(value, expected) or (isinstance(value, bool) and hint is not bool):
        raise TypeError(f"{where} is {value!r}")
    if origin in (tuple, list):
        return origin(_value(each, arguments[0], f"{where}[{n}]") for n, each in enumerate(value))
    if origin is dict:
        return {key: _value(each, arguments[1], f"{where}.{key}") for key, each in value.items()}
    return value
