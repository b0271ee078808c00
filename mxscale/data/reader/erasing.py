"""Random erasing (arXiv:1708.04896)."""

import math
from typing import Sequence, Tuple

import numpy as np

from mxscale.config.training_settings import Augment


class Erasing:
    """Fills a random rectangle of 2 to 33 % of the image, of aspect ratio 0.3 to 3.3, with the mean colour."""

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
