"""How much of a run each store has been told, kept in its `tracking.json`.  Pure: no mlflow."""

import dataclasses
import os
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Dict, Optional, Tuple

from mxscale.environment.description import ROOT
from mxscale.rundir.directory import RunDir
from mxscale.tracking.uris import masked, sqlite_file

STATE_FILE = "tracking.json"


@dataclass
class Sent:
    """What one store has been told."""

    uri: str  # without password
    experiment: str
    experiment_id: Optional[str] = None
    run_id: Optional[str] = None
    lines_sent: int = 0
    bytes_sent: int = 0  # of metrics.jsonl
    status: Optional[str] = None  # that MLflow shows
    closed: Optional[str] = None  # fingerprint of the end that was sent


def load(run: RunDir, uri: str, experiment: str) -> Tuple[str, Sent]:
    """The run's unique id and what the store at `uri` knows of it."""
    file = _state(run)
    for known in [file, *file.get("earlier", [])]:
        if known.get("uri") == masked(uri):
            names = {field.name for field in dataclasses.fields(Sent)}
            return file["id"], Sent(**{key: value for key, value in known.items() if key in names})
    return file.get("id") or uuid.uuid4().hex, Sent(uri=masked(uri), experiment=experiment)


def save(run: RunDir, identity: str, sent: Sent) -> None:
    """Keep `sent` as the newest; those of other stores stay, under `earlier`.  Call it under the run's lock."""
    file = _state(run)
    earlier = file.pop("earlier", [])
    if file:
        earlier.append({key: value for key, value in file.items() if key not in ("id", "dir")})
    earlier = [known for known in earlier if known.get("uri") != sent.uri]
    run.write(STATE_FILE, {"id": identity, "dir": str(run), **dataclasses.asdict(sent), "earlier": earlier})


def _state(run: RunDir) -> Dict[str, Any]:
    """tracking.json; {} where there is none, and in a copy of a run directory that is still there."""
    file = run.read(STATE_FILE) or {}
    original = file.get("dir")
    if original and original != str(run) and (Path(original) / STATE_FILE).exists():
        return {}
    return file


def view_hint(run: RunDir, sent: Optional[Sent] = None) -> str:
    """How to see the run in MLflow; `sent` None: in the store that it was sent to last."""
    noted = dataclasses.asdict(sent) if sent else _state(run)
    if not noted.get("run_id"):
        return f"not in MLflow; send it with: mxscale sync {run}"
    uri, page = noted["uri"], f"#/experiments/{noted['experiment_id']}/runs/{noted['run_id']}"
    if uri.startswith("http"):  # in a container the server has another name than on the host
        own = uri == masked(os.environ.get("MLFLOW_TRACKING_URI", ""))
        return (os.environ.get("MXSCALE_UI", uri) if own else uri).rstrip("/") + "/" + page
    own = sqlite_file(uri) == ROOT / "runs" / "mlflow.db"  # the store that `make ui` shows
    server = "make ui" if own else f"mlflow ui --backend-store-uri {uri}"
    return f"{server}, then http://127.0.0.1:5000/{page}"
