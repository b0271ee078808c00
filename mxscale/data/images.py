"""Decoding of image files to RGB pixels, by one policy for every format, and packing of them.

| in the file                | result                                                               |
|----------------------------|----------------------------------------------------------------------|
| 1-bit, grey, palette, CMYK | RGB by Pillow's conversion; colour profiles are not applied           |
| 16-bit grey                | its 65,536 values scaled to 256                                       |
| 16-bit colour              | the upper 8 bits of each value                                        |
| transparency               | composited over white                                                 |
| EXIF orientation           | applied                                                               |
| several frames             | the first                                                             |
| a wrong extension          | decoded by content                                                    |
| truncated (missing_data.py), empty, not an image, over `MAX_PIXELS`, float or 32-bit values | `BadImage` |

MXNet decodes the images in a user's records. It ignores transparency, applies the orientation only of JPEG, and
reads few formats (OpenCV's imread, flag 1). If its result differs from the table, `examine` reports it, and the
record is encoded again.

Of the libraries only Pillow is imported, as in workers.py. An archive is not unpacked: a worker reads its image inside
the archive.
"""

import contextlib
import hashlib
import io
import math
import os
import warnings
from typing import NamedTuple, Optional, Tuple, Union

from PIL import Image, ImageOps, UnidentifiedImageError

from mxscale.data.missing_data import is_incomplete

Image.init()  # registers WebP, TIFF and others

