"""Image files: formats, modes, sizes, metadata and damage. A valid one is packed to the pixels that Pillow decodes."""

import io
import re
import struct
import zlib
from functools import partial
from pathlib import Path

import numpy as np
from PIL import Image, ImageOps

from .case import DONE, REFUSED, Case, choice, nothing
from .damage import BYTES, NODES, damaged_bytes, place

SIDE = 8  # data.image_size, the smallest
MODES = {
    "JPEG": ("RGB", "L", "CMYK"), "PNG": ("RGB", "L", "1", "P", "RGBA", "LA", "I;16"), "BMP": ("RGB", "L", "1", "P"),
    "GIF": ("L", "P"), "WEBP": ("RGB", "RGBA"), "TIFF": ("RGB", "L", "1", "P", "RGBA", "CMYK", "I;16", "I", "F"),
    "PPM": ("RGB", "L"), "JPEG2000": ("RGB", "L", "RGBA"), "AVIF": ("RGB", "RGBA"),
}  # fmt: skip
EXTENSIONS = {"JPEG": "jpg", "TIFF": "tif", "JPEG2000": "jp2", "PPM": "png"}
CERTAIN = ("ended early", "more rows", "text", "empty", *NODES[3:])  # damage that must be refused


def make(draw, folder: Path, command: bool) -> Case:
    root = folder / "input" / "photos"
    for label, name in enumerate(("ant", "bee")):
        (root / name).mkdir(parents=True)
        for number in range(4):
            Image.new("RGB", (20, 16), (number, label, 200)).save(root / name / f"{number}.png")
    form = choice(draw, [form for form in MODES if form in Image.SAVE])
    mode, size = choice(draw, MODES[form]), tuple(int(n) for n in draw.integers(1, 60, size=2))
    content = encoded(draw, form, mode, size)
    how = choice(draw, ("nothing",) * 6 + BYTES + ("ended early", "more rows", "text") + NODES)
    path = root / "bee" / f"new.{EXTENSIONS.get(form, form.lower())}"
    if how in NODES:
        place(path, how)
    else:
        path.write_bytes(changed(draw, content, form, how))
    expect = REFUSED if how in CERTAIN or (mode == "F" and how == "nothing") else None
    if how in ("nothing", "missing") and mode != "F" and min(size) >= SIDE:
        expect = DONE
    complete = how in ("nothing", "cut", "appended")  # a cut may leave all pixels: then they are packed
    if how == "more rows" and form not in ("JPEG", "PNG"):
        expect = None
    settings = ["data=imagefolder", f"data.root={root}", f"data.image_size={SIDE}", "data.pack_format=png"]
    argv = ["train", *settings, "model=small", "data.pack_short_side=original", "max_steps=1", "batch.per_device=2",
            "comm=local", "launch.ranks=1", "tracking=none", f"runs={folder}/runs",
            f"data.cache={folder}/cache"]  # fmt: skip
    return Case(
        f"{form} {mode} {size[0]}x{size[1]}, {how}",
        argv,
        (str(root), "data.root"),
        partial(pack, folder, root=str(root), image_size=SIDE),
        expect,
        partial(same_pixels, folder, content) if complete and min(size) >= SIDE else nothing,
    )


def pack(folder: Path, **settings) -> None:
    """Pack a folder of images as the preparation does."""
    from mxscale.config.schema import Data
    from mxscale.data import pack

    pack.prepare(Data(kind="imagefolder", cache=str(folder / "cache"), pack_format="png", **settings), workers=1)


