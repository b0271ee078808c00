"""The files of an evaluation: a page, tables as CSV and JSON, figures as PNG."""

import json
import math
import os
from dataclasses import replace
from pathlib import Path
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

import numpy as np

from mxscale.models.model_card import ModelCard
from mxscale.rendering import canvas, page
from mxscale.rendering.canvas import COLOURS, Drawn
from mxscale.serve.classification_metrics import Tally
from mxscale.serve.predict import TEMPLATES, picture
from mxscale.util import csv_tables, text_table
from mxscale.util.terminal import echo

LARGEST_LABELLED = 40  # classes whose names fit beside a confusion matrix
LARGEST_COUNTED = 15  # classes whose counts fit into its cells
CONFUSED = 10  # pairs of classes that the page lists


class Mistake(NamedTuple):
    """An image that the network is wrong about."""

    confidence: float
    record: int
    name: str  # path of the file, or where the image is packed
    label: int
    predicted: int


class Evaluated(NamedTuple):
    """The result of an evaluation."""

    card: ModelCard
    split: str
    read: str  # "images": their own files; "packed images": their packed copies
    tally: Tally
    mistakes: List[Mistake]  # the most confident first
    worst: List[Tuple[Mistake, np.ndarray]]  # the first ones, with their pixels as the network sees them
    in_training: Optional[float] = None  # top-1 that the run found with packed copies of the same images, in %


def write(evaluated: Evaluated, folder: Path) -> List[Path]:
    """Write the report, print its summary and return the files. Raises ConfigError."""
    names = tuple(map(_as_utf8, evaluated.card.class_names))
    evaluated = evaluated._replace(card=replace(evaluated.card, class_names=names))
    tally, drawn = evaluated.tally, figures(evaluated)
    classes = [
        [name, *("" if math.isnan(value) else f"{value:.4f}" for value in row[:3]), row.support]
        for name, row in zip(names, tally.by_class())
    ]
    confusion_rows = [[name, *row] for name, row in zip(names, tally.confusion.tolist())]
    confused = [(names[label], names[predicted], count) for label, predicted, count in tally.most_confused()]
    errors = [
        [_as_utf8(one.name), names[one.label], names[one.predicted], f"{one.confidence:.4f}"]
        for one in evaluated.mistakes
    ]
    texts = {
        "evaluation.html": as_html(evaluated, drawn, classes, confused),
        "evaluation.json": json.dumps(facts(evaluated), indent=1) + "\n",
        "classes.csv": csv_tables.text([["class", "precision", "recall", "f1", "support"], *classes]),
        "confusion.csv": csv_tables.text([["class", *names], *confusion_rows]),
        "confused.csv": csv_tables.text([["class", "predicted", "images"], *confused]),
        "errors.csv": csv_tables.text([["image", "class", "predicted", "probability"], *errors]),
    }
    files = page.save(texts, drawn, folder)
    echo(summary(evaluated, folder / "evaluation.html"))
    return files


def _as_utf8(name: str) -> str:
    """Return the name of a file or folder, which may be in another encoding, as UTF-8."""
    return name.encode("utf-8", "backslashreplace").decode()


def facts(evaluated: Evaluated) -> dict:
    """Return the result as values for JSON; undefined metrics are null."""
    card, tally = evaluated.card, evaluated.tally
    return {
        "split": evaluated.split,
        "images": tally.images,
        "read": evaluated.read,
        **{name: None if math.isnan(value) else value for name, value in tally.metrics().items()},
        "network": card.network,
        "params_sha256": card.params_sha256,
        "run": card.run,
        "bins": [one._asdict() for one in tally.bins()],
    }


