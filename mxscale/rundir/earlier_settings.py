"""Settings that earlier versions recorded, in today's form."""

from typing import Any, Dict

from mxscale.config import removed
from mxscale.config.schema import flatten, unflatten
from mxscale.util.errors import ConfigError


def converted(values: Dict[str, Any]) -> Dict[str, Any]:
    """Return the nested settings of a config.yaml as this version reads them.

    Before there was data.reader, every run read with ImageRecordIter and had 2 threads by default. data.keep=ram gave
    the batches that data.keep=packed gave, so neither is needed.

    Raises:
        ConfigError: A setting that was removed has another value than its default.
    """
    values = _without_removed(values)
    data = values.get("data")
    if not isinstance(data, dict) or "reader" in data:
        return values
    kept = {key: value for key, value in data.items() if key != "keep"}
    return {**values, "data": {"threads": 2, **kept, "reader": "record_iter"}}


def _without_removed(values: Dict[str, Any]) -> Dict[str, Any]:
    flat = flatten(values)
    changed = [key for key, default in removed.DEFAULTS.items() if flat.get(key, default) != default]
    if changed:
        raise ConfigError(f"{changed[0]}={flat[changed[0]]}: {removed.refusal(changed[0])}")
    return unflatten({key: value for key, value in flat.items() if key not in {*removed.DEFAULTS, *removed.IGNORED}})
