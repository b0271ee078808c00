"""Augmentation and interpolation of training images."""

from dataclasses import replace

import mxnet as mx
import numpy as np
import pytest
from batches import RAW, evaluation_data, micros, same, train_data
from composed import composed
from records import make_records, noise, ramp
from refusals import error_of

from mxscale.config.readers import READERS
from mxscale.config.training_settings import Augment
from mxscale.data.reader.transforms import INTERPOLATIONS
from mxscale.train.prepare import check_crops


@pytest.fixture(params=READERS)
def reader(request):
    return request.param


@pytest.fixture
def augmented(reader, tmp_path):
    """Return a function that reads 64 images of a 32 x 32 ramp (red: columns, green: rows, 7 each; blue: 60)."""

    def read(size=16, **augment):
        records = make_records(tmp_path, [ramp()] * 64)
        augment = Augment(**{"crop": "center", "flip": False, **augment})
        data = replace(RAW, reader=reader, image_size=size, augment=augment)
        found = micros(train_data(records, data, 32), range(2))
        return np.concatenate([pixels for *_, pixels in found]).astype("float32")

    return read


def test_without_augmentation_crops_are_centred(augmented):
    images = augmented()
    assert all(np.array_equal(image, ramp()[8:24, 8:24].transpose(2, 0, 1)) for image in images)


def test_half_of_the_images_are_flipped_horizontally(augmented):
    images = augmented(flip=True)
    flipped = images[:, 0, 0, 0] > images[:, 0, 0, -1]
    assert 16 <= flipped.sum() <= 48
    assert np.array_equal(images[flipped][0], images[~flipped][0][:, :, ::-1])


def test_random_crops_cover_the_image(augmented):
    images = augmented(crop="random")
    left, top = images[:, 0, 0, 0] / 7, images[:, 1, 0, 0] / 7
    for offsets in (left, top):
        assert 0 <= min(offsets) < 4 and 12 < max(offsets) <= 16
        assert len(set(offsets)) > 8
    x, y = int(left[0]), int(top[0])
    assert np.array_equal(images[0], ramp()[y : y + 16, x : x + 16].transpose(2, 0, 1))


def test_random_crops_include_black_padding(augmented):
    images = augmented(size=32, crop="random", pad=4)
    blue = images[:, 2]
    assert set(np.unique(blue)) == {0.0, 60.0}
    shares = (blue == 0).mean(axis=(1, 2))
    assert 0 < shares.mean() < 0.25 and shares.max() <= 1 - (28 / 32) ** 2


def test_random_resized_crops_have_the_given_area_and_ratio(augmented):
    images = augmented(crop="random_resized", scale=[0.2, 0.5], ratio=[0.8, 1.25])
    width = (images[:, 0, 8, 14] - images[:, 0, 8, 1]) / 7 * 16 / 13
    height = (images[:, 1, 14, 8] - images[:, 1, 1, 8]) / 7 * 16 / 13
    area, ratio = width * height / 32**2, width / height
    assert 0.17 < area.min() < 0.27 and 0.42 < area.max() < 0.55
    assert 0.7 < ratio.min() < 0.9 and 1.1 < ratio.max() < 1.45


def test_augmentation_differs_within_a_batch_and_between_epochs(reader, tmp_path):
    records = make_records(tmp_path, [ramp()] * 64)
    source = train_data(records, replace(RAW, reader=reader, image_size=16, augment=Augment(flip=False)), 32, of=2)
    batches = [pixels for *_, pixels in micros(source, range(3))]  # 3 epochs of a batch for each of 2 shards
    assert len({image.tobytes() for batch in batches for image in batch}) > 180  # of 192


def test_erasing_ends_before_the_last_epochs(tmp_path):
    records = make_records(tmp_path, [ramp()] * 32)
    crops = Augment(crop="random", pad=4)
    augmented, plain = (
        micros(train_data(records, replace(RAW, image_size=16, augment=augment), 32, augmented_epochs=2), range(4))
        for augment in (replace(crops, erase=1.0), crops)
    )
    assert [same([one], [other]) for one, other in zip(augmented, plain, strict=True)] == [False, False, True, True]


@pytest.mark.parametrize("name", ["brightness", "contrast", "saturation", "hue"])
def test_colour_jitter_changes_pixels(name, augmented):
    images = augmented(**{name: 0.4})
    plain = augmented()
    assert len({image.tobytes() for image in images}) > 20
    assert images.min() >= 0 and images.max() <= 255
    assert abs(images.mean() - plain.mean()) < 0.15 * plain.mean()


