"""Decoding any image file, against Pillow's own reading, and what is refused."""

import io
import os
import resource
import struct
import zlib

import numpy as np
import pytest
from PIL import Image

from mxscale.data import images
from mxscale.data.images import BadImage, Recipe, decode, encode, examine, repack, size_of


@pytest.fixture
def photo():
    """Smooth colours with some grain, 40 wide and 30 high."""
    y, x = np.mgrid[0:30, 0:40]
    grain = np.random.RandomState(0).randint(0, 20, (30, 40))
    return Image.fromarray(np.stack([x * 6, y * 7, (x + y) * 3 + grain], -1).astype("uint8"))


def written(image, name, **options) -> bytes:
    out = io.BytesIO()
    image.save(out, name, **options)
    return out.getvalue()


def pixels(image):
    assert image.mode == "RGB"
    return np.asarray(image).astype(int)


@pytest.mark.parametrize("name", ["JPEG", "PNG", "BMP", "GIF", "WEBP", "TIFF"])
def test_each_format_is_read_as_pillow_reads_it(photo, name):
    content = written(photo, name)
    np.testing.assert_array_equal(pixels(decode(content)), pixels(Image.open(io.BytesIO(content)).convert("RGB")))


STORED = [("L", "PNG"), ("1", "PNG"), ("P", "PNG"), ("L", "JPEG"), ("CMYK", "JPEG"), ("CMYK", "TIFF")]


@pytest.mark.parametrize("mode,name", STORED)
def test_grey_palette_and_cmyk_become_rgb(photo, mode, name):
    content = written(photo.convert(mode), name)
    np.testing.assert_array_equal(pixels(decode(content)), pixels(Image.open(io.BytesIO(content)).convert("RGB")))


def test_a_progressive_jpeg_is_a_jpeg(photo):
    plain, progressive = (decode(written(photo, "JPEG", quality=90, progressive=p)) for p in (False, True))
    np.testing.assert_array_equal(pixels(plain), pixels(progressive))


@pytest.mark.parametrize("name", ["PNG", "TIFF"])
def test_sixteen_bits_are_scaled_not_clipped(name):
    values = np.linspace(0, 65535, 30 * 40).reshape(30, 40).astype("uint16")
    got = pixels(decode(written(Image.fromarray(values), name)))
    np.testing.assert_allclose(got[..., 0], values / 257, atol=0.51)
    assert (got[..., 0] == got[..., 1]).all() and (got[..., 0] == got[..., 2]).all()


def test_transparency_is_laid_over_white():
    image = Image.new("RGBA", (4, 4), (200, 0, 0, 255))
    image.putpixel((1, 1), (0, 0, 0, 0))
    image.putpixel((2, 2), (0, 0, 0, 128))
    for name in ("PNG", "TIFF"):
        got = decode(written(image, name))
        assert got.getpixel((0, 0)) == (200, 0, 0)
        assert got.getpixel((1, 1)) == (255, 255, 255)
        assert got.getpixel((2, 2)) == pytest.approx((127, 127, 127), abs=1)


def test_a_palette_with_a_transparent_entry_is_laid_over_white():
    image = Image.new("P", (4, 4), 1)
    image.putpalette([0, 0, 0, 10, 20, 30])
    image.putpixel((0, 0), 0)
    for name in ("PNG", "GIF"):
        got = decode(written(image, name, transparency=0))
        assert got.getpixel((0, 0)) == (255, 255, 255)
        assert got.getpixel((1, 1)) == (10, 20, 30)


# orientation -> what a viewer does to the stored pixels (EXIF 2.3, table 6), as numpy does it
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


def turned(content: bytes, orientation: int) -> bytes:
    """A JPEG with an EXIF segment of that orientation, laid out by hand: one entry, big-endian."""
    entry = struct.pack(">HHIHH", 0x0112, 3, 1, orientation, 0)
    body = b"Exif\0\0" + b"MM\0*" + struct.pack(">IH", 8, 1) + entry + bytes(4)
    return content[:2] + b"\xff\xe1" + struct.pack(">H", len(body) + 2) + body + content[2:]


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


def test_exif_that_can_not_be_read_leaves_the_image_as_it_is(photo):
    content = written(photo, "JPEG")
    broken = content[:2] + b"\xff\xe1\0\x10Exif\0\0garbage!" + content[2:]
    np.testing.assert_array_equal(pixels(decode(broken)), pixels(decode(content)))
    np.testing.assert_array_equal(pixels(decode(turned(content, 99))), pixels(decode(content)))


