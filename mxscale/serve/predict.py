"""`mxscale predict`: the most likely classes of images, as lines, CSV or an HTML page."""

import os
import sys
from contextlib import ExitStack
from typing import List

from mxscale.config.schema import Config
from mxscale.config.verb_settings import Predict
from mxscale.data.images import EXTENSIONS
from mxscale.data.sources import images_in
from mxscale.launcher.progress import echo
from mxscale.rendering import page
from mxscale.rundir.directory import DONE, FAILURE
from mxscale.serve import prediction_files, trained_models
from mxscale.serve.predictor import Predictor, preprocessing
from mxscale.util.errors import ConfigError


def main(config: Config, request: Predict) -> int:
    """Predict what is requested and return the exit status. Raises ConfigError."""
    if request.sheet:
        page.check_installed("mxscale predict sheet=FILE")
    images = list(dict.fromkeys(image for name in request.images for image in images_of(os.path.expanduser(name))))
    predictor = Predictor(trained_models.exported(request.source, config))
    card, bad = predictor.card, 0
    with ExitStack() as stack:
        files = [path for path in (request.output, request.sheet) if path]
        writers = [stack.enter_context(prediction_files.writer(path, card.class_names, request.top)) for path in files]
        if request.output is None:
            writers.append(prediction_files.Lines(sys.stdout, card.class_names, request.top))
        for batch in predictor.predict(images, preprocessing(card).of_file):
            for writer in writers:
                writer.write(batch)
            bad += sum(reason is not None for reason in batch.reasons)
    if bad:
        echo(f"{bad:,} of {len(images):,} images cannot be used", sys.stderr)
    return FAILURE if bad == len(images) else DONE


def images_of(path: str) -> List[str]:
    """Return a file, or the images in a folder and those below it, by the rules of an image set. Raises ConfigError."""
    if path.endswith(".npy"):
        raise ConfigError(f"{path}: arrays are no longer read: write images, or use the network of mxscale export")
    if not os.path.exists(path):
        raise ConfigError(f"{path}: no such file or folder")
    if not os.path.isdir(path):
        return [path]
    images = [image for image, *_ in images_in("", path.rstrip("/") or "/", nested=True)]
    if not images:
        raise ConfigError(f"{path}: no images there; expected files that end in {', '.join(EXTENSIONS)}")
    return images
