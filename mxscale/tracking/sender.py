"""Send the records of one run that its MLflow store lacks, exactly once.

`tracking.json` records the MLflow run and how much of `metrics.jsonl` and `system.jsonl` it has. It is written after
each answered request, under a lock in the run directory. Two cases need more than that:

- A run was created, but its id was not recorded. It is found again by its tag `mxscale.run`, an id that is on disk
  before the run is created.
- A batch arrived, but was not recorded. It is sent again with the same keys, steps, times and values, which MLflow's
  databases store once.

A resumed run repeats the steps after its last checkpoint. The lines of all attempts are sent, because sent lines
cannot be withdrawn and a later synchronisation must give the same record. Of several values of a step the one with
the latest time is the last attempt's. MLflow shows that one if the step is the last of a metric.
"""

import shlex
import sys
from pathlib import Path
from typing import List, Optional

from mxscale.config.schema import Tracking
from mxscale.rundir.directory import PARAMS, SYSTEM, RunDir
from mxscale.rundir.status import RUNNING
from mxscale.rundir.sweep_directory import SweepDirectory, sweep_of
from mxscale.tracking import experiment_view, payload, sync_state, uris
from mxscale.tracking.payload import CostAt, no_cost
from mxscale.tracking.store import exclusive, exists, import_mlflow, open_store
from mxscale.tracking.sync_state import Sent
from mxscale.util.file_lock import locked
from mxscale.util.redaction import redact, redact_address
from mxscale.util.terminal import echo

# MLflow's page then shows runs and charts first, not traces of language models
TRAINING = {"mlflow.experimentKind": "custom_model_development"}