# Formats of photographs. Others that Pillow reads are refused (EPS runs Ghostscript).
FORMATS = [
    name
    for name in ("JPEG", "PNG", "BMP", "DIB", "GIF", "WEBP", "TIFF", "PPM", "JPEG2000", "AVIF")
    if name in Image.OPEN
]
EXTENSIONS = (".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".jp2", ".avif")
MAX_PIXELS = 178_956_970  # Pillow's limit against decompression bombs: 512 MiB as RGB
MAX_JPEG_SIDE = 65_500  # of libjpeg
GAP = 2.0  # a JPEG is decoded at least this many times larger than requested, as in Pillow's thumbnails
POLICY = 3  # version of this module's policy, part of the cache key
# Format -> Pillow's modes that MXNet decodes to the same pixels, unless rotated or transparent.
SAME_IN_MXNET = {"JPEG": ("L", "RGB"), "MPO": ("L", "RGB"), "PNG": ("1", "L", "P", "RGB"), "BMP": ("RGB",)}
ORIENTATION = 0x0112  # EXIF


class BadImage(Exception):
    """An unusable image; `reason` is a short text on one line."""

    def __init__(self, reason: str):
        super().__init__(reason)
        self.reason = reason


class Slice(NamedTuple):
    """A range of bytes in a file, such as a member of a tar."""

    path: str
    offset: int
    size: int


Source = Union[str, os.PathLike, bytes, Slice]  # a path, content, or a part of a file


class Recipe(NamedTuple):
    """How images are packed."""

    pack_format: str  # jpeg | png
    quality: int  # of JPEG, 1-100
    pack_size: Optional[int]  # shorter side in pixels; None: unchanged
    min_side: int  # images with a shorter side than this are bad


class Packed(NamedTuple):
    image: bytes  # encoded
    size: Tuple[int, int]  # height, width
    key: bytes  # of the bytes before packing: equal for exact copies


class Examined(NamedTuple):
    side: int  # the shorter side in pixels
    same_in_mxnet: bool  # MXNet decodes the same pixels
    key: bytes  # as in Packed


def repack(source: Source, recipe: Recipe) -> Packed:
    """Return the image packed by `recipe`. Raises BadImage."""
    content = read(source)
    image = decode(content, recipe.min_side, recipe.pack_size)
    return Packed(*encode(image, recipe.pack_format, recipe.quality, recipe.pack_size), _key_of(content))


def examine(source: Source, min_side: int) -> Examined:
    """Decode an image and return its properties. Raises BadImage."""
    content = read(source)
    with _errors():
        image = _loaded(content, min_side)
        return Examined(min(_rgb(_upright(image)).size), _same_in_mxnet(image), _key_of(content))


def _key_of(content: bytes) -> bytes:
    """Return half of a SHA-256, which identifies an image and saves memory: one key per image is stored."""
    return hashlib.sha256(content).digest()[:16]


def size_of(content: bytes) -> Tuple[int, int]:
    """Return (width, height) from the header of an image. Raises BadImage."""
    with _errors():
        return _opened(content).size


def _same_in_mxnet(image: Image.Image) -> bool:
    plain = image.mode in SAME_IN_MXNET.get(image.format, ()) and "transparency" not in image.info
    return plain and image.getexif().get(ORIENTATION, 1) == 1


def decode(source: Source, min_side: int = 1, wanted: Optional[int] = None) -> Image.Image:
    """Return an upright RGB image.

    Args:
        min_side: Images with a shorter side below this are bad.
        wanted: The shorter side that it will be resized to. A JPEG of at least twice that size is decoded at a
            half, a quarter or an eighth of its size.

    Raises:
        BadImage: The image is unusable.
    """
    with _errors():
        return _rgb(_upright(_loaded(read(source), min_side, wanted)))


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


def _opened(content: bytes) -> Image.Image:
    """Return the image with its header read."""
    if not content:
        raise BadImage("empty file")
    image = Image.open(io.BytesIO(content), formats=FORMATS)
    _refuse_huge(*image.size)
    return image


def _loaded(content: bytes, min_side: int, wanted: Optional[int] = None) -> Image.Image:
    """Return the image as it is in the file, or reduced as in `decode`."""

    def load(content: bytes) -> Image.Image:
        image = _opened(content)
        _refuse_small(image, min_side)
        if wanted:
            scale = GAP * wanted / min(image.size)
            image.draft(None, (math.ceil(image.width * scale), math.ceil(image.height * scale)))
        image.load()
        return image

    image = load(content)
    if is_incomplete(image, content, load):
        raise BadImage("truncated: data of some pixels is missing")
    return image


def _refuse_small(image: Image.Image, min_side: int) -> None:
    width, height = image.size
    if min(image.size) < min_side:
        raise BadImage(f"{width}x{height} pixels, smaller than {min_side} (data.min_side)")


def encode(image: Image.Image, pack_format: str, quality: int, pack_size: Optional[int] = None):
    """Return an RGB image as JPEG or PNG bytes, and its (height, width).

    The same image and library versions give the same bytes.

    Args:
        pack_format: "jpeg" or "png".
        quality: Of JPEG, 1-100.
        pack_size: The shorter side is resized to it, down or up (bicubic with antialiasing), the other in
            proportion. None: unchanged.

    Raises:
        BadImage: The result would be too large.
    """
    width, height = image.size
    if pack_size and pack_size != min(width, height):
        scale = pack_size / min(width, height)
        width, height = max(pack_size, round(width * scale)), max(pack_size, round(height * scale))
        _refuse_huge(width, height)
        # reducing_gap: a fast box reduction to 3x the size first; no visible difference
        image = image.resize((width, height), Image.Resampling.BICUBIC, reducing_gap=3.0)
    out = io.BytesIO()
    if pack_format == "png":
        image.save(out, "PNG", compress_level=6)
    else:
        if max(width, height) > MAX_JPEG_SIDE:
            raise BadImage(f"{width}x{height} pixels: a JPEG side has at most {MAX_JPEG_SIDE}")
        image.save(out, "JPEG", quality=quality, subsampling="4:2:0")
    return out.getvalue(), (height, width)


def read(source: Source) -> bytes:
    """Return the content of an image file. Raises BadImage."""
    if isinstance(source, bytes):
        return source
    path, offset, size = source if isinstance(source, Slice) else (source, 0, -1)
    try:
        if os.path.exists(path) and not os.path.isfile(path):  # reading from a pipe would block
            raise BadImage("not a file")
        with open(path, "rb") as file:
            file.seek(offset)
            content = file.read(size)
    except OSError as error:
        raise BadImage(error.strerror or str(error)) from None
    if len(content) < size:
        raise BadImage("its archive is truncated inside it")
    return content


def _refuse_huge(width: int, height: int) -> None:
    if width * height > MAX_PIXELS:
        raise BadImage(f"{width}x{height} pixels, more than {MAX_PIXELS:,}")


def _upright(image: Image.Image) -> Image.Image:
    try:
        return ImageOps.exif_transpose(image)
    except Exception:  # invalid EXIF: the pixels are valid
        return image


def _rgb(image: Image.Image) -> Image.Image:
    if image.mode == "I" or image.mode.startswith("I;16"):
        image = _from_16_bit(image)
    elif image.mode == "F":
        raise BadImage("floating-point values of unknown range")
    if image.mode in ("LA", "La", "PA", "RGBA", "RGBa") or "transparency" in image.info:
        white = Image.new("RGBA", image.size, "white")
        white.alpha_composite(image.convert("RGBA"))
        image = white
    image = image.convert("RGB")
    image.info = {}  # encoders would write its colour profile and comments
    return image


def _from_16_bit(image: Image.Image) -> Image.Image:
    import numpy as np  # imported here, because most workers do not need it

    values = np.asarray(image).astype(np.int64)
    if values.min() < 0 or values.max() > 65_535:
        raise BadImage("32-bit values of unknown range")
    return Image.fromarray(((values * 255 + 32_767) // 65_535).astype(np.uint8))


def one_line(error: BaseException) -> str:
    """Return the message of an error of a library as one short line."""
    return " ".join(str(error).split())[:120] or type(error).__name__
