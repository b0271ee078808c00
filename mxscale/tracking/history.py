"""Read recorded runs from an MLflow store or from run directories; write reports to a store.

Reading never creates or changes a store. MLflow itself would create a missing SQLite file, and migrate the tables of
an older version.
"""

import json
import shlex
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Dict, List, Optional, Sequence, Tuple

from mxscale.config.schema import Config
from mxscale.records.recorded import Recorded
from mxscale.rundir.directory import FINISHED, RunDir
from mxscale.tracking import payload, store, sync_state, uris
from mxscale.util.errors import ConfigError, nearest
from mxscale.util.redaction import redact_address

PAGE = 200  # runs per request, with a few hundred params each
PARENT = "mlflow.parentRunId"
REPORT = "mxscale.report"  # tag of a run that holds reports of an experiment: its name

Curve = List[Tuple[float, float]]  # (step, value)


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
        if file:
            self._check_file(file)
        self.client = self._request(lambda: store.open_store(self.uri, tracking.timeout_s))

    def __str__(self):
        return redact_address(self.uri)

    def experiment(self, name: str) -> str:
        """Return the id of an experiment. Raises ConfigError, which suggests a name, if it does not exist."""
        found = self._request(lambda: self.client.get_experiment_by_name(name))
        if found is None:
            names = [e.name for e in self._request(self.client.search_experiments)]
            raise ConfigError(f"report.experiment={name}: {self} has no such experiment{nearest(name, names)}")
        return found.experiment_id

    def runs(self, experiment_id: Optional[str] = None, having: str = "tags.signature != ''") -> List[Recorded]:
        """Return the training runs of one or all experiments; unlike sweeps and reports, they have a signature."""
        ids = [experiment_id] if experiment_id else self._experiments()
        found, token = [], None
        while ids:
            page = self._request(lambda at=token: self.client.search_runs(ids, having, max_results=PAGE, page_token=at))
            found += map(recorded, page)
            token = page.token
            if not token:
                break
        return found

    def _experiments(self) -> List[str]:
        return [experiment.experiment_id for experiment in self._request(self.client.search_experiments)]

    def run(self, run_id: str) -> Recorded:
        """Return a run by its MLflow id. Raises ConfigError if there is none."""
        found = self._request(lambda: store.find_run(self.client, run_id))
        if found is None:
            raise ConfigError(
                f"{self.source}{self} has no run {run_id}, and it is no run directory; an id is at the end of the "
                "address of the run's page"
            )
        return recorded(found)

    def id_of(self, run: RunDir) -> str:
        """Return the id of a run directory in this store. Raises ConfigError if the store does not have the run."""
        run_id = sync_state.load(run, self.uri, "").run_id
        if run_id is None or not self._request(lambda: store.exists(self.client, run_id)):
            sync = f"mxscale sync {shlex.quote(str(run))} tracking.uri={shlex.quote(str(self))}"
            raise ConfigError(f"{self.source}{self} does not have {run}; send it with: {sync}")
        return run_id

    def finished_beside(self, run_id: str, data_digest: str) -> List[Recorded]:
        """Return the finished runs on the same data in the experiment of a run."""
        experiment = self._request(lambda: self.client.get_run(run_id).info.experiment_id)
        having = f"attributes.status = 'FINISHED' and tags.`data.digest` = '{data_digest}'"
        return self.runs(experiment, having)

    def curves(self, run_id: str, metrics: Sequence[str]) -> Dict[str, Curve]:
        """Return (step, value) of each metric; the last value of a step that a resumed run repeated."""
        found = {}
        for metric in metrics:
            points = self._request(lambda key=metric: self.client.get_metric_history(run_id, key))
            last = {point.step: point.value for point in sorted(points, key=lambda point: point.timestamp)}
            if last:
                found[metric] = sorted(last.items())
        return found

    def file(self, run_id: str, name: str) -> dict:
        """Return the content of a JSON artifact of a run; {} if it cannot be read from the artifact store."""
        try:
            return json.loads(Path(self.client.download_artifacts(run_id, name)).read_text())
        except Exception:
            return {}

    def fetch(self, run_id: str, names: Sequence[str], folder: Path) -> None:
        """Download the named artifacts that exist to `folder`."""
        existing = {file.path for file in self._request(lambda: self.client.list_artifacts(run_id))}
        for name in names:
            if name in existing:
                self._request(lambda name=name: self.client.download_artifacts(run_id, name, str(folder)))

    def keep(self, files: Sequence[Path], home: str, folder: str = "report") -> None:
        """Upload files to the run `home`."""
        with store.exclusive(self.uri):
            for path in files:
                self._request(lambda path=path: self.client.log_artifact(home, str(path), folder))

    def log_metrics(self, home: str, metrics: Dict[str, float]) -> None:
        """Add metrics to the run `home`; NaN, which is undefined, is left out."""
        from mlflow.entities import Metric

        now = int(1000 * time.time())
        known = [Metric(name, value, now, 0) for name, value in metrics.items() if value == value]
        with store.exclusive(self.uri):
            self._request(lambda: self.client.log_batch(home, metrics=known))

    def home(self, experiment_id: str, name: str, runs: Sequence[Recorded]) -> str:
        """Return the id of the run that holds a report: the sweep of all `runs`, else a run of its own."""
        # The parent of a rerun is no sweep
        parents = {None if "rerun.of" in run.tags else run.tags.get(PARENT) for run in runs}
        if len(parents) == 1 and None not in parents and not parents & {run.id for run in runs}:
            (parent,) = parents
            if self._request(lambda: store.exists(self.client, parent)):
                return parent
        quote = '"' if "'" in name else "'"
        wanted = f"tags.`{REPORT}` = {quote}{name}{quote}"
        found = self._request(lambda: self.client.search_runs([experiment_id], wanted))
        if found:
            return found[0].info.run_id
        with store.exclusive(self.uri):
            made = self._request(lambda: self.client.create_run(experiment_id, tags={REPORT: name}, run_name="report"))
            self._request(lambda: self.client.set_terminated(made.info.run_id))
        return made.info.run_id

    def _request(self, call):
        try:
            return call()
        except Exception as error:
            raise ConfigError(f"{self.source}{self} can't be used ({store.why(error)}); set tracking.uri") from None

    def _check_file(self, file: Path) -> None:
        """Raise ConfigError for a SQLite file that this version of MLflow would create or migrate."""
        if not file.is_file():
            raise ConfigError(f"{self.source}{self}: no such file; set tracking.uri to the store of the runs")
        if find_spec("alembic") is None:
            raise ConfigError(f"{self.source}{self}: ranks' images have no SQLite client; set tracking.uri to a server")
        found, here = store.tables_of(file), store.schema()
        if not found:
            raise ConfigError(f"{self.source}{self}: not an MLflow store")
        if found != {here}:
            raise ConfigError(
                f"{self.source}{self}: written by another version of MLflow (schema {' '.join(sorted(found))}, "
                f"expected {here}); if it is older, copy it and run: mlflow db upgrade {self}"
            )


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
    run = Store(config, source).run(run_id)
    found = directory_of(config, run, source)
    if found is None:
        there = Path(run.tags["mxscale.dir"])
        raise ConfigError(
            f"{source}: its directory {there} is not here, and MLflow has no checkpoints; copy it to {config.runs}/"
            f"{'/'.join(there.parts[-2:])}, or name its params file"
        )
    return found


