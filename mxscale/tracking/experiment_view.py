"""The view of an experiment in MLflow: the columns of its table of runs, and the order of its charts.

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
# Groups of charts by the prefix of their metrics, learning curves first; MLflow adds the others, and the charts
SECTIONS = ("val", "train", "test", "throughput", "cost", "best")


def tag() -> Dict[str, str]:
    """Return the tag of an experiment that holds the view."""
    columns = [f"metrics.`{name}`" for name in COLUMNS]
    group = {"display": True, "isReordered": False, "deleted": False, "isGenerated": True}
    state = {
        "isAccordionReordered": True,  # keep the order
        "compareRunCharts": [],
        "compareRunSections": [{"uuid": name, "name": name, **group} for name in SECTIONS],
        "selectedColumns": columns,
        "columnOrder": columns,
        "columnWidths": {column: 6 * len(column) for column in columns},  # pixels, which the names fit in
    }
    view = {"name": KEY, "createdAt": CREATED_MS, "updatedAt": CREATED_MS, "state": json.dumps(state)}
    return {TAG: json.dumps(view)}
