"""Encoded images to pixels: JPEGs by libjpeg-turbo (simplejpeg), other formats by OpenCV.

Both release the interpreter's lock, so that threads decode in parallel.
"""

import re
import threading
from typing import Optional, Tuple

import cv2
import numpy as np
import simplejpeg

from mxscale.data.images import BadImage

JPEG = b"\xff\xd8"
SCALES = 8, 4, 2  # to which libjpeg-turbo reduces an image while decoding, with SIMD instructions
CONTEXT = 2  # rows of the reduced image below a row that its pixels depend on: colours are interpolated
UNREAD = re.compile("extraneous bytes before marker 0xd[0-79]")  # the warning of data that follow the last row
BASELINE, SCAN = 0xC0, 0xDA  # markers of a JPEG's segments
Size = Tuple[int, int]  # height, width
_own = threading.local()

cv2.setNumThreads(1)  # each thread of a reader works on an image of its own


def scratch(use: str, size: int) -> np.ndarray:
    """Return `size` bytes of memory of this thread for one use. New memory for each image takes 5 % of its time."""
    buffer = getattr(_own, use, None)
    if buffer is None or buffer.size < size:
        buffer = np.empty(size, "uint8")
        setattr(_own, use, buffer)
    return buffer[:size]


def size_of_jpeg(content: bytes) -> Optional[Size]:
    """Return (height, width) of a JPEG from its header; None for another format. Raises BadImage."""
    if content[:2] != JPEG:
        return None
    try:
        return simplejpeg.decode_jpeg_header(content)[:2]
    except ValueError as error:
        raise BadImage(str(error)) from None
    except KeyError:
        raise BadImage("unsupported subsampling of colours") from None


def decode(content: bytes, scale: int = 1, rows: Optional[int] = None, size: Optional[Size] = None) -> np.ndarray:
    """Return the pixels of an image.

    Args:
        content: The file's bytes.
        scale: Reduce a JPEG to 1/scale of its height and width, rounded up: 1 or one of `SCALES`.
        rows: How many rows of the image that is not reduced are needed, from the top; None: all. A baseline JPEG is
            decoded only that far, and damage may be taken for the end of these rows: the image must be known to decode
            completely without a warning, as that of a record with a checksum.
        size: What `size_of_jpeg` returns, if it is known.

    Returns:
        (H, W, 3) uint8, RGB, with at least the rows needed. It is valid until the same thread decodes another image.

    Raises:
        BadImage: The image cannot be decoded, or data of the rows needed is missing.
    """
    size = size or size_of_jpeg(content)
    if size is None:
        return _decode_by_opencv(content)
    height, width = size
    wanted = height if rows is None else min(height, rows + CONTEXT * scale)
    shortened = _shortened(content, wanted) if wanted < height else None
    height, width = (-(-side // scale) for side in (wanted if shortened else height, width))
    buffer = scratch("decoded", 3 * height * width)
    try:
        return simplejpeg.decode_jpeg(shortened or content, min_height=height, min_width=width, buffer=buffer)
    except ValueError as error:
        if shortened and UNREAD.search(str(error)):
            return buffer.reshape(height, width, 3)
        if shortened:  # several scans, which do not end where the first one is cut
            return decode(content, scale)
        raise BadImage(str(error)) from None


def _shortened(content: bytes, height: int) -> Optional[bytes]:
    """Return a baseline JPEG with another height in its header, at which libjpeg-turbo stops; None for other JPEGs.

    Its interface for a part of an image (tj3SetCroppingRegion) is in no Python package that brings the library.
    """
    at = 2
    while content[at : at + 1] == b"\xff" and content[at + 1] != SCAN:
        if content[at + 1] == BASELINE:  # marker, length, precision, height
            return b"".join((content[: at + 5], height.to_bytes(2, "big"), content[at + 7 :]))
        at += 2 + int.from_bytes(content[at + 2 : at + 4], "big")
    return None


def _decode_by_opencv(content: bytes) -> np.ndarray:
    try:
        pixels = cv2.imdecode(np.frombuffer(content, "uint8"), cv2.IMREAD_COLOR_RGB)
    except cv2.error as error:  # such as an empty file
        raise BadImage(f"OpenCV: {error.err}") from None
    if pixels is None:
        raise BadImage("OpenCV cannot decode it")
    return pixels
