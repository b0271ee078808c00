"""Rotation, shear and stretching of training images."""

import cv2
import numpy as np
import pytest
from records import ramp

from mxscale.config.training_settings import Augment
from mxscale.data.reader.augmentations import Warp, affine

SIZE = (32, 24)


@pytest.mark.parametrize("angle", [-170, -30, 0, 10, 90])
def test_rotation_is_about_the_centre(angle):
    wanted = cv2.getRotationMatrix2D((16, 12), angle, 1.0)
    assert affine(angle, 0, 1, SIZE) == pytest.approx(wanted, abs=1e-9)


def test_shear_moves_rows_and_keeps_the_centre():
    matrix = affine(0, 0.25, 1, SIZE)
    assert matrix[:, :2] == pytest.approx(np.array([[1, 0.25], [0, 1]]))
    assert matrix @ [16, 12, 1] == pytest.approx([16, 12])


def test_stretching_keeps_the_circumference():
    matrix = affine(0, 0, 1.25, SIZE)
    wide, high = matrix[0, 0], matrix[1, 1]
    assert (high / wide, wide + high) == pytest.approx((1.25, 2.0))


def test_matrix_is_that_of_image_aug_default():
    """MXNet 1.9.1, src/io/image_aug_default.cc, DefaultImageAugmenter::Process, with scale 1."""
    angle, s, ratio, (cols, rows) = 7, 0.08, 0.9, SIZE
    a, b = np.cos(angle / 180 * np.pi), np.sin(angle / 180 * np.pi)
    hs = 2 / (1 + ratio)
    ws = ratio * hs
    m = np.array([[hs * a - s * b * ws, hs * b + s * a * ws, 0], [-b * ws, a * ws, 0]])
    m[0, 2] = (cols - (m[0, 0] * cols + m[0, 1] * rows)) / 2
    m[1, 2] = (rows - (m[1, 0] * cols + m[1, 1] * rows)) / 2
    assert affine(angle, s, ratio, SIZE) == pytest.approx(m)


def test_draws_choose_within_the_settings():
    warp = Warp(Augment(rotate=20), cv2.INTER_LINEAR)
    image = ramp(32, 32)
    assert np.array_equal(warp(image, [0.5] * 3), image)  # no rotation
    quarter = Warp(Augment(rotate=90), cv2.INTER_LINEAR)(image, [1.0, 0.5, 0.5])
    assert np.abs(quarter[1:, 1:].astype(int) - np.rot90(image, 1)[:-1, 1:]).max() <= 7
    assert not Warp(Augment(), cv2.INTER_LINEAR).is_on
