"""URIs of MLflow stores: the configured one, and its SQLite file."""

import os
import re
from pathlib import Path
from typing import Optional, Union
from urllib.parse import urlsplit

from mxscale.config.schema import Tracking
from mxscale.util.errors import ConfigError
from mxscale.util.redaction import MASK, redact_address

SCHEMES = ("sqlite", "postgresql", "mysql", "mssql", "http", "https", "databricks")


def store_uri(tracking: Tracking, runs: Union[str, Path]) -> str:
    """Return tracking.uri, else MLFLOW_TRACKING_URI, else the SQLite file `runs/mlflow.db`.

    The path of a SQLite file becomes absolute. The URI may hold a password: print
    `redact_address(uri)`.

    Raises:
        ConfigError: The URI names no store, or its password is unknown or not percent-encoded. MLflow 3.13 and later
            accept no plain directory.
    """
    variable = os.environ.get("MLFLOW_TRACKING_URI", "")
    uri = tracking.uri or variable or f"sqlite:///{Path(runs).resolve()}/mlflow.db"
    if MASK in uri and redact_address(variable) == uri:
        uri = variable
    where = f"tracking.uri={redact_address(uri)}"
    if MASK in uri:
        raise ConfigError(f"{where}: run directories hold no passwords; set tracking.uri or MLFLOW_TRACKING_URI again")
    valid = uri == "databricks" or re.match(rf"({'|'.join(SCHEMES)})(\+\w+)?://", uri)
    if not valid or re.match("sqlite://(?!/)", uri):
        raise ConfigError(f"{where}: expected http://HOST:PORT, sqlite:///FILE.db or another database URI")
    if MASK in where and uri.startswith("databricks"):
        raise ConfigError(f"{where}: the address of a profile has no password; set DATABRICKS_TOKEN")
    if MASK in where and not _is_encoded(uri):
        raise ConfigError(f"{where}: write @ and / in a password as %40 and %2F")
    file = sqlite_file(uri)
    return f"sqlite:///{file}" if file else uri


def _is_encoded(uri: str) -> bool:
    """Return whether a client finds the host after the password; otherwise its errors show parts of the password."""
    if not uri.startswith("http"):  # for SQLAlchemy the host begins after the first @
        return "@" not in re.split("[/?]", uri.partition("://")[2].partition("@")[2])[0]
    try:
        return urlsplit(uri).port != 0
    except ValueError:
        return False


def sqlite_file(uri: str) -> Optional[Path]:
    """Return the absolute path of a SQLite store; None for other stores."""
    return Path(uri[len("sqlite:///") :]).absolute() if uri.startswith("sqlite:///") else None


def artifact_root(uri: str, runs: Path) -> Optional[str]:
    """Return the artifact location of a new experiment: beside the database; None for a server, which chooses one."""
    file = sqlite_file(uri)
    if file:
        return str(file.parent / "artifacts")
    return None if uri.startswith(("http", "databricks")) else str(Path(runs).resolve() / "artifacts")
