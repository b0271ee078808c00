"""Random numbers that are a function of (seed, epoch, image), from the counter-based generator Philox4x32-10.

J. K. Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011, sec. 3.3. numpy's Philox is a generator
object with one counter, and creating one for each image takes longer than a draw. Here one call draws for all images
of a batch.
"""

from typing import Sequence, Tuple

import numpy as np

ROUNDS = 10
WORD, BITS = np.uint64(0xFFFFFFFF), np.uint64(32)
MULTIPLIERS = np.array([[0xD2511F53], [0xCD9E8D57]], "uint64")
WEYL = np.array([[0x9E3779B9], [0xBB67AE85]], "uint64")  # added to the key in each round

AUGMENTATION, ORDER, ROUNDS_OF_CLASSES = 0, 1, 2  # streams, which have different numbers
STREAM_BITS = np.uint64(8)


def philox(counters: np.ndarray, key: Tuple[int, int]) -> np.ndarray:
    """Return four random 32-bit words for each counter: (4, n) uint64 -> (4, n) uint64, all values below 2^32."""
    even, odd = counters[::2], counters[1::2]  # words 0 and 2, 1 and 3
    added = np.array(key, "uint64")[:, None]
    for _ in range(ROUNDS):
        product = (MULTIPLIERS * even)[::-1]
        even, odd = (product >> BITS) ^ odd ^ (added & WORD), product & WORD
        added = added + WEYL
    return np.stack([even[0], odd[0], even[1], odd[1]])


def uniform(seed: int, epoch: int, images: Sequence[int], draws: int) -> np.ndarray:
    """Return uniform random numbers in [0, 1) for each image: (images, draws) float64.

    `images` are numbers below 2^56, as `order` and `balanced_order` return them.
    """
    if not draws:
        return np.empty((len(images), 0))
    blocks, numbers = -(-draws // 4), np.asarray(images, "uint64")[:, None]
    counters = np.empty((4, len(images), blocks), "uint64")
    counters[0], counters[1], counters[2] = np.arange(blocks), numbers & WORD, epoch
    counters[3] = numbers >> BITS << STREAM_BITS | np.uint64(AUGMENTATION)
    words = philox(counters.reshape(4, -1), (seed, 0)).reshape(4, len(images), blocks)
    return words.transpose(1, 2, 0).reshape(len(images), -1)[:, :draws] * 2.0**-32


def order(seed: int, epoch: int, count: int) -> np.ndarray:
    """Return a random permutation of `count` images: each gets 64 random bits, by which they are sorted."""
    return np.argsort(_random_bits(seed, epoch, count, ORDER), kind="stable")


def balanced_order(seed: int, epoch: int, labels: np.ndarray) -> np.ndarray:
    """Return as many draws as there are images, in which all classes occur equally often.

    The order is made of rounds: one image of every class, the classes in random order. Wherever an epoch ends, the
    classes had equally many images, or one less. Each class takes its images in random order, and again in that order
    when they are used up.

    Args:
        labels: Of each image, (count,).

    Returns:
        (count,) numbers: image i, drawn for the r-th time from 0, is i + r x count. Repetitions are augmented
        differently, because random numbers belong to such a number.
    """
    count = len(labels)
    _, class_of, sizes = np.unique(labels, return_inverse=True, return_counts=True)
    shuffled = order(seed, epoch, count)
    by_class = shuffled[np.argsort(class_of[shuffled], kind="stable")]
    first_of_class = np.cumsum(sizes) - sizes  # its place in by_class
    # In round r a class of n images gives its image r modulo n, which it has given r // n times before
    rounds = np.arange(-(-count // len(sizes)))[:, None]  # (rounds, 1), beside (classes,)
    draws = by_class[first_of_class + rounds % sizes] + rounds // sizes * count  # (rounds, classes)
    keys = _random_bits(seed, epoch, draws.size, ROUNDS_OF_CLASSES).reshape(draws.shape)
    order_of_classes = np.argsort(keys, axis=1, kind="stable")  # in each round
    return np.take_along_axis(draws, order_of_classes, axis=1).ravel()[:count]


def _random_bits(seed: int, epoch: int, count: int, stream: int) -> np.ndarray:
    """Return 64 random bits for each of `count` numbers: (count,) uint64."""
    counters = np.zeros((4, count), "uint64")
    counters[1], counters[2], counters[3] = np.arange(count), epoch, stream
    high, low, _, _ = philox(counters, (seed, 0))
    return high << BITS | low
