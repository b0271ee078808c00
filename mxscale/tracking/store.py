"""An MLflow store as this package asks it: impatient, quiet, its failures in a few words.  What it knows of runs.

MLflow is imported when a store is asked, not before: the import takes over a second of CPU.
"""

import logging
import math
import os
import re
import sqlite3
import threading
from contextlib import closing, contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import List, Optional, Sequence, Set

from mxscale.tracking.uris import masked, sqlite_file
from mxscale.util.file_lock import locked


def import_mlflow(timeout_s: float):
    """MLflow, quiet and impatient.  It reads these variables at each request."""
    os.environ["MLFLOW_HTTP_REQUEST_TIMEOUT"] = str(max(1, math.ceil(timeout_s)))
    # The one retry is ours: it first asks what arrived.  MLflow's own would repeat a creation blindly
    os.environ["MLFLOW_HTTP_REQUEST_MAX_RETRIES"] = "0"
    os.environ["MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT"] = "true"
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    os.environ.setdefault("MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR", "false")  # of files that a server sends
    import mlflow

    for name in ("mlflow", "alembic", "urllib3"):  # failures are reported here, in one line
        logging.getLogger(name).setLevel(logging.CRITICAL)
    return mlflow


def look_up(uri: str, run_id: str, timeout_s: float) -> Optional[dict]:
    """The tags of a run, by MLflow's own id; None where the store has no such run.  Raises whatever MLflow raises."""
    mlflow = import_mlflow(timeout_s)
    try:
        return dict(open_store(uri, timeout_s).get_run(run_id).data.tags)
    except mlflow.MlflowException as error:
        if error.error_code in ("RESOURCE_DOES_NOT_EXIST", "INVALID_PARAMETER_VALUE"):
            return None
        raise


def failure_of(uri: str, timeout_s: float = 3.0) -> Optional[str]:
    """Return why the store at `uri` does not answer its client, in a few words; None if it does.

    The client sends the user, the token and the TLS settings of MLflow's environment variables.

    Args:
        uri: Address of the store.
        timeout_s: Seconds until the store counts as unreachable. The import of MLflow is not included.
    """
    import_mlflow(timeout_s)
    failures: List[Optional[str]] = []

    def search() -> None:
        try:
            open_store(uri, timeout_s).search_experiments(max_results=1)
            failures.append(None)
        except Exception as error:
            failures.append(why(error))

    # A thread, because the client's timeout covers a single packet, and name resolution has none
    thread = threading.Thread(target=search, daemon=True)
    thread.start()
    thread.join(timeout_s)
    return failures[0] if failures else f"no answer in {timeout_s:g} s"


def open_store(uri: str, timeout_s: float):
    """A client of a store.  Raises whatever MLflow raises, also where it would migrate an older SQLite file."""
    mlflow = import_mlflow(timeout_s)
    file = sqlite_file(uri)
    if file and file.is_file() and tables_of(file) not in (set(), {schema()}):
        raise mlflow.MlflowException(f"out-of-date database schema: {file}")
    return mlflow.MlflowClient(uri)


@contextmanager
def to_itself(uri: str):
    """A lock beside a SQLite store: one process at a time.

    Two that open a new one at once would both create its tables, and of many that write at once some give up.
    It is taken before the lock of any run: else two could wait for each other.
    """
    file = sqlite_file(uri)
    if file is None:
        yield
        return
    file.parent.mkdir(parents=True, exist_ok=True)
    with locked(file.with_name(file.name + ".lock")):
        yield


def tables_of(file: Path) -> Set[str]:
    """The version of the tables in a SQLite file; of one that has none of MLflow's, none."""
    try:
        with closing(sqlite3.connect(f"file:{file}?mode=ro", uri=True)) as base:
            return {version for (version,) in base.execute("select version_num from alembic_version")}
    except sqlite3.DatabaseError:
        return set()


def schema() -> str:
    """The version of the tables that the MLflow here wants."""
    from alembic.script import ScriptDirectory

    package = Path(find_spec("mlflow").origin).parent
    return ScriptDirectory(str(package / "store" / "db_migrations")).get_current_head()


def fetch(uri: str, run_id: str, names: Sequence[str], folder: Path, timeout_s: float) -> str:
    """Those of the run's files of these names that its store has, into `folder`; the run's status.

    Raises whatever MLflow raises.
    """
    client = open_store(uri, timeout_s)
    there = {file.path for file in client.list_artifacts(run_id)}
    for name in names:
        if name in there:
            client.download_artifacts(run_id, name, str(folder))
    return client.get_run(run_id).info.status


def finished_beside(uri: str, run_id: str, data_digest: str, timeout_s: float) -> List[dict]:
    """{"params", "metrics"} of finished runs on the same data in a run's experiment.  Raises whatever MLflow raises."""
    client = open_store(uri, timeout_s)
    found, token = [], None
    experiment = client.get_run(run_id).info.experiment_id
    wanted = f"attributes.status = 'FINISHED' and tags.`data.digest` = '{data_digest}'"
    while token != "":
        page = client.search_runs([experiment], wanted, max_results=1000, page_token=token)
        found += [{"params": run.data.params, "metrics": run.data.metrics} for run in page]
        token = page.token or ""
    return found


CAUSES = (
    (r"connection refused", "connection refused"),
    (r"timed out|timeout", "no answer in time"),
    (r"name or service not known|failed to resolve|name resolution|nodename nor servname", "unknown host"),
    (r"\b401\b|unauthorized", "401: set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD"),
    (r"\b403\b|invalid host header", "403: not allowed (a server of MLflow 3 needs --allowed-hosts)"),
    (r"out-of-date database schema|can't locate revision", "of another version of MLflow than the one here"),
    (r"too many 5\d\d error responses", "server error (5xx)"),
    (r"connection reset|connection aborted|remote end closed", "connection lost"),
)


def why(error: BaseException) -> str:
    """A failure in a few words, without passwords."""
    text = f"{type(error).__name__}: {error}"
    for pattern, words in CAUSES:
        if re.search(pattern, text, re.IGNORECASE):
            return words
    return masked(text.removeprefix("MlflowException: ").splitlines()[0])[:200]
