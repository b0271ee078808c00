"""The record of a measurement: its own run directory, which MLflow records with the tag `kind` in place of `signature`.

Diagnoses (diagnosis.py), rates of the input (input_rates.py) and times of all-reduces (all_reduce.py) are a
`Measurement` each, which `execute` runs and records.
"""

import json
import sys
import time
from dataclasses import asdict, replace
from typing import Any, Dict, NamedTuple, Optional, Sequence, Type

import psutil

from mxscale.config import signature
from mxscale.config.schema import Config
from mxscale.cost import run_cost
from mxscale.environment import description
from mxscale.launcher.alive import kept_alive
from mxscale.launcher.context import Signals
from mxscale.records import claims
from mxscale.rundir import directory, guards
from mxscale.rundir.directory import PARAMS, RunDir
from mxscale.rundir.plan import Plan
from mxscale.rundir.price import Price
from mxscale.rundir.status import DONE, FAILED, FAILURE, FINISHED, INTERRUPTED, KILLED, Attempt, Status, Summary
from mxscale.tracking import payload, tracker, uris
from mxscale.tracking.sync_state import view_hint
from mxscale.train import build_facts
from mxscale.util.atomic_files import write_text
from mxscale.util.errors import ConfigError
from mxscale.util.terminal import echo

STATES = {DONE: FINISHED, INTERRUPTED: KILLED, FAILURE: FAILED}


class Stopped(Exception):
    """A signal stopped the measurement."""


class ProbeFailed(Exception):
    """The measurement, or a probe of it, failed; the message is one line."""


class Result(NamedTuple):
    """What a measurement has measured."""

    content: dict  # of its file
    metrics: Dict[str, float]  # of the run
    lines: Sequence[dict] = ()  # of metrics.jsonl
    text: str = ""  # printed at the end


class Measurement:
    """A measurement in a run directory of its own. It holds what it has measured, also if it is interrupted.

    Each has, besides the methods below:
        measure(): Measure. Raises Stopped after a signal, ProbeFailed, or ConfigError if nothing can be measured.
        result(): Return the Result; None if nothing was measured.
    """

    name: str  # of the verb, and of the folder below `runs`
    group: str  # of the verb's own settings
    file: str  # of the result

    def __init__(self, record: RunDir, signals: Signals, config: Config, settings: Any):
        self.record, self.signals, self.config, self.settings = record, signals, config, settings

    def describe(self, plan: Plan, tags: Dict[str, str]) -> None:
        """Write plan, environment and MLflow's params; `tags` in addition to those of every run."""
        facts = {**description.describe(self.record.path), "mxnet": build_facts.build()}
        self._write(facts, plan, tags)

    def describe_trial(self, short_run: RunDir) -> None:
        """Write plan, environment and MLflow's params from those of a short run of the config."""
        plan, resolved = short_run.plan(), short_run.config()  # by the preparation
        config = replace(self.config, data=resolved.data, comm=resolved.comm)
        run = signature.signature(config, plan.data_digest, plan.pretrained_sha256)
        self._write(short_run.read("environment.json"), plan, {f"{self.name}.of": run})

    def _write(self, facts: dict, plan: Plan, tags: Dict[str, str]) -> None:
        tags = {**description.tags(facts, plan, "", self.config.claims), "kind": self.name, **tags}
        del tags["signature"]  # it identifies training runs
        self.record.write("environment.json", {**facts, "tags": tags})
        self.record.save(plan)
        texts = {
            f"{self.group}.{key}": json.dumps(value, separators=(",", ":")).replace('"', "")
            for key, value in asdict(self.settings).items()
        }
        self.record.write(PARAMS, {**payload.params(self.record), **texts})


def execute(kind: Type[Measurement], config: Config, price: Price, *arguments: Any) -> int:
    """Run and record a measurement, print its result, and return the exit status.

    Args:
        arguments: Of the measurement: the verb's own settings, and what else it takes.

    Raises ConfigError if nothing can be measured; the run directory is removed.
    """
    record = directory.create(replace(config, entry=kind.name))
    with Signals() as signals:
        work, status, error = kind(record, signals, config, *arguments), DONE, None
        with guards.undone_if_refused(record, config, new=True):
            begin(record, price)
            try:
                with kept_alive(record):
                    work.measure()
            except Stopped as stopped:
                status, error = INTERRUPTED, str(stopped)
            except ProbeFailed as failed:
                status, error = FAILURE, str(failed)
        result = work.result()
        if result:
            record.write(work.file, result.content)
            if result.lines:
                write_text(record.metrics_file, "".join(f"{json.dumps(line)}\n" for line in result.lines))
            if result.text:
                echo(result.text)
        close(record, STATES[status], error, result.metrics if result else {})
        mirror = tracker.open_mirror(record, config.tracking, run_cost.cost_of(record))
        unsent = mirror.finish(unwanted=lambda: signals.urgent)
    if status == INTERRUPTED:
        kept = f"partial result in {record.path / work.file}" if result else "nothing was measured"
        echo(f"interrupted ({error}); {kept}")
    echo(f"\n  view    {view_hint(record)}")
    if unsent:
        echo(unsent)
    if status == FAILURE:
        echo(f"error: {error}", sys.stderr)
    return status


def check(config: Config, what: str, limits: str) -> None:
    """Raise ConfigError for settings that no measurement has; limits: the settings that limit its time."""
    claims.check(config.claims)
    if config.resume is not None:
        raise ConfigError(f"resume={config.resume}: {what} starts its own runs; leave it out")
    if config.budget.bounds or config.budget.dry_run:
        raise ConfigError(f"budget.*: {what} is limited by {limits}; leave it out")
    if config.tracking.enabled:
        uris.store_uri(config.tracking, config.runs)


def line(step: int, time_ms: int, metrics: Dict[str, float]) -> dict:
    """Return a line of metrics.jsonl."""
    return {"attempt": 1, "step": step, "time_ms": time_ms, "metrics": metrics}


def begin(record: RunDir, price: Price) -> None:
    """Write the status and the price; the cost begins with the process."""
    began = psutil.Process().create_time()
    record.begin_alive(1)
    record.save(Status(attempts=(Attempt(1, int(1000 * began), price.nodes),), attempt=1))
    record.save(price)


def close(record: RunDir, state: str, error: Optional[str], metrics: Dict[str, float]) -> None:
    """Write the final status, and the summary with the cost."""
    ended = int(1000 * time.time())
    record.save(replace(record.status().with_attempt(ended_ms=ended), state=state, error=error))
    cost = {f"cost/total_{currency}": value for currency, value in run_cost.total(record, 1, ended).items()}
    record.save(Summary({**cost, **metrics}, attempt=1))
