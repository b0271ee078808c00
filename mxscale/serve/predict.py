"""`mxscale predict`: the most likely classes of images, as lines, CSV, JSON lines, logits or an HTML page."""

import sys
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, List, Optional

import numpy as np

from mxscale.config.schema import Config
from mxscale.data import images
from mxscale.launcher.progress import echo
from mxscale.rendering import page
from mxscale.rundir.directory import DONE, FAILURE
from mxscale.serve import image_inputs, prediction_files, trained_models
from mxscale.serve.image_inputs import Picture
from mxscale.serve.predictor import Predictor, preprocessing, threads_of
from mxscale.util.errors import ConfigError

FORMATS = (".csv", ".jsonl", ".npy")


@dataclass(frozen=True)
class Request:
    """The own settings of conf/predict.yaml. Raises ConfigError."""

    source: Optional[str]
    images: List[str]
    top: int
    output: Optional[str]
    sheet: Optional[str]
    threads: Any  # a number, or auto

    def __post_init__(self):
        if not isinstance(self.source, str):
            raise ConfigError("source is missing: mxscale predict MODEL IMAGES, such as latest photos/")
        if not isinstance(self.images, list) or not self.images or not all(isinstance(i, str) for i in self.images):
            raise ConfigError(f"images={self.images}: expected files or folders, such as photos/")
        if type(self.top) is not int or self.top < 1:
            raise ConfigError(f"top={self.top}: expected a whole number above 0")
        if self.output is not None and not str(self.output).endswith(FORMATS):
            raise ConfigError(f"output={self.output}: expected a name that ends in {', '.join(FORMATS)}")
        if self.sheet is not None and not str(self.sheet).endswith(".html"):
            raise ConfigError(f"sheet={self.sheet}: expected a name that ends in .html")


def main(config: Config, settings: dict) -> int:
    """Predict what `settings` names and return the exit status. Raises ConfigError."""
    request = Request(**settings)
    if request.sheet:
        page.check_installed("mxscale predict sheet=FILE")
    threads, pictures = threads_of(request.threads), image_inputs.pictures(request.images)
    predictor = Predictor(trained_models.exported(request.source, config), threads)
    card = predictor.card
    evaluation, wanted = preprocessing(card), card.resize and max(card.resize, card.image_size)

    def pixels(picture: Picture) -> np.ndarray:
        given = picture.source
        return evaluation.cropped(given if isinstance(given, np.ndarray) else images.decode(given, wanted=wanted))

    bad = 0
    with ExitStack() as stack:
        files = [path for path in (request.output, request.sheet) if path]
        writers = [stack.enter_context(prediction_files.writer(path, card.class_names, request.top)) for path in files]
        if request.output is None:
            writers.append(prediction_files.Lines(sys.stdout, card.class_names, request.top))
        for some in predictor.predict(pictures, pixels):
            for writer in writers:
                writer.write(some)
            bad += len(some.bad)
    if bad:
        echo(f"{bad:,} of {len(pictures):,} images cannot be used", sys.stderr)
    return FAILURE if bad == len(pictures) else DONE
