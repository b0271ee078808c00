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
    flat = flatten(values)
    changed = [key for key, default in removed.DEFAULTS.items() if flat.get(key, default) != default]
    if changed:
        raise ConfigError(f"{changed[0]}={flat[changed[0]]}: {removed.refusal(changed[0])}")
