"""The files of an evaluation: a page, tables as CSV and JSON, the confusion matrix as PNG."""

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import List, NamedTuple

import numpy as np

from mxscale.launcher.progress import echo
from mxscale.models.model_card import ModelCard
from mxscale.rendering import canvas, page
from mxscale.rendering.canvas import Drawn
from mxscale.serve.classification_metrics import Tally
from mxscale.serve.prediction_files import TEMPLATES, in_base64
from mxscale.util import csv_tables, text_table

LARGEST_LABELLED = 40  # classes whose names fit beside a confusion matrix
LARGEST_COUNTED = 15  # classes whose counts fit into its cells


class Mistake(NamedTuple):
    """An image that the network is wrong about."""

    confidence: float
    record: int
    label: int
    predicted: int
    pixels: np.ndarray


class Evaluated(NamedTuple):
    """The result of an evaluation."""

    card: ModelCard
    split: str
    read: str  # "images": their own files; "packed images": their packed copies
    tally: Tally
    mistakes: List[Mistake]  # the most confident first


def write(evaluated: Evaluated, folder: Path) -> List[Path]:
    """Write the report, print its summary and return the files. Raises ConfigError."""
    import matplotlib

    # A folder's name may be in another encoding
    names = tuple(name.encode("utf-8", "backslashreplace").decode() for name in evaluated.card.class_names)
    evaluated = evaluated._replace(card=replace(evaluated.card, class_names=names))
    with matplotlib.rc_context(canvas.STYLE):
        drawn, counts = confusion(evaluated), evaluated.tally.confusion.tolist()
    texts = {
        "evaluation.html": as_html(evaluated, drawn),
        "evaluation.json": json.dumps(facts(evaluated), indent=1) + "\n",
        "classes.csv": csv_tables.text([["class", "precision", "recall", "f1", "support"], *class_rows(evaluated)]),
        "confusion.csv": csv_tables.text([["class", *names], *([name, *row] for name, row in zip(names, counts))]),
    }
    files = page.save(texts, [drawn], folder)
    echo(summary(evaluated, folder / "evaluation.html"))
    return files


def facts(evaluated: Evaluated) -> dict:
    """Return the result as values for JSON; undefined metrics are null."""
    tally, card = evaluated.tally, evaluated.card
    return {
        "split": evaluated.split,
        "images": tally.images,
        "read": evaluated.read,
        **{name: None if math.isnan(value) else value for name, value in tally.metrics().items()},
        **{name: getattr(card, name) for name in ("network", "run", "params_sha256")},
        "bins": [part._asdict() for part in tally.bins()],
    }


def summary(evaluated: Evaluated, path: Path) -> str:
    """Return the result for the terminal."""
    metrics, tally, names = evaluated.tally.metrics(), evaluated.tally, evaluated.card.class_names
    lines = [("evaluated", f"{tally.images:,} {evaluated.read} of {evaluated.split}")]
    lines += [(name.replace("top", "top-"), f"{metrics[name]:.2f} %") for name in ("top1", "top5") if name in metrics]
    lines += [("loss", f"{metrics['loss']:.4f} nats"), ("macro f1", f"{metrics['f1']:.4f}")]
    lines += [("calibration", f"expected error {metrics['ece']:.4f}")]
    for label, predicted, count in tally.most_confused(3):
        of_class = tally.confusion[label].sum()
        lines.append(("confused", f"{names[label]} taken for {names[predicted]}: {count:,} of {of_class:,}"))
    return "\n".join(text_table.columns([*lines, ("page", str(path))], indent="  "))


def class_rows(evaluated: Evaluated) -> List[list]:
    """Return class, precision, recall, F1 and support as text; undefined values are empty."""
    return [
        [name, *("" if math.isnan(value) else f"{value:.4f}" for value in metrics[:3]), metrics.support]
        for name, metrics in zip(evaluated.card.class_names, evaluated.tally.by_class())
    ]


def as_html(evaluated: Evaluated, drawn: Drawn) -> str:
    names, metrics = evaluated.card.class_names, evaluated.tally.metrics()
    tiles = [
        (f"{metrics[key]:.2f} %", label) for key, label in (("top1", "top-1"), ("top5", "top-5")) if key in metrics
    ]
    tiles += [(f"{metrics['loss']:.4f}", "loss, nats"), (f"{metrics['f1']:.4f}", "F1, mean of classes")]
    tiles += [(f"{metrics['ece']:.4f}", "expected calibration error"), (f"{evaluated.tally.images:,}", "images")]
    mistakes = [
        {
            "jpeg": in_base64(mistake.pixels),
            "name": f"image {mistake.record}",
            "lines": [f"{names[mistake.predicted]} {mistake.confidence:.1%}", f"is {names[mistake.label]}"],
        }
        for mistake in evaluated.mistakes
    ]
    confused = [[names[pair.label], names[pair.predicted], pair.count] for pair in evaluated.tally.most_confused()]
    return page.render(
        TEMPLATES / "evaluation.html", evaluated=evaluated, tiles=tiles, figure=drawn, classes=class_rows(evaluated),
        confused=confused, pictures=mistakes,
    )  # fmt: skip


def confusion(evaluated: Evaluated) -> Drawn:
    """Draw the share of each class's images (row) by predicted class."""
    names, counts = evaluated.card.class_names, evaluated.tally.confusion
    shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    side = min(10.0, 3.5 + 0.35 * len(names))
    figure, on = canvas.axes(side + 1.2, side)
    image = on.imshow(100 * shares, cmap="Blues", vmin=0, vmax=100)
    figure.colorbar(image, ax=on, label="% of the class", shrink=0.8)
    on.set_xlabel("predicted")
    on.set_ylabel("class")
    if len(names) <= LARGEST_LABELLED:
        # A name may hold $, which would start a formula
        on.set_xticks(range(len(names)), names, rotation=45, ha="right", fontsize=8, parse_math=False)
        on.set_yticks(range(len(names)), names, fontsize=8, parse_math=False)
    if len(names) <= LARGEST_COUNTED:
        for (row, column), count in np.ndenumerate(counts):
            if count:
                colour = "white" if shares[row, column] > 0.5 else canvas.INK
                on.text(column, row, f"{count:,}", ha="center", va="center", fontsize=8, color=colour)
    return canvas.finished("confusion", "Confusion matrix", "Rows are classes, columns predictions.", figure)
