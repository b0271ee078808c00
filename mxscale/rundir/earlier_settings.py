"""Settings that earlier versions recorded, in today's form."""

from typing import Any, Dict

from mxscale.config import removed
from mxscale.config.schema import flatten, unflatten
from mxscale.util.errors import ConfigError


def converted(values: Dict[str, Any]) -> Dict[str, Any]:
    """Return the nested settings of a config.yaml as this version reads them.

    Before there was data.reader, every run read with ImageRecordIter and had 2 threads by default. data.keep=ram gave
    the batches that data.keep=packed gave, so neither is needed.
    """
    removed_keys = {*removed.DEFAULTS, *removed.IGNORED}
    values = unflatten({key: value for key, value in flatten(values).items() if key not in removed_keys})
    data = values.get("data")
    if not isinstance(data, dict) or "reader" in data:
        return values
    kept = {key: value for key, value in data.items() if key != "keep"}
    return {**values, "data": {"threads": 2, **kept, "reader": "record_iter"}}


def check_repeatable(values: Dict[str, Any]) -> None:
    """Raise ConfigError if a recorded setting that was removed had another value than its default."""
    for key, value in without_equivalent(values).items():
        raise ConfigError(f"{key}={value}: {removed.refusal(key)}")


def without_equivalent(values: Dict[str, Any]) -> Dict[str, Any]:
    """Return the recorded settings, by dotted key, that were removed and had another value than their default."""
    flat = flatten(values)
    return {key: flat[key] for key, default in removed.DEFAULTS.items() if flat.get(key, default) != default}
