"""Invalid weights, images and records end before the first step with exit 2 and one line."""

import os
import shutil

import mxnet as mx
import numpy as np
import pytest
from records import make_records
from refusals import contains, folder_of

# ---------------------------------------------------------------- pretrained weights


def test_corrupt_weights_are_refused(refused, tmp_path):
    (tmp_path / "bad.params").write_bytes(b"\x12\x01" + bytes(100))
    contains(refused(f"model.pretrained={tmp_path}/bad.params"), "bad.params", "truncated or corrupt")


def test_weights_of_another_network_are_listed(unprepared, tmp_path):
    file = str(tmp_path / "other.params")
    mx.nd.save(file, {"features.0.weight": mx.nd.zeros((7, 3, 3, 3)), "strange": mx.nd.zeros((1,))})
    contains(
        unprepared(f"model.pretrained={file}"), file, "features.0.weight (7,3,3,3) in the file", "unexpected strange"
    )


def test_missing_symbol_network_is_refused_before_packing(unprepared, tmp_path):
    words = ["model.name=symbol", f"model.pretrained=symbol:{tmp_path}/net", f"data.cache={tmp_path}/fresh"]
    contains(
        unprepared(*words, entry="finetune"), f"{tmp_path}/net-symbol.json", "PREFIX-symbol.json and PREFIX-0000.params"
    )
    assert not (tmp_path / "fresh").exists()


def test_folder_without_a_run_has_no_weights(refused, tmp_path):
    contains(refused(f"model.pretrained={tmp_path}", entry="finetune"), f"{tmp_path}", "no run directory")


# ---------------------------------------------------------------- a folder of images


def test_missing_or_empty_root_is_refused(unprepared, tmp_path):
    contains(unprepared(*folder_of(tmp_path / "nowhere")), f"data.root={tmp_path}/nowhere", "no such directory")
    (tmp_path / "empty").mkdir()
    contains(unprepared(*folder_of(tmp_path / "empty")), "has no images", "<class>/<image>.jpg")


def test_class_without_images_is_refused(unprepared, photos):
    contains(unprepared(*folder_of(photos({"cat": 6, "dog": 6, "owl": 0}))), "class owl has no images")


def test_different_classes_in_train_and_val_are_refused(unprepared, photos):
    root = photos({"train/cat": 3, "train/dog": 3, "val/cat": 3, "val/owl": 3})
    contains(unprepared(*folder_of(root)), "different classes", "only in train/: dog", "only in val/: owl")


def test_unreadable_image_is_refused_with_its_path(refused, photos):
    root = photos({"cat": 6, "dog": 6})
    (root / "dog" / "3.png").write_bytes(b"no image")
    contains(refused(*folder_of(root)), os.path.join("dog", "3.png"), "data.on_bad=skip")


def test_images_smaller_than_the_input_are_refused(unprepared, photos):
    line = unprepared(*folder_of(photos({"cat": 6, "dog": 6}, side=12)))
    contains(line, "cat/0.png", "12x12 pixels, smaller than 16", "data.min_side", "11 other images")


# ---------------------------------------------------------------- records


@pytest.fixture
def records(tmp_path):
    """Write train.rec and val.rec with six 16x16 images in two classes."""
    images = np.random.RandomState(0).randint(0, 256, (6, 16, 16, 3))
    for name, own in (("train", images), ("val", 255 - images)):
        make_records(tmp_path, own, [0, 1] * 3, name)
    return tmp_path


def recordio(folder, *overrides):
    return ["data=recordio", f"data.train={folder}/train.rec", f"data.val={folder}/val.rec", "data.image_size=16",
            *overrides]  # fmt: skip


def test_missing_empty_or_truncated_records_are_refused(unprepared, records):
    whole = (records / "train.rec").read_bytes()
    for content, word in ((whole[:-7], "create it again with im2rec"), (b"", "no records"), (None, "no such file")):
        (records / "train.rec").unlink()
        if content is not None:
            (records / "train.rec").write_bytes(content)
        contains(unprepared(*recordio(records)), f"data.train={records}/train.rec", word)


def test_index_of_other_records_is_refused(refused, records):
    make_records(records, np.zeros((4, 16, 16, 3)), [0, 1, 0, 1], "other")
    shutil.copy(records / "other.idx", records / "train.idx")
    contains(refused(*recordio(records)), "train.idx is the index of another file", "remove it")


def test_labels_outside_the_classes_are_refused(unprepared, records):
    make_records(records, np.zeros((2, 16, 16, 3)), [0, 5], "val")
    contains(unprepared(*recordio(records)), "val.rec", "label 5 is outside", "(0 to 1)")
