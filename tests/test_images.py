"""Decoding any image file, against Pillow's own reading, and what is refused."""

import io
import os
import zlib

import numpy as np
import pytest
from PIL import Image

from mxscale.data import images
from mxscale.data.images import BadImage, Recipe, decode, encode, repack


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


@pytest.mark.parametrize("orientation", range(1, 9))
def test_the_exif_orientation_is_applied(orientation):
    image = Image.new("RGB", (40, 20), "black")
    image.paste("white", (0, 0, 10, 10))  # top left
    exif = Image.Exif()
    exif[0x0112] = orientation
    got = decode(written(image, "PNG", exif=exif))
    # Where EXIF 2.3 says that the first row and column of the file are seen.
    corner = {1: "tl", 2: "tr", 3: "br", 4: "bl", 5: "tl", 6: "tr", 7: "br", 8: "bl"}[orientation]
    assert got.size == ((40, 20) if orientation < 5 else (20, 40))
    x, y = 2 if corner[1] == "l" else got.width - 3, 2 if corner[0] == "t" else got.height - 3
    white = [
        p
        for p in [(2, 2), (got.width - 3, 2), (2, got.height - 3), (got.width - 3, got.height - 3)]
        if got.getpixel(p)[0]
    ]
    assert white == [(x, y)]


def test_content_counts_not_the_extension(photo, tmp_path):
    path = tmp_path / "photo.jpg"
    path.write_bytes(written(photo, "PNG"))
    np.testing.assert_array_equal(pixels(decode(path)), pixels(photo))


def test_of_several_frames_the_first_is_taken(photo):
    content = written(photo, "WEBP", lossless=True, save_all=True, append_images=[Image.new("RGB", photo.size)])
    np.testing.assert_array_equal(pixels(decode(content)), pixels(photo))


@pytest.mark.parametrize("name", ["JPEG", "PNG", "BMP", "GIF", "WEBP", "TIFF"])
@pytest.mark.parametrize("share", [0.02, 0.4, 0.9])
def test_a_truncated_file_is_bad(photo, name, share):
    content = written(photo, name)
    with pytest.raises(BadImage) as bad:
        decode(content[: int(len(content) * share)])
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
        (b"not an image at all", "no image of a known format"),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n", "no image of a known format"),
        (huge_png(), "more than 178,956,970 pixels"),
        (written(Image.new("F", (9, 9), 0.5), "TIFF"), "floating-point values, whose range is not known"),
        (written(Image.new("I", (9, 9), 70_000), "TIFF"), "32-bit values, whose range is not known"),
    ],
    ids=["empty", "text", "postscript", "huge", "float", "32-bit"],
)
def test_what_is_no_usable_image_is_bad(content, reason):
    with pytest.raises(BadImage, match=reason):
        decode(content)


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