def encoded(draw, form: str, mode: str, size) -> bytes:
    """Return an image of random smooth colours, with random metadata."""
    y, x = np.mgrid[0 : size[1], 0 : size[0]]
    values = np.stack([(x * a + y * b) % 256 for a, b in draw.integers(1, 9, size=(4, 2))], -1).astype("uint8")
    if mode == "I;16":
        image = Image.fromarray(values[..., 0].astype("uint16") * 257)
    elif mode in ("I", "F"):
        image = Image.fromarray(values[..., 0].astype("int32" if mode == "I" else "float32"))
    elif mode in ("RGBA", "CMYK"):
        image = Image.fromarray(values, mode)
    else:
        image = Image.fromarray(values[..., :3]).convert(mode)
    options = {}
    if draw.random() < 0.4 and form in ("JPEG", "PNG", "WEBP", "TIFF"):
        exif = Image.Exif()
        exif[0x0112] = int(draw.integers(0, 12))  # 1 to 8 are valid
        exif[0x010E] = "a description"
        options["exif"] = exif
    if draw.random() < 0.2 and form in ("JPEG", "PNG", "TIFF"):
        options["icc_profile"] = draw.bytes(40)  # not a profile
    if form == "JPEG":
        options.update(progressive=bool(draw.random() < 0.3), quality=int(draw.integers(1, 100)))
    if form == "WEBP":
        options["lossless"] = True
    out = io.BytesIO()
    image.save(out, form, **options)
    return out.getvalue()


def changed(draw, content: bytes, form: str, how: str) -> bytes:
    if how == "ended early":  # cut in half, with the marker of the end
        end = {"JPEG": b"\xff\xd9", "PNG": b"\0\0\0\0IEND\xaeB`\x82", "GIF": b"\0;"}.get(form, b"")
        return content[: len(content) // 2] + end
    if how == "more rows":
        return with_more_rows(content, form)
    if how == "text":
        return choice(draw, (b"<!DOCTYPE html>\n<html>404</html>", b"\0" * 300, b"version https://git-lfs\n", b"x"))
    return content if how == "nothing" else damaged_bytes(draw, content, how)


def with_more_rows(content: bytes, form: str) -> bytes:
    """Return a JPEG or PNG whose header claims 40 more rows than it has."""
    changed = bytearray(content)
    if form == "PNG":
        changed[20:24] = struct.pack(">I", struct.unpack(">I", content[20:24])[0] + 40)
        changed[29:33] = struct.pack(">I", zlib.crc32(changed[12:29]))
    elif form == "JPEG":
        at = re.search(rb"\xff[\xc0\xc2]\x00[\x0b\x11\x14]\x08", content).start() + 5
        changed[at : at + 2] = struct.pack(">H", struct.unpack(">H", content[at : at + 2])[0] + 40)
    return bytes(changed)


def expected(content: bytes) -> np.ndarray:
    """Return the pixels by Pillow: upright, over white, 16 bits scaled to 8."""
    image = Image.open(io.BytesIO(content))
    image.load()
    image = ImageOps.exif_transpose(image)
    if image.mode.startswith("I"):  # an int32 image here has values of 0 to 255
        values = np.asarray(image).astype(float)
        shades = np.round(values / 257 if values.max() > 255 else values).astype("uint8")
        return np.stack([shades] * 3, -1)
    if image.mode in ("RGBA", "LA") or "transparency" in image.info:
        white = Image.new("RGBA", image.size, "white")
        white.alpha_composite(image.convert("RGBA"))
        image = white
    return np.asarray(image.convert("RGB"))


def same_pixels(folder: Path, content: bytes) -> None:
    """Assert that the packed set holds nine images, one of them with the pixels of the complete file."""
    packed = [pixels for _, _, pixels in records(folder)]
    assert len(packed) == 9, f"{len(packed)} of 9 images are packed"
    wanted = expected(content).astype(int)
    same = (abs(each.astype(int) - wanted).max() <= 1 for each in packed if each.shape == wanted.shape)
    assert any(same), "no packed image has the pixels that Pillow decodes"


def records(folder: Path):
    """Yield (split, label, pixels) of each record of the only packed set in the cache."""
    from mxscale.data import manifest, recordio

    (made,) = (folder / "cache").glob("*/manifest.json")
    found = manifest.load(made.parent)
    for split in found["splits"]:
        for record in recordio.scan(manifest.split_of(found, split).rec):
            yield split, int(record.label), np.asarray(Image.open(io.BytesIO(record.payload)))
