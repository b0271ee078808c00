"""From an image file to the network's input in validation: the shorter side is resized, then the centre is cropped.

Pillow resizes with antialiasing, as torchvision's Resize and CenterCrop do it.
"""

from typing import NamedTuple, Optional

import numpy as np
from PIL import Image

from mxscale.data import images

FILTERS = {  # by data.interpolation
    "bilinear": Image.Resampling.BILINEAR,
    "bicubic": Image.Resampling.BICUBIC,
    "area": Image.Resampling.BOX,
    "lanczos": Image.Resampling.LANCZOS,
}


class CentralCrop(NamedTuple):
    """What a network sees of an image in validation, prediction and serving."""

    side: int  # height and width of the network's input in pixels
    resize: Optional[int]  # shorter side before the crop; None: an image is only enlarged, if it is too small
    interpolation: str

    def of_file(self, source: images.Source) -> np.ndarray:
        """Return the network's input of an encoded image, see `__call__`. Raises BadImage."""
        return self(images.decode(source, wanted=self.resize and max(self.resize, self.side)))

    def __call__(self, pixels: np.ndarray) -> np.ndarray:
        """Return the network's input (side, side, 3) of an image (height, width, 3), uint8 RGB."""
        height, width = shape = pixels.shape[:2]
        short = max(self.resize or min(shape), self.side)
        if short != min(shape):
            long = int(short * max(shape) / min(shape))
            height, width = (short, long) if height <= width else (long, short)
        top, left = round((height - self.side) * 0.5), round((width - self.side) * 0.5)
        if (height, width) == shape:
            return pixels[top : top + self.side, left : left + self.side]
        # Only the part of the source that the crop needs
        rows, columns = shape[0] / height, shape[1] / width
        box = left * columns, top * rows, (left + self.side) * columns, (top + self.side) * rows
        return np.asarray(Image.fromarray(pixels).resize((self.side, self.side), FILTERS[self.interpolation], box=box))
