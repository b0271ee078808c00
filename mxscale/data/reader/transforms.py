"""From an encoded image to the network's input: decoding, crop, resizing, flip.

Training images are resized by OpenCV without antialiasing, as MXNet's ImageRecordIter does it. Validation images are
resized by Pillow with antialiasing (central_crop.py).
"""

import math
from typing import NamedTuple, Sequence

import cv2
import numpy as np

from mxscale.config.schema import Data
from mxscale.data.central_crop import CentralCrop
from mxscale.data.reader import decoder
from mxscale.data.reader.augmentations import ColourJitter, Erasing, HlsShift, Warp

INTERPOLATIONS = {  # by data.interpolation; only area is antialiased
    "bilinear": cv2.INTER_LINEAR,
    "bicubic": cv2.INTER_CUBIC,
    "area": cv2.INTER_AREA,
    "lanczos": cv2.INTER_LANCZOS4,
}
ATTEMPTS = 10  # at a random_resized crop within the image
# Places among an image's random numbers; an attempt takes two from AREAS on
FLIP, TOP, LEFT, AREAS = range(4)
WARP = AREAS + 2 * ATTEMPTS
COLOURS = WARP + Warp.draws + 12  # 12 are unused, so that the others are those of earlier versions


class Box(NamedTuple):
    """A part of an image, in pixels."""

    top: int
    left: int
    height: int
    width: int


class Training:
    """Augments an image with random numbers of its own: warp, crop, resizing, flip, colours, erasing.

    Attributes:
        draws: How many uniform random numbers an image needs.
    """

    def __init__(self, data: Data):
        self.side, self.augment = data.image_size, data.augment
        self.interpolation = INTERPOLATIONS[data.interpolation]
        self.warp = Warp(data.augment, self.interpolation)
        self.steps = []  # after the flip: (its random numbers, step)
        self.draws, end = self.geometric_draws(), COLOURS
        for step in (ColourJitter(data.augment), HlsShift(data.augment), Erasing(data.augment, data.mean)):
            start, end = end, end + step.draws
            if step.is_on:
                self.steps.append((slice(start, end), step))
                self.draws = end
        self.log_ratio = tuple(math.log(ratio) for ratio in data.augment.ratio)

    def geometric_draws(self) -> int:
        """Return how many of an image's first random numbers warp, crop and flip need."""
        if self.warp.is_on:
            return WARP + Warp.draws
        return {"random_resized": WARP, "random": AREAS}.get(self.augment.crop, FLIP + 1 if self.augment.flip else 0)

    def __call__(self, content: bytes, draws: Sequence[float], out: np.ndarray) -> None:
        """Write the image's (3, side, side) uint8 RGB to `out`. Raises BadImage."""
        pixels = self.crop(content, draws)
        side = self.side
        if pixels.shape[:2] != (side, side):
            resized = decoder.scratch("resized", 3 * side * side).reshape(side, side, 3)
            pixels = cv2.resize(pixels, (side, side), resized, interpolation=self.interpolation)
        if self.augment.flip and draws[FLIP] < 0.5:
            pixels = cv2.flip(pixels, 1, decoder.scratch("flipped", 3 * side * side).reshape(side, side, 3))
        for numbers, step in self.steps:
            pixels = step(pixels, draws[numbers])
        cv2.split(pixels, list(out))

    def crop(self, content: bytes, draws: Sequence[float]) -> np.ndarray:
        """Return the part of an image that `data.augment.crop` chooses, which may still have to be resized."""
        if self.augment.crop == "random_resized" and not self.warp.is_on:
            return self.crop_while_decoding(content, draws)
        pixels = decoder.decode(content)
        if self.warp.is_on:
            pixels = self.warp(pixels, draws[WARP : WARP + Warp.draws])
        if self.augment.crop == "random_resized":
            return part(pixels, self.random_resized(*pixels.shape[:2], draws))
        pad = self.augment.pad
        if pad:  # black, as torchvision's RandomCrop
            pixels = cv2.copyMakeBorder(pixels, pad, pad, pad, pad, cv2.BORDER_CONSTANT)
        pixels = at_least(pixels, self.side, self.interpolation)
        top, left = (draws[TOP], draws[LEFT]) if self.augment.crop == "random" else (0.5, 0.5)
        height, width = pixels.shape[:2]
        rows, columns = int(top * (height - self.side + 1)), int(left * (width - self.side + 1))
        return part(pixels, Box(rows, columns, self.side, self.side))

    def crop_while_decoding(self, content: bytes, draws: Sequence[float]) -> np.ndarray:
        """Return a random_resized crop. A JPEG is decoded to the crop's last row, and reduced if the crop is large."""
        size = decoder.size_of_jpeg(content)
        if size is None:
            pixels = decoder.decode(content)
            return part(pixels, self.random_resized(*pixels.shape[:2], draws))
        box = self.random_resized(*size, draws)
        scale = next((n for n in decoder.SCALES if min(box.height, box.width) >= n * self.side), 1)
        reduced = Box(*(value // scale for value in box))
        return part(decoder.decode(content, scale, box.top + box.height, size), reduced)

    def random_resized(self, height: int, width: int, draws: Sequence[float]) -> Box:
        """Return a box of a random area and aspect ratio, as torchvision's RandomResizedCrop.

        After ten attempts outside the image it is the largest central box of an allowed ratio. (arXiv:1409.4842,
        sec. 6.)
        """
        (low, high), (lowest, highest) = self.augment.scale, self.log_ratio
        for first in range(AREAS, WARP, 2):
            area = height * width * (low + (high - low) * draws[first])
            ratio = math.exp(lowest + (highest - lowest) * draws[first + 1])
            w, h = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
            if 0 < w <= width and 0 < h <= height:
                return Box(int(draws[TOP] * (height - h + 1)), int(draws[LEFT] * (width - w + 1)), h, w)
        smallest, largest = self.augment.ratio
        w, h = min(width, round(height * largest)), min(height, round(width / smallest))
        return Box((height - h) // 2, (width - w) // 2, h, w)


class Evaluation:
    """Resizes the shorter side, then crops the centre."""

    draws = 0

    def __init__(self, data: Data):
        self.side = data.image_size
        self.crop = CentralCrop(self.side, data.eval_resize, data.interpolation)

    def __call__(self, content: bytes, draws: Sequence[float], out: np.ndarray) -> None:
        """Write the image's (3, side, side) uint8 RGB to `out`. Raises BadImage."""
        cv2.split(self.crop(decoder.decode(content)), list(out))


def part(pixels: np.ndarray, box: Box) -> np.ndarray:
    """Return a view of a part of the pixels (H, W, 3)."""
    return pixels[box.top : box.top + box.height, box.left : box.left + box.width]


def at_least(pixels: np.ndarray, side: int, interpolation: int) -> np.ndarray:
    """Return the pixels, enlarged to a shorter side of `side` if theirs is less."""
    height, width = pixels.shape[:2]
    if min(height, width) >= side:
        return pixels
    factor = side / min(height, width)
    size = max(side, round(width * factor)), max(side, round(height * factor))
    return cv2.resize(pixels, size, interpolation=interpolation)