class Sender:
    """Sends what a store lacks of one run. Every call may fail and can be repeated."""

    def __init__(self, run: RunDir, uri: str, tracking: Tracking, cost_at: CostAt = no_cost):
        self.run, self.uri, self.tracking, self.cost_at = run, uri, tracking, cost_at
        self.client = None
        self.opened = False  # whether the MLflow run exists, with params and tags

    def next_attempt(self, cost_at: CostAt) -> None:
        """Read params, tags and costs again, for the next attempt."""
        self.cost_at, self.opened = cost_at, False

    def sent(self) -> Sent:
        return sync_state.load(self.run, self.uri, self.tracking.experiment)

    def unsent(self, reason: str) -> str:
        """Return one line on what the store lacks, why, and how to send it."""
        sent, total = self.sent(), sum(1 for _ in self.run.lines())
        lacks = "the artifacts" if sent.status == self.run.end_state else "the final status and the artifacts"
        if sent.lines_sent < total:
            lacks = f"{total - sent.lines_sent} of {total} lines"
        command = f"mxscale sync {shlex.quote(str(self.run))}"
        return f"tracking: {lacks} unsent ({redact_address(self.uri)}: {reason}); send with: {command}"

    def send(self, end: Optional[str] = None, wait: bool = False) -> int:
        """Send all new lines; close the MLflow run if the run has ended.

        Args:
            end: FINISHED, FAILED or KILLED; None while the run lasts.
            wait: Wait while another process sends.

        Returns:
            The number of lines sent.

        Raises:
            BlockingIOError: Another process sends, and `wait` is False.
            Exception: Any error of MLflow.
        """
        import_mlflow(self.tracking.timeout_s)  # takes a second, so it happens outside of the locks
        with exclusive(self.uri), locked(self.run.path / ".tracking.lock", wait):
            self.client = self.client or open_store(self.uri, self.tracking.timeout_s)
            sent = self.sent()
            if not self.opened:
                sent = self._open(sent)
            if not end:
                self._set_running(sent)
            lines = self._send_lines(sent)
            if end:
                self._close(sent, end)
            return lines

    def _open(self, sent: Sent) -> Sent:
        """Create the MLflow run unless the store has it, and send what describes it; return what the store has."""
        if sent.run_id is None or not exists(self.client, sent.run_id):
            sent = self._create(sent.id)
        self._describe(sent)
        self.opened = True
        return sent

    def _create(self, identity: str) -> Sent:
        """Return the record of a new MLflow run, or of one that was created, but not recorded."""
        sent, before = Sent(identity, redact_address(self.uri), self.tracking.experiment), sync_state.recorded(self.run)
        if before and before.run_id and before.uri != sent.uri:
            echo(f"tracking: {self.run} was in {before.uri}, which is not updated any more", sys.stderr)
        sync_state.save(self.run, sent)  # its id is on disk before the run is created
        sent.experiment_id = self._experiment()
        created = self.client.search_runs([sent.experiment_id], f"tags.`mxscale.run` = '{identity}'")
        if not created:
            tags = {"mxscale.run": identity, "mxscale.dir": str(self.run)}
            name, started_ms = payload.run_name(self.run, identity), payload.started_ms(self.run)
            created = [self.client.create_run(sent.experiment_id, started_ms, tags, name)]
        sent.run_id = created[0].info.run_id
        sync_state.save(self.run, sent)
        return sent

    def _experiment(self) -> str:
        """Return the id of the experiment, which is created if it does not exist, and gets the view if it has none."""
        from mlflow.exceptions import MlflowException

        name = self.tracking.experiment
        experiment = self.client.get_experiment_by_name(name)
        if experiment is None:
            try:
                artifacts = uris.artifact_root(self.uri, payload.runs_root(self.run))
                return self.client.create_experiment(name, artifacts, tags={**TRAINING, **experiment_view.tag()})
            except MlflowException as error:
                if error.error_code != "RESOURCE_ALREADY_EXISTS":
                    raise
            experiment = self.client.get_experiment_by_name(name)  # another process was faster
        if experiment_view.TAG not in experiment.tags:
            self.client.set_experiment_tag(experiment.experiment_id, *experiment_view.tag().popitem())
        return experiment.experiment_id

    def _describe(self, sent: Sent) -> None:
        """Send the params and tags that the store lacks.

        MLflow never changes a param. One that a resumed run changed, such as launch.ranks, keeps its first value; the
        new one becomes the tag `resumed.<param>`. PARAMS is the file of a measurement, or of an earlier version.
        """
        from mlflow.entities import Param, RunTag

        known = self.client.get_run(sent.run_id).data
        params, tags = payload.params(self.run), payload.tags(self.run, sent.run_id)
        first = {**params, **(self.run.read(PARAMS) or {})}
        if sweep := sweep_of(self.run):
            tags["mlflow.parentRunId"] = self._parent(sweep)
        for key, value in params.items():
            if known.params.get(key, first[key]) != value or f"resumed.{key}" in known.tags:
                tags[f"resumed.{key}"] = value
        new = [Param(key, value) for key, value in first.items() if key not in known.params]
        for part in _parts(new, payload.MAX_PAIRS):
            self.client.log_batch(sent.run_id, params=part, synchronous=True)
        new = [RunTag(key, value) for key, value in tags.items() if known.tags.get(key) != value]
        for part in _parts(new, payload.MAX_PAIRS):
            self.client.log_batch(sent.run_id, tags=part, synchronous=True)

    def _parent(self, sweep: SweepDirectory) -> str:
        """Return the MLflow id of the sweep of this trial; the first trial creates its run."""
        parent = Sender(sweep, self.uri, self.tracking)
        parent.client = self.client
        with locked(sweep.path / ".tracking.lock"):
            sent = parent._open(parent.sent())
            if sweep.is_running:
                parent._set_running(sent)
            return sent.run_id

    def _set_running(self, sent: Sent) -> None:
        if sent.status != RUNNING:  # new, or resumed
            self.client.update_run(sent.run_id, status=RUNNING)
            sent.status = RUNNING
            sync_state.save(self.run, sent)

    def _send_lines(self, sent: Sent) -> int:
        before = sent.lines_sent
        for points, lines, end in payload.batches(self.run, sent.bytes_sent, self.cost_at):
            self._log_points(sent.run_id, points)
            sent.lines_sent += lines
            sent.bytes_sent = end
            sync_state.save(self.run, sent)
        for points, _, end in payload.batches(self.run, sent.system_bytes_sent, name=SYSTEM):
            self._log_points(sent.run_id, points)
            sent.system_bytes_sent = end
            sync_state.save(self.run, sent)
        return sent.lines_sent - before

    def _log_points(self, run_id: str, points: List[payload.Point]) -> None:
        from mlflow.entities import Metric

        for part in _parts([Metric(*point) for point in points], payload.MAX_METRICS):
            self.client.log_batch(run_id, metrics=part, synchronous=True)

    def _close(self, sent: Sent, end: str) -> None:
        self._describe(sent)  # plan.json and environment.json may have changed
        known = self.client.get_run(sent.run_id).data.metrics
        self._log_points(sent.run_id, [point for point in payload.summary(self.run) if known.get(point[0]) != point[1]])
        self.client.set_terminated(sent.run_id, status=end, end_time=payload.ended_ms(self.run))
        sent.status = end
        sync_state.save(self.run, sent)
        for path, folder in payload.artifacts(self.run):  # last, because their storage may fail separately
            self._upload(sent.run_id, path, folder)

    def _upload(self, run_id: str, path: Path, folder: Optional[str]) -> None:
        # One file at a time: MLflow uploads a folder with a thread pool, whose threads would delay the
        # interpreter's exit if the server hangs
        if path.name == "config.yaml" and redact(path.read_text()) != path.read_text():  # of an earlier version
            self.client.log_text(run_id, redact(path.read_text()), path.name)
        else:
            self.client.log_artifact(run_id, str(path), folder)


def _parts(items: list, size: int):
    return [items[start : start + size] for start in range(0, len(items), size)]
