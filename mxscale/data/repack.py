"""Packing of one image: decode, resize, encode.

Pillow resizes in scalar code, which takes longer than to decode. OpenCV's bilinear resizing is fast, but aliases. So an
image is filtered before OpenCV reduces it. With the filter, both together differ from Pillow's antialiased bicubic
resizing by 0.9 of 255 in the mean of photographs; OpenCV's INTER_AREA differs by 1.1 and takes longer.
"""

import functools
import io
from typing import NamedTuple, Optional, Tuple

import cv2
import numpy as np
import simplejpeg
from PIL import Image

from mxscale.data.images import MAX_PIXELS, BadImage, Source, decode, key_of, read

MAX_SIDE = 65_500  # of a packed image, as in libjpeg
GAP = 3  # an image is reduced by averaging to this many times its size after packing; no visible difference
ROUND = 128  # filter taps are multiples of 1/ROUND: their sums in float32 are exact on every processor

cv2.setNumThreads(1)  # a packing process uses one core
cv2.ipp.setUseIPP(False)  # Intel's code rounds differently on other processors


class Recipe(NamedTuple):
    """How images are packed."""

    pack_format: str  # jpeg | png | bmp
    quality: int  # of JPEG, 1-100
    pack_size: Optional[int]  # shorter side in pixels; None: unchanged
    min_side: int = 1  # images with a shorter side than this are bad
    least: int = 1  # images with a shorter side than this are enlarged


class Packed(NamedTuple):
    image: bytes  # encoded
    size: Tuple[int, int]  # height, width
    key: bytes  # of the bytes before packing: equal for exact copies
    enlarged: bool  # it was smaller than Recipe.least


def repack(source: Source, recipe: Recipe) -> Packed:
    """Return the image packed by `recipe`. Raises BadImage."""
    content = read(source)
    pixels = decode(content, recipe.min_side, recipe.pack_size)
    shorter = min(pixels.shape[:2])
    side = recipe.pack_size or max(recipe.least, shorter)
    packed = resized(pixels, side)
    encoded = encode(packed, recipe.pack_format, recipe.quality)
    return Packed(encoded, packed.shape[:2], key_of(content), shorter < recipe.least)


def resized(pixels: np.ndarray, side: int) -> np.ndarray:
    """Return an image with a shorter side of `side` pixels, the other in proportion (bicubic with antialiasing).

    Raises:
        BadImage: The result would be longer than MAX_SIDE, or have more than MAX_PIXELS.
    """
    height, width = pixels.shape[:2]
    scale = side / min(width, height)
    size = max(side, round(width * scale)), max(side, round(height * scale))
    if max(size) > MAX_SIDE:
        raise BadImage(f"{size[0]}x{size[1]} pixels after packing, longer than {MAX_SIDE:,}")
    if scale == 1:
        return pixels
    if size[0] * size[1] > MAX_PIXELS:
        raise BadImage(f"{size[0]}x{size[1]} pixels after packing, more than {MAX_PIXELS:,}")
    if scale > 1:
        return np.asarray(Image.fromarray(pixels).resize(size, Image.Resampling.BICUBIC))
    return _reduced(pixels, size)


def _reduced(pixels: np.ndarray, size: Tuple[int, int]) -> np.ndarray:
    """Return an image reduced to (width, height)."""
    gap = (GAP * size[0], GAP * size[1])
    if pixels.shape[1] > gap[0] and pixels.shape[0] > gap[1]:
        pixels = cv2.resize(pixels, gap, interpolation=cv2.INTER_AREA)
    across, down = (_taps(round(before / after, 2)) for before, after in zip(pixels.shape[1::-1], size, strict=True))
    filtered = cv2.sepFilter2D(pixels, -1, across, down, borderType=cv2.BORDER_REFLECT)
    return cv2.resize(filtered, size, interpolation=cv2.INTER_LINEAR)


@functools.cache
def _taps(scale: float) -> np.ndarray:
    """Return the symmetric filter after which linear interpolation is nearest to Pillow's kernel widened by `scale`."""
    x = np.linspace(-2 * scale - 2, 2 * scale + 2, 500)
    shifts = range(1, max(2, int(np.ceil(2 * scale))))
    pairs = np.stack([_linear(x - shift) + _linear(x + shift) - 2 * _linear(x) for shift in shifts], axis=1)
    missing = _cubic(x / scale) / scale - _linear(x)
    half = np.round(np.linalg.lstsq(pairs, missing, rcond=None)[0] * ROUND) / ROUND
    return np.concatenate([half[::-1], [1 - 2 * half.sum()], half])


def _cubic(x: np.ndarray) -> np.ndarray:
    """Return Pillow's bicubic kernel at `x`, that of Keys (1981) with a = -0.5."""
    x = np.abs(x)
    return np.where(x < 1, (1.5 * x - 2.5) * x * x + 1, np.where(x < 2, ((-0.5 * x + 2.5) * x - 4) * x + 2, 0))


def _linear(x: np.ndarray) -> np.ndarray:
    """Return the kernel of linear interpolation at `x`."""
    return np.maximum(0, 1 - np.abs(x))


def encode(pixels: np.ndarray, pack_format: str, quality: int) -> bytes:
    """Return an RGB image as "jpeg", "png" or "bmp" bytes. The same library versions give the same bytes."""
    if pack_format == "jpeg":
        return simplejpeg.encode_jpeg(np.ascontiguousarray(pixels), quality, "RGB", "420")
    out, options = io.BytesIO(), {"compress_level": 6} if pack_format == "png" else {}
    Image.fromarray(pixels).save(out, pack_format.upper(), **options)
    return out.getvalue()
