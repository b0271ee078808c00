"""The record of a diagnosis: its own run directory, which MLflow records as a run of kind `diagnose`."""

import time
from dataclasses import replace
from importlib.util import find_spec
from typing import Dict, Optional

import psutil

from mxscale.config import signature as identity
from mxscale.config.schema import Config
from mxscale.cost import run_cost
from mxscale.diagnose import presentation
from mxscale.environment import description
from mxscale.launcher.progress import echo
from mxscale.rundir.directory import KILLED, RunDir
from mxscale.rundir.price import Price
from mxscale.rundir.status import Attempt, Status, Summary
from mxscale.tracking.sync_state import view_hint

RECORD, FIGURE = "diagnosis.json", "diagnosis.png"


def begin(record: RunDir, price: Price) -> None:
    """Write the status and the price."""
    began = psutil.Process().create_time()
    record.begin_alive(1)
    record.write_status(Status(attempts=(Attempt(1, int(1000 * began), price.nodes),), attempt=1))
    record.write_price(price)


def describe(record: RunDir, config: Config, seen: RunDir) -> None:
    """Write environment and plan of the diagnosed run, tagged as a diagnosis."""
    facts, plan, settled = seen.read("environment.json"), seen.plan(), seen.config()
    config = replace(config, data=settled.data, comm=settled.comm)  # as resolved by the preparation
    signature = identity.signature(config, plan.data_digest, plan.pretrained_sha256)
    tags = description.tags(facts, plan, signature, config.claims)
    tags["diagnose.of"] = tags.pop("signature")  # the tag `signature` identifies training runs
    facts["tags"] = {**tags, "kind": "diagnose"}
    record.write("environment.json", facts)
    record.write_plan(plan)


def close(record: RunDir, found: Optional[dict], state: str, error: Optional[str]) -> None:
    """Write the final status, the summary, and diagnosis.json and its figure if anything was measured."""
    ended = int(1000 * time.time())
    record.write_status(replace(record.status().with_attempt(ended_ms=ended), state=state, error=error))
    metrics = {f"cost/total_{currency}": value for currency, value in run_cost.total(record, 1, ended).items()}
    if found:
        metrics.update(figures(found))
        record.write(RECORD, found)
        if find_spec("matplotlib"):  # not in the images of ranks
            presentation.draw(found, str(record.path / FIGURE))
    record.write_summary(Summary(metrics, attempt=1))


def figures(found: dict) -> Dict[str, float]:
    """Return the metrics for MLflow: shares and rates with their bounds, and 1 - real/synthetic."""
    metrics = {}
    for group, values in (("share", found["shares"]), ("images_per_s", found["images_per_s"])):
        for name, one in values.items():
            metrics[f"diagnose/{group}/{name}"] = one["value"]
            metrics[f"diagnose/{group}/{name}_low"] = one["low"]
            metrics[f"diagnose/{group}/{name}_high"] = one["high"]
    if "input" in found["shares"]:
        metrics["diagnose/gap"] = found["shares"]["input"]["value"]
    return metrics


def show(record: RunDir, found: Optional[dict], state: str, error: Optional[str]) -> None:
    """Print the result."""
    if found:
        echo(presentation.table(found))
        echo(f"\n{found['verdict']}\n")
        echo(presentation.advice(found))
    if state == KILLED:
        partial = f"partial result in {record.path / RECORD}" if found else "nothing was measured"
        echo(f"interrupted ({error}); {partial}")
    echo(f"\n  figure  {record.path / FIGURE}" if (record.path / FIGURE).exists() else "")
    echo(f"  view    {view_hint(record)}")
