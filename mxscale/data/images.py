"""Any image file -> RGB pixels, or the reason why not: one policy for every format.

| in the file                | becomes                                                             |
|----------------------------|---------------------------------------------------------------------|
| 1-bit, grey, palette, CMYK | RGB, by Pillow's conversion; colour profiles are not applied         |
| 16-bit grey                | its 65,536 values scaled to 256                                      |
| 16-bit colour              | the upper 8 bits of each                                             |
| transparency               | laid over white                                                      |
| EXIF orientation           | applied                                                              |
| several frames             | the first                                                            |
| a wrong extension          | decoded by content                                                   |
| truncated, empty, no image, over `MAX_PIXELS`, float or 32-bit values | `BadImage`                |

Images in records that people bring are decoded by MXNet, which lays nothing over white, turns nothing
but JPEG, and reads few formats (OpenCV's imread, flag 1).  Where that gives another picture than the
table, `examine` says so, and the record is written anew.
"""

import contextlib
import io
import math
import os
import warnings
from typing import NamedTuple, Optional, Tuple, Union

from PIL import Image, ImageOps, UnidentifiedImageError

Image.init()  # WebP, TIFF and others are registered by this alone

# Those that photographs come in.  Others that Pillow reads (EPS runs Ghostscript) are refused.
FORMATS = [
    name
    for name in ("JPEG", "PNG", "BMP", "DIB", "GIF", "WEBP", "TIFF", "PPM", "JPEG2000", "AVIF")
    if name in Image.OPEN
]
EXTENSIONS = (".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp", ".tif", ".tiff")
MAX_PIXELS = 178_956_970  # Pillow's limit against decompression bombs: 512 MiB as RGB
MAX_JPEG_SIDE = 65_500  # of libjpeg
GAP = 2.0  # a JPEG is decoded at least this many times larger than wanted: Pillow's own choice for thumbnails
POLICY = 2  # of this module: where it changes, sets are packed again
# Format -> modes of Pillow that MXNet's reader sees as we do, unless turned or transparent.
ALIKE = {"JPEG": ("L", "RGB"), "MPO": ("L", "RGB"), "PNG": ("1", "L", "P", "RGB"), "BMP": ("RGB",)}
ORIENTATION = 0x0112  # EXIF


class BadImage(Exception):
    """An image that can't be used; `reason` is a few words on one line."""

    def __init__(self, reason: str):
        super().__init__(reason)
        self.reason = reason


class Recipe(NamedTuple):
    """How images are packed."""

    pack_format: str  # jpeg | png
    quality: int  # of JPEG, 1-100
    pack_size: Optional[int]  # shorter side in pixels; None: as it is
    min_side: int  # images with a shorter side than this are bad


class Examined(NamedTuple):
    side: int  # the shorter one, in pixels
    alike: bool  # MXNet's reader sees the picture that we see


def repack(source: Union[str, bytes], recipe: Recipe) -> Tuple[bytes, Tuple[int, int]]:
    """An image file (path or content) -> encoded bytes and their (height, width).  Raises BadImage."""
    image = decode(source, recipe.min_side, recipe.pack_size)
    return encode(image, recipe.pack_format, recipe.quality, recipe.pack_size)


def examine(source: Union[str, bytes], min_side: int) -> Examined:
    """What there is to know of an image file (path or content) that is read in its place.  Raises BadImage."""
    with _opened(source) as image:
        _refuse_small(image, min_side)
        image.load()
        return Examined(min(_rgb(_upright(image)).size), _alike(image))


def size_of(content: bytes) -> Tuple[int, int]:
    """(width, height) that an image's header tells.  Raises BadImage."""
    with _opened(content) as image:
        return image.size


def _alike(image: Image.Image) -> bool:
    plain = image.mode in ALIKE.get(image.format, ()) and "transparency" not in image.info
    return plain and image.getexif().get(ORIENTATION, 1) == 1


