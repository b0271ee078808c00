"""Sends what an MLflow store lacks of one run.

Exactly once.  `tracking.json` keeps the MLflow run and how much of `metrics.jsonl` it has, written
after each request that was answered, under a lock in the run directory.  Two gaps remain, and each is
closed: a run that was created but not noted is found again by its tag `mxscale.run` (an id that is on
disk before the run is created), and a batch that arrived but was not noted is sent again with the same
keys, steps, times and values, which MLflow's databases store once.

Repeated steps.  A resumed run repeats the steps after its last checkpoint.  Every line is sent as it
is, those of all attempts: what has been sent can't be taken back, so only this gives the same record
live and later.  MLflow then holds several values of such a step: the one with the latest time is the
highest attempt's, and MLflow too prefers it where that step is a metric's last.

MLflow is imported only when there is something to send: the import takes over a second of CPU, the
first use of a new SQLite store another 1.5 s.
"""

import contextlib
from dataclasses import dataclass
from pathlib import Path
from typing import List, Optional

from mxscale.config.schema import Tracking
from mxscale.rundir.directory import RUNNING, RunDir
from mxscale.rundir.sweep_directory import SweepDirectory, sweep_of
from mxscale.tracking import payload, sync_state, uris
from mxscale.tracking.payload import CostAt, no_cost
from mxscale.tracking.store import import_mlflow, open_store, to_itself
from mxscale.tracking.sync_state import Sent
from mxscale.tracking.uris import masked
from mxscale.util import file_lock


@dataclass(frozen=True)
class Unsent:
    """What MLflow does not have when the parent ends."""

    run: RunDir
    uri: str
    lines: int  # unsent
    total: int
    status: Optional[str]  # that MLflow shows
    reason: str

    def __str__(self):
        end = "the artifacts" if self.status == payload.end_state(self.run) else "the final status and the artifacts"
        missing = f"{self.lines} of {self.total} lines" if self.lines else end
        command = f"mxscale sync {self.run}"
        return f"tracking: {missing} unsent ({masked(self.uri)}: {self.reason}); send with: {command}"


# MLflow's page shows runs and charts of training first, not traces of language models
TRAINING = {"mlflow.experimentKind": "custom_model_development"}


class Busy(Exception):
    """Another process is sending this run."""


