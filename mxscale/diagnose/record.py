"""The record of a measurement: its own run directory, which MLflow records with the tag `kind` in place of `signature`.

Diagnoses (diagnosis.py), range tests of the learning rate (find_lr.py), rates of the input (input_rates.py) and times
of all-reduces (all_reduce.py) are a `Measurement` each, which `execute` runs and records.
"""

import json
import sys
import time
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Callable, Dict, List, Optional, Tuple, Type

import psutil

from mxscale.config import signature as identity
from mxscale.config.schema import Config
from mxscale.cost import run_cost
from mxscale.environment import description
from mxscale.launcher.alive import kept_alive
from mxscale.launcher.context import NO_HOOK, Signals
from mxscale.launcher.progress import echo
from mxscale.records import claims
from mxscale.rundir import directory, guards
from mxscale.rundir.directory import DONE, FAILED, FAILURE, FINISHED, INTERRUPTED, KILLED, PARAMS, RunDir
from mxscale.rundir.plan import Plan
from mxscale.rundir.price import Price
from mxscale.rundir.status import Attempt, Status, Summary
from mxscale.tracking import payload, tracker, uris
from mxscale.tracking.sync_state import view_hint
from mxscale.train import build_facts
from mxscale.util.atomic_files import write_text
from mxscale.util.errors import ConfigError


class Stopped(Exception):
    """A signal stopped the measurement."""


class ProbeFailed(Exception):
    """The measurement, or a probe of it, failed; the message is one line."""


class Measurement:
    """A measurement in a run directory of its own. It holds what it has measured, also if it is interrupted."""

    name: str  # of the verb, and of the folder below `runs`
    file: str  # of the result
    draw: Optional[Callable[[dict, str], None]] = None  # (result, path of the figure); None: it has no figure

    def __init__(self, record: RunDir, signals: Signals):
        self.record, self.signals = record, signals

    def measure(self) -> None:
        """Raises Stopped after a signal, ProbeFailed, or ConfigError if nothing can be measured."""
        raise NotImplementedError

    def result(self) -> Optional[dict]:
        """Return the content of the result's file; None if nothing was measured."""
        raise NotImplementedError

    def save(self, found: dict) -> None:
        """Write further files of a result."""

    def metrics(self, found: dict) -> Dict[str, float]:
        """Return the metrics of the run."""
        raise NotImplementedError

    def text(self, found: dict) -> str:
        """Return what is printed of a result at the end; "" if all is printed while it is measured."""
        return ""


def execute(
    of: Type[Measurement], config: Config, price: Price, make: Callable[[RunDir, Signals], Measurement], hook=NO_HOOK
) -> int:
    """Run and record a measurement, print its result, and return the exit status.

    Args:
        make: Returns the measurement of a new run directory.
        hook: Has the time from which the run is billed; its `on_created` receives the run directory.

    Raises:
        ConfigError: Nothing can be measured; the run directory is removed.
    """
    record = directory.create(replace(config, entry=of.name))
    with Signals() as signals:
        work, status, error = make(record, signals), DONE, None
        with guards.undone_if_refused(record, config, new=True):
            begin(record, price, hook.started)
            hook.on_created(record, signals)
            try:
                with kept_alive(record):
                    work.measure()
            except Stopped as stopped:
                status, error = INTERRUPTED, str(stopped)
            except ProbeFailed as failed:
                status, error = FAILURE, str(failed)
        found = work.result()
        if found:
            work.save(found)
            record.write(work.file, found)
            if work.draw and find_spec("matplotlib"):  # not in the images of ranks
                work.draw(found, str(figure_of(work)))
            if text := work.text(found):
                echo(text)
        close(record, STATES[status], error, work.metrics(found) if found else {})
        unsent = send(record, config, signals)
    show_end(work, status, error, unsent)
    return status


STATES = {DONE: FINISHED, INTERRUPTED: KILLED, FAILURE: FAILED}


def figure_of(work: Measurement) -> Path:
    return work.record.path / f"{Path(work.file).stem}.png"


