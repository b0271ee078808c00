"""How much of a run its MLflow store has, recorded in `tracking.json`. Does not import mlflow.

A run has one store. Sent to another one, the record names that one from then on, and the first keeps what it has.
"""

import dataclasses
import os
import shlex
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Optional

from mxscale.environment.description import ROOT
from mxscale.rundir import json_record
from mxscale.rundir.directory import RunDir
from mxscale.tracking.experiment_view import TRAINING_SIDE
from mxscale.tracking.uris import sqlite_file
from mxscale.util.errors import ConfigError
from mxscale.util.redaction import redact_address

STATE_FILE = "tracking.json"


@dataclass
class Sent:
    """What the store has of a run."""

    id: str  # of the run, unique; a tag in MLflow
    uri: str  # without password
    experiment: str
    experiment_id: Optional[str] = None
    run_id: Optional[str] = None
    lines_sent: int = 0
    bytes_sent: int = 0  # of metrics.jsonl
    system_bytes_sent: int = 0  # of system.jsonl
    status: Optional[str] = None  # in MLflow
    dir: Optional[str] = None  # of the run; a copy of it is another run


def recorded(run: RunDir) -> Optional[Sent]:
    """Return the record; None if it is missing or damaged, or in a copy of a run directory that still exists."""
    try:
        sent = json_record.load(run.path / STATE_FILE, Sent)
    except ConfigError:
        return None
    copied = sent and sent.dir not in (None, str(run)) and (Path(sent.dir) / STATE_FILE).exists()
    return None if copied else sent


def load(run: RunDir, uri: str, experiment: str) -> Sent:
    """Return what the store at `uri` has of the run."""
    sent = recorded(run)
    if sent and sent.uri == redact_address(uri):
        return sent
    return Sent(sent.id if sent else uuid.uuid4().hex, redact_address(uri), experiment)


def save(run: RunDir, sent: Sent) -> None:
    """Record what the store has. The caller holds the lock of the run."""
    run.write(STATE_FILE, {**dataclasses.asdict(sent), "dir": str(run)})


def view_hint(run: RunDir, sent: Optional[Sent] = None) -> str:
    """Return how to view the run in MLflow, by default in the recorded store."""
    sent = sent or recorded(run)
    if not (sent and sent.run_id):
        return f"not in MLflow; send it with: mxscale sync {shlex.quote(str(run))}"
    page = f"{_server(sent.uri)}#/experiments/{sent.experiment_id}/runs/{sent.run_id}?{TRAINING_SIDE}"
    if sent.uri.startswith("http"):
        return page
    is_default = sqlite_file(sent.uri) == ROOT / "runs" / "mlflow.db"  # the store that `make ui` shows
    server = "make ui" if is_default else f"mlflow ui --backend-store-uri {shlex.quote(sent.uri)}"
    return f"{server}, then {page}"


def _server(uri: str) -> str:
    """Return the address of the server of a store; of a file, that of MLflow's own."""
    if not uri.startswith("http"):
        return "http://127.0.0.1:5000/"
    # In a container the server has another name than on the host
    if uri == redact_address(os.environ.get("MLFLOW_TRACKING_URI", "")):
        uri = os.environ.get("MXSCALE_UI", uri)
    return uri.rstrip("/") + "/"
