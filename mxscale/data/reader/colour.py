"""Changes of colour: brightness, contrast, saturation, hue and lighting in one pass; shifts in HLS.

The first four are linear in the pixels, as MXNet defines them (mxnet/image/image.py: BrightnessJitterAug,
ContrastJitterAug, SaturationJitterAug, HueJitterAug), and lighting adds a constant. Together they are one 3 x 4 matrix,
so that values are rounded and clipped only once.
"""

import math
from statistics import NormalDist
from typing import Sequence

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


class ColourJitter:
    """Changes an image's colours: random factors, and light of a random colour."""

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


def rotation(hue: float) -> np.ndarray:
    """Return the matrix that turns the hue of RGB values; 1 is half a turn."""
    cos, sin = math.cos(hue * math.pi), math.sin(hue * math.pi)
    return RGB @ np.array([[1, 0, 0], [0, cos, -sin], [0, sin, cos]]) @ YIQ
