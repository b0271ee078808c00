"""`mxscale predict`: the most likely classes of images, as lines, CSV or an HTML page."""

import base64
import csv
import os
import sys
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Dict, Iterator, List, Sequence, Tuple, Type

import numpy as np

from mxscale.config.schema import Config
from mxscale.config.verb_settings import Predict
from mxscale.data.images import EXTENSIONS
from mxscale.data.repack import encode
from mxscale.data.sources import images_in
from mxscale.rendering import page
from mxscale.rundir.status import DONE, FAILURE
from mxscale.serve import export
from mxscale.serve.predictor import Predicted, Predictor
from mxscale.util.atomic_files import replacing
from mxscale.util.errors import ConfigError
from mxscale.util.terminal import echo

TEMPLATES = Path(__file__).parent
SHEET_IMAGES = 2000  # of a page, some 10 kB each


def main(config: Config, request: Predict) -> int:
    """Predict what is requested and return the exit status. Raises ConfigError."""
    if request.sheet:
        page.check_installed("mxscale predict sheet=FILE")
    images = list(dict.fromkeys(image for name in request.images for image in images_of(os.path.expanduser(name))))
    predictor = Predictor(export.exported(request.source, config))
    card, bad = predictor.card, 0
    with ExitStack() as stack:
        files = [(kind, path) for kind, path in ((Csv, request.output), (Sheet, request.sheet)) if path]
        writers = [stack.enter_context(writing(*file, card.class_names, request.top)) for file in files]
        if request.output is None:
            writers.append(Lines(sys.stdout, card.class_names, request.top))
        for batch in predictor.predict(images, predictor.crop.of_file):
            for writer in writers:
                writer.write(batch)
            bad += sum(reason is not None for reason in batch.reasons)
    for _, path in files:
        echo(f"{path}: {len(images) - bad:,} images", sys.stderr)  # stdout has predictions alone
    if bad:
        echo(f"{bad:,} of {len(images):,} images cannot be used", sys.stderr)
    return FAILURE if bad == len(images) else DONE


def images_of(path: str) -> List[str]:
    """Return a file, or the images in a folder and those below it, by the rules of an image set. Raises ConfigError."""
    if not os.path.exists(path):
        raise ConfigError(f"{path}: no such file or folder")
    if not os.path.isdir(path):
        return [path]
    images = [image for image, *_ in images_in("", path.rstrip("/") or "/", nested=True)]
    if not images:
        raise ConfigError(f"{path}: no images there; expected files that end in {', '.join(EXTENSIONS)}")
    return images


# ---------------------------------------------------------------- where predictions go


def most_likely(probabilities: np.ndarray, names: Sequence[str], top: int) -> List[Tuple[str, float]]:
    """Return the `top` classes of an image and their probabilities; equal ones in the order of the classes."""
    order = np.argsort(-probabilities, kind="stable")[:top]
    return [(names[place], float(probabilities[place])) for place in order]


def as_text(choices: Sequence[Tuple[str, float]]) -> List[str]:
    """Return classes with their percentages: the first, and the others that are not 0.0 %."""
    return [f"{name} {share:.1%}" for place, (name, share) in enumerate(choices) if not place or share >= 0.0005]


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
        echo(f"{image}  {', '.join(as_text(choices))}", self.file)

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
            self.facts["pictures"].append(picture(image, pixels, *choices[0], as_text(choices)))

    def bad(self, image, reason):
        self.facts["refused"].append((image, reason))

    def close(self):
        self.file.write(page.render(TEMPLATES / "contact_sheet.html", **self.facts))


def in_base64(pixels: np.ndarray) -> str:
    """Return an image (height, width, 3) uint8 as a JPEG for a page."""
    return base64.b64encode(encode(pixels, "jpeg", quality=85)).decode()


def picture(name: str, pixels: np.ndarray, predicted: str, probability: float, lines: Sequence[str]) -> Dict[str, Any]:
    """Return an image for the sheet of a page (pictures.html), with the lines below it."""
    return {"name": name, "jpeg": in_base64(pixels), "predicted": predicted, "probability": probability, "lines": lines}


@contextmanager
def writing(kind: Type[Writer], path: str, names: Sequence[str], top: int) -> Iterator[Writer]:
    """Yield the writer of a file, which appears when the block ends. Raises ConfigError."""
    try:
        with replacing(path) as new, open(new, "w", newline="", encoding="utf-8", errors="surrogateescape") as file:
            writer = kind(file, names, top)
            yield writer
            writer.close()
    except OSError as error:
        raise ConfigError(f"{path}: cannot be written ({error.strerror or error})") from None
