"""Checks of packed sets: duplicates, changed files and label maps."""

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
from composed import composed
from PIL import Image
from records import make_records
from refusals import error_of

from mxscale.config.schema import Data
from mxscale.data import manifest, pack
from mxscale.data.reader.records import RecordFile
from mxscale.data.recordio import BadRecords
from tests.fuzz.damage import place


def prepare(data):
    return pack.prepare(data, workers=1)


def refused(data) -> str:
    return error_of(prepare, data)


def noise(seed, side=20):
    return np.random.RandomState(seed).randint(0, 256, (side, side, 3), dtype="uint8")


@pytest.fixture
def data(tmp_path):
    """Return the settings of two classes of different images in folders train and val."""
    seed = 0
    for split, count in (("train", 4), ("val", 2)):
        for name in ("ant", "bee"):
            folder = tmp_path / "set" / split / name
            folder.mkdir(parents=True)
            for n in range(count):
                Image.fromarray(noise(seed)).save(folder / f"{n}.png")
                seed += 1
    return Data(kind="imagefolder", root=str(tmp_path / "set"), cache=str(tmp_path / "cache"), image_size=16)


def copy(data, source, target):
    (Path(data.root) / target).write_bytes((Path(data.root) / source).read_bytes())


def packed_sets(data):
    return sorted(str(path) for path in Path(data.cache).glob("[!.]*"))


def test_image_in_two_splits_is_refused(data):
    copy(data, "train/ant/1.png", "val/ant/9.png")
    assert refused(data) == (
        f"data.root={data.root}: train/ant/1.png (train) and val/ant/9.png (val) are the same image in two "
        "splits: remove the copies, or set data.allow_duplicates=true"
    )
    copy(data, "train/bee/0.png", "val/bee/8.png")
    assert "in two splits, one of 2: remove" in refused(data)


def test_allowed_duplicates_are_counted(data):
    copy(data, "train/ant/1.png", "val/ant/9.png")
    allowed = dataclasses.replace(data, allow_duplicates=True)
    made = prepare(allowed)
    example = ["train/ant/1.png", "train", "val/ant/9.png", "val"]
    assert made["duplicates"] == {
        "across": 1,
        "example": example,
        "two_classes": 0,
        "two_classes_example": None,
    }
    refused(data)
    assert prepare(allowed) == made and packed_sets(data) == [made["dir"]]


def test_copies_in_a_class_of_a_split_are_accepted(data):
    copy(data, "train/ant/1.png", "train/ant/8.png")
    duplicates = prepare(data)["duplicates"]
    assert duplicates["across"] == duplicates["two_classes"] == 0


def test_equal_pixels_in_other_files_are_not_duplicates(data):
    Image.open(Path(data.root) / "train/ant/1.png").save(Path(data.root) / "val/ant/9.png", compress_level=0)
    assert prepare(data)["duplicates"]["across"] == 0


def test_the_digits_have_no_duplicates(tmp_path):
    for conf in ("digits", "digits_few"):
        own = dataclasses.replace(composed("train", f"data={conf}").data, cache=str(tmp_path / "cache"), image_size=8)
        duplicates = prepare(own)["duplicates"]
        assert duplicates["across"] == duplicates["two_classes"] == 0
        assert own.allow_duplicates is False


def test_image_in_two_record_files_is_refused(tmp_path):
    make_records(tmp_path, [noise(n) for n in range(4)], [0, 1, 0, 1], "train")
    make_records(tmp_path, [noise(9), noise(2)], [0, 1], "val")
    files = {name: str(tmp_path / f"{name}.rec") for name in ("train", "val")}
    data = Data(kind="recordio", image_size=16, cache=str(tmp_path / "cache"), **files)
    assert refused(data) == (
        "data=recordio: train.rec record 2 (train) and val.rec record 1 (val) are the same image in two "
        "splits: remove the copies, or set data.allow_duplicates=true"
    )
    assert prepare(dataclasses.replace(data, allow_duplicates=True))["duplicates"]["across"] == 1


