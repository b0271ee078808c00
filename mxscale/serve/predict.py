"""`mxscale predict`: the most likely classes of images, as lines, CSV, logits or an HTML page."""

import os
import sys
from contextlib import ExitStack
from typing import Any, List, NamedTuple, Sequence

import numpy as np

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
from mxscale.util.regular_files import open_regular


class Picture(NamedTuple):
    """An image to predict."""

    name: str  # its path, or its number in an array
    source: Any  # what images.decode takes, or pixels (height, width, 3) uint8


def main(config: Config, request: Predict) -> int:
    """Predict what is requested and return the exit status. Raises ConfigError."""
    if request.sheet:
        page.check_installed("mxscale predict sheet=FILE")
    images = pictures(request.images)
    predictor = Predictor(trained_models.exported(request.source, config))
    card = predictor.card
    crop = preprocessing(card)

    def pixels(picture: Picture) -> np.ndarray:
        is_array = isinstance(picture.source, np.ndarray)
        return crop(picture.source) if is_array else crop.of_file(picture.source)

    bad = 0
    with ExitStack() as stack:
        files = [path for path in (request.output, request.sheet) if path]
        writers = [stack.enter_context(prediction_files.writer(path, card.class_names, request.top)) for path in files]
        if request.output is None:
            writers.append(prediction_files.Lines(sys.stdout, card.class_names, request.top))
        for batch in predictor.predict(images, pixels):
            for writer in writers:
                writer.write(batch)
            bad += sum(reason is not None for reason in batch.reasons)
    if bad:
        echo(f"{bad:,} of {len(images):,} images cannot be used", sys.stderr)
    return FAILURE if bad == len(images) else DONE


def pictures(names: Sequence[str]) -> List[Picture]:
    """Return the images named, those of a folder sorted by path. Raises ConfigError."""
    paths = [os.path.expanduser(name) for name in names]
    if any(path.endswith(".npy") for path in paths):
        if len(paths) > 1:
            raise ConfigError(f"{names[0]}, {names[1]}: expected one .npy file, or image files")
        return [Picture(f"image {number}", pixels) for number, pixels in enumerate(array(paths[0]))]
    files = [file for path in paths for file in _files(path)]
    return [Picture(path, path) for path in dict.fromkeys(files)]


def _files(path: str) -> List[str]:
    """Return a file, or the images in a folder and those below it, by the rules of an image set."""
    if not os.path.exists(path):
        raise ConfigError(f"{path}: no such file or folder")
    if not os.path.isdir(path):
        return [path]
    images = [image for image, *_ in images_in("", path.rstrip("/") or "/", nested=True)]
    if not images:
        raise ConfigError(f"{path}: no images there; expected files that end in {', '.join(EXTENSIONS)}")
    return images


def array(path: str) -> np.ndarray:
    """Return the images of a .npy file: (n, height, width, 3) uint8. Raises ConfigError."""
    try:
        with open_regular(path):  # np.load would wait for a FIFO
            images = np.load(path, mmap_mode="r", allow_pickle=False)
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror or error}") from None
    except (ValueError, EOFError) as error:
        raise ConfigError(f"{path} is not a .npy file: {str(error).splitlines()[0]}") from None
    if not isinstance(images, np.ndarray) or images.dtype != np.uint8 or images.ndim != 4 or images.shape[3] != 3:
        content = f"{images.dtype} {images.shape}" if isinstance(images, np.ndarray) else "several arrays"
        raise ConfigError(f"{path}: expected uint8 (n, height, width, 3), found {content}")
    if not images.size:
        raise ConfigError(f"{path} has no images")
    return images