def check(config: Config, what: str, limits: str) -> None:
    """Raise ConfigError for settings that no measurement has.

    Args:
        what: The measurement, as the subject of a sentence.
        limits: The settings that limit its time.
    """
    claims.check(config.claims)
    if config.resume is not None:
        raise ConfigError(f"resume={config.resume}: {what} starts its own runs; leave it out")
    if config.budget.bounds or config.budget.dry_run:
        raise ConfigError(f"budget.*: {what} is limited by {limits}; leave it out")
    if config.tracking.enabled:
        uris.store_uri(config.tracking, config.runs)


def begin(record: RunDir, price: Price, started: Optional[float] = None) -> None:
    """Write the status and the price; the cost begins at `started`, by default with the process."""
    began = started or psutil.Process().create_time()
    record.begin_alive(1)
    record.write_status(Status(attempts=(Attempt(1, int(1000 * began), price.nodes),), attempt=1))
    record.write_price(price)


def describe(record: RunDir, name: str, plan: Plan, own: Dict[str, dict], tags: Dict[str, str]) -> None:
    """Write plan, environment and MLflow's params.

    Args:
        name: That of the verb.
        own: The verb's own settings by their group.
        tags: Tags in addition to those of every run.
    """
    config = record.config()
    record.write_plan(plan)
    facts = {**description.describe(record.path), "mxnet": build_facts.build()}
    tags = {**description.tags(facts, plan, "", config.claims), "kind": name, **tags}
    del tags["signature"]  # it identifies training runs
    if plan.data_digest:
        facts["data"] = description.data_set(config.data.kind, plan)
    record.write("environment.json", {**facts, "tags": tags})
    _write_params(record, own)


def describe_trial(record: RunDir, name: str, config: Config, trial: RunDir, own: Dict[str, dict]) -> None:
    """Write environment and plan of `trial`, a short run of `config`, and MLflow's params; `own` as in `describe`."""
    facts, plan, settled = trial.read("environment.json"), trial.plan(), trial.config()
    config = replace(config, data=settled.data, comm=settled.comm)  # as resolved by the preparation
    signature = identity.signature(config, plan.data_digest, plan.pretrained_sha256)
    tags = description.tags(facts, plan, signature, config.claims)
    tags[f"{name}.of"] = tags.pop("signature")  # the tag `signature` identifies training runs
    facts["tags"] = {**tags, "kind": name}
    record.write("environment.json", facts)
    record.write_plan(plan)
    _write_params(record, own)


def _write_params(record: RunDir, own: Dict[str, dict]) -> None:
    texts = {
        f"{group}.{key}": json.dumps(value, separators=(",", ":")).replace('"', "")
        for group, settings in own.items()
        for key, value in settings.items()
    }
    record.write(PARAMS, {**payload.params(record), **texts})


def write_lines(record: RunDir, lines: List[Tuple[int, int, Dict[str, float]]]) -> None:
    """Write metrics.jsonl from (step, time_ms, metrics)."""
    found = [{"attempt": 1, "step": step, "time_ms": time_ms, "metrics": metrics} for step, time_ms, metrics in lines]
    write_text(record.metrics_file, "".join(f"{json.dumps(each)}\n" for each in found))


def close(record: RunDir, state: str, error: Optional[str], metrics: Dict[str, float]) -> None:
    """Write the final status, and the summary with the cost."""
    ended = int(1000 * time.time())
    record.write_status(replace(record.status().with_attempt(ended_ms=ended), state=state, error=error))
    cost = {f"cost/total_{currency}": value for currency, value in run_cost.total(record, 1, ended).items()}
    record.write_summary(Summary({**cost, **metrics}, attempt=1))


def send(record: RunDir, config: Config, signals: Signals) -> Optional[str]:
    """Send the closed record to MLflow; return a line on what was not sent, or None."""
    mirror = tracker.open_mirror(record, config.tracking, run_cost.cost_of(record))
    return mirror.finish(unwanted=lambda: signals.urgent)


def show_end(work: Measurement, status: int, error: Optional[str], unsent: Optional[str]) -> None:
    """Print how the measurement ended, and where its result is."""
    if status == INTERRUPTED:
        file = work.record.path / work.file
        result = f"partial result in {file}" if file.exists() else "nothing was measured"
        echo(f"interrupted ({error}); {result}")
    figure = figure_of(work)
    echo(f"\n  figure  {figure}" if figure.exists() else "")
    echo(f"  view    {view_hint(work.record)}")
    if unsent:
        echo(unsent)
    if status == FAILURE:
        echo(f"error: {error}", sys.stderr)
