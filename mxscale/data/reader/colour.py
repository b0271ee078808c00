"""Colour jitter: brightness, contrast, saturation and hue, in one pass over the pixels.

Each is linear in the pixels, as MXNet defines them (mxnet/image/image.py: BrightnessJitterAug, ContrastJitterAug,
SaturationJitterAug, HueJitterAug). Their product is one 3 x 4 matrix, so that values are rounded and clipped only once.
"""

import math
from typing import Sequence

import cv2
import numpy as np

from mxscale.config.training_settings import Augment

LUMA = np.array([0.299, 0.587, 0.114])  # ITU-R BT.601
YIQ = np.array([LUMA, [0.596, -0.274, -0.322], [0.211, -0.523, 0.312]])
RGB = np.linalg.inv(YIQ)


class ColourJitter:
    """Changes an image's colours with four random numbers of its own."""

    draws = 4

    def __init__(self, augment: Augment):
        self.largest = augment.brightness, augment.contrast, augment.saturation, augment.hue
        self.is_on = any(self.largest)

    def __call__(self, pixels: np.ndarray, draws: Sequence[float]) -> np.ndarray:
        """Return (H, W, 3) uint8 RGB with jittered colours; the same object if nothing is to be changed."""
        if not self.is_on:
            return pixels
        brightness, contrast, saturation, hue = (
            (2 * u - 1) * most for u, most in zip(draws, self.largest, strict=True)
        )
        scale = (1 + brightness) * (1 + contrast)
        grey = -contrast * (1 + brightness) * (LUMA @ cv2.mean(pixels)[:3])  # contrast is relative to the mean
        matrix = rotation(hue) @ ((1 + saturation) * np.eye(3) - saturation * LUMA) * scale
        return cv2.transform(pixels, np.column_stack([matrix, [grey] * 3]))


def rotation(hue: float) -> np.ndarray:
    """Return the matrix that turns the hue of RGB values; 1 is half a turn."""
    cos, sin = math.cos(hue * math.pi), math.sin(hue * math.pi)
    return RGB @ np.array([[1, 0, 0], [0, cos, -sin], [0, sin, cos]]) @ YIQ
