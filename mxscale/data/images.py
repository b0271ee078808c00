"""Decoding of image files to RGB pixels, by one policy for every format, and packing of them.

| in the file                | result                                                               |
|----------------------------|----------------------------------------------------------------------|
| 1-bit, grey, palette, CMYK | RGB by Pillow's conversion; colour profiles are not applied           |
| 16-bit grey                | its 65,536 values scaled to 256                                       |
| 16-bit colour              | the upper 8 bits of each value                                        |
| 32-bit integers            | as 16-bit grey; a TIFF's unchanged if none is above 255               |
| transparency               | composited over white                                                 |
| EXIF orientation           | applied                                                               |
| several frames             | the first                                                             |
| a wrong extension          | decoded by content                                                    |
| truncated or damaged (missing_data.py), empty, not an image, over `MAX_PIXELS`, float or 32-bit values | `BadImage` |

MXNet decodes the images in a user's records. It ignores transparency, applies the orientation only of JPEG, and
reads few formats (OpenCV's imread, flag 1). If its result differs from the table, `examine` reports it, and the
record is encoded again.

Pillow reads the header and decodes. libjpeg-turbo itself decodes a plain JPEG to the same pixels in less time. An
archive is not unpacked: a worker reads its image inside the archive.

MLflow's model has a copy of this module (serve/register.py), so that serving decodes as everything else.
"""

import contextlib
import hashlib
import importlib
import io
import math
import os
import warnings
from typing import NamedTuple, Optional, Union

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

from mxscale.data.missing_data import fault, has_one_scan, simplejpeg
from mxscale.util.regular_files import open_regular

for plugin in ("Tiff", "WebP", "Jpeg2K", "Avif"):  # Pillow registers the others when it opens an image
    with contextlib.suppress(ImportError):
        importlib.import_module(f"PIL.{plugin}ImagePlugin")
Image.preinit()

