"""Augmentation policies and random erasing.

RandAugment (arXiv:1909.13719) and TrivialAugment Wide (arXiv:2103.10158) draw from a list of operations. The operations
are Pillow's, the lists and their ranges those of torchvision (transforms/autoaugment.py). Random erasing:
arXiv:1708.04896.
"""

import math
from typing import Callable, Dict, Sequence, Tuple

import numpy as np
from PIL import Image, ImageEnhance, ImageOps

from mxscale.config.training_settings import Augment

BINS = 31  # magnitudes of an operation


def transformed(image: Image.Image, *matrix: float) -> Image.Image:
    """Return an image whose pixel (x, y) is that at (a x + b y + c, d x + e y + f); outside it is black."""
    return image.transform(image.size, Image.Transform.AFFINE, matrix, Image.Resampling.NEAREST)


def enhanced(kind) -> Callable:
    return lambda image, change: kind(image).enhance(1 + change)


# name -> operation on (image, magnitude)
OPERATIONS: Dict[str, Callable] = {
    "identity": lambda image, _: image,
    "shear_x": lambda image, shift: transformed(image, 1, shift, 0, 0, 1, 0),
    "shear_y": lambda image, shift: transformed(image, 1, 0, 0, shift, 1, 0),
    "translate_x": lambda image, pixels: transformed(image, 1, 0, int(pixels), 0, 1, 0),
    "translate_y": lambda image, pixels: transformed(image, 1, 0, 0, 0, 1, int(pixels)),
    "rotate": lambda image, degrees: image.rotate(degrees),
    "brightness": enhanced(ImageEnhance.Brightness),
    "color": enhanced(ImageEnhance.Color),
    "contrast": enhanced(ImageEnhance.Contrast),
    "sharpness": enhanced(ImageEnhance.Sharpness),
    "posterize": lambda image, bits: ImageOps.posterize(image, 8 - round(bits)),
    "solarize": lambda image, below: ImageOps.solarize(image, 255 - below),
    "autocontrast": lambda image, _: ImageOps.autocontrast(image),
    "equalize": lambda image, _: ImageOps.equalize(image),
}
UNSIGNED = ("posterize", "solarize")  # others go to either side
COLOURS = ("brightness", "color", "contrast", "sharpness")


def largest_magnitudes(policy: str, side: int) -> Dict[str, float]:
    """Return the largest magnitude of each operation of a policy; 0: it has none."""
    if policy == "randaugment":
        shear, move, turn, colour, bits = 0.3, 150 / 331 * side, 30.0, 0.9, 4
    else:
        shear, move, turn, colour, bits = 0.99, 32.0, 135.0, 0.99, 6
    moves = {"shear_x": shear, "shear_y": shear, "translate_x": move, "translate_y": move, "rotate": turn}
    return {
        **dict.fromkeys(OPERATIONS, 0.0),
        **moves,
        **dict.fromkeys(COLOURS, colour),
        "posterize": bits,
        "solarize": 255.0,
    }


class Policy:
    """Applies operations drawn with three random numbers each: which, how much, to which side."""

    most = 4  # operations
    draws = 3 * most

    def __init__(self, augment: Augment, side: int):
        self.kind, self.is_on = augment.policy, augment.policy != "none"
        self.count = augment.policy_ops if self.kind == "randaugment" else 1
        self.magnitude = augment.policy_magnitude
        self.largest = largest_magnitudes(self.kind, side)

    def __call__(self, pixels: np.ndarray, draws: Sequence[float]) -> np.ndarray:
        """Return the augmented (H, W, 3) uint8 RGB."""
        image = Image.fromarray(pixels)
        for number in range(self.count):
            name, magnitude = self.step(*draws[3 * number : 3 * number + 3])
            image = OPERATIONS[name](image, magnitude)
        return np.array(image)

    def step(self, which: float, amount: float, direction: float) -> Tuple[str, float]:
        """Return the name and the magnitude of an operation."""
        name = list(OPERATIONS)[int(which * len(OPERATIONS))]
        position = self.magnitude if self.kind == "randaugment" else int(amount * BINS)
        magnitude = self.largest[name] * position / (BINS - 1)
        return name, magnitude if name in UNSIGNED or direction < 0.5 else -magnitude


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
