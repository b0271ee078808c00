"""Read recorded runs from an MLflow store or from run directories; write reports to a store.

Reading never creates or changes a store. MLflow itself would create a missing SQLite file, and migrate the tables of
an older version.
"""

import json
from pathlib import Path
from typing import Dict, List, Optional, Sequence, Tuple

from mxscale.config.schema import Config
from mxscale.records.recorded import Recorded
from mxscale.rundir.directory import FINISHED, RunDir
from mxscale.tracking import payload, store, tracker, uris
from mxscale.util.errors import ConfigError, nearest

PAGE = 200  # runs per request, with a few hundred params each
PARENT = "mlflow.parentRunId"
REPORT = "mxscale.report"  # tag of a run that holds reports of an experiment: its name

Curve = List[Tuple[float, float]]  # (step, value)


class Store:
    """An MLflow store whose runs are read. Every failure is a ConfigError of one line."""

    def __init__(self, config: Config):
        self.uri, self.timeout_s = tracker.store_uri(config), config.tracking.timeout_s
        file = uris.sqlite_file(self.uri)
        if file:
            check_file(file)
        self.client = self._request(lambda: store.open_store(self.uri, self.timeout_s))

    def __str__(self):
        return uris.masked(self.uri)

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
        return [each.experiment_id for each in self._request(self.client.search_experiments)]

    def run(self, run_id: str, asked: str) -> Recorded:
        """Return a run by its MLflow id. `asked` starts the message of the error."""
        try:
            return recorded(self.client.get_run(run_id))
        except Exception as error:
            if getattr(error, "error_code", None) in ("RESOURCE_DOES_NOT_EXIST", "INVALID_PARAMETER_VALUE"):
                raise ConfigError(f"{asked}: {self} has no run {run_id}, and it is no run directory") from None
            raise self._refusal(error) from None

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

    def keep(self, files: Sequence[Path], home: str, folder: str = "report") -> None:
        """Upload files to the run `home`."""
        for path in files:
            self._request(lambda path=path: self.client.log_artifact(home, str(path), folder))

    def home(self, experiment_id: str, name: str, runs: Sequence[Recorded]) -> str:
        """Return the id of the run that holds a report: the sweep of all `runs`, else a run of its own."""
        # The parent of a rerun is no sweep
        parents = {None if "rerun.of" in run.tags else run.tags.get(PARENT) for run in runs}
        if len(parents) == 1 and None not in parents and not parents & {run.id for run in runs}:
            (parent,) = parents
            if self._exists(parent):
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

    def _exists(self, run_id: str) -> bool:
        """Return whether a run is not deleted; MLflow accepts files for deleted runs as well."""
        try:
            return self.client.get_run(run_id).info.lifecycle_stage == "active"
        except Exception:  # if the store failed, the next request reports it
            return False

    def _request(self, call):
        try:
            return call()
        except Exception as error:
            raise self._refusal(error) from None

    def _refusal(self, error: Exception) -> ConfigError:
        return ConfigError(f"{self} can't be read ({store.why(error)}); set tracking.uri")


def recorded(run) -> Recorded:
    """Return the record of an MLflow run."""
    info, data = run.info, run.data
    params, tags, metrics = dict(data.params), dict(data.tags), dict(data.metrics)
    return Recorded(info.run_id, info.run_name, info.status, params, tags, metrics, info.start_time)


def check_file(file: Path) -> None:
    """Raise ConfigError for a SQLite file that this version of MLflow would create or migrate."""
    if not file.is_file():
        raise ConfigError(f"sqlite:///{file}: no such file; set tracking.uri to the store of the runs")
    found, here = store.tables_of(file), store.schema()
    if not found:
        raise ConfigError(f"sqlite:///{file}: not an MLflow store")
    if found != {here}:
        raise ConfigError(
            f"sqlite:///{file}: written by another version of MLflow (schema {' '.join(sorted(found))}, "
            f"expected {here}); if it is older, copy it and run: mlflow db upgrade sqlite:///{file}"
        )


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


def finished(run: Recorded, asked: str) -> Recorded:
    """Return the run. Raises ConfigError if it is not finished."""
    if run.status != FINISHED:
        raise ConfigError(f"{asked}: run {run.id} is not finished ({run.status})")
    return run