def decode(source: Union[str, os.PathLike, bytes], min_side: int = 1, wanted: Optional[int] = None) -> Image.Image:
    """An image file's path or content -> its RGB image, upright.  Raises BadImage.

    min_side: images with a shorter side than this are bad.  wanted: the shorter side that it will be
    resized to; a JPEG of twice that and more is decoded at a half, a quarter or an eighth of its size.
    """
    with _opened(source) as image:
        _refuse_small(image, min_side)
        if wanted:
            scale = GAP * wanted / min(image.size)
            image.draft(None, (math.ceil(image.width * scale), math.ceil(image.height * scale)))
        image.load()
        return _rgb(_upright(image))


@contextlib.contextmanager
def _opened(source: Union[str, os.PathLike, bytes]):
    """The image, its header read; whatever goes wrong with it in the `with` is a BadImage."""
    content = source if isinstance(source, bytes) else read(source)
    if not content:
        raise BadImage("empty file")
    try:
        with warnings.catch_warnings():  # odd metadata is no concern of ours
            warnings.simplefilter("ignore")
            image = Image.open(io.BytesIO(content), formats=FORMATS)
            _refuse_huge(*image.size)
            yield image
    except BadImage:
        raise
    except UnidentifiedImageError:
        raise BadImage("no image of a known format") from None
    except Image.DecompressionBombError:
        raise BadImage(f"more than {MAX_PIXELS:,} pixels") from None
    except Exception as error:  # decoders raise all sorts of things on broken files
        raise BadImage(_one_line(error)) from None


def _refuse_small(image: Image.Image, min_side: int) -> None:
    width, height = image.size
    if min(image.size) < min_side:
        raise BadImage(f"{width}x{height} pixels, smaller than {min_side} (data.min_side)")


def encode(image: Image.Image, pack_format: str, quality: int, pack_size: Optional[int] = None):
    """RGB image -> (JPEG or PNG bytes, (height, width)).

    pack_size: the shorter side is resized to it, down or up (bicubic, with antialiasing), the
    other in proportion.  The same image and library versions give the same bytes.  Raises BadImage
    where the result would be too large.
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
            raise BadImage(f"{width}x{height} pixels: a JPEG side has {MAX_JPEG_SIDE} at most")
        image.save(out, "JPEG", quality=quality, subsampling="4:2:0")
    return out.getvalue(), (height, width)


def read(path) -> bytes:
    """An image file's content.  Raises BadImage."""
    try:
        if os.path.exists(path) and not os.path.isfile(path):  # reading a pipe would never end
            raise BadImage("not a file")
        with open(path, "rb") as file:
            return file.read()
    except OSError as error:
        raise BadImage(error.strerror or str(error)) from None


def _refuse_huge(width: int, height: int) -> None:
    if width * height > MAX_PIXELS:
        raise BadImage(f"{width}x{height} pixels, more than {MAX_PIXELS:,}")


def _upright(image: Image.Image) -> Image.Image:
    try:
        return ImageOps.exif_transpose(image)
    except Exception:  # unreadable EXIF: the pixels are fine
        return image


def _rgb(image: Image.Image) -> Image.Image:
    if image.mode == "I" or image.mode.startswith("I;16"):
        image = _from_16_bit(image)
    elif image.mode == "F":
        raise BadImage("floating-point values, whose range is not known")
    if image.mode in ("LA", "La", "PA", "RGBA", "RGBa") or "transparency" in image.info:
        white = Image.new("RGBA", image.size, "white")
        white.alpha_composite(image.convert("RGBA"))
        image = white
    image = image.convert("RGB")
    image.info = {}  # or encoders would write its colour profile and comments
    return image


def _from_16_bit(image: Image.Image) -> Image.Image:
    import numpy as np  # here: most workers never need it

    values = np.asarray(image).astype(np.int64)
    if values.min() < 0 or values.max() > 65_535:
        raise BadImage("32-bit values, whose range is not known")
    return Image.fromarray(((values * 255 + 32_767) // 65_535).astype(np.uint8))


def _one_line(error: Exception) -> str:
    text = " ".join(str(error).split())
    return text[:120] if text else type(error).__name__
