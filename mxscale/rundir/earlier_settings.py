"""Settings that earlier versions recorded, in today's form."""

from typing import Any, Dict


def converted(values: Dict[str, Any]) -> Dict[str, Any]:
    """Return the nested settings of a config.yaml as this version reads them.

    Before there was data.reader, every run read with ImageRecordIter and had 2 threads by default. data.keep=ram gave
    the batches that data.keep=packed gave, so neither is needed.
    """
    data = values.get("data")
    if not isinstance(data, dict) or "reader" in data:
        return values
    kept = {key: value for key, value in data.items() if key != "keep"}
    return {**values, "data": {"threads": 2, **kept, "reader": "record_iter"}}
