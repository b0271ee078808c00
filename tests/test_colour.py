"""Colour jitter against MXNet's own definitions."""

import mxnet as mx
import numpy as np
import pytest

from mxscale.config.training_settings import Augment
from mxscale.data.reader.colour import ColourJitter, rotation

IMAGE = np.random.RandomState(0).randint(60, 180, (16, 20, 3)).astype("uint8")
PLACES = ("brightness", "contrast", "saturation", "hue")


def jittered(name, most, draw):
    draws = [draw if place == name else 0.5 for place in PLACES]
    return ColourJitter(Augment(**{name: most}))(IMAGE, draws)


@pytest.mark.parametrize("draw", [0.0, 0.25, 0.9])
@pytest.mark.parametrize("name, augmenter", [
    ("brightness", mx.image.BrightnessJitterAug), ("contrast", mx.image.ContrastJitterAug),
    ("saturation", mx.image.SaturationJitterAug), ("hue", mx.image.HueJitterAug),
])  # fmt: skip
def test_jitter_is_that_of_mxnet(name, augmenter, draw, monkeypatch):
    monkeypatch.setattr(mx.image.image.random, "uniform", lambda low, high: low + (high - low) * draw)
    wanted = augmenter(0.3)(mx.nd.array(IMAGE).astype("float32")).asnumpy()
    assert np.abs(jittered(name, 0.3, draw) - np.clip(wanted, 0, 255)).max() <= 1.5  # rounding; MXNet's YIQ matrices


def test_without_jitter_the_image_stays():
    assert ColourJitter(Augment())(IMAGE, [0.1] * 4) is IMAGE


def test_a_complete_turn_of_hue_is_none():
    assert rotation(2.0) == pytest.approx(np.eye(3), abs=1e-9)
    assert rotation(0.3) @ np.ones(3) == pytest.approx(np.ones(3), abs=1e-3)  # grey stays grey
