"""Encoding of images, and which images MXNet decodes identically."""

import io
import os
import subprocess
import sys

import numpy as np
import pytest
from encoded_images import pixels, wild, written
from PIL import Image
from repository import ROOT

from mxscale.data.images import BadImage, decode, examine
from mxscale.data.repack import Recipe, encode, repack, resized


def pixels8(image):
    return np.asarray(image.convert("RGB"))


def test_png_keeps_every_pixel_and_nothing_else(photo):
    photo.info["icc_profile"] = b"profile"
    content = written(photo, "PNG")
    again = Image.open(io.BytesIO(encode(decode(content), "png", 95)))
    assert again.info == {} and again.mode == "RGB"
    np.testing.assert_array_equal(pixels(again), pixels(photo))


def test_jpeg_error_decreases_with_quality(photo):
    errors = []
    for quality in (50, 95):
        again = Image.open(io.BytesIO(encode(pixels8(photo), "jpeg", quality)))
        assert again.format == "JPEG"
        errors.append(np.abs(pixels(again) - pixels(photo)).mean())
    assert errors[1] < errors[0] and errors[1] < 6


@pytest.mark.parametrize("size,expected", [(15, (15, 20)), (30, (30, 40)), (60, (60, 80)), (7, (7, 9))])
def test_the_shorter_side_is_resized_in_proportion(photo, size, expected):
    packed = repack(written(photo, "PNG"), Recipe("png", 0, size))
    assert packed.size == expected
    assert Image.open(io.BytesIO(packed.image)).size == expected[::-1]


def test_resizing_keeps_a_uniform_colour():
    for side in (24, 400, 640):
        assert (resized(pixels8(Image.new("RGB", (640, 480), (10, 128, 250))), side) == [10, 128, 250]).all()


@pytest.mark.parametrize("side", [40, 100, 120, 150, 160, 200, 239, 240, 300])
def test_resizing_equals_pillows(photo, side):
    large = photo.resize((320, 240), Image.Resampling.BICUBIC)
    theirs = large.resize((round(320 * side / 240), side), Image.Resampling.BICUBIC)
    assert np.abs(resized(pixels8(large), side).astype(int) - pixels(theirs)).mean() < 0.5


def test_resizing_does_not_alias():
    stripes = np.zeros((300, 300, 3), "uint8")
    stripes[:, ::2] = 255
    for side in (60, 120, 140):
        middle = resized(stripes, side)[5:-5, 5:-5]
        assert np.ptp(middle.astype(int)) < 40


def test_the_same_image_gives_the_same_bytes(photo):
    for name in ("jpeg", "png"):
        first, second = (repack(written(photo, "PNG"), Recipe(name, 90, 20)) for _ in range(2))
        assert first == second


def test_results_beyond_the_limits_are_bad():
    with pytest.raises(BadImage, match="25864x7100 pixels after packing, more than"):
        repack(written(Image.new("RGB", (51, 14)), "PNG"), Recipe("png", 0, 7100))


@pytest.mark.parametrize("size, side", [((32, 60_000), 224), ((60_000, 32), 35), ((70_000, 1), None)])
def test_images_that_are_too_long_after_packing_are_bad(size, side):
    content = written(Image.new("RGB", size), "PNG")
    with pytest.raises(BadImage, match=r"[0-9]+x[0-9]+ pixels after packing, longer than 65,500"):
        repack(content, Recipe("jpeg", 95, side))
    if min(size) > 1:
        packed = repack(content, Recipe("jpeg", 95, None))
        assert Image.open(io.BytesIO(packed.image)).size == size and packed.size == size[::-1]


def test_images_below_min_side_are_bad(photo):
    with pytest.raises(BadImage, match=r"40x30 pixels, smaller than 32"):
        repack(written(photo, "PNG"), Recipe("png", 0, None, 32))
    assert repack(written(photo, "PNG"), Recipe("png", 0, None, 30))[1] == (30, 40)


def test_small_images_are_enlarged(photo):
    same, larger = (repack(written(photo, "PNG"), Recipe("png", 0, None, least=least)) for least in (30, 45))
    assert (same.size, same.enlarged) == ((30, 40), False) and (larger.size, larger.enlarged) == ((45, 60), True)
    reduced = repack(written(photo.resize((400, 300)), "JPEG"), Recipe("png", 0, 60, least=45))
    assert reduced.size == (60, 80) and not reduced.enlarged


@pytest.mark.parametrize("factor", [2, 4, 8])
def test_large_jpegs_are_decoded_at_reduced_size(photo, factor):
    large = photo.resize((40 * 2 * factor, 30 * 2 * factor), Image.Resampling.BICUBIC)
    content = written(large, "JPEG", quality=95)
    assert decode(content, wanted=30).shape == (30 * 2, 40 * 2, 3)
    packed, complete = (resized(image, 30).astype(int) for image in (decode(content, wanted=30), decode(content)))
    assert packed.shape == complete.shape == (30, 40, 3)
    assert np.abs(packed - complete).mean() < 2
    with pytest.raises(BadImage, match="smaller than"):  # as it is in the file, not as it is decoded
        decode(content, 60 * factor + 1, wanted=30)


def test_jpegs_below_twice_the_size_are_decoded_fully(photo):
    assert decode(written(photo, "JPEG"), wanted=16).shape == (30, 40, 3)


def as_mxnet_reads(content):
    import mxnet as mx

    return mx.image.imdecode(content).asnumpy().astype(int)


def test_mxnet_decodes_images_marked_as_equal_identically(photo):
    for name, (content, alike) in wild(photo).items():
        assert examine(content).same_in_mxnet == alike, name
        if alike:
            ours, theirs = pixels(decode(content)), as_mxnet_reads(content)
            assert ours.shape == theirs.shape and np.abs(ours - theirs).max() <= 2, name


def test_packed_bytes_do_not_depend_on_the_processor():
    code = (
        "import numpy as np; from mxscale.data.repack import encode, resized\n"
        "pixels = np.random.RandomState(0).randint(0, 256, (375, 500, 3)).astype('uint8')\n"
        "print([hash(encode(resized(pixels, side), 'jpeg', 95)) for side in (60, 224, 256)])"
    )
    env = {**os.environ, "PYTHONHASHSEED": "0"}
    variants = ({}, {"OPENCV_CPU_DISABLE": "AVX2,AVX,FP16"}, {"OPENCV_IPP": "sse42"}, {"JSIMD_FORCENONE": "1"})
    seen = {subprocess.check_output([sys.executable, "-c", code], cwd=ROOT, env={**env, **more}) for more in variants}
    assert len(seen) == 1
