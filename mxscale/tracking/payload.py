"""The params, tags, metrics and artifacts of a run for MLflow, read from its directory. Does not import mlflow."""

import dataclasses
import json
import shlex
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, List, Optional, Tuple

from mxscale.config import schema as configs
from mxscale.records import learning_curves
from mxscale.records import summary as summaries
from mxscale.rundir.directory import ALLREDUCE, METRICS, RERUN, SYSTEM, RunDir
from mxscale.rundir.earlier_settings import without_equivalent
from mxscale.rundir.status import FAILED, KILLED, Status, Summary
from mxscale.tracking import sync_state
from mxscale.tracking.uris import sqlite_file, store_uri
from mxscale.util.redaction import redact

# Limits in mlflow.utils.validation of MLflow 3.17; the server refuses or truncates longer values
MAX_METRICS, MAX_PAIRS = 1000, 100  # per request
MAX_PARAM, MAX_TAG = 6000, 8000  # characters

ARTIFACTS = (
    "config.yaml", "environment.json", "price.json", "plan.json", "summary.json", "status.json", METRICS, SYSTEM, RERUN,
    learning_curves.FILE, ALLREDUCE, "test-io.json", "diagnosis.json",
    "sweep.json", "table.csv", "report.html", "optimization_results.yaml",  # of a sweep
)  # fmt: skip
SIZES = {  # of plan.json
    "batch/per_device": "per_device_batch",
    "batch/global": "global_batch",
    "lr/effective": "effective_lr",
    "steps/total": "total_steps",
}

CostAt = Callable[[Dict[str, Any]], Dict[str, float]]
Point = Tuple[str, float, int, int]  # metric, value, time in ms, step


def no_cost(line: Dict[str, Any]) -> Dict[str, float]:
    """Return no cost, for a run without a price."""
    return {}


def runs_root(run: RunDir) -> Path:
    """Return the folder `runs` of runs/<entry>/<name>."""
    return run.path.parent.parent


def uri_of(run: RunDir, tracking: configs.Tracking, uri: Optional[str] = None) -> str:
    """Return `uri`, else the store that has the run, else the configured store. Raises ConfigError.

    A recorded store is ignored if it needs a password, or if its file does not exist: the run directory was moved, or
    written in a container.
    """
    recorded = (run.read(sync_state.STATE_FILE) or {}).get("uri")
    if uri is None and recorded and "***" not in recorded:
        file = sqlite_file(recorded)
        if file is None or file.exists():
            return recorded
    return store_uri(dataclasses.replace(tracking, uri=uri or tracking.uri), runs_root(run))


def params(run: RunDir) -> Dict[str, str]:
    """Return the flattened configuration and the sizes derived from it."""
    values = configs.flatten(configs.to_dict(run.config()))
    values.update(without_equivalent(run.read_yaml("config.yaml")))
    if sizes := run.plan().sizes:
        values.update({name: getattr(sizes, key) for name, key in SIZES.items()})
    for key, swept_values in ((run.read("sweep.json") or {}).get("swept") or {}).items():  # trials differ in it
        values = {name: value for name, value in values.items() if name != key and not name.startswith(f"{key}.")}
        values[key] = swept_values
    return {key: redact(str(value))[:MAX_PARAM] for key, value in values.items()}


def tags(run: RunDir, run_id: Optional[str] = None) -> Dict[str, str]:
    """Return the tags of environment.json, of a rerun and a sweep, and the paths of the run and its checkpoints.

    `run_id`: in MLflow, for the figure in the description.
    """
    values = dict((run.read("environment.json") or {}).get("tags") or {})
    values["mxscale.dir"] = str(run)
    # Columns of MLflow's own pages
    values["mlflow.source.name"] = f"{run.config().entry}.py"
    values["mlflow.source.type"] = "LOCAL"
    values["mlflow.source.git.commit"] = values.get("git.commit")
    summary = run.summary() or Summary()
    values.update({"scaling.baseline": summary.baseline, "energy.source": summary.energy_source})
    values.update(_relations(run))
    if note := description(run, run_id):  # a sweep has written its own
        values["mlflow.note.content"] = note
    values["params_sha256"] = (run.status() or Status()).params_sha256
    if run.checkpoints.is_dir():
        values["mxscale.checkpoints"] = str(run.checkpoints)
    known = {key: value for key, value in values.items() if value is not None}
    texts = {key: json.dumps(value, sort_keys=True) for key, value in known.items() if isinstance(value, (dict, list))}
    return {key: texts.get(key, str(value))[:MAX_TAG] for key, value in known.items()}