def summary(evaluated: Evaluated, path: Path) -> str:
    """Return the result for the terminal."""
    metrics, tally, names = evaluated.tally.metrics(), evaluated.tally, evaluated.card.class_names
    lines = [("evaluated", f"{tally.images:,} {evaluated.read} of {evaluated.split}")]
    lines += [(name.replace("top", "top-"), f"{metrics[name]:.2f} %") for name in ("top1", "top5") if name in metrics]
    if evaluated.in_training is not None:
        lines.append(("in the run", f"{evaluated.in_training:.2f} %: of the packed, resized copies of these images"))
    lines += [("loss", f"{metrics['loss']:.4f} nats"), ("macro f1", f"{metrics['f1']:.4f}")]
    lines += [("calibration", f"expected error {metrics['ece']:.4f}")]
    for label, predicted, count in tally.most_confused(3):
        of_class = f"{count:,} of {tally.confusion[label].sum():,}"
        lines.append(("confused", f"{names[label]} taken for {names[predicted]}: {of_class}"))
    return "\n".join(text_table.columns([*lines, ("page", str(path))], indent="  "))


def as_html(evaluated: Evaluated, drawn: Sequence[Drawn], classes: List[list], confused: List[tuple]) -> str:
    names, metrics = evaluated.card.class_names, evaluated.tally.metrics()
    tiles = [
        (f"{metrics[key]:.2f} %", label) for key, label in (("top1", "top-1"), ("top5", "top-5")) if key in metrics
    ]
    if evaluated.in_training is not None:
        tiles.append((f"{evaluated.in_training:.2f} %", "top-1 in the run, of packed copies of these images"))
    tiles += [(f"{metrics['loss']:.4f}", "loss, nats"), (f"{metrics['f1']:.4f}", "F1, mean of classes")]
    tiles += [(f"{metrics['ece']:.4f}", "expected calibration error"), (f"{evaluated.tally.images:,}", "images")]
    files = [mistake.name for mistake, _ in evaluated.worst if evaluated.read == "images"]
    shared = os.path.join(os.path.commonpath(map(os.path.dirname, files)), "") if files else ""
    pictures = [_pictured(*one, names, len(shared)) for one in evaluated.worst]
    return page.render(
        TEMPLATES / "evaluation.html", evaluated=evaluated, tiles=tiles, figures=drawn, classes=classes,
        confused=confused[:CONFUSED], pictures=pictures, folder=_as_utf8(shared),
    )  # fmt: skip


def _pictured(mistake: Mistake, pixels: np.ndarray, names: Sequence[str], shared: int) -> Dict[str, Any]:
    predicted, label = names[mistake.predicted], names[mistake.label]
    lines = [f"predicted {predicted}, {mistake.confidence:.1%}", f"labelled {label}"]
    return picture(_as_utf8(mistake.name[shared:]), pixels, predicted, mistake.confidence, lines)


def figures(evaluated: Evaluated) -> List[Drawn]:
    """Draw the confusion matrix and the reliability diagram."""
    import matplotlib

    with matplotlib.rc_context(canvas.STYLE):
        return [confusion(evaluated), reliability(evaluated)]


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


def reliability(evaluated: Evaluated) -> Drawn:
    """Draw the accuracy of images by the probability of their prediction (arXiv:1706.04599, fig. 1)."""
    bins, error = evaluated.tally.bins(), evaluated.tally.calibration_error()
    figure, on = canvas.axes(5.6, 4.6)
    on.plot([0, 100], [0, 100], "--", color=canvas.INK, alpha=0.5, lw=1, label="calibrated")
    sizes = [20 + 180 * one.count / evaluated.tally.images for one in bins]
    confidence, accuracy = [100 * one.confidence for one in bins], [100 * one.accuracy for one in bins]
    on.scatter(confidence, accuracy, s=sizes, color=COLOURS[0], label="images, area and label: their number", zorder=3)
    for x, y, one in zip(confidence, accuracy, bins):
        below, side = -11 if y > 10 else 4, -1 if x > 85 else 1  # within the axes
        aligned = "left" if side > 0 else "right"
        on.annotate(f"{one.count:,}", (x, y), (7 * side, below), textcoords="offset points", fontsize=8, ha=aligned)
    on.set(xlabel="probability of the prediction, %", ylabel="correct, %", xlim=(-4, 104), ylim=(-4, 104))
    on.grid()
    figure.legend(loc="outside lower center", ncols=2)
    caption = f"Expected calibration error {error:.4f} (15 bins)."
    return canvas.finished("reliability", "Reliability", caption, figure)
