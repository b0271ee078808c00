"""Generated inputs of the scaled-down replays: the folders {photographs} and {mnist} in the settings of a trial."""

import gzip
import io
import shutil
import struct
from pathlib import Path
from typing import Callable, Dict

import numpy as np

from mxscale.util.paths import absolute

CLASSES, IMAGES = 4, 256  # of photographs
HEIGHT, WIDTH, QUALITY = 400, 500, 89  # pixels; 110 KB each, as ImageNet's have on average
TRAIN, TEST = 60_000, 10_000  # images of MNIST
DIGIT = 28  # pixels


def photographs(folder: Path) -> None:
    """Write JPEGs, folder/CLASS/NUMBER.jpg."""
    for number in range(IMAGES):
        path = folder / f"class{number % CLASSES}" / f"{number}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(jpeg(number))


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


def mnist(folder: Path) -> None:
    """Write MNIST's four idx.gz files, with digits that are scikit-learn's scans, enlarged, moved and with noise."""
    from mxscale.data.sources import scans

    pixels, labels = scans()
    large = np.repeat(np.repeat(pixels, 3, 1), 3, 2)  # 24 x 24
    random = np.random.RandomState(0)
    for prefix, count in (("train", TRAIN), ("t10k", TEST)):
        chosen = random.randint(0, len(labels), count)
        images = random.randint(0, 32, (count, DIGIT, DIGIT)).astype("uint8")
        for image, scan, (y, x) in zip(images, large[chosen], random.randint(0, DIGIT - 24 + 1, (count, 2))):
            np.maximum(image[y : y + 24, x : x + 24], scan, out=image[y : y + 24, x : x + 24])
        _write(folder / f"{prefix}-images-idx3-ubyte.gz", images)
        _write(folder / f"{prefix}-labels-idx1-ubyte.gz", labels[chosen].astype("uint8"))


def _write(path: Path, values: np.ndarray) -> None:
    """Write unsigned bytes as an idx.gz file."""
    header = struct.pack(f">BBBB{values.ndim}I", 0, 0, 8, values.ndim, *values.shape)
    with gzip.GzipFile(path, "wb", compresslevel=1, mtime=0) as file:
        file.write(header + values.tobytes())


INPUTS: Dict[str, Callable[[Path], None]] = {"photographs": photographs, "mnist": mnist}


def folder_of(name: str, cache: str) -> str:
    """Return the folder of an input below `cache`, which is generated if it does not exist."""
    folder = Path(absolute(cache), "replay", name)
    if not folder.is_dir():
        part = folder.with_name(f"{name}.part")
        shutil.rmtree(part, ignore_errors=True)
        part.mkdir(parents=True)
        INPUTS[name](part)
        part.rename(folder)
    return str(folder)
