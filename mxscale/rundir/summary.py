"""The figures of a whole run (summary.json). Only this module reads and writes the file."""

from dataclasses import dataclass, field
from typing import Any, Dict, Optional

from mxscale.rundir import json_record

FILE = "summary.json"


@dataclass(frozen=True)
class Summary:
    """Content of summary.json."""

    metrics: Dict[str, Optional[float]] = field(default_factory=dict)
    attempt: Optional[int] = None
    baseline: Optional[str] = None  # directory of the run that the scaling efficiency refers to
    cells: Optional[Dict[str, Any]] = None  # of a sweep
    rerun: Optional[Dict[str, Any]] = None  # the verdict of a rerun


def load(run) -> Optional[Summary]:
    """Return the summary of a run; None before the end of its first attempt. Raises ConfigError if it is damaged."""
    return json_record.load(run.path / FILE, Summary)


def save(run, summary: Summary) -> None:
    """Write summary.json. Raises OSError."""
    json_record.save(run.path / FILE, summary)