def test_brightness_stays_within_its_share(augmented):
    blue = augmented(brightness=0.4)[:, 2].mean(axis=(1, 2))
    assert 36 <= blue.min() < 45 and 75 < blue.max() <= 84  # 60, 40 % down and up


def test_small_images_are_enlarged_to_the_input_size(augmented):
    for crop in ("center", "random", "random_resized"):
        images = augmented(size=48, crop=crop)
        assert images.shape == (64, 3, 48, 48)
        assert (images[:, 2] == 60).all()


@pytest.mark.parametrize("name, number", [("bilinear", 1), ("bicubic", 2), ("area", 3), ("lanczos", 4)])
def test_record_iter_evaluates_with_the_chosen_interpolation(tmp_path, name, number):
    records = noise(tmp_path, 1, side=24)
    data = replace(RAW, reader="record_iter", image_size=12, eval_resize=12, interpolation=name)
    [(pixels, _, _)] = evaluation_data(records, data, 1)
    source = np.random.RandomState(0).randint(0, 256, (1, 24, 24, 3))[0].astype("uint8")
    wanted = mx.image.imresize(mx.nd.array(source, dtype="uint8"), 12, 12, number).asnumpy().transpose(2, 0, 1)
    np.testing.assert_allclose(pixels.asnumpy()[0], wanted, atol=1)


def test_training_uses_the_chosen_interpolation(reader, tmp_path):
    records, crops = noise(tmp_path, 4, side=24), Augment(crop="random_resized", scale=[0.3, 0.5], flip=False)
    seen = set()
    for name in INTERPOLATIONS:
        data = replace(RAW, reader=reader, image_size=12, augment=crops, interpolation=name)
        seen.add(micros(train_data(records, data), [0])[0][3].tobytes())
    assert len(seen) == len(INTERPOLATIONS)


CHANGES = {"lighting": 0.5, "hls": [20, 30, 30], "rotate": 30, "shear": 0.2, "stretch": 0.3, "erase": 1.0}


@pytest.mark.parametrize("name", CHANGES)
def test_each_setting_changes_pixels(name, augmented, reader):
    if READERS[reader].lacks.get(f"augment.{name}") == "any":
        pytest.skip(f"data.reader={reader} has no data.augment.{name}, which is refused by name")
    images = augmented(size=24, **{name: CHANGES[name]})
    assert len({image.tobytes() for image in images}) > 20


@pytest.mark.parametrize("override, where", [
    ("data.augment.erase=0.5", ""), ("data.augment.stretch=0.25", " with data.augment.crop=random_resized"),
])  # fmt: skip
def test_what_record_iter_lacks_is_refused(override, where):
    error = error_of(composed, "train", "data=imagefolder", "data.root=x", "data.reader=record_iter", override)
    assert error == f"{override}: data.reader=record_iter does not have it{where}; use data.reader=turbojpeg"


@pytest.mark.parametrize("min_side, refused", [(32, True), (24, False), (33, False), (None, False)])
def test_images_that_record_iter_would_damage_are_refused(min_side, refused):
    crops = Augment(crop="random_resized", pad=4)  # which pads no such crop
    data = replace(RAW, reader="record_iter", image_size=32, augment=crops)
    if refused:
        assert "damages images" in error_of(check_crops, data, min_side)
    else:
        check_crops(data, min_side)
    check_crops(replace(data, reader="turbojpeg"), min_side)
    check_crops(replace(data, augment=replace(crops, crop="random")), min_side)


@pytest.mark.slow
def test_levels_are_those_of_the_published_fine_tuning():
    """MXNet 1.9.1, example/image-classification/common/data.py: set_data_aug_level."""
    for level, wanted in {
        1: {"crop": "random", "flip": True, "hls": [0, 0, 0], "rotate": 0},
        2: {"crop": "random", "flip": True, "hls": [36, 50, 50], "rotate": 0},
        3: {"crop": "random", "hls": [36, 50, 50], "rotate": 10, "shear": 0.1, "stretch": 0.25},
    }.items():
        for entry in ("train", "finetune"):
            found = composed(entry, "data=imagefolder", "data.root=x", f"augment=level{level}").data.augment
            assert {key: getattr(found, key) for key in wanted} == wanted
