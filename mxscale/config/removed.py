"""Names of earlier versions: settings, choices of a group (`launch=docker`) and verbs.

tables/removed.csv has what replaces them.
"""

from typing import Any, Dict, Optional

from mxscale.util import csv_tables

# Key of a setting -> its default. A run that has another value is read, but neither resumed nor repeated.
DEFAULTS: Dict[str, Any] = {
    "launch.kind": "process",
    "launch.image": None,
    "data.max_pixels": 120_000_000,
    "data.max_file_mb": 512,
    "data.augment.policy": "none",
    "data.augment.policy_ops": 2,
    "data.augment.policy_magnitude": 9,
    "comm.update_on": "worker",
    "comm.threshold": 0.5,
    "comm.hierarchical": False,
}
# Settings without an effect on results: a record may have any value
IGNORED = ("comm.probe_s", "comm.timeline", "evaluation", "tracking.log_model", "tracking.register")


def refusal(name: str) -> Optional[str]:
    """Return what to do instead of a removed name; None for any other name."""
    rows = csv_tables.read("removed")
    return next((f"{name} was removed: {row['instead']}" for row in rows if name in row["names"].split("; ")), None)
