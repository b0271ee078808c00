"""Inputs of the scaled-down replays: MNIST, and generated photographs for users without their own."""

import dataclasses
import io
import shutil
from pathlib import Path
from typing import Dict

import numpy as np

from mxscale.config.schema import Data
from mxscale.util.errors import ConfigError
from mxscale.util.paths import absolute

CLASSES, IMAGES = 4, 256  # of photographs
HEIGHT, WIDTH, QUALITY = 400, 500, 89  # pixels; 110 KB each, as ImageNet's have on average


NAMES = ("mnist", "photographs")  # of the folders in the settings of trials; settings of the verb
MNIST = "input:mnist"  # of Trial.needs


def without_mnist(data: Data, folder: str) -> Dict[str, str]:
    """Return {"mnist": why its files are not in the folder}, after an attempt to fetch them; {} if they are."""
    from mxscale.data.public import sets

    try:
        sets.MNIST.fetch(dataclasses.replace(data, kind="mnist", root=folder))
    except ConfigError as error:
        return {"mnist": f"MNIST: give mnist=DIR with its four files ({error})"}
    return {}


def photographs(cache: str) -> str:
    """Return a folder of generated JPEGs, CLASS/NUMBER.jpg, below `cache`; it is made if it does not exist."""
    folder = Path(absolute(cache), "replay", "photographs")
    if not folder.is_dir():
        part = folder.with_name("photographs.part")
        shutil.rmtree(part, ignore_errors=True)
        for number in range(IMAGES):
            path = part / f"class{number % CLASSES}" / f"{number}.jpg"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(jpeg(number))
        part.rename(folder)
    return str(folder)


def jpeg(seed: int) -> bytes:
    """Return a JPEG with as much detail at each scale, as photographs have it."""
    import cv2
    from PIL import Image

    random, pixels = np.random.RandomState(seed), np.full((HEIGHT, WIDTH, 3), 128.0, "float32")
    for power in range(8):
        coarse = random.normal(0, 18, ((HEIGHT >> power) + 2, (WIDTH >> power) + 2, 3)).astype("float32")
        pixels += cv2.resize(coarse, (WIDTH, HEIGHT), interpolation=cv2.INTER_CUBIC)
    file = io.BytesIO()
    Image.fromarray(pixels.clip(0, 255).astype("uint8")).save(file, "JPEG", quality=QUALITY)
    return file.getvalue()
