"""RandAugment, TrivialAugment and random erasing."""

from collections import Counter

import numpy as np
import pytest
from PIL import Image, ImageEnhance, ImageOps

from mxscale.config.training_settings import Augment
from mxscale.data.reader.policies import OPERATIONS, Erasing, Policy

IMAGE = np.random.RandomState(0).randint(0, 256, (40, 40, 3)).astype("uint8")
NAMES = list(OPERATIONS)


def place(name) -> float:
    """Return a random number that chooses an operation."""
    return (NAMES.index(name) + 0.5) / len(NAMES)


@pytest.mark.parametrize("policy, largest", [
    ("randaugment", {"shear_x": 0.3, "translate_y": 150 / 331 * 40, "rotate": 30, "brightness": 0.9, "posterize": 4}),
    ("trivialaugment", {"shear_x": 0.99, "translate_y": 32, "rotate": 135, "brightness": 0.99, "posterize": 6}),
])  # fmt: skip
def test_ranges_are_those_of_torchvision(policy, largest):
    """torchvision 0.20, transforms/autoaugment.py: _augmentation_space."""
    found = Policy(Augment(policy=policy, policy_magnitude=30), 40)
    for name, wanted in largest.items():
        up, down = (found.step(place(name), 0.999, direction)[1] for direction in (0.0, 0.9))
        assert up == pytest.approx(wanted) and down == pytest.approx(wanted if name == "posterize" else -wanted)


def test_randaugment_uses_its_magnitude_and_trivialaugment_any():
    fixed = Policy(Augment(policy="randaugment", policy_magnitude=9), 224)
    assert {fixed.step(place("rotate"), amount, 0)[1] for amount in (0, 0.5, 0.99)} == {9.0}
    drawn = Policy(Augment(policy="trivialaugment"), 224)
    found = sorted({drawn.step(place("rotate"), amount, 0)[1] for amount in np.linspace(0, 0.999, 400)})
    assert found == pytest.approx([135 * n / 30 for n in range(31)])


def test_all_operations_are_drawn_equally_often():
    policy, random = Policy(Augment(policy="trivialaugment"), 224), np.random.RandomState(1)
    drawn = Counter(policy.step(*random.rand(3))[0] for _ in range(14_000))
    assert set(drawn) == set(OPERATIONS) and min(drawn.values()) > 850 and max(drawn.values()) < 1150


@pytest.mark.parametrize("name, magnitude, wanted", [
    ("identity", 0, lambda image: image),
    ("brightness", -0.4, lambda image: ImageEnhance.Brightness(image).enhance(0.6)),
    ("posterize", 2.4, lambda image: ImageOps.posterize(image, 6)),
    ("solarize", 255 * 9 / 30, lambda image: image.point(lambda value: value if value < 178.5 else 255 - value)),
    ("rotate", 10.0, lambda image: image.rotate(10.0)),
    ("equalize", 0, ImageOps.equalize),
])  # fmt: skip
def test_operations_are_those_of_pillow(name, magnitude, wanted):
    image = Image.fromarray(IMAGE)
    assert np.array_equal(OPERATIONS[name](image, magnitude), wanted(image))


def test_translation_moves_by_pixels_and_shear_by_rows():
    moved = np.asarray(OPERATIONS["translate_x"](Image.fromarray(IMAGE), 7.9))  # torchvision: int(magnitude)
    assert np.array_equal(moved[:, :-7], IMAGE[:, 7:]) and not moved[:, -7:].any()
    sheared = np.asarray(OPERATIONS["shear_x"](Image.fromarray(IMAGE), 0.5))
    for row in (4, 20, 37):
        shift = round(0.5 * row + 0.25)
        assert any(np.array_equal(sheared[row, :20], IMAGE[row, at : at + 20]) for at in (shift, shift + 1)), row


def test_number_of_operations_is_a_setting():
    posterize = [place("posterize"), 0.5, 0.1]
    invert = [place("solarize"), 0.5, 0.1]
    one, two = (Policy(Augment(policy="randaugment", policy_ops=n), 40)(IMAGE, posterize + invert) for n in (1, 2))
    assert not np.array_equal(one, IMAGE) and not np.array_equal(one, two)


def test_erased_rectangles_have_the_area_and_ratio_of_the_paper():
    erasing, random = Erasing(Augment(erase=1.0), [1, 2, 3]), np.random.RandomState(1)
    sizes = np.array([erasing.size(224, 224, random.rand(20)) for _ in range(2000)])
    areas, ratios = sizes.prod(axis=1) / 224**2, sizes[:, 0] / sizes[:, 1]
    assert 0.019 < areas.min() < 0.03 and 0.31 < areas.max() < 0.34
    assert 0.29 < ratios.min() < 0.35 and 3.0 < ratios.max() < 3.5


def test_erasing_fills_with_the_mean_at_its_probability():
    erasing, random = Erasing(Augment(erase=0.25), [10.4, 20.0, 30.0]), np.random.RandomState(1)
    erased = [erasing(np.zeros((40, 40, 3), "uint8"), random.rand(erasing.draws)) for _ in range(400)]
    assert 0.18 < np.mean([image.any() for image in erased]) < 0.32
    assert {tuple(pixel) for image in erased for pixel in image.reshape(-1, 3)} == {(0, 0, 0), (10, 20, 30)}
