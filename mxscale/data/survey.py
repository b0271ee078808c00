"""What a folder of images has, from its listing and the headers of its files: numbers and sizes."""

import math
import statistics
import warnings
from dataclasses import dataclass
from itertools import chain
from typing import Dict, List, NamedTuple, Optional

from PIL import Image

from mxscale.config.schema import Data
from mxscale.data.images import FORMATS
from mxscale.data.sources import list_folder
from mxscale.data.tree import Item

SAMPLED = 200  # files whose headers suffice for the median
ALL = 20_000  # files whose headers are read in some seconds


class Sized(NamedTuple):
    """The size of an image by its header, in pixels, ordered by the shorter side."""

    short_side: int
    width: int
    height: int
    name: str

    def __str__(self) -> str:
        return f"{self.width} x {self.height}"


@dataclass(frozen=True)
class Survey:
    """A folder of images."""

    classes: List[str]
    splits: Dict[str, List[List[Item]]]  # split -> class -> images; "all" if the set has no splits
    sizes: List[Sized]  # of the images, or of a sample, the smallest first; without unreadable ones

    @property
    def counts(self) -> Dict[str, List[int]]:
        """The images of each class by split."""
        return {name: list(map(len, classes)) for name, classes in self.splits.items()}

    @property
    def images(self) -> int:
        return sum(map(sum, self.counts.values()))

    @property
    def short_side(self) -> Optional[int]:
        """The median of the images' shorter sides in pixels; None without a readable image."""
        return round(statistics.median(size.short_side for size in self.sizes)) if self.sizes else None

    def training_images(self, data: Data) -> int:
        """Return the number of training images after the split, about: classes are split one by one."""
        counts, kept = self.counts, 1.0
        if "all" in counts:
            kept -= (data.val_share or 0) + data.test_share
        elif "val" not in counts:
            kept -= data.val_share or 0
        per_class = [math.floor(count * kept) for count in counts.get("train") or counts["all"]]
        limit = data.train_per_class
        return max(1, sum(per_class if limit is None else (min(count, limit) for count in per_class)))

    def imbalance(self) -> Optional[str]:
        """Return by how much the largest class exceeds the smallest in training, if by ten times or more."""
        counts = sorted(zip(self.counts.get("train") or self.counts["all"], self.classes))
        (least, smallest), (most, largest) = counts[0], counts[-1]
        return f"{largest} has {most / least:.0f} times the images of {smallest}" if most >= 10 * least > 0 else None

    def describe_sizes(self) -> str:
        """Return the smallest, the median and the largest size, and where the largest is."""
        if not self.sizes:
            return "no readable image"
        smallest, median, largest = self.sizes[0], self.sizes[len(self.sizes) // 2], self.sizes[-1]
        of = "" if len(self.sizes) == self.images else f"{len(self.sizes):,} of {self.images:,} images read: "
        if smallest[:3] == largest[:3]:
            return f"{of}all {smallest}"
        return f"{of}smallest {smallest}, median {median}, largest {largest} ({largest.name})"


def survey(data: Data, most: int = SAMPLED) -> Survey:
    """Return the numbers and sizes of the images of data=imagefolder.

    Args:
        most: Files whose headers are read; of more, evenly spaced ones.

    Raises:
        ConfigError: The folder can't be listed.
    """
    tree, _ = list_folder(data)
    items = list(chain.from_iterable(chain.from_iterable(tree.splits.values())))
    every = max(1, len(items) // most)
    sizes = filter(None, map(_size, items[every // 2 :: every]))
    return Survey(tree.classes, tree.splits, sorted(sizes))


def _size(item: Item) -> Optional[Sized]:
    """Return an image's size by its header; None if the file is not an image."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # packing reports damaged files
            with Image.open(item.source, formats=FORMATS) as image:
                return Sized(min(image.size), *image.size, item.name)
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError):
        return None
