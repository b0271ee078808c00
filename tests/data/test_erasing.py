"""Random erasing."""

import numpy as np

from mxscale.config.training_settings import Augment
from mxscale.data.reader.augmentations import Erasing


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
