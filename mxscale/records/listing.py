"""`mxscale runs`: the recorded training runs, from their directories."""

import json
from pathlib import Path
from typing import Any, Dict, List

from mxscale.config.schema import RULES, Config
from mxscale.config.verb_settings import Runs
from mxscale.records import summary
from mxscale.rundir.directory import RunDir, runs_of
from mxscale.rundir.status import ENDED
from mxscale.util import text_table
from mxscale.util.errors import ConfigError
from mxscale.util.terminal import echo

JOBS = RULES["entry"].choices
FIGURES = {  # heading -> metric, form
    "val top-1": ("best/val_top1", "{:.2f} %"),
    "test top-1": ("test/top1", "{:.2f} %"),
    "images/s": ("throughput/median", "{:,.0f}"),
    "time": ("time/wall_s", "{:,.0f} s"),
}


def main(config: Config, settings: Runs) -> None:
    """Print the runs below `runs`, newest first. Raises ConfigError if no run matches."""
    found = select(config.runs, settings)
    if settings.json:
        echo(json.dumps(found))
        return
    headings = ["state", "network", "data", "ranks", *FIGURES, "cost", "run directory"]
    right = range(3, 4 + len(FIGURES))
    echo("\n".join(text_table.columns([headings, *map(_cells, found)], right)))


def select(root: str, settings: Runs) -> List[Dict[str, Any]]:
    """Return a row for each run whose state, network, data and directory together contain every word."""
    rows: List[Dict[str, Any]] = []
    for run in runs_of(root, *JOBS):
        row = _row(run)
        text = " ".join(row[name] for name in ("state", "network", "data", "run")).lower()
        if all(word.lower() in text for word in settings.words):
            rows.append(row)
        if len(rows) == settings.limit:
            return rows
    if not rows:
        words = f" with {' '.join(settings.words)}" if settings.words else ""
        raise ConfigError(f"runs={root}: no run{words} below {' or '.join(str(Path(root, job)) for job in JOBS)}")
    return rows


def _row(run: RunDir) -> Dict[str, Any]:
    """Return the facts of a run without those that were not recorded; of a damaged one, the error."""
    row: Dict[str, Any] = {"run": str(run), "network": "", "data": "", "ranks": None, "metrics": {}}
    try:
        row["state"] = "running" if run.is_running else ENDED[run.end_state]
        config = run.config(repeats=True)
        row.update(network=config.model.name, data=config.data.kind)
        row.update(metrics=run.figures, ranks=run.plan().sizes.ranks)
    except ConfigError as error:
        row.update(state="damaged", error=str(error))
    return row


def _cells(row: Dict[str, Any]) -> List[str]:
    metrics = row["metrics"]
    figures = [summary.shown(metrics, *figure) for figure in FIGURES.values()]
    ranks = row["ranks"] and str(row["ranks"])
    known = (row["state"], row["network"], row["data"], ranks, *figures, summary.cost(metrics, "cost/total_{}"))
    return [*(text or "-" for text in known), row.get("error", row["run"])]