# ---------------------------------------------------------------- CMYK, depth, interlacing


def inked(colour, adobe=True, transform=0) -> bytes:
    """A CMYK JPEG of one colour (shares of ink), stored inverted as Adobe does; transform 2: its marker says YCCK."""
    values = tuple(round(255 * share) for share in colour)
    content = bytearray(written(Image.new("CMYK", (16, 16), values), "JPEG", quality=100, subsampling=0))
    at = content.index(b"\xff\xeeadobe".replace(b"adobe", b"\0\x0eAdobe"))
    content[at + 15] = transform
    return bytes(content if adobe else content[:at] + content[at + 16 :])


@pytest.mark.parametrize(
    "ink", [(0, 0, 0, 0), (1, 0, 0, 0), (0, 1, 0, 0), (0, 0, 1, 0), (0, 0, 0, 1), (0.5, 0.2, 0, 0.3)]
)
def test_ink_becomes_the_colour_that_it_leaves_on_paper(ink):
    *colours, black = ink
    paper = [255 * (1 - colour) * (1 - black) for colour in colours]
    assert pixels(decode(inked(ink)))[8, 8] == pytest.approx(paper, abs=2)
    # without Adobe's marker too: who writes such files inverts as Adobe does, and so Pillow reads them
    assert pixels(decode(inked(ink, adobe=False)))[8, 8] == pytest.approx(paper, abs=2)


def test_ycck_is_read_as_pillow_reads_it():
    content = inked((0.3, 0.5, 0.7, 0.2), transform=2)
    theirs = Image.open(io.BytesIO(content))
    assert theirs.mode == "CMYK"
    np.testing.assert_array_equal(pixels(decode(content)), pixels(theirs.convert("RGB")))


def png(rows, depth, colour_type, interlace=0, chunks=()) -> bytes:
    """A PNG of bytes by row, written chunk by chunk; no interlacing but of one pixel by row and column."""
    width = len(rows[0]) * 8 // (depth * {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}[colour_type])

    def chunk(name, body):
        return struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))

    header = struct.pack(">IIBBBBB", width, len(rows), depth, colour_type, 0, 0, interlace)
    body = zlib.compress(b"".join(b"\0" + row for row in rows))
    more = b"".join(chunk(*one) for one in chunks)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + more + chunk(b"IDAT", body) + chunk(b"IEND", b"")


def test_sixteen_bit_colours_keep_their_upper_eight_bits():
    pixel = struct.pack(">HHH", 0x12FF, 0x8000, 0xFEDC)
    assert pixels(decode(png([pixel * 9] * 9, 16, 2)))[4, 4].tolist() == [0x12, 0x80, 0xFE]
    half = struct.pack(">HHHH", 0, 0, 0xFFFF, 0x8000)  # blue, half transparent
    assert pixels(decode(png([half * 9] * 9, 16, 6)))[4, 4] == pytest.approx([127, 127, 255], abs=1)
    grey = struct.pack(">HH", 0x4000, 0xFFFF)
    assert pixels(decode(png([grey * 9] * 9, 16, 4)))[4, 4] == pytest.approx([64] * 3, abs=1)


