"""Mixup and cutmix: each image of a batch is mixed with another one, on the device, and so is its loss.

The partner of image i is image B - 1 - i of its batch, as in timm (timm/data/mixup.py: `x.flip(0)`); batches are in
random order. One share, and for cutmix one box, holds for a batch of a shard and micro-batch. They are a function
of (seed, step, shard, micro-batch), so that neither a resume nor the number of ranks changes them.
"""

import math
from typing import NamedTuple, Optional

import numpy as np
from mxnet import nd

from mxscale.config.schema import Config
from mxscale.data.reader.batches import Micro, seed_of

STREAM = 2  # dropout has 1 (builders.reseeder)


class Mixed(NamedTuple):
    """A batch after mixing: images (B, 3, H, W), labels (B,) with the larger share, labels of the other share."""

    images: nd.NDArray
    labels: nd.NDArray
    others: Optional[nd.NDArray] = None
    share: float = 1.0  # of `labels`

    def loss(self, objective, logits: nd.NDArray) -> nd.NDArray:
        """Return the losses (B,) against both labels, each with its share."""
        if self.others is None:
            return objective(logits, self.labels)
        return self.share * objective(logits, self.labels) + (1 - self.share) * objective(logits, self.others)


class Mixing:
    """Mixes the images of each batch with mixup or cutmix; with both, each batch with one of them at random.

    The settings in data.augment are alpha of Beta(alpha, alpha), from which the share is drawn; 0 mixes nothing.
    """

    def __init__(self, config: Config, steps_per_epoch: int):
        self.mixup, self.cutmix, self.seed = config.data.augment.mixup, config.data.augment.cutmix, config.seed
        self.steps = config.augmented_epochs * steps_per_epoch  # the first ones, which mix

    def __call__(self, step: int, micro: Micro) -> Mixed:
        """Return the batch of a step, mixed. uint8 images become float32 on the same scale of 0-255."""
        if not self.mixup and not self.cutmix:
            return Mixed(micro.images, micro.labels)
        # A copy, also of float32; one type for all, because a hybridised network is compiled for one
        images, labels = micro.images.astype("float32"), micro.labels
        if step >= self.steps:
            return Mixed(images, labels)
        others = nd.flip(labels, axis=0)
        # RandomState, because its stream is the same in every version of NumPy
        random = np.random.RandomState(seed_of(self.seed, step, micro.shard, micro.micro_batch, STREAM))
        cuts = self.cutmix > 0 and (not self.mixup or random.rand() < 0.5)
        alpha = self.cutmix if cuts else self.mixup
        share = random.beta(alpha, alpha)
        if cuts:
            share = paste(images, share, random.rand(2))
        else:
            images = share * images + (1 - share) * nd.flip(images, axis=0)
        if share < 0.5:
            return Mixed(images, others, labels, 1 - share)
        return Mixed(images, labels, others, share)


def paste(images: nd.NDArray, share: float, centre: np.ndarray) -> float:
    """Replace a box of each image by that of its partner (arXiv:1905.04899, sec. 3.1), in place.

    Args:
        images: (B, C, H, W).
        share: Of an image's area that stays, if the box is not clipped.
        centre: Of the box, (y, x) from 0 to 1; its sides are those of the image times sqrt(1 - share).

    Returns:
        The share that stays after the box was clipped to the image.
    """
    sides = np.array(images.shape[2:])
    middle, half = (centre * sides).astype(int), (sides * math.sqrt(1 - share)).astype(int) // 2
    (top, left), (bottom, right) = np.maximum(middle - half, 0).tolist(), np.minimum(middle + half, sides).tolist()
    area = (bottom - top) * (right - left)
    if area:  # MXNet has no empty arrays
        images[:, :, top:bottom, left:right] = nd.flip(images[:, :, top:bottom, left:right], axis=0)
    return 1 - area / math.prod(images.shape[2:])
