"""Where predictions go: the terminal, a CSV, or an HTML page."""

import base64
import contextlib
import csv
import sys
from pathlib import Path
from typing import Iterator, List, Sequence, Tuple

import numpy as np

from mxscale.data.repack import encode
from mxscale.launcher.progress import echo
from mxscale.rendering import page
from mxscale.serve.predictor import Predicted
from mxscale.util.atomic_files import replacing
from mxscale.util.errors import ConfigError

TEMPLATES = Path(__file__).parent
SHEET_IMAGES = 2000  # of a page, some 10 kB each
QUALITY = 85  # of a page's JPEGs


def most_likely(probabilities: np.ndarray, names: Sequence[str], top: int) -> List[Tuple[str, float]]:
    """Return the `top` classes of an image and their probabilities; equal ones in the order of the classes."""
    order = np.argsort(-probabilities, kind="stable")[:top]
    return [(names[place], float(probabilities[place])) for place in order]


def percentages(choices: Sequence[Tuple[str, float]]) -> List[str]:
    """Return what `most_likely` returns as texts."""
    return [f"{name} {probability:.1%}" for name, probability in choices]


class Writer:
    """Writes predictions to an open file, by `good(image, choices, pixels)` and by `bad(image, reason)`."""

    def __init__(self, file, names: Sequence[str], top: int):
        self.file, self.names, self.top = file, names, min(top, len(names))

    def write(self, batch: Predicted) -> None:
        usable = zip(batch.probabilities, batch.pixels)
        for image, reason in zip(batch.items, batch.reasons):
            if reason is not None:
                self.bad(image, reason)
                continue
            probabilities, pixels = next(usable)
            self.good(image, most_likely(probabilities, self.names, self.top), pixels)

    def close(self) -> None:
        """Write what is written at the end."""


class Lines(Writer):
    """Lines in the terminal; bad images on stderr."""

    def good(self, image, choices, pixels):
        echo(f"{image}  {', '.join(percentages(choices))}", self.file)

    def bad(self, image, reason):
        echo(f"{image}: {reason}", sys.stderr)


class Csv(Writer):
    """A row for each image: image, error, class_1, probability_1, class_2, ..."""

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.rows = csv.writer(self.file, lineterminator="\n")
        columns = [f"{what}_{place}" for place in range(1, self.top + 1) for what in ("class", "probability")]
        self.rows.writerow(["image", "error", *columns])

    def good(self, image, choices, pixels):
        cells = (cell for name, probability in choices for cell in (name, f"{probability:.9g}"))
        self.rows.writerow([image, "", *cells])

    def bad(self, image, reason):
        self.rows.writerow([image, reason, *[""] * (2 * self.top)])


class Sheet(Writer):
    """A page with each image as the network sees it, and its predictions."""

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.facts = {"title": "Predictions", "count": 0, "pictures": [], "refused": []}

    def good(self, image, choices, pixels):
        self.facts["count"] += 1
        if len(self.facts["pictures"]) < SHEET_IMAGES:
            shown = {"name": image, "jpeg": in_base64(pixels), "lines": percentages(choices)}
            self.facts["pictures"].append(shown)

    def bad(self, image, reason):
        self.facts["refused"].append((image, reason))

    def close(self):
        self.file.write(page.render(TEMPLATES / "contact_sheet.html", **self.facts))


def in_base64(pixels: np.ndarray) -> str:
    """Return an image (height, width, 3) uint8 as a JPEG for a page."""
    return base64.b64encode(encode(pixels, "jpeg", QUALITY)).decode()


FORMATS = {".csv": Csv, ".html": Sheet}


@contextlib.contextmanager
def writer(path: str, names: Sequence[str], top: int) -> Iterator[Writer]:
    """Yield the writer of a file by the end of its name; the file appears when the block ends. Raises ConfigError."""
    try:
        with replacing(path) as new, open(new, "w", newline="", encoding="utf-8", errors="surrogateescape") as file:
            format_writer = next(kind for end, kind in FORMATS.items() if path.endswith(end))(file, names, top)
            yield format_writer
            format_writer.close()
    except OSError as error:
        raise ConfigError(f"{path}: cannot be written ({error.strerror or error})") from None
