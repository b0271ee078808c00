"""The signature of a run: the digest of the settings that determine its result and speed."""

import hashlib
import json
from typing import Any, Iterable, Optional, Sequence

from mxscale.config import removed
from mxscale.config.readers import READERS
from mxscale.config.schema import Config, flatten, to_dict, unflatten

# Settings outside the signature: where a run is recorded, its name, how it is resumed and stopped
UNSIGNED = (
    "tracking", "sweep", "resume", "rerun", "runs", "name", "claims", "budget", "machine.prices",
    "machine.gco2_per_kwh", "model.input", "launch.setup_minutes", "launch.start_timeout_s", "launch.stop_grace_s",
    "launch.stall_s", "launch.restarts", "checkpoint.keep",
)  # fmt: skip
# The signature has digests in place of these and of model.pretrained: equal files at other paths are equal
DATA_PATHS = ("data.root", "data.train", "data.val", "data.test", "data.cache", "data.mirror")
# Outside the signature that compares runs with different numbers of devices: these and where the devices are
RANKS = ("launch.ranks", "launch.threads", "launch.hosts", "data.shards", "comm", "machine")


def signature(config: Config, data_digest: str, weights_digest: Optional[str], ranks: bool = True) -> str:
    """Return the SHA-256 of the canonical config, machine and seed included.

    Args:
        weights_digest: Digest of the pretrained weights; None: no such weights.
        ranks: False for a signature that is equal for any number of ranks at one per-device batch (weak scaling).
    """
    values = unflatten({**removed.DEFAULTS, **flatten(to_dict(config))})  # equal to those of earlier versions
    threads = () if READERS[config.data.reader].threads else ("data.threads",)
    values = without(values, [*UNSIGNED, *DATA_PATHS, *threads, *(() if ranks else RANKS)])
    values["data"]["digest"] = data_digest
    if isinstance(config.data.classes, str):  # a file: the digest includes the names in it
        values["data"]["classes"] = None
    values["model"]["pretrained"] = weights_digest
    return hash_of(values)


def within(key: str, names: Iterable[str]) -> bool:
    """Return whether `names` contains the setting `key`, such as data.root, or its group, such as data."""
    return any(f"{key}.".startswith(f"{name}.") for name in names)


def without(values: dict, names: Sequence[str]) -> dict:
    """Return nested `values` without some settings and groups."""
    return unflatten({key: value for key, value in flatten(values).items() if not within(key, names)})


def hash_of(values: Any) -> str:
    """Return the SHA-256 of a JSON value, independent of the order of its keys."""
    return hashlib.sha256(json.dumps(values, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
