"""Images that decoders complete with grey or black are bad."""

import struct

import numpy as np
import pytest
import simplejpeg
from encoded_images import interlaced, written
from image_trees import folder_data, make_tree, pack
from PIL import Image

from mxscale.data.images import BadImage, decode

END = b"\xff\xd9"
JPEGS = {
    "plain": {},
    "progressive": {"progressive": True},
    "restarts": {"restart_marker_blocks": 3},
    "no subsampling": {"subsampling": 0},
}


def landscape(width=320, height=240):
    pixels = np.random.RandomState(0).randint(0, 256, (12, 16, 3), "uint8")
    return Image.fromarray(pixels).resize((width, height), Image.Resampling.BICUBIC)


def is_truncated(content, **options) -> bool:
    try:
        decode(content, **options)
    except BadImage as bad:
        return "truncated" in str(bad)
    return False


@pytest.mark.parametrize("options", JPEGS.values(), ids=JPEGS)
@pytest.mark.parametrize("mode", ["RGB", "L", "CMYK"])
@pytest.mark.parametrize("size", [(40, 30), (320, 240)])
def test_a_jpeg_cut_before_an_end_marker_is_bad(options, mode, size):
    content = written(landscape(*size).convert(mode), "JPEG", **options)
    decode(content)
    header = content.index(b"\xff\xda")
    for tenth in (1, 3, 5, 8):
        cut = header + 20 + (len(content) - header - 20) * tenth // 10
        assert is_truncated(content[:cut] + END), tenth


@pytest.mark.parametrize("options", JPEGS.values(), ids=JPEGS)
def test_a_jpeg_with_fewer_rows_than_in_its_header_is_bad(options):
    content = bytearray(written(landscape(), "JPEG", **options))
    at = content.index(b"\xff\xc2" if "progressive" in options else b"\xff\xc0")
    content[at + 5 : at + 7] = struct.pack(">H", 320)
    assert is_truncated(bytes(content))


def test_a_truncated_jpeg_is_bad_at_reduced_size():
    content = written(landscape(), "JPEG")
    decode(content, wanted=30)
    assert is_truncated(content[: len(content) // 2] + END, wanted=30)


def test_a_progressive_jpeg_without_its_last_scan_is_bad():
    content = written(landscape(), "JPEG", progressive=True)
    assert is_truncated(content[: content.rindex(b"\xff\xda")] + END)


def test_needless_bytes_in_a_jpeg_are_accepted(photo):
    content = written(photo, "JPEG")
    for more in (content[:-2] + bytes(9) + END, content + b"abcd" * 9 + END, content + content):
        np.testing.assert_array_equal(decode(more), decode(content))
    with pytest.raises(BadImage, match=r"damaged: Corrupt JPEG data: [0-9]+ extraneous bytes before marker 0xd9"):
        decode(content[:-2] + b"abcd" * 5 + END)


@pytest.mark.parametrize("options", JPEGS.values(), ids=JPEGS)
def test_every_jpeg_with_a_warning_about_its_data_is_bad(options):
    content = written(landscape(160, 120), "JPEG", **options)
    random, refused = np.random.RandomState(0), 0
    for _ in range(400):
        copy = bytearray(content)
        for place in random.randint(0, len(copy), 4):
            copy[place] = random.randint(256)
        try:
            simplejpeg.decode_jpeg(bytes(copy))
        except (ValueError, KeyError):
            refused += 1
            with pytest.raises(BadImage):
                decode(bytes(copy))
    assert refused > 100


def test_damage_after_a_harmless_warning_is_bad():
    content = written(landscape(), "JPEG")
    harmless = content.replace(b"JFIF\0\1", b"JFIF\0\0")
    with pytest.raises(ValueError, match="JFIF"):
        simplejpeg.decode_jpeg(harmless)
    np.testing.assert_array_equal(decode(harmless), decode(content))
    with pytest.raises(BadImage, match="damaged: Corrupt JPEG data"):
        decode(harmless[:-2] + b"abcd" * 5 + END)


def test_a_grey_jpeg_is_complete():
    decode(written(Image.new("RGB", (300, 300), (128, 128, 128)), "JPEG"))
    two = written(landscape(), "MPO", save_all=True, append_images=[landscape(160, 120)])
    decode(two)
    assert is_truncated(two[: len(two) // 3] + END)


@pytest.mark.parametrize("size", [(40, 30), (320, 240)])
def test_a_png_without_its_last_pixels_is_bad(size):
    for content in (written(landscape(*size), "PNG"), interlaced(landscape(*size))):
        end = content.rindex(b"IEND") - 4
        decode(content)
        for cut in (30, 100, (end - 40) // 2, end - 40):
            for rest in (b"", content[end:]):
                with pytest.raises(BadImage):
                    decode(content[: end - cut] + rest)


@pytest.mark.parametrize("size", [(1, 1), (3, 2), (5, 9)])
def test_small_pngs_are_complete(size):
    for mode in ("1", "L", "P", "RGB", "RGBA", "LA", "I;16"):
        decode(written(Image.new(mode, size), "PNG"))
    decode(interlaced(landscape(*size)))


def test_a_truncated_image_in_a_folder_is_skipped(tmp_path):
    root = make_tree(tmp_path / "set", {"ant": 8, "bee": 8})
    content = written(landscape(), "JPEG")
    (root / "bee" / "half.jpg").write_bytes(content[: len(content) // 2] + END)
    made = pack(folder_data(root, tmp_path, on_bad="skip"))
    assert made["skipped"] == [{"path": "bee/half.jpg", "reason": "truncated: data of some pixels is missing"}]
