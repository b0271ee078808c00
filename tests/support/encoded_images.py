"""Images in file formats, and their pixels."""

import io
import struct
import zlib

import numpy as np
from PIL import Image


def written(image, name, **options) -> bytes:
    out = io.BytesIO()
    image.save(out, name, **options)
    return out.getvalue()


def pixels(image):
    values = np.asarray(image)
    assert values.dtype == np.uint8 and values.shape[2:] == (3,)
    return values.astype(int)


def turned(content: bytes, orientation: int) -> bytes:
    """Return a JPEG with an EXIF segment of that orientation: one big-endian entry."""
    entry = struct.pack(">HHIHH", 0x0112, 3, 1, orientation, 0)
    body = b"Exif\0\0" + b"MM\0*" + struct.pack(">IH", 8, 1) + entry + bytes(4)
    return content[:2] + b"\xff\xe1" + struct.pack(">H", len(body) + 2) + body + content[2:]


def png(rows, depth, colour_type, interlace=0, chunks=()) -> bytes:
    """Return a PNG of the given rows of bytes."""
    width = len(rows[0]) * 8 // (depth * {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}[colour_type])

    def chunk(name, body):
        return struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))

    header = struct.pack(">IIBBBBB", width, len(rows), depth, colour_type, 0, 0, interlace)
    body = zlib.compress(b"".join(b"\0" + row for row in rows))
    more = b"".join(chunk(*one) for one in chunks)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + more + chunk(b"IDAT", body) + chunk(b"IEND", b"")


def interlaced(image) -> bytes:
    """Return a PNG with the seven passes of Adam7."""
    passes = [(0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2), (0, 1, 1, 2)]
    values = np.asarray(image)
    parts = [values[y::high, x::wide] for x, y, wide, high in passes]
    rows = b"".join(b"\0" + row.tobytes() for part in parts if part.size for row in part)
    plain = png([bytes(3 * image.width)] * image.height, 8, 2, interlace=1)
    start, end = plain.index(b"IDAT") - 4, plain.index(b"IEND") - 4
    body = b"IDAT" + zlib.compress(rows)
    return plain[:start] + struct.pack(">I", len(body) - 4) + body + struct.pack(">I", zlib.crc32(body)) + plain[end:]


def wild(photo):
    """Return {name: (content, whether MXNet's reader decodes it as `decode` does)}."""
    clear = photo.convert("RGBA")
    clear.putalpha(Image.fromarray(np.tile(np.arange(40, dtype="uint8") * 6, (30, 1))))
    jpeg, grey = written(photo, "JPEG", quality=95), np.arange(1200, dtype="uint16").reshape(30, 40) * 54
    return {
        "jpeg": (jpeg, True),
        "progressive": (written(photo, "JPEG", quality=95, progressive=True), True),
        "grey jpeg": (written(photo.convert("L"), "JPEG"), True),
        "turned jpeg": (turned(jpeg, 6), False),
        "upright by exif": (turned(jpeg, 1), True),
        "adobe cmyk": (written(photo.convert("CMYK"), "JPEG", quality=95), False),
        "png": (written(photo, "PNG"), True),
        "interlaced png": (interlaced(photo), True),
        "grey png": (written(photo.convert("L"), "PNG"), True),
        "1-bit png": (written(photo.convert("1"), "PNG"), True),
        "palette png": (written(photo.quantize(16), "PNG"), True),
        "palette with a clear entry": (written(photo.quantize(16), "PNG", transparency=3), False),
        "16-bit grey png": (written(Image.fromarray(grey), "PNG"), False),
        "16-bit colour png": (png([struct.pack(">HHH", 0x12FF, 0x8000, 0xFEDC) * 40] * 30, 16, 2), True),
        "alpha png": (written(clear, "PNG"), False),
        "bmp": (written(photo, "BMP"), True),
        "gif": (written(photo.quantize(16), "GIF"), False),
        "webp": (written(photo, "WEBP", lossless=True), False),
        "tiff": (written(photo, "TIFF"), False),
    }