class Sender:
    """Sends what a store lacks of one run.  Every call may fail, and may be made again."""

    def __init__(self, run: RunDir, uri: str, tracking: Tracking, cost_at: CostAt = no_cost):
        self.run, self.uri, self.tracking, self.cost_at = run, uri, tracking, cost_at
        self.client = None
        self.opened = False  # the MLflow run is there, with params and tags

    def begin_again(self, cost_at: CostAt) -> None:
        """Params, tags and costs are read anew: those of a further attempt."""
        self.cost_at, self.opened = cost_at, False

    def sent(self) -> Sent:
        return sync_state.load(self.run, self.uri, self.tracking.experiment)[1]

    def unsent(self, reason: str) -> Unsent:
        sent, total = self.sent(), sum(1 for _ in self.run.lines())
        return Unsent(self.run, self.uri, total - sent.lines_sent, total, sent.status, reason)

    def send(self, end: Optional[str] = None, wait: bool = False) -> int:
        """Send all new lines and, where `end` (FINISHED, FAILED or KILLED) is given, close the run.

        Returns the number of lines.  Raises Busy while another process sends (`wait`: waits for it),
        and whatever MLflow raises.
        """
        if not (end and self.sent().closed == payload.fingerprint(self.run)):
            import_mlflow(self.tracking.timeout_s)  # takes a second: not while others wait for the store
        with to_itself(self.uri), _locked(self.run.path / ".tracking.lock", wait):
            identity, sent = sync_state.load(self.run, self.uri, self.tracking.experiment)
            print_of_end = payload.fingerprint(self.run) if end else None
            if end and sent.closed == print_of_end and not self._wiped():
                return 0
            self._connect()
            if not self.opened:
                self._open(identity, sent)
            if not end:
                self._set_running(identity, sent)
            lines = self._send_lines(identity, sent)
            if end:
                self._close(identity, sent, end, print_of_end)
            return lines

    def _wiped(self) -> bool:
        """Whether the SQLite file was removed.  A server is not asked: delete tracking.json to send all again."""
        file = uris.sqlite_file(self.uri)
        return file is not None and not file.exists()

    def _connect(self) -> None:
        if self.client is not None:
            return
        client = open_store(self.uri, self.tracking.timeout_s)
        if uris.sqlite_file(self.uri):
            client.get_experiment_by_name(self.tracking.experiment)  # makes its tables
        self.client = client

    # ------------------------------------------------------------ opening

    def _open(self, identity: str, sent: Sent) -> None:
        if sent.run_id is None or not self._exists(sent.run_id):
            sent.__dict__.update(Sent(sent.uri, self.tracking.experiment).__dict__)  # nothing sent yet
            sync_state.save(self.run, identity, sent)  # the id is on disk before the run is made
            sent.experiment_id = self._experiment()
            sent.run_id = self._find(identity, sent) or self._create(identity, sent)
            sync_state.save(self.run, identity, sent)
            self._adopt(sent.run_id)
        self._describe(sent)
        self.opened = True

    def _exists(self, run_id: str) -> bool:
        """Whether the store has it, and nobody has put it into the bin."""
        from mlflow.exceptions import MlflowException

        try:
            return self.client.get_run(run_id).info.lifecycle_stage == "active"
        except MlflowException as error:
            if error.error_code == "RESOURCE_DOES_NOT_EXIST":
                return False
            raise

    def _experiment(self) -> str:
        from mlflow.exceptions import MlflowException

        name = self.tracking.experiment
        found = self.client.get_experiment_by_name(name)
        if found is None:
            try:
                artifacts = uris.artifact_root(self.uri, payload.runs_root(self.run))
                return self.client.create_experiment(name, artifacts, tags=TRAINING)
            except MlflowException as error:
                if error.error_code != "RESOURCE_ALREADY_EXISTS":
                    raise
            found = self.client.get_experiment_by_name(name)  # another process was faster
        return found.experiment_id

    def _search(self, identity: str, sent: Sent) -> List[str]:
        found = self.client.search_runs([sent.experiment_id], f"tags.`mxscale.run` = '{identity}'")
        return [run.info.run_id for run in sorted(found, key=lambda run: (run.info.start_time, run.info.run_id))]

    def _find(self, identity: str, sent: Sent) -> Optional[str]:
        return next(iter(self._search(identity, sent)), None)

    def _create(self, identity: str, sent: Sent) -> str:
        created = self.client.create_run(
            sent.experiment_id,
            start_time=payload.started_ms(self.run),
            tags={"mxscale.run": identity, "mxscale.dir": str(self.run)},
            run_name=self.run.path.name,
        )
        return created.info.run_id

    def _describe(self, sent: Sent) -> None:
        """Params, tags and the data set; what is there already is not sent again.

        MLflow never changes a param: one that a resumed run changed (launch.ranks, say) keeps its
        first value, also where the first attempt was over before the store was reached, and the new
        one becomes the tag `resumed.<param>`.
        """
        from mlflow.entities import Param, RunTag

        there = self.client.get_run(sent.run_id).data
        params, tags = payload.params(self.run), payload.tags(self.run)
        first = payload.first_params(self.run, params)
        above = sweep_of(self.run)
        if above:
            tags["mlflow.parentRunId"] = self._parent(above)
        for key, value in params.items():
            if there.params.get(key, first[key]) != value or f"resumed.{key}" in there.tags:
                tags[f"resumed.{key}"] = value
        new = [Param(key, value) for key, value in first.items() if key not in there.params]
        for part in _parts(new, payload.MAX_PAIRS):
            self.client.log_batch(sent.run_id, params=part, synchronous=True)
        new = [RunTag(key, value) for key, value in tags.items() if there.tags.get(key) != value]
        for part in _parts(new, payload.MAX_PAIRS):
            self.client.log_batch(sent.run_id, tags=part, synchronous=True)
        self._log_dataset(sent)

    def _parent(self, above: SweepDirectory) -> str:
        """MLflow's id of the sweep that this run is a cell of.  Whichever cell comes first makes it."""
        parent = Sender(above, self.uri, self.tracking)
        parent.client = self.client
        with _locked(above.path / ".tracking.lock", wait=True):
            identity, sent = sync_state.load(above, self.uri, self.tracking.experiment)
            if sent.run_id is None or not self._exists(sent.run_id):
                parent._open(identity, sent)
            if payload.going(above):
                parent._set_running(identity, sent)
            return sent.run_id

    def _adopt(self, run_id: str) -> None:
        """Cells that were sent before this parent was made, because the one they had is gone, become its children."""
        for cell in SweepDirectory(self.run.path).cells():
            noted = sync_state.load(RunDir(cell.run), self.uri, self.tracking.experiment)[1] if cell.run else None
            if noted and noted.run_id and self._exists(noted.run_id):
                self.client.set_tag(noted.run_id, "mlflow.parentRunId", run_id)

    def _log_dataset(self, sent: Sent) -> None:
        from mlflow.entities import Dataset, DatasetInput, InputTag

        data = payload.dataset(self.run)
        if data:  # MLflow keeps one of each name and digest
            entity = Dataset(data["name"], data["digest"], "local", data["source"] or "unknown", None, data["profile"])
            context = [InputTag("mlflow.data.context", "training")]
            self.client.log_inputs(sent.run_id, datasets=[DatasetInput(entity, context)])

    # ------------------------------------------------------------ following

    def _set_running(self, identity: str, sent: Sent) -> None:
        if sent.status != RUNNING:  # new, or resumed
            self.client.update_run(sent.run_id, status=RUNNING)
            sent.status = RUNNING
            sync_state.save(self.run, identity, sent)

    def _send_lines(self, identity: str, sent: Sent) -> int:
        before = sent.lines_sent
        for points, lines, end in payload.batches(self.run, sent.bytes_sent, self.cost_at):
            self._log_points(sent.run_id, points)
            sent.lines_sent += lines
            sent.bytes_sent = end
            sync_state.save(self.run, identity, sent)
        return sent.lines_sent - before

    def _log_points(self, run_id: str, points: List[payload.Point]) -> None:
        from mlflow.entities import Metric

        for part in _parts([Metric(*point) for point in points], payload.MAX_METRICS):
            self.client.log_batch(run_id, metrics=part, synchronous=True)

    # ------------------------------------------------------------ closing

    def _close(self, identity: str, sent: Sent, end: str, print_of_end: str) -> None:
        self._describe(sent)  # plan.json and environment.json may have grown since
        there = self.client.get_run(sent.run_id).data.metrics
        self._log_points(sent.run_id, [point for point in payload.summary(self.run) if there.get(point[0]) != point[1]])
        self._drop_twins(identity, sent)
        self.client.set_terminated(sent.run_id, status=end, end_time=payload.ended_ms(self.run))
        sent.status = end
        sync_state.save(self.run, identity, sent)
        for path, folder in payload.artifacts(self.run):  # last: their storage may fail where MLflow works
            self._upload(sent.run_id, path, folder)
        sent.closed = print_of_end
        sync_state.save(self.run, identity, sent)

    def _upload(self, run_id: str, path: Path, folder: Optional[str]) -> None:
        # One file at a time: MLflow uploads a folder in a thread pool, and the interpreter's exit would
        # wait for such threads when the server hangs
        if path.name == "config.yaml" and masked(path.read_text()) != path.read_text():
            self.client.log_text(run_id, masked(path.read_text()), path.name)
        else:
            self.client.log_artifact(run_id, str(path), folder)

    def _drop_twins(self, identity: str, sent: Sent) -> None:
        """Delete the empty second run of a creation that was asked again because its answer came too late."""
        for run_id in self._search(identity, sent):
            if run_id != sent.run_id:
                self.client.delete_run(run_id)


@contextlib.contextmanager
def _locked(path: Path, wait: bool):
    """An exclusive file lock, freed by the kernel when its process dies.  Raises Busy, or waits."""
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(file_lock.locked(path, wait))
        except BlockingIOError:
            raise Busy("another process is sending this run") from None
        yield


def _parts(items: list, size: int):
    return [items[start : start + size] for start in range(0, len(items), size)]