def directory_of(config: Config, run: Recorded, source: str) -> Optional[RunDir]:
    """Return the directory of a run; None if it is not on this machine.

    Raises:
        ConfigError: Another program recorded the run. The message starts with `source`.
    """
    if "mxscale.dir" not in run.tags:
        raise ConfigError(f"{source}: that run is not one of train.py or finetune.py")
    there = Path(run.tags["mxscale.dir"])
    # In a container, and where `runs` is mounted elsewhere, the directory has another path
    for path in (there, Path(config.runs, *there.parts[-2:])):
        found = RunDir(path)
        if sync_state.identity(found) == run.tags.get("mxscale.run"):
            return found
    return None


def of_directory(run: RunDir) -> Recorded:
    """Return the record of a run directory. Raises ConfigError if it is none."""
    run.config()
    status = run.state or "RUNNING"
    metrics = {}
    for line in run.history():
        metrics.update(line["metrics"])
    metrics.update(run.figures)
    numbers = {name: value for name, value in metrics.items() if isinstance(value, (int, float))}
    return Recorded(str(run), run.path.name, status, payload.params(run), payload.tags(run), numbers)


def curves_of(run: RunDir, metrics: Sequence[str]) -> Dict[str, Curve]:
    history = run.history()
    found = {name: [(line["step"], line["metrics"][name]) for line in history if name in line["metrics"]]
             for name in metrics}  # fmt: skip
    return {name: points for name, points in found.items() if points}


def finished(run: Recorded, source: str) -> Recorded:
    """Return the run. Raises ConfigError if it is not finished."""
    if run.status != FINISHED:
        raise ConfigError(f"{source}: run {run.id} is not finished ({run.status})")
    return run
