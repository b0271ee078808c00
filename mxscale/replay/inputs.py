"""Generated inputs of the scaled-down replays: the folders {photographs} and {mnist} in the settings of a cell."""

import gzip
import shutil
import struct
from pathlib import Path
from typing import Callable, Dict

import numpy as np

from mxscale.util.paths import absolute

CLASSES, IMAGES = 4, 256  # of photographs
TRAIN, TEST = 60_000, 10_000  # images of MNIST
SIDE = 28


def photographs(folder: Path) -> None:
    """Write JPEGs of 500 by 400 pixels, folder/CLASS/NUMBER.jpg, with as much detail as photographs."""
    from mxscale.data.reader.speed import jpeg

    for number in range(IMAGES):
        path = folder / f"class{number % CLASSES}" / f"{number}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(jpeg(number))


def mnist(folder: Path) -> None:
    """Write MNIST's four idx.gz files, with digits that are scikit-learn's scans, enlarged, moved and with noise."""
    from mxscale.data.sources import scans

    pixels, labels = scans()
    large = np.repeat(np.repeat(pixels, 3, 1), 3, 2)  # 24 x 24
    random = np.random.RandomState(0)
    for prefix, count in (("train", TRAIN), ("t10k", TEST)):
        chosen = random.randint(0, len(labels), count)
        images = random.randint(0, 32, (count, SIDE, SIDE)).astype("uint8")
        for image, scan, (y, x) in zip(images, large[chosen], random.randint(0, SIDE - 24 + 1, (count, 2))):
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
