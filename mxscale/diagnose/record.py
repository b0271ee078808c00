"""The record of a measurement: its own run directory, which MLflow records with the tag `kind` in place of `signature`.

Diagnoses (diagnosis.py), range tests of the learning rate (find_lr.py), rates of the input (input_rates.py) and times
of all-reduces (all_reduce.py) are recorded in this way.
"""

import json
import sys
import time
from dataclasses import dataclass, replace
from importlib.util import find_spec
from typing import Callable, Dict, List, Optional, Tuple

import psutil

from mxscale.config import signature as identity
from mxscale.config.schema import Config
from mxscale.cost import run_cost
from mxscale.environment import description
from mxscale.launcher.context import Signals
from mxscale.launcher.progress import echo
from mxscale.records import claims
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


@dataclass(frozen=True)
class Kind:
    """A kind of measurement: its folder below `runs` and the files of its result."""

    name: str
    result: str
    figure: str


@dataclass(frozen=True)
class End:
    """How a measurement ended."""

    state: str = FINISHED
    error: Optional[str] = None

    @property
    def exit_status(self) -> int:
        return {FINISHED: DONE, KILLED: INTERRUPTED, FAILED: FAILURE}[self.state]


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


def describe(record: RunDir, kind: Kind, plan: Plan, own: Dict[str, dict], tags: Dict[str, str]) -> None:
    """Write plan, environment and MLflow's params.

    Args:
        own: The verb's own settings by their group.
        tags: Tags in addition to those of every run.
    """
    config = record.config()
    record.write_plan(plan)
    facts = {**description.describe(record.path), "mxnet": build_facts.build()}
    tags = {**description.tags(facts, plan, "", config.claims), "kind": kind.name, **tags}
    del tags["signature"]  # it identifies training runs
    if plan.data_digest:
        facts["data"] = description.data_set(config.data.kind, plan)
    record.write("environment.json", {**facts, "tags": tags})
    _write_params(record, own)


def describe_trial(record: RunDir, kind: Kind, config: Config, trial: RunDir, own: Dict[str, dict]) -> None:
    """Write environment and plan of `trial`, a short run of `config`, and MLflow's params; `own` as in `describe`."""
    facts, plan, settled = trial.read("environment.json"), trial.plan(), trial.config()
    config = replace(config, data=settled.data, comm=settled.comm)  # as resolved by the preparation
    signature = identity.signature(config, plan.data_digest, plan.pretrained_sha256)
    tags = description.tags(facts, plan, signature, config.claims)
    tags[f"{kind.name}.of"] = tags.pop("signature")  # the tag `signature` identifies training runs
    facts["tags"] = {**tags, "kind": kind.name}
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


def write_result(record: RunDir, kind: Kind, found: dict, draw: Callable[[dict, str], None]) -> None:
    """Write the result and its figure."""
    record.write(kind.result, found)
    if find_spec("matplotlib"):  # not in the images of ranks
        draw(found, str(record.path / kind.figure))


def close(record: RunDir, end: End, metrics: Dict[str, float]) -> None:
    """Write the final status, and the summary with the cost."""
    ended = int(1000 * time.time())
    record.write_status(replace(record.status().with_attempt(ended_ms=ended), state=end.state, error=end.error))
    cost = {f"cost/total_{currency}": value for currency, value in run_cost.total(record, 1, ended).items()}
    record.write_summary(Summary({**cost, **metrics}, attempt=1))


def send(record: RunDir, config: Config, signals: Signals) -> Optional[str]:
    """Send the closed record to MLflow; return a line on what was not sent, or None."""
    mirror = tracker.open_mirror(record, config.tracking, run_cost.cost_of(record))
    return mirror.finish(unwanted=lambda: signals.urgent)


def show_end(record: RunDir, kind: Kind, end: End, unsent: Optional[str]) -> None:
    """Print how the measurement ended, and where its result is."""
    if end.state == KILLED:
        file = record.path / kind.result
        result = f"partial result in {file}" if file.exists() else "nothing was measured"
        echo(f"interrupted ({end.error}); {result}")
    figure = record.path / kind.figure
    echo(f"\n  figure  {figure}" if figure.exists() else "")
    echo(f"  view    {view_hint(record)}")
    if unsent:
        echo(unsent)
    if end.state == FAILED:
        echo(f"error: {end.error}", sys.stderr)