def test_a_record_changed_in_place_is_refused_when_it_is_read(data):
    made = prepare(data)
    rec = Path(made["dir"]) / "train.rec"
    complete = rec.read_bytes()
    rec.write_bytes(complete[:200] + bytes([complete[200] ^ 1]) + complete[201:])
    assert prepare(data) == made
    file = RecordFile(manifest.split_of(made, "train"))
    with pytest.raises(BadRecords, match=r"its checksum differs.*remove .*, and the set is packed again"):
        [file[number] for number in range(len(file))]


def test_a_set_without_checksums_is_packed_again_if_it_was_changed_in_place(data):
    made = prepare(data)
    without_checksums(made)
    rec = Path(made["dir"]) / "train.rec"
    complete = rec.read_bytes()
    rec.write_bytes(complete[:200] + bytes([complete[200] ^ 1]) + complete[201:])
    assert prepare(data) == made and rec.read_bytes() == complete


@pytest.mark.parametrize("name", ["manifest.json", "train.idx"])
@pytest.mark.parametrize("damage", ["link to /dev/zero", "sparse"])
def test_files_of_a_set_without_an_end_are_not_read(data, name, damage):
    path = Path(prepare(data)["dir"]) / name
    place(path, damage)
    assert manifest.intact(path.parent) is None


@pytest.mark.parametrize("key, value", [("skipped", 4), ("duplicates", {"across": "x"}), ("splits", {"train": {}})])
def test_a_manifest_with_a_value_of_another_type_is_damaged(data, key, value):
    path = Path(prepare(data)["dir"]) / "manifest.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), key: value}))
    assert f"{path} is damaged ({key}" in error_of(manifest.load, path.parent)
    assert manifest.intact(path.parent) is None


def without_checksums(made) -> dict:
    """Make a set one of an earlier version, whose records have no checksums; return its manifest."""
    path = Path(made["dir"]) / "manifest.json"
    values = json.loads(path.read_text())
    for name, entry in values["splits"].items():
        (path.parent / entry.pop("crc")).unlink(missing_ok=True)
        assert (path.parent / f"{name}.rec").is_file()
    path.write_text(json.dumps(values))
    return manifest.load(made["dir"])


def test_sets_of_earlier_versions_are_read_without_checksums(data, capfd):
    made = prepare(data)
    earlier = without_checksums(made)
    capfd.readouterr()
    assert prepare(data) == earlier and manifest.split_of(earlier, "train").crc is None
    (line,) = capfd.readouterr().err.splitlines()
    assert line.startswith(f"{made['dir']}: an earlier version packed it without checksums of its records")
    file = RecordFile(manifest.split_of(earlier, "train"))
    assert {file[number][0] for number in range(len(file))} == {0.0, 1.0}


def test_a_set_with_a_damaged_manifest_is_packed_again(data):
    made = prepare(data)
    path, complete = Path(made["dir"]) / manifest.NAME, made["splits"]["train"]
    for lost in ("rec", "idx", "bytes"):  # as one wrong byte in the name of the key leaves it
        entry = {key: value for key, value in complete.items() if key != lost}
        values = {key: value for key, value in made.items() if key != "dir"}
        path.write_text(json.dumps({**values, "splits": {**made["splits"], "train": entry}}))
        assert prepare(data) == made


def test_a_set_with_damaged_checksums_is_packed_again(data):
    made = prepare(data)
    crc = Path(made["dir"]) / "train.crc"
    complete = crc.read_bytes()
    for damage in (crc.unlink, lambda: crc.write_bytes(complete[:-1])):
        damage()
        assert prepare(data) == made and crc.read_bytes() == complete


@pytest.fixture
def record_files(tmp_path):
    make_records(tmp_path, [noise(n) for n in range(6)], [0, 1, 3] * 2, "train")
    make_records(tmp_path, [noise(10 + n) for n in range(3)], [0, 1, 3], "val")
    files = {name: str(tmp_path / f"{name}.rec") for name in ("train", "val")}
    return Data(kind="recordio", image_size=16, cache=str(tmp_path / "cache"), **files)


def test_a_label_missing_in_training_is_refused(record_files, tmp_path):
    prepare(record_files)
    make_records(tmp_path, [noise(20), noise(21)], [0, 2], "val")
    assert refused(record_files) == (
        f"data.val={tmp_path}/val.rec: label 2 is not in data.train={tmp_path}/train.rec: "
        "create both with the same list of classes"
    )
