"""`mxscale predict`: the most likely classes of images, as lines, CSV, logits or an HTML page."""

import sys
from contextlib import ExitStack

import numpy as np

from mxscale.config.schema import Config
from mxscale.config.verbs.models import Predict
from mxscale.launcher.progress import echo
from mxscale.rendering import page
from mxscale.rundir.directory import DONE, FAILURE
from mxscale.serve import image_inputs, prediction_files, trained_models
from mxscale.serve.image_inputs import Picture
from mxscale.serve.predictor import Predictor, preprocessing


def main(config: Config, request: Predict) -> int:
    """Predict what is requested and return the exit status. Raises ConfigError."""
    if request.sheet:
        page.check_installed("mxscale predict sheet=FILE")
    pictures = image_inputs.pictures(request.images)
    predictor = Predictor(trained_models.exported(request.source, config))
    card = predictor.card
    crop = preprocessing(card)

    def pixels(picture: Picture) -> np.ndarray:
        given = picture.source
        return crop(given) if isinstance(given, np.ndarray) else crop.of_file(given)

    bad = 0
    with ExitStack() as stack:
        files = [path for path in (request.output, request.sheet) if path]
        writers = [stack.enter_context(prediction_files.writer(path, card.class_names, request.top)) for path in files]
        if request.output is None:
            writers.append(prediction_files.Lines(sys.stdout, card.class_names, request.top))
        for batch in predictor.predict(pictures, pixels):
            for writer in writers:
                writer.write(batch)
            bad += len(batch.bad)
    if bad:
        echo(f"{bad:,} of {len(pictures):,} images cannot be used", sys.stderr)
    return FAILURE if bad == len(pictures) else DONE
