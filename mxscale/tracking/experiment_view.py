"""The view of an experiment in MLflow: the columns of its table of runs, and the charts of their comparison.

MLflow keeps a view in a tag of the experiment, as JSON that its page reads (ExperimentPageUIState of MLflow 3.17). It
appears in the menu "Views", and a link with its key opens it.
"""

import json
from typing import Dict

TRAINING_SIDE = "workflowType=machine_learning"  # in an address; else MLflow 3.17 opens its pages for language models
KEY = "mxscale"
TAG = f"mlflow.sharedViewState.{KEY}"
CREATED_MS = 1_763_942_400_000  # of the view, which every experiment has alike

COLUMNS = ("best/val_top1", "test/top1", "throughput/median", "scaling/efficiency", "cost/total_usd")
# section -> (type, metric) of each chart
CHARTS = {
    "Accuracy": (("LINE", "val/top1"), ("LINE", "train/loss"), ("BAR", "best/val_top1")),
    "Throughput and cost": (("BAR", "throughput/median"), ("BAR", "scaling/efficiency"), ("BAR", "cost/total_usd")),
}
# What the page needs to know of a line chart: over steps, unsmoothed
LINE = {
    "lineSmoothness": 0, "scaleType": "linear", "xAxisScaleType": "linear", "xAxisKey": "step", "range": {},
    "yAxisKey": "metric", "yAxisExpressions": [], "useGlobalXaxisKey": True, "useGlobalLineSmoothing": True,
}  # fmt: skip


def tag() -> Dict[str, str]:
    """Return the tag of an experiment that holds the view."""
    columns = [f"metrics.`{name}`" for name in COLUMNS]
    state = {
        "selectedColumns": columns,
        "columnOrder": columns,
        "columnWidths": {column: 6 * len(column) for column in columns},  # pixels, which the names fit in
        "compareRunCharts": [_chart(section, *chart) for section, charts in CHARTS.items() for chart in charts],
        "compareRunSections": [{"uuid": name, "name": name, "display": True} for name in CHARTS],
        "isAccordionReordered": True,  # else the page sorts these sections among those of all other metrics
    }
    view = {"name": KEY, "createdAt": CREATED_MS, "updatedAt": CREATED_MS, "state": json.dumps(state)}
    return {TAG: json.dumps(view)}


def _chart(section: str, kind: str, metric: str) -> dict:
    chart = {"uuid": f"mxscale {metric}", "type": kind, "metricKey": metric, "metricSectionId": section}
    return {**chart, "displayName": metric, "runsCountToCompare": 10, **(LINE if kind == "LINE" else {})}


def page(experiment_id: str) -> str:
    """Return the address of the view, relative to that of the server."""
    return f"#/experiments/{experiment_id}/runs?viewStateShareKey={KEY}&{TRAINING_SIDE}"
