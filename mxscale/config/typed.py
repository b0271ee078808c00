"""Conversion of the plain values of YAML and JSON to frozen dataclasses, by the types of their fields.

People write settings: an unknown key is an error, and a whole number is also a number and a string. Programs of any
version write records: other keys are ignored, null is a missing value, and nothing is converted but lists to tuples.
"""

import dataclasses
import typing
from typing import Any, Dict, Type, TypeVar

from mxscale.config import removed
from mxscale.util.errors import ConfigError, nearest

T = TypeVar("T")
EXPECTED = {int: "a whole number", float: "a number", bool: "true or false", str: "a string"}


def instance(cls: Type[T], values: Dict[str, Any], where: str = "", record: bool = False) -> T:
    """Return an instance of a dataclass with these values; missing keys have their defaults.

    Args:
        where: Prefix of keys in error messages, such as "data.".
        record: The values are those of a record, not settings.

    Raises:
        ConfigError: A key is unknown or missing, or a value has the wrong type.
    """
    hints, typed = typing.get_type_hints(cls), {}
    for key, value in values.items():
        if key in hints and not (record and value is None and not optional(hints[key])):
            typed[key] = convert(value, hints[key], f"{where}{key}", record)
        elif key not in hints and not record:
            gone = removed.refusal(f"{where}{key}")
            raise ConfigError(gone or f"unknown key {where}{key}{nearest(key, hints, where)}")
    for field in dataclasses.fields(cls):
        if field.name not in typed and field.default is field.default_factory is dataclasses.MISSING:
            raise ConfigError(f"{where}{field.name} is missing")
    return cls(**typed)


def convert(value: Any, hint: Any, where: str, record: bool = False) -> Any:
    """Return a value as the type `hint` states it. Raises ConfigError, which names it `where`.

    Args:
        hint: A type; or {key: hint} for the keys of an object that are relied on. Keys whose hint is optional or such a
            dictionary itself may be missing.
    """
    if isinstance(hint, dict):
        fields = convert(value, Dict[str, Any], where, record)
        for key, inner in hint.items():
            if fields.get(key) is not None or not (isinstance(inner, dict) or optional(inner)):
                convert(fields.get(key), inner, f"{where}.{key}".lstrip("."), record)
        return fields
    if dataclasses.is_dataclass(hint):
        if not record:
            check_group(where, value)
        value = convert(value, Dict[str, Any], where, record)
        return instance(hint, value, f"{where}.", record)
    if hint is Any:
        return value
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Union:  # of a type and None, or of a list, the type of its elements, and None
        if value is None or type(value) in arguments:
            return value
        return convert(value, arguments[0] if isinstance(value, list) else arguments[-2], where, record)
    if origin:
        return _collection(value, origin, arguments, where, record)
    return _scalar(value, hint, where, record)


def optional(hint: Any) -> bool:
    """Return whether None is a value of the type."""
    return type(None) in typing.get_args(hint)


def check_group(name: str, value: Any) -> None:
    """Raise ConfigError if a group of settings was given a value itself."""
    if not isinstance(value, dict):
        raise ConfigError(f"{name}={_shown(value, False)}: a group of settings: give {name}.KEY=VALUE")


def _collection(value, origin, arguments, where, record):
    if origin is dict and isinstance(value, dict):
        return {key: convert(inner, arguments[1], f"{where}.{key}".lstrip("."), record) for key, inner in value.items()}
    if origin is not dict and isinstance(value, (list, tuple)):
        names = (f"{where}[{number}]" if record else where for number in range(len(value)))
        return origin(convert(element, arguments[0], name, record) for name, element in zip(names, value))
    example = "mapping such as {a:1}" if origin is dict else f"list such as {'[a,b]' if str in arguments else '[1,2]'}"
    raise ConfigError(f"{where}={_shown(value, record)}: expected a {example}")


def _scalar(value, hint, where, record):
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        if hint is float:
            return value if record else float(value)
        if hint is str and not record:
            return str(value)
    if type(value) is hint:
        return value
    raise ConfigError(f"{where}={_shown(value, record)}: expected {EXPECTED[hint]}")


def _shown(value, record):
    return repr(value) if record else "null" if value is None else value
