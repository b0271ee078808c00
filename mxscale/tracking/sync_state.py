"""How much of a run its MLflow store has, recorded in `tracking.json`. Does not import mlflow.

A run has one store. Sent to another one, the record names that one from then on, and the first keeps what it has.
"""

import dataclasses
import os
import shlex
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Dict, Optional

from mxscale.config import typed
from mxscale.environment.description import ROOT
from mxscale.rundir.directory import RunDir
from mxscale.tracking import experiment_view
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


def load(run: RunDir, uri: str, experiment: str) -> Sent:
    """Return what the store at `uri` has of the run."""
    file = _state(run)
    if file.get("uri") == redact_address(uri):
        return typed.instance(Sent, file, record=True)
    return Sent(file.get("id") or uuid.uuid4().hex, redact_address(uri), experiment)


def other_store(run: RunDir, uri: str) -> Optional[str]:
    """Return the address of the store that has the run, if it is not the one at `uri`; None otherwise."""
    file = _state(run)
    return file["uri"] if file.get("run_id") and file["uri"] != redact_address(uri) else None


def save(run: RunDir, sent: Sent) -> None:
    """Record what the store has. The caller holds the lock of the run."""
    run.write(STATE_FILE, {"dir": str(run), **dataclasses.asdict(sent)})


def identity(run: RunDir) -> Optional[str]:
    """Return the unique id of the run; None if it was not sent, or its record is damaged."""
    try:
        return (run.read(STATE_FILE) or {}).get("id")
    except ConfigError:
        return None


def _state(run: RunDir) -> Dict[str, Any]:
    """Return tracking.json; {} if it is missing or damaged, or in a copy of a run directory that still exists."""
    try:
        file = run.read(STATE_FILE) or {}
        if file:
            typed.instance(Sent, file, record=True)
    except ConfigError:
        return {}
    original = file.get("dir")
    if original and original != str(run) and (Path(original) / STATE_FILE).exists():
        return {}
    return file


def view_hint(run: RunDir, sent: Optional[Sent] = None) -> str:
    """Return how to view the run in MLflow, by default in the recorded store."""
    state = dataclasses.asdict(sent) if sent else _state(run)
    if not state.get("run_id"):
        return f"not in MLflow; send it with: mxscale sync {shlex.quote(str(run))}"
    uri, page = state["uri"], f"#/experiments/{state['experiment_id']}/runs/{state['run_id']}?{TRAINING_SIDE}"
    if uri.startswith("http"):
        return _server(uri) + page
    own = sqlite_file(uri) == ROOT / "runs" / "mlflow.db"  # the store that `make ui` shows
    server = "make ui" if own else f"mlflow ui --backend-store-uri {shlex.quote(uri)}"
    return f"{server}, then {_server(uri)}{page}"


def all_runs(run: RunDir) -> Optional[str]:
    """Return the address of all runs of the experiment, with their figures and charts; None if MLflow lacks the run."""
    state = _state(run)
    return _server(state["uri"]) + experiment_view.page(state["experiment_id"]) if state.get("run_id") else None


def _server(uri: str) -> str:
    """Return the address of the server of a store; of a file, that of MLflow's own."""
    if not uri.startswith("http"):
        return "http://127.0.0.1:5000/"
    # In a container the server has another name than on the host
    own = uri == redact_address(os.environ.get("MLFLOW_TRACKING_URI", ""))
    return (os.environ.get("MXSCALE_UI", uri) if own else uri).rstrip("/") + "/"
