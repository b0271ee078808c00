"""Small record files whose images are known."""

import io

import mxnet as mx
import numpy as np
from PIL import Image

from mxscale.rundir.plan import Split


def make_records(folder, images, labels=None, name="set") -> Split:
    """Pack `images` (uint8 arrays, height x width x RGB) as PNG; labels are 0, 1, 2, ... unless given."""
    rec, idx = str(folder / f"{name}.rec"), str(folder / f"{name}.idx")
    writer = mx.recordio.MXIndexedRecordIO(idx, rec, "w")
    for number, image in enumerate(images):
        label = number if labels is None else labels[number]
        file = io.BytesIO()
        Image.fromarray(np.asarray(image, dtype="uint8")).save(file, "PNG")
        writer.write_idx(number, mx.recordio.pack(mx.recordio.IRHeader(0, float(label), number, 0), file.getvalue()))
    writer.close()
    return Split(len(images), rec, idx)


def flat(colour, side=8):
    """Return an image of one colour."""
    return np.full((side, side, 3), colour, dtype="uint8")


def numbered(folder, count, side=8) -> Split:
    """Image i is labelled i and its red is i % 256, its green i // 256."""
    return make_records(folder, [flat((i % 256, i // 256, 0), side) for i in range(count)], name=f"numbered{count}")


def noise(folder, count, side=24, labels=None) -> Split:
    """Write random images, for tests of crops and flips."""
    pixels = np.random.RandomState(0).randint(0, 256, (count, side, side, 3))
    return make_records(folder, pixels, labels, name=f"noise{count}")


def ramp(width=32, height=32):
    """Red grows by 7 with each column, green by 7 with each row; blue is 60."""
    image = np.zeros((height, width, 3), dtype="uint8")
    image[..., 0] = 7 * np.arange(width)
    image[..., 1] = 7 * np.arange(height)[:, None]
    image[..., 2] = 60
    return image