def _relations(run: RunDir) -> Dict[str, Any]:
    """Return the tags of a rerun, which refer to the first run, and those of a trial, which refer to its sweep."""
    values = {}
    if rerun := run.read(RERUN):
        values = {f"rerun.{key}": rerun.get(key) for key in ("of", "verdict", "why")}
        values["rerun.differs"] = "; ".join(rerun["differs"]) or None
        values["mlflow.parentRunId"] = rerun.get("parent")
    if trial := run.read("cell.json"):
        values.update({"sweep": Path(trial["sweep"]).name, "sweep.cell": trial["number"], "sweep.name": trial["name"]})
        values["replay"] = trial.get("replay")
    return values


def description(run: RunDir, run_id: Optional[str] = None) -> Optional[str]:
    """Return the text of a run's page in MLflow, Markdown; None before the end of the run.

    The page shows its first lines, and the others after a click: result and command come first.
    """
    if run.summary() is None or not run.plan().sizes:
        return None
    typed = (run.read_yaml("overrides.yaml") or {}).get(1, [])
    command = shlex.join(["mxscale", run.config().entry, *typed])
    parts = [
        *_unfinished(run),
        f"**{summaries.in_short(run)}**",
        f"```\n{command}\n```",
        f"```\n{summaries.table(run)}\n```",
    ]
    if run_id and (run.path / learning_curves.FILE).is_file():
        parts.insert(-1, f"![learning curves](get-artifact?path={learning_curves.FILE}&run_uuid={run_id})")
    return redact("\n\n".join(parts))


def _unfinished(run: RunDir) -> List[str]:
    """Return how a run that is not finished ended, as a list of one line; [] for a finished one."""
    status = run.status() or Status()
    at = f" at step {status.step}" if status.step is not None else ""
    if status.state == KILLED:
        command = f"mxscale {run.config().entry} resume={run}"
        return [f"**Interrupted{at}** ({status.reason or 'killed'}); resume with `{command}`"]
    return [f"**Failed{at}**: {status.error or 'unknown cause'}"] if status.state == FAILED else []


def run_name(run: RunDir, identity: str) -> str:
    """Return the name of a run in MLflow: what differs from others first (columns are narrow), a short id last."""
    plan = run.plan()
    if not plan.sizes:  # a sweep, or a measurement without training
        return run.path.name
    config, trial = run.config(), run.read("cell.json") or {}
    entry = config.entry if config.entry != "train" else None
    ranks = f"{plan.sizes.ranks} rank{'s' * (plan.sizes.ranks > 1)}"
    named = trial.get("name") or (config.name if config.name != configs.Config.name else None)
    parts = (named, entry, config.model.name, config.data.kind, ranks, identity[:4])
    return " ".join(filter(None, parts))


def batches(
    run: RunDir, offset: int, cost_at: CostAt = no_cost, name: str = METRICS
) -> Iterator[Tuple[List[Point], int, int]]:
    """Yield (points, lines, end) of complete lines of a file, with up to MAX_METRICS points each.

    Args:
        offset: Byte to start at.
        cost_at: Returns the cost metrics at a line.
        name: METRICS or SYSTEM.

    `lines` is the number of lines, `end` the offset after the last one. A torn last line is left for the next call.
    """
    points, lines, end = [], 0, offset
    for line, after in run.lines_from(offset, name):
        new = _points({**line["metrics"], **cost_at(line)}, line["time_ms"], line["step"])
        if lines and len(points) + len(new) > MAX_METRICS:
            yield points, lines, end
            points, lines = [], 0
        points, lines, end = points + new, lines + 1, after
    if lines:
        yield points, lines, end


def _points(metrics: Dict[str, Any], time_ms: int, step: int) -> List[Point]:
    return [(key, float(value), time_ms, step) for key, value in metrics.items() if value is not None]


def summary(run: RunDir) -> List[Point]:
    """Return the metrics of the whole run at its last step; unknown ones (null) are omitted.

    Their time is that of the last line, so that repeated calls return the same points.
    """
    step, time_ms = 0, int(run.path.stat().st_ctime * 1000)
    for line in run.lines():
        step, time_ms = max(step, line["step"]), line["time_ms"]
    return _points(run.figures, time_ms, step)


def artifacts(run: RunDir) -> List[Tuple[Path, Optional[str]]]:
    """Return (file, folder) of each upload; checkpoints are not uploaded, a tag has their path."""
    files = [(run.path / name, None) for name in ARTIFACTS]
    files += [(path, "ranks") for path in sorted((run.path / "ranks").glob("*.log"))]
    return [(path, folder) for path, folder in files if path.is_file()]


def started_ms(run: RunDir) -> int:
    """Return when the first attempt started, in milliseconds since 1970."""
    attempts = run.attempts
    return attempts[0].started_ms if attempts else int((run.path / "config.yaml").stat().st_mtime * 1000)


def ended_ms(run: RunDir) -> int:
    """Return when the last attempt ended or last wrote a file, in milliseconds since 1970."""
    attempts = run.attempts
    files = [path for path in (run.metrics_file, run.path / "config.yaml") if path.is_file()]
    return (attempts and attempts[-1].ended_ms) or int(files[0].stat().st_mtime * 1000)
