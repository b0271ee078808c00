"""Access to an MLflow store with short timeouts, no output, and failures in a few words.

MLflow is imported with the first request: the import takes over a second of CPU time, the first use of a new SQLite
store another 1.5 s.
"""

import logging
import math
import os
import re
import sqlite3
from contextlib import closing, contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Set

from mxscale.tracking.uris import sqlite_file
from mxscale.util.file_lock import locked
from mxscale.util.redaction import READ, excerpt


def import_mlflow(timeout_s: float):
    """Import MLflow without output and with short timeouts. It reads these variables at each request."""
    os.environ["MLFLOW_HTTP_REQUEST_TIMEOUT"] = str(max(1, math.ceil(timeout_s)))
    # The sender retries, and first checks what arrived; MLflow's own retry would repeat a creation
    os.environ["MLFLOW_HTTP_REQUEST_MAX_RETRIES"] = "0"
    os.environ["MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT"] = "true"
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    os.environ.setdefault("MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR", "false")  # for downloads from a server
    import mlflow

    for name in ("mlflow", "alembic", "urllib3"):  # this package reports failures in one line
        logging.getLogger(name).setLevel(logging.CRITICAL)
    return mlflow


def open_store(uri: str, timeout_s: float):
    """Return a client of a store. Raises any error of MLflow; an older SQLite file is refused, not migrated."""
    mlflow = import_mlflow(timeout_s)
    file = sqlite_file(uri)
    versions = versions_of(file) if file and file.is_file() else set()
    if versions and versions != {schema()}:
        raise mlflow.MlflowException(
            f"written by another version of MLflow (schema {' '.join(sorted(versions))}, expected {schema()}; if it is "
            "older, copy it and run mlflow db upgrade)"
        )
    return mlflow.MlflowClient(uri)


@contextmanager
def exclusive(uri: str):
    """Hold the lock of a SQLite store, so that one process at a time uses it.

    Two processes that open a new store at once would both create its tables, and of many writers some time out. To
    avoid a deadlock, the lock is taken before the lock of any run.
    """
    file = sqlite_file(uri)
    if file is None:
        yield
        return
    file.parent.mkdir(parents=True, exist_ok=True)
    with locked(file.with_name(file.name + ".lock")):
        yield


def versions_of(file: Path) -> Set[str]:
    """Return the schema versions in a SQLite file; empty if it is no MLflow store."""
    try:
        with closing(sqlite3.connect(f"{file.absolute().as_uri()}?mode=ro", uri=True)) as base:
            return {version for (version,) in base.execute("select version_num from alembic_version")}
    except sqlite3.DatabaseError:
        return set()


def schema() -> str:
    """Return the schema version of the installed MLflow."""
    from alembic.script import ScriptDirectory

    package = Path(find_spec("mlflow").origin).parent
    return ScriptDirectory(str(package / "store" / "db_migrations")).get_current_head()


def or_none(request, *arguments):
    """Return the answer to a request; None if the store lacks what it names. Raises any other error of MLflow."""
    from mlflow.exceptions import MlflowException

    try:
        return request(*arguments)
    except MlflowException as error:
        if error.error_code in ("RESOURCE_DOES_NOT_EXIST", "INVALID_PARAMETER_VALUE"):
            return None
        raise


def exists(client, run_id: str) -> bool:
    """Return whether the store has the run and it is not marked as deleted."""
    run = or_none(client.get_run, run_id)
    return run is not None and run.info.lifecycle_stage == "active"


CAUSES = (
    (r"unsupported uri 'sqlite|named 'alembic'", "this MLflow client has no SQLite: set a server as tracking.uri"),
    (r"connection refused", "connection refused"),
    (r"timed out|timeout", "no answer in time"),
    (r"name or service not known|failed to resolve|name resolution|nodename nor servname", "unknown host"),
    (r"\b401\b|unauthorized", "401: set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD"),
    (r"\b403\b|invalid host header", "403: not allowed (a server of MLflow 3 needs --allowed-hosts)"),
    (r"out-of-date database schema|can't locate revision", "written by another version of MLflow"),
    (r"too many 5\d\d error responses", "server error (5xx)"),
    (r"connection reset|connection aborted|remote end closed", "connection lost"),
)


def why(error: BaseException) -> str:
    """Return the cause of a failure in a few words, without passwords."""
    text = f"{type(error).__name__}: {error}"[:READ]
    for pattern, cause in CAUSES:
        if re.search(pattern, text, re.IGNORECASE):
            return cause
    return excerpt(text.removeprefix("MlflowException: ")) or type(error).__name__
