"""Encoded images to pixels: JPEGs by libjpeg-turbo (simplejpeg), other formats by OpenCV.

Both release the interpreter's lock, so that threads decode in parallel.
"""

import threading

import cv2
import numpy as np
import simplejpeg

from mxscale.data.images import BadImage

JPEG = b"\xff\xd8"
SCALES = 8, 4, 2  # to which libjpeg-turbo reduces an image while decoding, with SIMD instructions
_own = threading.local()

cv2.setNumThreads(1)  # each thread of a reader works on an image of its own


def scratch(use: str, size: int) -> np.ndarray:
    """Return `size` bytes of memory of this thread for one use. New memory for each image takes 5 % of its time."""
    buffer = getattr(_own, use, None)
    if buffer is None or buffer.size < size:
        buffer = np.empty(size, "uint8")
        setattr(_own, use, buffer)
    return buffer[:size]


def size_of_jpeg(content: bytes):
    """Return (height, width) of a JPEG from its header; None for another format. Raises BadImage."""
    if content[:2] != JPEG:
        return None
    try:
        return simplejpeg.decode_jpeg_header(content)[:2]
    except ValueError as error:
        raise BadImage(str(error)) from None


def decode(content: bytes, scale: int = 1) -> np.ndarray:
    """Return the pixels of an image.

    Args:
        content: The file's bytes.
        scale: Reduce a JPEG to 1/scale of its height and width, rounded up: 1 or one of `SCALES`.

    Returns:
        (H, W, 3) uint8, RGB. It is valid until the same thread decodes another image.

    Raises:
        BadImage: The image cannot be decoded, or its end is missing.
    """
    size = size_of_jpeg(content)
    if size is None:
        return _decode_by_opencv(content)
    height, width = (-(-side // scale) for side in size)
    buffer = scratch("decoded", 3 * height * width)
    try:
        return simplejpeg.decode_jpeg(content, min_height=height, min_width=width, buffer=buffer)
    except ValueError as error:
        raise BadImage(str(error)) from None


def _decode_by_opencv(content: bytes) -> np.ndarray:
    try:
        pixels = cv2.imdecode(np.frombuffer(content, "uint8"), cv2.IMREAD_COLOR_RGB)
    except cv2.error as error:  # such as an empty file
        raise BadImage(f"OpenCV: {error.err}") from None
    if pixels is None:
        raise BadImage("OpenCV cannot decode it")
    return pixels
