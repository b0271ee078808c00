"""Reads runs back: from an MLflow store, or from run directories.  Writes to a store what is made of them.

A store is read, never made or changed by being read: MLflow would create a SQLite file that is not there, and bring
the tables of an older version up to date without asking.
"""

import json
from pathlib import Path
from typing import Dict, List, Optional, Sequence, Tuple

from mxscale.config.schema import Config
from mxscale.records.recorded import Recorded
from mxscale.rundir.directory import FINISHED, RunDir
from mxscale.tracking import payload, store, tracker, uris
from mxscale.util.errors import ConfigError, nearest

PAGE = 200  # runs of one request: some hundred params each
PARENT = "mlflow.parentRunId"
REPORT = "mxscale.report"  # tag of a run that holds reports of an experiment: its name

Curve = List[Tuple[float, float]]  # (step, value)


class Store:
    """An MLflow store whose runs are read.  What fails is a ConfigError of one line."""

    def __init__(self, config: Config):
        self.uri, self.timeout_s = tracker.store_uri(config), config.tracking.timeout_s
        file = uris.sqlite_file(self.uri)
        if file:
            check_file(file)
        self.client = self._asked(lambda: store.open_store(self.uri, self.timeout_s))

    def __str__(self):
        return uris.masked(self.uri)

    def experiment(self, name: str) -> str:
        """Its id; ConfigError names those that there are."""
        found = self._asked(lambda: self.client.get_experiment_by_name(name))
        if found is None:
            there = [e.name for e in self._asked(self.client.search_experiments)]
            raise ConfigError(f"report.experiment={name}: {self} has none of that name{nearest(name, there)}")
        return found.experiment_id

    def runs(self, experiment_id: Optional[str] = None, having: str = "tags.signature != ''") -> List[Recorded]:
        """The training runs of an experiment, or of all: those have a signature, sweeps and reports have none."""
        ids = [experiment_id] if experiment_id else self._experiments()
        found, token = [], None
        while ids:
            page = self._asked(lambda at=token: self.client.search_runs(ids, having, max_results=PAGE, page_token=at))
            found += map(recorded, page)
            token = page.token
            if not token:
                break
        return found

    def _experiments(self) -> List[str]:
        return [each.experiment_id for each in self._asked(self.client.search_experiments)]

    def run(self, run_id: str, asked: str) -> Recorded:
        """A run by MLflow's id.  `asked`: what it is asked for, in the error."""
        try:
            return recorded(self.client.get_run(run_id))
        except Exception as error:
            if getattr(error, "error_code", None) in ("RESOURCE_DOES_NOT_EXIST", "INVALID_PARAMETER_VALUE"):
                raise ConfigError(f"{asked}: {self} knows no run {run_id}, and it is no run directory") from None
            raise self._refusal(error) from None

    def curves(self, run_id: str, metrics: Sequence[str]) -> Dict[str, Curve]:
        """(step, value) of each metric; of a step that a resumed run repeated, what came last."""
        found = {}
        for metric in metrics:
            points = self._asked(lambda key=metric: self.client.get_metric_history(run_id, key))
            last = {point.step: point.value for point in sorted(points, key=lambda point: point.timestamp)}
            if last:
                found[metric] = sorted(last.items())
        return found

    def file(self, run_id: str, name: str) -> dict:
        """A JSON file that was recorded with a run; {} where it can't be had: files lie elsewhere than the records."""
        try:
            return json.loads(Path(self.client.download_artifacts(run_id, name)).read_text())
        except Exception:
            return {}

    # ------------------------------------------------------------ writing

    def keep(self, files: Sequence[Path], home: str, folder: str = "report") -> None:
        """Record files with a run."""
        for path in files:
            self._asked(lambda path=path: self.client.log_artifact(home, str(path), folder))

    def home(self, experiment_id: str, name: str, runs: Sequence[Recorded]) -> str:
        """The run that a report is recorded with: the sweep that all of `runs` are of, else one of its own."""
        parents = {None if "rerun.of" in run.tags else run.tags.get(PARENT) for run in runs}  # a rerun's is no sweep
        if len(parents) == 1 and None not in parents and not parents & {run.id for run in runs}:
            (parent,) = parents
            if self._there(parent):
                return parent
        quote = '"' if "'" in name else "'"
        wanted = f"tags.`{REPORT}` = {quote}{name}{quote}"
        found = self._asked(lambda: self.client.search_runs([experiment_id], wanted))
        if found:
            return found[0].info.run_id
        with store.to_itself(self.uri):
            made = self._asked(lambda: self.client.create_run(experiment_id, tags={REPORT: name}, run_name="report"))
            self._asked(lambda: self.client.set_terminated(made.info.run_id))
        return made.info.run_id

    def _there(self, run_id: str) -> bool:
        """Whether people see it: a run that was deleted keeps its children, and takes files without a word."""
        try:
            return self.client.get_run(run_id).info.lifecycle_stage == "active"
        except Exception:  # gone for good, or the store is: then the next question says so
            return False

    # ------------------------------------------------------------ what fails

    def _asked(self, question):
        try:
            return question()
        except Exception as error:
            raise self._refusal(error) from None

    def _refusal(self, error: Exception) -> ConfigError:
        return ConfigError(f"{self} can't be asked ({store.why(error)}); set tracking.uri")


def recorded(run) -> Recorded:
    """Of MLflow's own."""
    info, data = run.info, run.data
    params, tags, metrics = dict(data.params), dict(data.tags), dict(data.metrics)
    return Recorded(info.run_id, info.run_name, info.status, params, tags, metrics, info.start_time)


def check_file(file: Path) -> None:
    """Raises ConfigError for a SQLite file that this MLflow would have to make or to change."""
    if not file.is_file():
        raise ConfigError(f"sqlite:///{file}: there is no such file; set tracking.uri to where the runs are recorded")
    found, here = store.tables_of(file), store.schema()
    if not found:
        raise ConfigError(f"sqlite:///{file}: no store of MLflow's")
    if found != {here}:
        raise ConfigError(
            f"sqlite:///{file}: of another version of MLflow (its tables are {' '.join(sorted(found))}, here "
            f"they are {here}); where it is older, make a copy and run: mlflow db upgrade sqlite:///{file}"
        )


# ---------------------------------------------------------------- a run directory


def of_directory(run: RunDir) -> Recorded:
    """The same of a run directory, whether it was sent to MLflow or not.  Raises ConfigError where it is none."""
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
    """The same run; ConfigError where it has not come to its end."""
    if run.status != FINISHED:
        raise ConfigError(f"{asked}: run {run.id} is not finished ({run.status})")
    return run
