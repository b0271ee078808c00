"""Gradients in transit: what is sent of a bucket, one class for each entry of config/backends.py."""

import math
from typing import List

from mxnet import nd


def is_half(array: nd.NDArray) -> bool:
    return array.dtype().itemsize == 2


class Wire:
    """What is sent of a bucket: its flat arrays, or copies of them. float16 gradients are sent as float32.

    A subclass encodes differently. What it sends is summed, so all ranks must send the same dtype and scale.

    Args:
        images: The number of images that a gradient is summed over.
        divisor: See Exchange. At least the number of addends, by which float16 gradients are divided before they are
            sent, so that no sum overflows.
        copies: Backward must not overwrite what is under way.
    """

    dtype = "float32"

    def __init__(self, bucket, name: str, images: int = 1, divisor: int = 1, copies: bool = False):
        self.bucket, self.name, self.divisor = bucket, name, divisor
        narrow = is_half(bucket.flats[0])
        self.scale = divisor if narrow else self.scale_of(images)
        self.unscale = self.scale / divisor
        self.arrays = bucket.flats
        if copies or narrow or bucket.residuals or self.dtype != "float32":
            self.arrays = [nd.zeros(flat.shape, ctx=flat.context, dtype=self.dtype) for flat in bucket.flats]

    def scale_of(self, images: int) -> float:
        """Return what float32 gradients are divided by before they are sent."""
        return self.divisor

    def encode(self, total: nd.NDArray, array: nd.NDArray) -> None:
        """Write float32 numbers to the array that is sent."""
        if array is not total:
            nd.cast(total, dtype=array.dtype, out=array)

    def pack(self) -> List[nd.NDArray]:
        """Return the arrays to sum in place, one for each replica."""
        residuals = self.bucket.residuals
        for replica, (total, array) in enumerate(zip(self.bucket.sums(), self.arrays)):
            if self.scale != 1:
                total /= self.scale
            if residuals:
                total += residuals[replica] / self.scale
            self.encode(total, array)
            if residuals:
                residuals[replica][:] = (total - array.astype("float32")) * self.scale
        return self.arrays

    def unpack(self) -> None:
        for flat, array in zip(self.bucket.flats, self.arrays):
            if array is not flat:
                nd.cast(array, dtype=flat.dtype, out=flat)
            if self.unscale != 1:
                flat *= self.unscale

    def restore(self) -> None:
        """Write the sums in the bucket to the arrays, so that `unpack` returns them."""
        for flat, array in zip(self.bucket.flats, self.arrays):
            nd.cast(flat.astype("float32") / self.unscale, dtype=array.dtype, out=array)


class Float16(Wire):
    """float16, which ends at 65,504: sums over images are first divided by the nearest power of two, without loss."""

    dtype = "float16"

    def scale_of(self, images: int) -> float:
        return 2.0 ** round(math.log2(images))
