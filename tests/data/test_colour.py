"""Colour jitter against MXNet's own definitions."""

import mxnet as mx
import numpy as np
import pytest

from mxscale.config.training_settings import Augment
from mxscale.data.reader.augmentations import ColourJitter, HlsShift, rotation

IMAGE = np.random.RandomState(0).randint(60, 180, (16, 20, 3)).astype("uint8")
PLACES = ("brightness", "contrast", "saturation", "hue")


def jittered(name, most, draw):
    draws = [draw if place == name else 0.5 for place in PLACES] + [0.5] * 3
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


@pytest.mark.parametrize("kind", [ColourJitter, HlsShift])
def test_without_a_setting_nothing_is_on(kind):
    assert not kind(Augment()).is_on


def test_lighting_adds_a_multiple_of_a_principal_component():
    jitter = ColourJitter(Augment(lighting=0.1))
    one_sigma = 0.8413447
    added = jitter.light([one_sigma, 0.5, 0.5])
    assert added == pytest.approx(0.1 * 55.46 * np.array([-0.5675, -0.5808, -0.5836]), rel=1e-4)
    pixels = jitter(IMAGE, [0.5] * 4 + [one_sigma, 0.5, 0.5])
    assert (pixels.astype("int16") - IMAGE).mean(axis=(0, 1)) == pytest.approx(added, abs=0.5)
    assert np.isfinite(jitter.light([0.0, 0.0, 0.0])).all()


def test_hls_shifts_each_channel():
    grey = np.full((4, 4, 3), 100, "uint8")
    assert (HlsShift(Augment(hls=[0, 50, 0]))(grey, [0.5, 0.9, 0.5]) == 140).all()  # lightness: 0.8 x 50
    red = np.zeros((4, 4, 3), "uint8")
    red[..., 0] = 200
    green = HlsShift(Augment(hls=[60, 0, 0]))(red, [1.0, 0.5, 0.5])  # 120 degrees
    assert green[0, 0].tolist() == [0, 200, 0]
    pale = HlsShift(Augment(hls=[0, 0, 100]))(red, [0.5, 0.5, 0.0])  # less saturation
    assert pale[0, 0, 0] < 200 and pale[0, 0, 1] > 0


def test_a_complete_turn_of_hue_is_none():
    assert rotation(2.0) == pytest.approx(np.eye(3), abs=1e-9)
    assert rotation(0.3) @ np.ones(3) == pytest.approx(np.ones(3), abs=1e-3)  # grey stays grey
