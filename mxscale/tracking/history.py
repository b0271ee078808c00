"""Read recorded runs from an MLflow store or from run directories; add results to a run of a store.

Reading never creates or changes a store. MLflow itself would create a missing SQLite file, and migrate the tables of
an older version.
"""

import shlex
import time
from functools import wraps
from pathlib import Path
from typing import Dict, List, Optional, Sequence

from mxscale.config.schema import Config
from mxscale.records.recorded import Recorded
from mxscale.rundir.directory import RunDir
from mxscale.rundir.status import Status
from mxscale.tracking import payload, store, sync_state, uris
from mxscale.util.errors import ConfigError, nearest
from mxscale.util.redaction import redact_address

PAGE = 200  # runs per request, with a few hundred params each


def one_line(method):
    """Decorate a method of `Store`: an error of MLflow becomes a ConfigError of one line that names the store."""

    @wraps(method)
    def explained(self, *arguments, **options):
        try:
            return method(self, *arguments, **options)
        except ConfigError:
            raise
        except Exception as error:
            raise ConfigError(f"{self.source}{self} can't be used ({store.why(error)}); set tracking.uri") from None

    return explained


class Store:
    """An MLflow store whose runs are read. Every failure is a ConfigError of one line.

    Args:
        source: The setting that needs the store, such as rerun=ID, which starts the messages.
        run: The store is the one that has this run, unless tracking.uri names another.
    """

    def __init__(self, config: Config, source: str = "", run: Optional[RunDir] = None):
        tracking, self.source = config.tracking, f"{source}: " if source else ""
        self.uri = payload.uri_of(run, tracking, tracking.uri) if run else uris.store_uri(tracking, config.runs)
        file = uris.sqlite_file(self.uri)
        if file and not file.is_file():
            raise ConfigError(f"{self.source}{self}: no such file; set tracking.uri to the store of the runs")
        if file and not store.versions_of(file):
            raise ConfigError(f"{self.source}{self}: not an MLflow store")
        self.client = self._opened(tracking.timeout_s)

    @one_line
    def _opened(self, timeout_s: float):
        return store.open_store(self.uri, timeout_s)

    def __str__(self):
        return redact_address(self.uri)

    @one_line
    def experiment(self, name: str) -> str:
        """Return the id of an experiment. Raises ConfigError, which suggests a name, if it does not exist."""
        experiment = self.client.get_experiment_by_name(name)
        if experiment is None:
            names = [other.name for other in self.client.search_experiments()]
            raise ConfigError(f"report.experiment={name}: {self} has no such experiment{nearest(name, names)}")
        return experiment.experiment_id

    @one_line
    def runs(self, experiment_id: Optional[str] = None, having: str = "tags.signature != ''") -> List[Recorded]:
        """Return the training runs of one or all experiments; unlike sweeps and reports, they have a signature."""
        ids = [experiment_id] if experiment_id else [one.experiment_id for one in self.client.search_experiments()]
        runs, token = [], None
        while ids:
            page = self.client.search_runs(ids, having, max_results=PAGE, page_token=token)
            runs += map(recorded, page)
            token = page.token
            if not token:
                break
        return runs

    @one_line
    def run(self, run_id: str) -> Recorded:
        """Return a run by its MLflow id. Raises ConfigError if there is none."""
        run = store.or_none(self.client.get_run, run_id)
        if run is None:
            raise ConfigError(
                f"{self.source}{self} has no run {run_id}, and it is no run directory; an id is at the end of the "
                "address of the run's page"
            )
        return recorded(run)

    @one_line
    def id_of(self, run: RunDir) -> str:
        """Return the id of a run directory in this store. Raises ConfigError if the store does not have the run."""
        run_id = sync_state.load(run, self.uri, "").run_id
        if run_id is None or not store.exists(self.client, run_id):
            sync = f"mxscale sync {shlex.quote(str(run))} tracking.uri={shlex.quote(str(self))}"
            raise ConfigError(f"{self.source}{self} does not have {run}; send it with: {sync}")
        return run_id

    @one_line
    def finished_beside(self, run_id: str, data_digest: str) -> List[Recorded]:
        """Return the finished runs on the same data in the experiment of a run."""
        experiment = self.client.get_run(run_id).info.experiment_id
        return self.runs(experiment, f"attributes.status = 'FINISHED' and tags.`data.digest` = '{data_digest}'")

    @one_line
    def fetch(self, run_id: str, names: Sequence[str], folder: Path) -> None:
        """Download the named artifacts that exist to `folder`."""
        existing = {file.path for file in self.client.list_artifacts(run_id)}
        for name in names:
            if name in existing:
                self.client.download_artifacts(run_id, name, str(folder))

    @one_line
    def keep(self, files: Sequence[Path], run_id: str, folder: str) -> None:
        """Upload files to a run."""
        with store.exclusive(self.uri):
            for path in files:
                self.client.log_artifact(run_id, str(path), folder)

    @one_line
    def log_metrics(self, run_id: str, metrics: Dict[str, float]) -> None:
        """Add metrics to a run; NaN, which is undefined, is left out."""
        from mlflow.entities import Metric

        now = int(1000 * time.time())
        known = [Metric(name, value, now, 0) for name, value in metrics.items() if value == value]
        with store.exclusive(self.uri):
            self.client.log_batch(run_id, metrics=known)


def recorded(run) -> Recorded:
    """Return the record of an MLflow run."""
    info, data = run.info, run.data
    params, tags, metrics = dict(data.params), dict(data.tags), dict(data.metrics)
    return Recorded(info.run_id, info.run_name, info.status, params, tags, metrics, info.start_time)


def find_run(config: Config, run_id: str, source: str) -> RunDir:
    """Return the directory of the run with this MLflow id.

    Raises:
        ConfigError: It is not on this machine. The message starts with `source`.
    """
    recorded_run = Store(config, source).run(run_id)
    run = directory_of(config, recorded_run, source)
    if run is None:
        there = Path(recorded_run.tags["mxscale.dir"])
        raise ConfigError(
            f"{source}: its directory {there} is not here, and MLflow has no checkpoints; copy it to {config.runs}/"
            f"{'/'.join(there.parts[-2:])}, or name its params file"
        )
    return run


def directory_of(config: Config, run: Recorded, source: str) -> Optional[RunDir]:
    """Return the directory of a run; None if it is not on this machine.

    Raises:
        ConfigError: Another program recorded the run. The message starts with `source`.
    """
    if "mxscale.dir" not in run.tags:
        raise ConfigError(f"{source}: that run is not one of train or finetune")
    there = Path(run.tags["mxscale.dir"])
    # In a container, and where `runs` is mounted elsewhere, the directory has another path
    for path in (there, Path(config.runs, *there.parts[-2:])):
        sent = sync_state.recorded(RunDir(path))
        if sent and sent.id == run.tags.get("mxscale.run"):
            return RunDir(path)
    return None


def of_directory(run: RunDir) -> Recorded:
    """Return the record of a run directory. Raises ConfigError if it is none."""
    run.config()
    status = run.state or "RUNNING"
    last = {name: value for line in run.history() for name, value in line["metrics"].items()}
    known = {name: value for name, value in {**last, **run.figures}.items() if value is not None}
    started = next((attempt.started_ms for attempt in (run.status() or Status()).attempts), None)
    return Recorded(str(run), run.path.name, status, payload.params(run), payload.tags(run), known, started)
