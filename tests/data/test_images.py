"""Image decoding compared with Pillow, and refused files."""

import io
import math
import os
import resource
import struct
import zlib

import numpy as np
import pytest
from encoded_images import interlaced, pixels, png, turned, written
from PIL import Image

from mxscale.data.images import BadImage, decode

FORMATS = ["JPEG", "PNG", "BMP", "GIF", "WEBP", "TIFF"]
STORED = [("L", "PNG"), ("1", "PNG"), ("P", "PNG"), ("L", "JPEG"), ("CMYK", "JPEG"), ("CMYK", "TIFF")]


@pytest.mark.parametrize("mode, name", [*(("RGB", name) for name in FORMATS), *STORED])
def test_each_format_and_mode_decodes_as_in_pillow(photo, mode, name):
    content = written(photo.convert(mode), name)
    np.testing.assert_array_equal(pixels(decode(content)), pixels(Image.open(io.BytesIO(content)).convert("RGB")))


def test_progressive_jpegs_are_decoded(photo):
    plain, progressive = (decode(written(photo, "JPEG", quality=90, progressive=p)) for p in (False, True))
    np.testing.assert_array_equal(pixels(plain), pixels(progressive))


@pytest.mark.parametrize("name", ["PNG", "TIFF"])
def test_sixteen_bits_are_scaled_not_clipped(name):
    values = np.linspace(0, 65535, 30 * 40).reshape(30, 40).astype("uint16")
    got = pixels(decode(written(Image.fromarray(values), name)))
    np.testing.assert_allclose(got[..., 0], values / 257, atol=0.51)
    assert (got[..., 0] == got[..., 1]).all() and (got[..., 0] == got[..., 2]).all()


def test_transparency_is_composited_over_white():
    image = Image.new("RGBA", (4, 4), (200, 0, 0, 255))
    image.putpixel((1, 1), (0, 0, 0, 0))
    image.putpixel((2, 2), (0, 0, 0, 128))
    for name in ("PNG", "TIFF"):
        got = decode(written(image, name))
        assert got[0, 0].tolist() == [200, 0, 0]
        assert got[1, 1].tolist() == [255, 255, 255]
        assert got[2, 2] == pytest.approx([127, 127, 127], abs=1)


def test_transparent_palette_entries_become_white():
    image = Image.new("P", (4, 4), 1)
    image.putpalette([0, 0, 0, 10, 20, 30])
    image.putpixel((0, 0), 0)
    for name in ("PNG", "GIF"):
        got = decode(written(image, name, transparency=0))
        assert got[0, 0].tolist() == [255, 255, 255]
        assert got[1, 1].tolist() == [10, 20, 30]


# orientation -> transformation of the stored pixels (EXIF 2.3, table 6)
TURNS = {
    1: lambda p: p,
    2: lambda p: p[:, ::-1],
    3: lambda p: p[::-1, ::-1],
    4: lambda p: p[::-1],
    5: lambda p: p.swapaxes(0, 1),
    6: lambda p: np.rot90(p, -1),
    7: lambda p: p[::-1, ::-1].swapaxes(0, 1),
    8: lambda p: np.rot90(p),
}


@pytest.mark.parametrize("orientation", range(1, 9))
def test_the_exif_orientation_of_a_jpeg_is_applied(photo, orientation):
    content = written(photo, "JPEG", quality=95)
    stored = pixels(Image.open(io.BytesIO(content)))
    np.testing.assert_array_equal(pixels(decode(turned(content, orientation))), TURNS[orientation](stored))


