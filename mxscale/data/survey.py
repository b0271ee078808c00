"""What a folder of images has, from its listing and the headers of some files: numbers and sizes."""

import statistics
import warnings
from dataclasses import dataclass
from itertools import chain
from typing import Dict, List, Optional

from PIL import Image

from mxscale.config.schema import Data
from mxscale.data.images import FORMATS
from mxscale.data.sources import list_folder

SAMPLED = 200  # files whose headers are read


@dataclass(frozen=True)
class Survey:
    """A folder of images."""

    counts: Dict[str, List[int]]  # split -> images of each class; "all" if the set has no splits
    short_side: Optional[int]  # median of the images' shorter sides in pixels; None: no readable image

    @property
    def images(self) -> int:
        return sum(map(sum, self.counts.values()))

    @property
    def splits(self) -> bool:
        """Whether the set has splits of its own."""
        return "all" not in self.counts


def survey(data: Data) -> Survey:
    """Return the numbers and sizes of the images of data=imagefolder. Raises ConfigError if it can't be listed."""
    tree, _ = list_folder(data)
    items = sorted(chain.from_iterable(chain.from_iterable(tree.splits.values())))
    every = max(1, len(items) // SAMPLED)
    sides = [side for item in items[every // 2 :: every] if (side := _short_side(item.source))]
    counts = {name: [len(images) for images in classes] for name, classes in tree.splits.items()}
    return Survey(counts, round(statistics.median(sides)) if sides else None)


def _short_side(path: str) -> Optional[int]:
    """Return the shorter side of an image by its header; None for a file that is none."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # packing reports damaged files
            with Image.open(path, formats=FORMATS) as image:
                return min(image.size)
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError):
        return None
