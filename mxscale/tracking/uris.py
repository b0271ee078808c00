"""URIs of MLflow stores: the configured one, its SQLite file, and text without passwords."""

import os
import re
from pathlib import Path
from typing import Optional, Union

from mxscale.config.schema import Tracking
from mxscale.util.errors import ConfigError

SCHEMES = ("sqlite", "postgresql", "mysql", "mssql", "http", "https", "databricks")


def store_uri(tracking: Tracking, runs: Union[str, Path]) -> str:
    """Return tracking.uri, else MLFLOW_TRACKING_URI, else the SQLite file `runs/mlflow.db`.

    The path of a SQLite file becomes absolute. The URI may hold a password: print `masked(uri)`.

    Raises:
        ConfigError: The URI names no store. MLflow 3.13 and later accept no plain directory.
    """
    uri = tracking.uri or os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{Path(runs).resolve()}/mlflow.db"
    if re.split(r"[+:]", uri)[0] not in SCHEMES:
        raise ConfigError(
            f"tracking.uri={masked(uri)}: expected http://HOST:PORT, sqlite:///FILE.db or another database URI"
        )
    file = sqlite_file(uri)
    return f"sqlite:///{file}" if file else uri


def sqlite_file(uri: str) -> Optional[Path]:
    """Return the absolute path of a SQLite store; None for other stores."""
    return Path(uri[len("sqlite:///") :]).absolute() if uri.startswith("sqlite:///") else None


def artifact_root(uri: str, runs: Path) -> Optional[str]:
    """Return the artifact location of a new experiment: beside the database; None for a server, which chooses one."""
    file = sqlite_file(uri)
    if file:
        return str(file.parent / "artifacts")
    return None if uri.startswith(("http", "databricks")) else str(Path(runs).resolve() / "artifacts")


def masked(text: str) -> str:
    """Return the text with every password in a URI replaced by ***."""
    text = re.sub(r"(://[^:/@\s]*):[^/@\s]+@", r"\1:***@", text)
    text = re.sub(r"://(?!\*)[^:/@\s]+@", "://***@", text)  # a token in place of a name
    return re.sub(r"\b(password|passwd|pwd|token)=[^&\s'\"]+", r"\1=***", text, flags=re.IGNORECASE)
