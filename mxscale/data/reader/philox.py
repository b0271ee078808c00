"""Random numbers that are a function of (seed, epoch, image), from the counter-based generator Philox4x32-10.

J. K. Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011, sec. 3.3. numpy's Philox is a generator
object with one counter, and creating one for each image takes longer than a draw. Here one call draws for all images
of a batch.
"""

from typing import Sequence, Tuple

import numpy as np

ROUNDS = 10
MULTIPLIERS = 0xD2511F53, 0xCD9E8D57
WEYL = 0x9E3779B9, 0xBB67AE85  # added to the key in each round
WORD, BITS = np.uint64(0xFFFFFFFF), np.uint64(32)

AUGMENTATION, ORDER = 0, 1  # streams, which have different numbers


def philox(counters: np.ndarray, key: Tuple[int, int]) -> np.ndarray:
    """Return four random 32-bit words for each counter: (4, n) uint64 -> (4, n) uint64, all values below 2^32."""
    c0, c1, c2, c3 = counters
    for turn in range(ROUNDS):
        k0, k1 = (np.uint64((word + turn * weyl) & 0xFFFFFFFF) for word, weyl in zip(key, WEYL, strict=True))
        left, right = np.uint64(MULTIPLIERS[0]) * c0, np.uint64(MULTIPLIERS[1]) * c2
        c0, c1, c2, c3 = (right >> BITS) ^ c1 ^ k0, right & WORD, (left >> BITS) ^ c3 ^ k1, left & WORD
    return np.stack([c0, c1, c2, c3])


def uniform(seed: int, epoch: int, images: Sequence[int], draws: int) -> np.ndarray:
    """Return uniform random numbers in [0, 1) for each image: (images, draws) float64."""
    blocks = -(-draws // 4)
    counters = np.empty((4, len(images), blocks), "uint64")
    counters[0], counters[1] = np.arange(blocks), np.asarray(images)[:, None]
    counters[2], counters[3] = epoch, AUGMENTATION
    words = philox(counters.reshape(4, -1), (seed, 0)).reshape(4, len(images), blocks)
    return words.transpose(1, 2, 0).reshape(len(images), -1)[:, :draws] * 2.0**-32


def order(seed: int, epoch: int, count: int) -> np.ndarray:
    """Return a random permutation of `count` images: each gets 64 random bits, by which they are sorted."""
    counters = np.zeros((4, count), "uint64")
    counters[1], counters[2], counters[3] = np.arange(count), epoch, ORDER
    high, low, _, _ = philox(counters, (seed, 0))
    return np.argsort(high << BITS | low, kind="stable")
