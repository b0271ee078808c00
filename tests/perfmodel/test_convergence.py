"""Epochs to an accuracy by global batch."""

import numpy as np
import pytest

from mxscale.perfmodel import convergence
from mxscale.util.errors import ConfigError


def test_epochs_are_those_of_the_reference_points():
    found, text = convergence.of("resnet50_v1b", "imagenet", 75.9)
    assert found.at(np.array([1632, 8192, 32768])).tolist() == [35, 42, 56]
    assert "35 at a global batch of 1,632 to 85.9 at a global batch of 67,840" in text and "LARS" in text


def test_epochs_between_two_points_are_interpolated_in_the_logarithm_of_the_batch():
    found, _ = convergence.of("resnet50_v1b", "imagenet", 75.9)
    assert found.at(np.sqrt(8192 * 13056)) == pytest.approx((42 + 45.4) / 2)


def test_epochs_below_the_smallest_batch_stay_and_above_the_largest_are_unknown():
    found, _ = convergence.of("resnet50_v1b", "imagenet", 75.9)
    assert found.at(np.array([32])) == 35 and np.isnan(found.at(np.array([67841]))).all()


@pytest.mark.parametrize(
    "network, data, top1",
    [("resnet18_v1b", "imagenet", 75.9), ("resnet50_v1b", "cifar10", 75.9), ("resnet50_v1b", "imagenet", 76.0)],
)
def test_an_unknown_question_is_refused_with_what_is_known(network, data, top1):
    wanted = rf"^plan.target={top1:g} with model={network} data={data}: epochs are known for 75.9 with model="
    with pytest.raises(ConfigError, match=wanted):
        convergence.of(network, data, top1)
