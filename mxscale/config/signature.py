"""What makes two runs the same: the settings that count, and their digest."""

import hashlib
import json
from typing import Any, Iterable, Optional

from mxscale.config.schema import Config, to_dict

# Where a run is recorded, what it is called, how it is resumed, what ends it: without these it is the same run.
UNSIGNED = (
    "tracking",
    "sweep",
    "resume",
    "runs",
    "name",
    "claims",
    "budget",
    "machine.prices",
    "model.input",
    "comm.timeline",
    "comm.probe_s",
    "launch.setup_minutes",
    "launch.start_timeout_s",
    "launch.stop_grace_s",
    "launch.stall_s",
    "launch.restarts",
    "checkpoint.keep",
    "rerun",
)
# For these, and for model.pretrained, the digests of the files stand: the same files elsewhere are the same run.
DATA_PATHS = ("data.root", "data.train", "data.val", "data.test", "data.cache", "data.mirror")
RANKS = ("launch.ranks", "launch.threads", "launch.hosts", "data.shards", "comm")


def signature(config: Config, data_digest: str, weights_digest: Optional[str], ranks: bool = True) -> str:
    """SHA-256 of the canonical config with the digests of data and pretrained weights.  Machine and seed count.

    ranks False: the same for any number of ranks at the same per-device batch (weak scaling).
    """
    values = to_dict(config)
    remove(values, [*UNSIGNED, *DATA_PATHS, *(() if ranks else RANKS)])
    values["data"]["digest"] = data_digest
    values["model"]["pretrained"] = weights_digest
    return hash_of(values)


def within(key: str, names: Iterable[str]) -> bool:
    """Whether a setting (data.root) is one of `names`, or of a group (data) that is."""
    return any(f"{key}.".startswith(f"{name}.") for name in names)


def remove(values: dict, names: Iterable[str]) -> None:
    """Take settings, and whole groups, out of nested `values`; what is not there is no matter."""
    for name in names:
        group, _, key = name.partition(".")
        if not key:
            values.pop(group, None)
        elif isinstance(values.get(group), dict):
            values[group].pop(key, None)


def hash_of(values: Any) -> str:
    """SHA-256 of what JSON can hold, whatever order its keys came in."""
    return hashlib.sha256(json.dumps(values, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