# Formats of photographs. Others that Pillow reads are refused (EPS runs Ghostscript).
FORMATS = [
    name
    for name in ("JPEG", "PNG", "BMP", "DIB", "GIF", "WEBP", "TIFF", "PPM", "JPEG2000", "AVIF")
    if name in Image.OPEN
]
EXTENSIONS = (".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".jp2", ".avif")
MAX_PIXELS = 178_956_970  # of an image that Pillow opens, its limit against decompression bombs: 512 MiB as RGB
MAX_FILE_MIB = 512
GAP = 2.0  # a JPEG is decoded at least this many times larger than requested, as in Pillow's thumbnails
POLICY = 4  # version of the table above, part of the cache key; sets packed before damage was refused are found again
# Format -> Pillow's modes that MXNet decodes to the same pixels, unless rotated or transparent.
SAME_IN_MXNET = {"JPEG": ("L", "RGB"), "MPO": ("L", "RGB"), "PNG": ("1", "L", "P", "RGB"), "BMP": ("RGB",)}
ORIENTATION = 0x0112  # EXIF


class BadImage(Exception):
    """An unusable image; the message is a short text on one line."""


class Slice(NamedTuple):
    """A range of bytes in a file, such as a member of a tar."""

    path: str
    offset: int
    size: int


Source = Union[str, os.PathLike, bytes, Slice]  # a path, content, or a part of a file


class Examined(NamedTuple):
    side: int  # the shorter side in pixels
    same_in_mxnet: bool  # MXNet decodes the same pixels
    key: bytes  # of the bytes of the file: equal for exact copies


def examine(source: Source, min_side: int = 1) -> Examined:
    """Decode an image and return its properties. Raises BadImage, also for a shorter side of less than `min_side`."""
    content = read(source)
    with _errors():
        image = _loaded(content, min_side)
        return Examined(min(_rgb(image).size), _same_in_mxnet(image), key_of(content))


def key_of(content: bytes) -> bytes:
    """Return half of a SHA-256, which identifies an image and saves memory: one key per image is stored."""
    return hashlib.sha256(content).digest()[:16]


def _same_in_mxnet(image: Image.Image) -> bool:
    plain = image.mode in SAME_IN_MXNET.get(image.format, ()) and "transparency" not in image.info
    return plain and image.getexif().get(ORIENTATION, 1) == 1


def decode(source: Source, min_side: int = 1, wanted: Optional[int] = None) -> np.ndarray:
    """Return the upright RGB pixels of an image.

    Args:
        min_side: Images with a shorter side of fewer pixels are unusable.
        wanted: The shorter side that it will be resized to. A JPEG of at least twice that size is decoded at a
            half, a quarter or an eighth of its size.

    Raises:
        BadImage: The image is unusable.
    """
    content = read(source)
    with _errors():
        pixels = _plain_jpeg(content, min_side, wanted)
        return np.asarray(_rgb(_loaded(content, min_side, wanted))) if pixels is None else pixels


@contextlib.contextmanager
def _errors():
    """Raise every error in the block as BadImage."""
    try:
        with warnings.catch_warnings():  # invalid metadata does not matter here
            warnings.simplefilter("ignore")
            yield
    except BadImage:
        raise
    except UnidentifiedImageError:
        raise BadImage("not an image of a known format") from None
    except Image.DecompressionBombError:
        raise BadImage(f"more than {MAX_PIXELS:,} pixels") from None
    except Exception as error:  # decoders raise exceptions of many types for damaged files
        raise BadImage(one_line(error)) from None


def _plain_jpeg(content: bytes, min_side: int, wanted: Optional[int]) -> Optional[np.ndarray]:
    """Return the pixels of a JPEG that needs no care; None if Pillow and missing_data have to judge it."""
    image = _to_decode(content, min_side, wanted)
    if simplejpeg is None or image.format != "JPEG" or image.mode not in ("L", "RGB"):
        return None
    if not has_one_scan(image, content) or not _is_upright(image):
        return None
    width, height = image.size
    try:
        return simplejpeg.decode_jpeg(content, "RGB", min_height=height, min_width=width)
    except ValueError:  # also for a warning
        return None


def _to_decode(content: bytes, min_side: int, wanted: Optional[int]) -> Image.Image:
    """Return the image with its header read and checked, set to the size at which it will be decoded."""
    if not content:
        raise BadImage("empty file")
    image = Image.open(io.BytesIO(content), formats=FORMATS)
    if min(image.size) < min_side:
        raise BadImage(f"{image.width}x{image.height} pixels, smaller than {min_side} (data.min_side)")
    if wanted:
        scale = GAP * wanted / min(image.size)
        image.draft(None, (math.ceil(image.width * scale), math.ceil(image.height * scale)))
    return image


def _loaded(content: bytes, min_side: int, wanted: Optional[int] = None) -> Image.Image:
    """Return the image as it is in the file, or reduced as in `decode`."""
    image = _to_decode(content, min_side, wanted)
    image.load()
    if reason := fault(image, content):
        raise BadImage(reason)
    return image


def read(source: Source) -> bytes:
    """Return the content of an image file. Raises BadImage."""
    if isinstance(source, bytes):
        return source
    path, offset, size = source if isinstance(source, Slice) else (source, 0, None)
    try:
        with open_regular(path) as file:
            size = os.fstat(file.fileno()).st_size if size is None else size
            if size > MAX_FILE_MIB << 20:
                raise BadImage(f"{size >> 20:,} MiB, more than {MAX_FILE_MIB}")
            file.seek(offset)
            content = file.read(size)
    except OSError as error:
        raise BadImage(error.strerror or str(error)) from None
    if len(content) < size:
        raise BadImage("its archive is truncated inside it")
    return content


def _is_upright(image: Image.Image) -> bool:
    try:
        return image.getexif().get(ORIENTATION, 1) not in range(2, 9)
    except Exception:  # invalid EXIF: Pillow's decoder ignores it
        return False


def _upright(image: Image.Image) -> Image.Image:
    try:
        return ImageOps.exif_transpose(image)
    except Exception:  # invalid EXIF: the pixels are valid
        return image


def _rgb(loaded: Image.Image) -> Image.Image:
    """Return an image upright and in RGB."""
    image = _upright(loaded)
    if image.mode == "I" or image.mode.startswith("I;16"):
        image = _eight_bit(image, is_tiff=loaded.format == "TIFF")
    elif image.mode == "F":
        raise BadImage("floating-point values of unknown range")
    if image.mode in ("LA", "La", "PA", "RGBA", "RGBa") or "transparency" in image.info:
        white = Image.new("RGBA", image.size, "white")
        white.alpha_composite(image.convert("RGBA"))
        image = white
    image = image.convert("RGB")
    image.info = {}  # encoders would write its colour profile and comments
    return image


def _eight_bit(image: Image.Image, is_tiff: bool) -> Image.Image:
    """Return a grey image of 16 or 32 bits with 8 bits."""
    values = np.asarray(image)
    if values.min() < 0 or values.max() > 65_535:
        raise BadImage("32-bit values of unknown range")
    if is_tiff and image.mode == "I" and values.max() <= 255:
        return Image.fromarray(values.astype(np.uint8))
    scaled = (np.arange(65_536) * 255 + 32_767) // 65_535
    return Image.fromarray(scaled.astype(np.uint8)[values])


def one_line(error: BaseException) -> str:
    """Return the message of an error of a library as one short line."""
    return " ".join(str(error).split())[:120] or type(error).__name__