@pytest.mark.parametrize("depth", [1, 2, 4])
def test_few_bits_of_grey_are_spread_over_all_of_it(depth):
    got = pixels(decode(png([bytes([0b00011011] * 4)] * 9, depth, 0)))[0, : 8 // depth, 0].tolist()
    assert got == {1: [0, 0, 0, 255, 255, 0, 255, 255], 2: [0, 85, 170, 255], 4: [17, 187]}[depth]


def test_a_transparent_colour_of_a_png_is_white():
    red, blue = bytes([200, 0, 0]), bytes([0, 0, 200])
    content = png([(red + blue) * 5] * 9, 8, 2, chunks=[(b"tRNS", struct.pack(">HHH", 0, 0, 200))])
    assert pixels(decode(content))[0, :2].tolist() == [[200, 0, 0], [255, 255, 255]]


def interlaced(image) -> bytes:
    """The same pixels in Adam7's seven passes."""
    passes = [(0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2), (0, 1, 1, 2)]
    values = np.asarray(image)
    parts = [values[y::high, x::wide] for x, y, wide, high in passes]
    rows = b"".join(b"\0" + row.tobytes() for part in parts if part.size for row in part)
    plain = png([bytes(3 * image.width)] * image.height, 8, 2, interlace=1)
    start, end = plain.index(b"IDAT") - 4, plain.index(b"IEND") - 4
    body = b"IDAT" + zlib.compress(rows)
    return plain[:start] + struct.pack(">I", len(body) - 4) + body + struct.pack(">I", zlib.crc32(body)) + plain[end:]


def test_an_interlaced_png_is_a_png(photo):
    np.testing.assert_array_equal(pixels(decode(interlaced(photo))), pixels(photo))


def test_of_an_animated_gif_the_first_frame_is_taken(photo):
    first = photo.quantize(16)
    content = written(first, "GIF", save_all=True, append_images=[Image.new("P", photo.size, 3)], duration=40)
    assert Image.open(io.BytesIO(content)).n_frames == 2
    np.testing.assert_array_equal(pixels(decode(content)), pixels(first.convert("RGB")))


# ---------------------------------------------------------------- names, ends, bombs


@pytest.mark.parametrize("name", ["JPEG", "PNG", "BMP", "GIF", "WEBP", "TIFF"])
@pytest.mark.parametrize("extension", [".jpg", ".png", ".gif"])
def test_content_counts_not_the_extension(photo, name, extension, tmp_path):
    path = tmp_path / f"photo{extension}"
    path.write_bytes(written(photo, name))
    np.testing.assert_array_equal(pixels(decode(path)), pixels(decode(path.read_bytes())))


def test_of_several_frames_the_first_is_taken(photo):
    content = written(photo, "WEBP", lossless=True, save_all=True, append_images=[Image.new("RGB", photo.size)])
    np.testing.assert_array_equal(pixels(decode(content)), pixels(photo))


@pytest.mark.parametrize("name", ["JPEG", "PNG", "BMP", "GIF", "WEBP", "TIFF"])
def test_a_file_cut_off_at_any_tenth_is_bad(photo, name):
    content = written(photo, name)
    for tenth in range(10):
        with pytest.raises(BadImage) as bad:
            decode(content[: max(1, len(content) * tenth // 10)])
        assert bad.value.reason and "\n" not in bad.value.reason


def test_random_damage_is_either_read_or_bad(photo):
    random = np.random.RandomState(0)
    for name in ("JPEG", "PNG", "GIF", "WEBP", "TIFF", "BMP"):
        content = written(photo, name)
        for _ in range(40):
            damaged = bytearray(content)
            for at in random.randint(len(content), size=8):
                damaged[at] = random.randint(256)
            try:
                assert decode(bytes(damaged)).mode == "RGB"
            except BadImage:
                pass


def huge_png() -> bytes:
    """A header that announces 20,000 x 20,000 pixels."""
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
def test_what_is_no_usable_image_is_bad(content, reason):
    with pytest.raises(BadImage, match=reason):
        decode(content)


def test_a_bomb_is_bad_before_it_is_unpacked():
    tall = png([bytes(20_000)] * 20_000, 8, 0)  # 400 kB of zeros, 400 MB of pixels
    assert len(tall) < 10**6
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for content in (tall, written(Image.new("1", (20_000, 20_000)), "TIFF", compression="group4")):
        with pytest.raises(BadImage, match="more than 178,956,970 pixels"):
            decode(content)
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown < 100_000  # kB


def test_a_bomb_in_a_png_text_is_bad(photo):
    text = b"note\0\0" + zlib.compress(bytes(200 * 2**20), 9)
    with pytest.raises(BadImage):
        decode(png([bytes(27)] * 9, 8, 2, chunks=[(b"zTXt", text)]))


def test_what_is_no_file_is_bad(tmp_path):
    os.mkfifo(tmp_path / "pipe.jpg")
    for path, reason in (
        (tmp_path, "not a file"),
        (tmp_path / "pipe.jpg", "not a file"),
        (tmp_path / "x", "No such file"),
    ):
        with pytest.raises(BadImage, match=reason):
            decode(path)


# ---------------------------------------------------------------- encoding


def test_png_keeps_every_pixel_and_nothing_else(photo):
    photo.info["icc_profile"] = b"profile"
    content = written(photo, "PNG")
    packed, size = encode(decode(content), "png", 95)
    assert size == (30, 40)
    again = Image.open(io.BytesIO(packed))
    assert again.info == {} and again.mode == "RGB"
    np.testing.assert_array_equal(pixels(again), pixels(photo))


def test_jpeg_is_near_and_the_better_the_higher_its_quality(photo):
    errors = []
    for quality in (50, 95):
        packed, _ = encode(photo, "jpeg", quality)
        again = Image.open(io.BytesIO(packed))
        assert again.format == "JPEG"
        errors.append(np.abs(pixels(again) - pixels(photo)).mean())
    assert errors[1] < errors[0] and errors[1] < 6


@pytest.mark.parametrize("size,expected", [(15, (15, 20)), (30, (30, 40)), (60, (60, 80)), (7, (7, 9))])
def test_the_shorter_side_is_resized_in_proportion(photo, size, expected):
    packed, got = encode(photo, "png", 95, size)
    assert got == expected
    assert Image.open(io.BytesIO(packed)).size == expected[::-1]


def test_a_flat_colour_stays_flat_when_resized():
    packed, _ = encode(Image.new("RGB", (640, 480), (10, 128, 250)), "png", 95, 24)
    assert (pixels(Image.open(io.BytesIO(packed))) == [10, 128, 250]).all()


def test_the_same_image_gives_the_same_bytes(photo):
    for name in ("jpeg", "png"):
        assert encode(photo, name, 90, 20) == encode(photo, name, 90, 20)


def test_results_that_would_be_too_large_are_bad():
    thin = Image.new("RGB", (70_000, 1))
    with pytest.raises(BadImage, match="more than"):
        encode(thin, "png", 95, 256)
    with pytest.raises(BadImage, match="JPEG side"):
        encode(thin, "jpeg", 95)


def test_images_smaller_than_needed_are_bad(photo):
    with pytest.raises(BadImage, match=r"40x30 pixels, smaller than 32"):
        repack(written(photo, "PNG"), Recipe("png", 0, None, 32))
    assert repack(written(photo, "PNG"), Recipe("png", 0, None, 30))[1] == (30, 40)


def test_known_formats_are_there():
    assert {"JPEG", "PNG", "BMP", "GIF", "WEBP", "TIFF"} <= set(images.FORMATS)


@pytest.mark.parametrize("factor", [2, 4, 8])
def test_a_large_jpeg_is_decoded_smaller_and_packed_the_same_but_for_rounding(photo, factor):
    large = photo.resize((40 * 2 * factor, 30 * 2 * factor), Image.Resampling.BICUBIC)
    content = written(large, "JPEG", quality=95)
    assert decode(content, wanted=30).size == (40 * 2, 30 * 2)
    packed, whole = (pixels(encode_and_decode(image)) for image in (decode(content, wanted=30), decode(content)))
    assert packed.shape == whole.shape == (30, 40, 3)
    assert np.abs(packed - whole).mean() < 2
    with pytest.raises(BadImage, match="smaller than"):  # as it is in the file, not as it is decoded
        decode(content, min_side=60 * factor + 1, wanted=30)


def encode_and_decode(image):
    return decode(encode(image, "png", 95, 30)[0])


def test_a_jpeg_less_than_twice_as_large_is_decoded_whole(photo):
    assert decode(written(photo, "JPEG"), wanted=16).size == (40, 30)


# ---------------------------------------------------------------- records: what MXNet's own reader makes of an image


def wild(photo):
    """name -> (content, whether MXNet's reader sees the picture that `decode` sees)."""
    clear = photo.convert("RGBA")
    clear.putalpha(Image.fromarray(np.tile(np.arange(40, dtype="uint8") * 6, (30, 1))))
    jpeg = written(photo, "JPEG", quality=95)
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
        "16-bit grey png": (
            written(Image.fromarray(np.arange(1200, dtype="uint16").reshape(30, 40) * 54), "PNG"),
            False,
        ),
        "16-bit colour png": (png([struct.pack(">HHH", 0x12FF, 0x8000, 0xFEDC) * 40] * 30, 16, 2), True),
        "alpha png": (written(clear, "PNG"), False),
        "bmp": (written(photo, "BMP"), True),
        "gif": (written(photo.quantize(16), "GIF"), False),
        "webp": (written(photo, "WEBP", lossless=True), False),
        "tiff": (written(photo, "TIFF"), False),
    }


def as_mxnet_reads(content):
    import mxnet as mx

    return mx.image.imdecode(content).asnumpy().astype(int)


def test_what_is_left_to_mxnet_is_read_alike(photo):
    for name, (content, alike) in wild(photo).items():
        assert examine(content, 1).same_in_mxnet == alike, name
        if alike:
            ours, theirs = pixels(decode(content)), as_mxnet_reads(content)
            assert ours.shape == theirs.shape and np.abs(ours - theirs).max() <= 2, name


def test_a_header_is_enough_for_the_size(photo):
    assert size_of(written(photo, "JPEG")[:700]) == (40, 30)
    with pytest.raises(BadImage):
        size_of(b"no image")
