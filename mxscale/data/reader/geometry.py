"""Rotation, shear and change of the aspect ratio by one affine map, as ImageRecordIter's (image_aug_default.cc)."""

import math
from typing import Sequence

import cv2
import numpy as np

from mxscale.config.training_settings import Augment


class Warp:
    """Rotates, shears and stretches an image about its centre; what lies outside the image is black."""

    draws = 3

    def __init__(self, augment: Augment, interpolation: int):
        """`interpolation` is OpenCV's number."""
        self.largest, self.interpolation = (augment.rotate, augment.shear, augment.stretch), interpolation
        self.is_on = any(self.largest)

    def __call__(self, pixels: np.ndarray, draws: Sequence[float]) -> np.ndarray:
        """Return an image of the same (H, W, 3)."""
        angle, shear, stretch = ((2 * draw - 1) * most for draw, most in zip(draws, self.largest, strict=True))
        height, width = pixels.shape[:2]
        matrix = affine(angle, shear, 1 + stretch, (width, height))
        return cv2.warpAffine(pixels, matrix, (width, height), flags=self.interpolation)


def affine(angle: float, shear: float, ratio: float, size: Sequence[int]) -> np.ndarray:
    """Return the 2 x 3 matrix that maps (x, y) to new places and leaves the centre of an image where it is.

    Args:
        angle: Degrees, anticlockwise.
        shear: Shift in x for each pixel in y.
        ratio: Height over width of what was a square; its circumference stays.
        size: Width and height of the image in pixels.
    """
    cos, sin = math.cos(math.radians(angle)), math.sin(math.radians(angle))
    wide = 2 / (1 + ratio)
    high = ratio * wide
    linear = np.array([[wide * cos - shear * sin * high, wide * sin + shear * cos * high], [-sin * high, cos * high]])
    centre = np.array(size) / 2
    return np.column_stack([linear, centre - linear @ centre])