@pytest.mark.parametrize("name", ["PNG", "TIFF", "WEBP"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_the_exif_orientation_of_other_formats_is_applied(photo, name, orientation):
    exif = Image.Exif()
    exif[0x0112] = orientation
    lossless = {"lossless": True} if name == "WEBP" else {}
    got = decode(written(photo, name, exif=exif, **lossless))
    np.testing.assert_array_equal(pixels(got), TURNS[orientation](pixels(photo)))


def test_invalid_exif_is_ignored(photo):
    content = written(photo, "JPEG")
    broken = content[:2] + b"\xff\xe1\0\x10Exif\0\0garbage!" + content[2:]
    np.testing.assert_array_equal(pixels(decode(broken)), pixels(decode(content)))
    np.testing.assert_array_equal(pixels(decode(turned(content, 99))), pixels(decode(content)))


def inked(colour, adobe=True, transform=0) -> bytes:
    """Return a CMYK JPEG of one colour (shares of ink), inverted as Adobe does; transform 2 marks it as YCCK."""
    values = tuple(round(255 * share) for share in colour)
    content = bytearray(written(Image.new("CMYK", (16, 16), values), "JPEG", quality=100, subsampling=0))
    at = content.index(b"\xff\xeeadobe".replace(b"adobe", b"\0\x0eAdobe"))
    content[at + 15] = transform
    return bytes(content if adobe else content[:at] + content[at + 16 :])


@pytest.mark.parametrize(
    "ink", [(0, 0, 0, 0), (1, 0, 0, 0), (0, 1, 0, 0), (0, 0, 1, 0), (0, 0, 0, 1), (0.5, 0.2, 0, 0.3)]
)
def test_cmyk_becomes_rgb(ink):
    *colours, black = ink
    paper = [255 * (1 - colour) * (1 - black) for colour in colours]
    assert pixels(decode(inked(ink)))[8, 8] == pytest.approx(paper, abs=2)
    # also without Adobe's marker: such files are inverted too, and Pillow reads them so
    assert pixels(decode(inked(ink, adobe=False)))[8, 8] == pytest.approx(paper, abs=2)


def test_ycck_decodes_as_in_pillow():
    content = inked((0.3, 0.5, 0.7, 0.2), transform=2)
    theirs = Image.open(io.BytesIO(content))
    assert theirs.mode == "CMYK"
    np.testing.assert_array_equal(pixels(decode(content)), pixels(theirs.convert("RGB")))


def test_sixteen_bit_colours_keep_their_upper_eight_bits():
    pixel = struct.pack(">HHH", 0x12FF, 0x8000, 0xFEDC)
    assert pixels(decode(png([pixel * 9] * 9, 16, 2)))[4, 4].tolist() == [0x12, 0x80, 0xFE]
    half = struct.pack(">HHHH", 0, 0, 0xFFFF, 0x8000)  # blue, half transparent
    assert pixels(decode(png([half * 9] * 9, 16, 6)))[4, 4] == pytest.approx([127, 127, 255], abs=1)
    grey = struct.pack(">HH", 0x4000, 0xFFFF)
    assert pixels(decode(png([grey * 9] * 9, 16, 4)))[4, 4] == pytest.approx([64] * 3, abs=1)


@pytest.mark.parametrize("depth", [1, 2, 4])
def test_grey_of_few_bits_is_scaled(depth):
    got = pixels(decode(png([bytes([0b00011011] * 4)] * 9, depth, 0)))[0, : 8 // depth, 0].tolist()
    assert got == {1: [0, 0, 0, 255, 255, 0, 255, 255], 2: [0, 85, 170, 255], 4: [17, 187]}[depth]


def test_transparent_png_colours_become_white():
    red, blue = bytes([200, 0, 0]), bytes([0, 0, 200])
    content = png([(red + blue) * 5] * 9, 8, 2, chunks=[(b"tRNS", struct.pack(">HHH", 0, 0, 200))])
    assert pixels(decode(content))[0, :2].tolist() == [[200, 0, 0], [255, 255, 255]]


def test_interlaced_pngs_are_decoded(photo):
    np.testing.assert_array_equal(pixels(decode(interlaced(photo))), pixels(photo))


def test_the_first_frame_of_an_animated_gif_is_used(photo):
    first = photo.quantize(16)
    content = written(first, "GIF", save_all=True, append_images=[Image.new("P", photo.size, 3)], duration=40)
    assert Image.open(io.BytesIO(content)).n_frames == 2
    np.testing.assert_array_equal(pixels(decode(content)), pixels(first.convert("RGB")))


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("extension", [".jpg", ".png", ".gif"])
def test_the_format_is_detected_by_content(photo, name, extension, tmp_path):
    path = tmp_path / f"photo{extension}"
    path.write_bytes(written(photo, name))
    np.testing.assert_array_equal(pixels(decode(path)), pixels(decode(path.read_bytes())))


@pytest.mark.parametrize("name", FORMATS)
def test_truncated_files_are_bad(photo, name):
    content = written(photo, name)
    for tenth in range(10):
        with pytest.raises(BadImage) as bad:
            decode(content[: max(1, len(content) * tenth // 10)])
        assert str(bad.value) and "\n" not in str(bad.value)


def test_random_damage_never_crashes(photo):
    random = np.random.RandomState(0)
    for name in FORMATS:
        content = written(photo, name)
        for _ in range(40):
            damaged = bytearray(content)
            for at in random.randint(len(content), size=8):
                damaged[at] = random.randint(256)
            try:
                assert decode(bytes(damaged)).shape[2] == 3
            except BadImage:
                pass


def huge_png() -> bytes:
    """Return a PNG whose header declares 20,000 x 20,000 pixels."""
    content = bytearray(written(Image.new("L", (8, 8)), "PNG"))
    content[16:24] = (20_000).to_bytes(4, "big") * 2
    content[29:33] = zlib.crc32(content[12:29]).to_bytes(4, "big")
    return bytes(content)


@pytest.mark.parametrize(
    "content,reason",
    [
        (b"", "empty file"),
        (b"not an image at all", "not an image of a known format"),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n", "not an image of a known format"),
        (huge_png(), "more than 178,956,970 pixels"),
        (written(Image.new("F", (9, 9), 0.5), "TIFF"), "floating-point values of unknown range"),
        (written(Image.new("I", (9, 9), 70_000), "TIFF"), "32-bit values of unknown range"),
    ],
    ids=["empty", "text", "postscript", "huge", "float", "32-bit"],
)
def test_unusable_images_are_bad(content, reason):
    with pytest.raises(BadImage, match=reason):
        decode(content)


@pytest.mark.slow
def test_decompression_bombs_are_refused_before_decoding():
    tall = png([bytes(20_000)] * 20_000, 8, 0)  # 400 kB of zeros, 400 MB of pixels
    assert len(tall) < 10**6
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for content in (tall, written(Image.new("1", (20_000, 20_000)), "TIFF", compression="group4")):
        with pytest.raises(BadImage, match="more than 178,956,970 pixels"):
            decode(content)
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown < 100_000  # kB


def test_files_beyond_the_limit_are_bad(tmp_path):
    with open(tmp_path / "sparse.jpg", "wb") as file:
        file.truncate(20 * 2**30)
    with pytest.raises(BadImage, match="20,480 MiB, more than 512"):
        decode(tmp_path / "sparse.jpg")


def test_32_bit_tiffs_of_8_bit_values_are_not_scaled():
    values = np.arange(30 * 40).reshape(30, 40) % 256
    for kind in ("int32", "uint16"):
        got = pixels(decode(written(Image.fromarray(values.astype(kind)), "TIFF")))[..., 0]
        np.testing.assert_allclose(got, values if kind == "int32" else values / 257, atol=0.51)
    wide = Image.fromarray((values * 257).astype("int32"))
    np.testing.assert_array_equal(pixels(decode(written(wide, "TIFF")))[..., 0], values)


def test_decompression_bombs_in_png_text_are_refused(photo):
    text = b"note\0\0" + zlib.compress(bytes(200 * 2**20), 9)
    with pytest.raises(BadImage):
        decode(png([bytes(27)] * 9, 8, 2, chunks=[(b"zTXt", text)]))


def test_missing_and_special_files_are_bad(tmp_path):
    os.mkfifo(tmp_path / "pipe.jpg")
    (tmp_path / "zero.jpg").symlink_to("/dev/zero")
    for name, reason in (("", "a folder"), ("pipe.jpg", "a FIFO"), ("zero.jpg", "a device"), ("x", "No such file")):
        with pytest.raises(BadImage, match=reason):
            decode(tmp_path / name)


@pytest.mark.parametrize("subsampling", ["4:4:4", "4:2:2", "4:2:0"])
@pytest.mark.parametrize("mode", ["L", "RGB"])
@pytest.mark.parametrize("size", [(500, 375), (513, 511), (1203, 1100)])
def test_jpegs_reduced_in_decoding_have_pillows_pixels(photo, subsampling, mode, size):
    content = written(photo.resize(size).convert(mode), "JPEG", quality=90, subsampling=subsampling)
    for wanted in (None, 64, 128, 256):
        theirs = Image.open(io.BytesIO(content))
        if wanted:
            theirs.draft(None, [math.ceil(2.0 * wanted * side / min(size)) for side in size])
        np.testing.assert_array_equal(pixels(decode(content, wanted=wanted)), pixels(theirs.convert("RGB")))
