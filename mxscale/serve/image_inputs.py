"""The images that a command line names: files, folders, or an array in a .npy file."""

import os
from typing import Any, List, NamedTuple, Sequence

import numpy as np

from mxscale.data.images import EXTENSIONS
from mxscale.data.sources import images_in
from mxscale.util.errors import ConfigError
from mxscale.util.regular_files import open_regular


class Picture(NamedTuple):
    """An image to predict."""

    name: str  # its path, or its number in an array
    source: Any  # what images.decode takes, or pixels (height, width, 3) uint8


def pictures(given: Sequence[str]) -> List[Picture]:
    """Return the images named, those of a folder sorted by path. Raises ConfigError."""
    if any(path.endswith(".npy") for path in given):
        if len(given) > 1:
            raise ConfigError(f"{given[0]}, {given[1]}: expected one .npy file, or image files")
        return [Picture(f"image {number}", pixels) for number, pixels in enumerate(array(os.path.expanduser(given[0])))]
    files = [path for name in given for path in _files(os.path.expanduser(name))]
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
        found = f"{images.dtype} {images.shape}" if isinstance(images, np.ndarray) else "several arrays"
        raise ConfigError(f"{path}: expected uint8 (n, height, width, 3), found {found}")
    if not images.size:
        raise ConfigError(f"{path} has no images")
    return images
