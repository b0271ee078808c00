"""Changes of an image: one affine map, two changes of colour, random erasing.

Each class has `draws`, the random numbers that an image needs, and `is_on`, whether the settings change anything.
"""

import math
from statistics import NormalDist
from typing import Sequence, Tuple

import cv2
import numpy as np

from mxscale.config.training_settings import Augment

LUMA = np.array([0.299, 0.587, 0.114])  # ITU-R BT.601
YIQ = np.array([LUMA, [0.596, -0.274, -0.322], [0.211, -0.523, 0.312]])
RGB = np.linalg.inv(YIQ)
# Principal components of ImageNet's colours: A. Krizhevsky et al., NIPS 2012, sec. 4.1; values of im2rec's pca_noise
EIGENVALUES = np.array([55.46, 4.794, 1.148])
EIGENVECTORS = np.array([[-0.5675, 0.7192, 0.4009], [-0.5808, -0.0045, -0.8140], [-0.5836, -0.6948, 0.4203]])
NORMAL = NormalDist()


class Warp:
    """Rotates, shears and stretches an image about its centre; what lies outside the image is black.

    As ImageRecordIter's (image_aug_default.cc).
    """

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


class ColourJitter:
    """Changes brightness, contrast, saturation and hue by random factors, and adds light of a random colour.

    The first four are linear in the pixels, as MXNet defines them (mxnet/image/image.py: BrightnessJitterAug,
    ContrastJitterAug, SaturationJitterAug, HueJitterAug), and lighting adds a constant. Together they are one 3 x 4
    matrix, so that values are rounded and clipped only once.
    """

    draws = 7

    def __init__(self, augment: Augment):
        self.largest = augment.brightness, augment.contrast, augment.saturation, augment.hue
        self.lighting = augment.lighting
        self.is_on = any(self.largest) or self.lighting > 0

    def __call__(self, pixels: np.ndarray, draws: Sequence[float]) -> np.ndarray:
        """Return (H, W, 3) uint8 RGB with other colours."""
        changes = [(2 * draw - 1) * most for draw, most in zip(draws[:4], self.largest, strict=True)]
        brightness, contrast, saturation, hue = changes
        scale = (1 + brightness) * (1 + contrast)
        grey = -contrast * (1 + brightness) * (LUMA @ cv2.mean(pixels)[:3])  # contrast is relative to the mean
        matrix = rotation(hue) @ ((1 + saturation) * np.eye(3) - saturation * LUMA) * scale
        return cv2.transform(pixels, np.column_stack([matrix, grey + self.light(draws[4:])]))

    def light(self, draws: Sequence[float]) -> np.ndarray:
        """Return what lighting adds to red, green and blue."""
        if not self.lighting:
            return np.zeros(3)
        normal = [NORMAL.inv_cdf(max(draw, 2.0**-33)) for draw in draws]
        return EIGENVECTORS @ (self.lighting * np.array(normal) * EIGENVALUES)


def rotation(hue: float) -> np.ndarray:
    """Return the matrix that turns the hue of RGB values; 1 is half a turn."""
    cos, sin = math.cos(hue * math.pi), math.sin(hue * math.pi)
    return RGB @ np.array([[1, 0, 0], [0, cos, -sin], [0, sin, cos]]) @ YIQ


class HlsShift:
    """Shifts hue, lightness and saturation, as random_h, random_l and random_s of ImageRecordIter."""

    draws = 3

    def __init__(self, augment: Augment):
        self.largest = np.array(augment.hls)
        self.is_on = bool(self.largest.any())

    def __call__(self, pixels: np.ndarray, draws: Sequence[float]) -> np.ndarray:
        """Return (H, W, 3) uint8 RGB with other colours. Values are clipped, hue too."""
        shift = ((2 * np.array(draws) - 1) * self.largest).astype("int")
        table = np.clip(np.arange(256)[:, None] + shift, 0, (180, 255, 255)).astype("uint8")
        hls = cv2.LUT(cv2.cvtColor(pixels, cv2.COLOR_RGB2HLS), table[:, None])
        return cv2.cvtColor(hls, cv2.COLOR_HLS2RGB)


class Erasing:
    """Fills a random rectangle of 2 to 33 % of the image, of aspect ratio 0.3 to 3.3, with the mean colour.

    (arXiv:1708.04896.)
    """

    attempts = 10
    draws = 3 + 2 * attempts

    def __init__(self, augment: Augment, mean: Sequence[float]):
        self.probability, self.fill = augment.erase, [round(value) for value in mean]
        self.is_on = augment.erase > 0

    def __call__(self, pixels: np.ndarray, draws: Sequence[float]) -> np.ndarray:
        """Return the image, changed in place."""
        if draws[0] >= self.probability:
            return pixels
        height, width = pixels.shape[:2]
        rows, columns = self.size(height, width, draws[3:])
        top, left = int(draws[1] * (height - rows + 1)), int(draws[2] * (width - columns + 1))
        pixels[top : top + rows, left : left + columns] = self.fill
        return pixels

    def size(self, height: int, width: int, draws: Sequence[float]) -> Tuple[int, int]:
        """Return the rectangle's (height, width); (0, 0) if no attempt fits."""
        for area, ratio in zip(draws[::2], draws[1::2], strict=True):
            pixels = height * width * (0.02 + (0.33 - 0.02) * area)
            shape = math.exp(math.log(0.3) + (math.log(3.3) - math.log(0.3)) * ratio)
            rows, columns = round(math.sqrt(pixels * shape)), round(math.sqrt(pixels / shape))
            if rows < height and columns < width:
                return rows, columns
        return 0, 0
