"""Packing of image folders: order, splits and invalid input."""

import hashlib
import io
import json
import os
from pathlib import Path

import pytest
from image_trees import folder_data, make_tree, pack, paint, records, refused
from PIL import Image

from mxscale.config.signature import hash_of
from mxscale.data import manifest, recordio
from mxscale.util.errors import ConfigError


def test_a_folder_is_split_by_shares_in_each_class(tmp_path):
    root = make_tree(tmp_path / "set", {"ant": 10, "bee": 20})
    made = pack(folder_data(root, tmp_path, val_share=0.2, test_share=0.1))
    assert made["classes"] == ["ant", "bee"]
    counts = {name: split["per_class"] for name, split in made["splits"].items()}
    assert counts == {"train": [7, 14], "val": [2, 4], "test": [1, 2]}
    seen = [record for split in made["splits"] for record in records(made, split)]
    assert sorted(colour for _, _, colour in seen) == [
        (c, n, 0) for c, count in ((0, 10), (1, 20)) for n in range(count)
    ]
    assert all(label == colour[0] for label, _, colour in seen)


def test_folders_with_their_own_splits_keep_them(tmp_path):
    root = tmp_path / "set"
    make_tree(root / "train", {"ant": 4, "bee": 5})
    make_tree(root / "valid", {"ant": 2, "bee": 1}, blue=1)
    made = pack(folder_data(root, tmp_path))
    assert {name: split["per_class"] for name, split in made["splits"].items()} == {"train": [4, 5], "val": [2, 1]}
    make_tree(root / "test", {"ant": 1, "bee": 1}, blue=2)
    assert pack(folder_data(root, tmp_path))["splits"]["test"]["per_class"] == [1, 1]


def test_a_class_may_be_called_train(tmp_path):
    root = make_tree(tmp_path / "set", {"plane": 5, "train": 5})
    assert pack(folder_data(root, tmp_path))["classes"] == ["plane", "train"]
    paint(root / "train" / "steam" / "a.png", (1, 5, 0))
    text = refused(folder_data(root, tmp_path))
    assert "train/000.png is beside the folders of classes" in text
    assert text.endswith("or set 'data.classes=[plane,train]' if train is a class")
    made = pack(folder_data(root, tmp_path, classes=["plane", "train"]))
    assert [sum(counts) for counts in zip(*(split["per_class"] for split in made["splits"].values()))] == [5, 6]


def test_a_class_below_train_may_be_called_train(tmp_path):
    root = tmp_path / "set"
    for blue, split in enumerate(("train", "val")):
        make_tree(root / split, {"plane": 2, "train": 2}, blue=blue)
    made = pack(folder_data(root, tmp_path, classes=["train", "plane"]))
    assert made["classes"] == ["train", "plane"] and made["splits"].keys() == {"train", "val"}


def test_folders_of_splits_without_classes_are_no_classes(tmp_path):
    root = make_tree(tmp_path / "kaggle", {"train": 5, "test1": 5})
    message = refused(folder_data(root, tmp_path))
    assert "test1 and train are names of splits" in message and "data.train=FILE" in message
    make_tree(tmp_path / "set" / "train", {"ant": 3, "bee": 3})
    make_tree(tmp_path / "set", {"test": 3})
    paint(tmp_path / "set" / "train" / "montage.png", "red")
    assert "train/montage.png is beside the folders of classes" in refused(folder_data(tmp_path / "set", tmp_path))


def test_a_stray_image_beside_the_classes_of_a_split_is_named(tmp_path):
    root = tmp_path / "set"
    for blue, split in enumerate(("train", "val")):
        make_tree(root / split, {"ant": 3, "bee": 3}, blue=blue)
    paint(root / "train" / "montage.png", "red")
    assert "train/montage.png is beside the folders of classes" in refused(folder_data(root, tmp_path))


def test_other_and_hidden_files_are_ignored(tmp_path):
    root = make_tree(tmp_path / "set", {"ant": 3, "bee": 3})
    paint(root / "ant" / "upper.JPG", "red")
    paint(root / ".hidden" / "a.png", "red")
    (root / "bee" / ".DS_Store.png").write_text("x")
    (root / "bee" / "notes.txt").write_text("x")
    made = pack(folder_data(root, tmp_path))
    assert sum(split["count"] for split in made["splits"].values()) == 7


def test_unused_files_are_counted_by_kind(tmp_path, capfd):
    root = make_tree(tmp_path / "set", {"ant": 3, "bee": 3})
    for name in ("a.heic", "b.HEIC", "c", "notes.txt"):
        (root / "bee" / name).write_text("x")
    made = pack(folder_data(root, tmp_path))
    assert made["unused"] == {".heic": 2, "without extension": 1, ".txt": 1}
    assert "files not used: 2 .heic, 1 without extension, 1 .txt" in capfd.readouterr().err


@pytest.mark.parametrize("extension", [".jfif", ".jpe", ".avif", ".jp2"])
def test_rare_extensions_of_images_are_packed(tmp_path, extension):
    root = make_tree(tmp_path / "set", {"ant": 3, "bee": 3})
    paint(root / "ant" / "z.png", "red")
    (root / "ant" / "z.png").rename(root / "ant" / f"z{extension}")
    assert pack(folder_data(root, tmp_path))["unused"] == {}
    assert sum(split["count"] for split in pack(folder_data(root, tmp_path))["splits"].values()) == 7


def test_folders_of_archivers_are_no_classes(tmp_path):
    root = make_tree(tmp_path / "set", {"ant": 3, "bee": 3})
    (root / "__MACOSX" / "ant").mkdir(parents=True)
    (root / "__MACOSX" / "._ant").write_text("x")
    assert pack(folder_data(root, tmp_path))["classes"] == ["ant", "bee"]


def test_validation_images_are_split_from_train_if_there_is_only_test(tmp_path):
    root = tmp_path / "set"
    make_tree(root / "train", {"ant": 10, "bee": 20})
    make_tree(root / "test", {"ant": 2, "bee": 1}, blue=1)
    made = pack(folder_data(root, tmp_path, val_share=0.2))
    counts = {name: split["per_class"] for name, split in made["splits"].items()}
    assert counts == {"train": [8, 16], "val": [2, 4], "test": [2, 1]}


def test_the_manifest_describes_the_set(tmp_path):
    root = make_tree(tmp_path / "set", {"ant": 5, "bee": 5})
    paint(root / "ant" / "large.png", "red", (40, 50))
    made = pack(folder_data(root, tmp_path))
    written = json.loads((Path(made["dir"]) / "manifest.json").read_text())
    assert "dir" not in written and {**written, "dir": made["dir"]} == made == manifest.load(made["dir"])
    assert Path(made["dir"]).parent == tmp_path / "cache" and Path(made["dir"]).name.startswith("imagefolder-")
    for split, entry in made["splits"].items():
        found = manifest.split_of(made, split)
        assert hashlib.sha256(Path(found.rec).read_bytes()).hexdigest() == entry["sha256"]
        assert len(Path(found.idx).read_text().splitlines()) == entry["count"] == sum(entry["per_class"])
        assert entry["min_side"] == 16
    digests = {split: entry["sha256"] for split, entry in made["splits"].items()}
    assert made["digest"] == hash_of({"classes": made["classes"], "splits": digests})
    assert written["settings"]["kind"] == "imagefolder"
    with pytest.raises(ConfigError, match="has no extra split"):
        manifest.split_of(made, "extra")


def test_pack_short_side_is_the_shorter_side(tmp_path):
    root = make_tree(tmp_path / "set", {"ant": 4, "bee": 4})
    made = pack(folder_data(root, tmp_path, pack_short_side=24, pack_format="jpeg"))
    for split, entry in made["splits"].items():
        assert entry["min_side"] == 24
        for record in recordio.scan(manifest.split_of(made, split).rec):
            assert Image.open(io.BytesIO(record.payload)).size == (30, 24)


def test_the_number_of_workers_does_not_change_the_bytes(tmp_path):
    root = make_tree(tmp_path / "set", {"ant": 30, "bee": 30})
    (root / "ant" / "000.png").write_bytes(b"")
    made = [
        pack(folder_data(root, tmp_path, cache=str(tmp_path / str(n)), on_bad="skip", pack_short_side=64), workers=n)
        for n in (1, 3)
    ]
    assert made[0]["digest"] == made[1]["digest"] and made[0]["skipped"] == made[1]["skipped"]
    for name in os.listdir(made[0]["dir"]):
        assert (Path(made[0]["dir"]) / name).read_bytes() == (Path(made[1]["dir"]) / name).read_bytes()


def test_mxnet_reads_packed_sets(tmp_path):
    import mxnet as mx

    root = make_tree(tmp_path / "set", {"ant": 6, "bee": 6})
    made = pack(folder_data(root, tmp_path))
    train = manifest.split_of(made, "train")
    reader = mx.io.ImageRecordIter(path_imgrec=train.rec, path_imgidx=train.idx, data_shape=(3, 16, 16), batch_size=2)
    got = [
        (int(label), *image[:2, 0, 0].astype(int))
        for batch in reader
        for image, label in zip(batch.data[0].asnumpy(), batch.label[0].asnumpy())
    ]
    assert got == [(label, colour[0], colour[1]) for label, _, colour in records(made, "train")]


def test_a_missing_or_empty_root_is_refused(tmp_path):
    root = tmp_path / "set"
    assert refused(folder_data(root, tmp_path)) == (
        f"data.root={root}: cannot read {root} (no such file or directory): expected a directory with "
        "<class>/<image>.jpg"
    )
    root.mkdir()
    expected = f"data.root={root} has no images: expected {root}/<class>/<image>.jpg"
    assert refused(folder_data(root, tmp_path)) == expected
    (root / "ant").mkdir()
    assert refused(folder_data(root, tmp_path)) == expected
    (root / "a.tar").write_text("")
    assert "a.tar (not a directory): expected" in refused(folder_data(root / "a.tar", tmp_path))


def test_a_root_one_level_too_high_gets_a_suggestion(tmp_path):
    make_tree(tmp_path / "set" / "inner", {"ant": 3, "bee": 3})
    assert refused(folder_data(tmp_path / "set", tmp_path)).endswith(f"did you mean data.root={tmp_path}/set/inner?")


def test_a_class_without_images_is_named(tmp_path):
    root = make_tree(tmp_path / "set", {"ant": 5, "bee": 5})
    (root / "cow").mkdir()
    assert refused(folder_data(root, tmp_path)) == f"data.root={root}: class cow has no images; add some or remove it"


def test_one_class_is_too_few(tmp_path):
    root = make_tree(tmp_path / "set", {"ant": 5})
    assert refused(folder_data(root, tmp_path)) == f"data.root={root} has 1 class (ant); expected at least 2"


def test_train_and_val_must_have_the_same_classes(tmp_path):
    root = tmp_path / "set"
    make_tree(root / "train", {"ant": 2, "bee": 2})
    assert "has train/ but no val/" in refused(folder_data(root, tmp_path))
    make_tree(root / "val", {"ant": 2, "cow": 2})
    assert refused(folder_data(root, tmp_path)) == (
        f"data.root={root}: train/ and val/ have different classes: only in train/: bee; "
        "for a class without images there, add an empty folder to val/"
    )


def test_a_split_may_have_no_image_of_a_class(tmp_path):
    root = tmp_path / "set"
    make_tree(root / "train", {"ant": 2, "bee": 2})
    make_tree(root / "val", {"ant": 2}, blue=1)
    (root / "val" / "bee").mkdir()
    assert pack(folder_data(root, tmp_path))["splits"]["val"]["per_class"] == [2, 0]


def test_unknown_and_repeated_class_names_are_refused(tmp_path):
    root = make_tree(tmp_path / "set", {"ant": 5, "bee": 5})
    assert "has no class amt: did you mean ant?" in refused(folder_data(root, tmp_path, classes=["amt", "bee"]))
    assert "bee is listed 2 times" in refused(folder_data(root, tmp_path, classes=["bee", "bee"]))
    assert "data.num_classes=7" in refused(folder_data(root, tmp_path, num_classes=7))


def test_too_few_images_are_refused(tmp_path):
    root = make_tree(tmp_path / "set", {"ant": 2, "bee": 9})
    assert "class ant has 2 images, too few to split" in refused(folder_data(root, tmp_path))
    assert pack(folder_data(root, tmp_path, test_share=0))["splits"].keys() == {"train", "val"}
    assert "data.val_share=0" in refused(folder_data(root, tmp_path, val_share=0))
    text = refused(folder_data(root, tmp_path, test_share=0, train_per_class=3))
    assert text == "data.train_per_class=3: class ant has fewer training images; use at most 1"


def test_the_first_bad_image_is_reported(tmp_path):
    root = make_tree(tmp_path / "set", {"ant": 8, "bee": 8})
    (root / "bee" / "003.png").write_bytes(b"")
    text = refused(folder_data(root, tmp_path))
    assert text == (
        f"data.root={root}: cannot use bee/003.png (empty file): replace it, or set data.on_bad=skip, which lists all "
        "bad images"
    )
    (root / "bee" / "003.png").unlink()
    (root / "ant" / "broken.jpg").symlink_to("nowhere")
    assert "cannot use ant/broken.jpg (No such file or directory)" in refused(folder_data(root, tmp_path))
    assert not list((tmp_path / "cache").glob("*imagefolder-*.partial"))


def test_a_link_to_itself_is_named_as_a_bad_image(tmp_path):
    root = make_tree(tmp_path / "set", {"ant": 8, "bee": 8})
    (root / "bee" / "x.jpg").symlink_to("x.jpg")
    (root / "loop").symlink_to("loop")
    assert "cannot use bee/x.jpg (" in refused(folder_data(root, tmp_path))
    assert pack(folder_data(root, tmp_path, on_bad="skip"))["skipped"][0]["path"] == "bee/x.jpg"
    assert "cannot use bee/x.jpg (" in refused(folder_data(root, tmp_path))  # though it is packed without it


def test_bad_images_can_be_skipped_and_are_recorded(tmp_path):
    root = make_tree(tmp_path / "set", {"ant": 8, "bee": 8})
    complete = pack(folder_data(root, tmp_path))
    (root / "bee" / "003.png").write_bytes(b"")
    paint(root / "ant" / "001.png", "red", (10, 30))
    made = pack(folder_data(root, tmp_path, on_bad="skip", min_side=16))
    assert made["skipped"] == [
        {"path": "ant/001.png", "reason": "10x30 pixels, smaller than 16 (data.min_side)"},
        {"path": "bee/003.png", "reason": "empty file"},
    ]
    bad = {1, 11}  # their ids
    for split in complete["splits"]:
        assert records(made, split) == [r for r in records(complete, split) if r[1] not in bad]


def test_skipped_images_are_not_replaced_with_train_per_class(tmp_path):
    root = make_tree(tmp_path / "set", {"ant": 12, "bee": 12})
    first = records(pack(folder_data(root, tmp_path, train_per_class=2)), "train")
    lost = next(colour[1] for label, _, colour in first if label == 0)
    (root / "ant" / f"{lost:03d}.png").write_bytes(b"")
    made = pack(folder_data(root, tmp_path, train_per_class=2, on_bad="skip"))
    assert made["splits"]["train"]["per_class"] == [1, 2]
    assert len(set(records(made, "train")) & set(first)) == 3
    assert [one["path"] for one in made["skipped"]] == [f"ant/{lost:03d}.png"]


def test_a_class_without_usable_images_is_refused(tmp_path):
    root = make_tree(tmp_path / "set", {"ant": 5, "bee": 5})
    for path in (root / "bee").iterdir():
        path.write_bytes(b"")
    error = refused(folder_data(root, tmp_path, on_bad="skip"))
    assert "class bee has no usable train image; 5 bad images were skipped, such as bee/" in error


def test_min_side_limits_image_size(tmp_path):
    root = make_tree(tmp_path / "set", {"ant": 5, "bee": 5})
    assert "20x16 pixels, smaller than 17 (data.min_side)" in refused(folder_data(root, tmp_path, min_side=17))
    made = pack(folder_data(root, tmp_path, image_size=32, min_side=8, pack_short_side=40))
    assert made["splits"]["train"]["min_side"] == 40
    smaller = folder_data(root, tmp_path, image_size=32, pack_short_side=24)
    assert "data.pack_short_side=24 is less than" in refused(smaller)


@pytest.mark.parametrize("pack_short_side, side", [("original", 32), (40, 40)])
def test_small_images_are_enlarged_and_counted(tmp_path, capfd, pack_short_side, side):
    root = make_tree(tmp_path / "set", {"ant": 5, "bee": 5})
    paint(root / "ant" / "large.png", "red", (60, 50))
    made = pack(folder_data(root, tmp_path, image_size=32, pack_short_side=pack_short_side))
    assert min(split["min_side"] for split in made["splits"].values()) == side
    assert sum(split["enlarged"] for split in made["splits"].values()) == 10
    assert "10 images smaller than the network's input (32) enlarged" in capfd.readouterr().err


def test_a_very_large_file_is_bad(tmp_path):
    root = make_tree(tmp_path / "set", {"ant": 5, "bee": 5})
    with open(root / "bee" / "sparse.jpg", "wb") as file:
        file.truncate(20 * 2**30)
    assert "bee/sparse.jpg (20,480 MiB, more than 512)" in refused(folder_data(root, tmp_path))


def test_a_very_long_image_is_bad(tmp_path):
    root = make_tree(tmp_path / "set", {"ant": 5, "bee": 5})
    paint(root / "ant" / "long.png", "red", (32, 60_000))
    text = refused(folder_data(root, tmp_path, image_size=64))
    assert "cannot use ant/long.png (64x120000 pixels after packing, longer than 65,500)" in text


def test_an_image_in_two_classes_is_refused(tmp_path, capfd):
    root = tmp_path / "set"
    make_tree(root / "train", {"ant": 4, "bee": 4})
    make_tree(root / "val", {"ant": 2, "bee": 2}, blue=1)
    (root / "train" / "bee" / "x.png").write_bytes((root / "train" / "ant" / "001.png").read_bytes())
    text = refused(folder_data(root, tmp_path))
    names = sorted(("train/ant/001.png", "train/bee/x.png"), key=text.index)
    assert text == (
        f"data.root={root}: {' and '.join(names)} are the same image in two classes: "
        "remove the copies, or set data.allow_duplicates=true"
    )
    capfd.readouterr()
    (root / "train" / "bee" / "y.png").write_bytes((root / "train" / "bee" / "000.png").read_bytes())
    made = pack(folder_data(root, tmp_path, allow_duplicates=True))
    assert made["duplicates"]["two_classes"] == 1
    assert "1 images are exact copies of images in another class" in capfd.readouterr().err


def test_unusual_file_names_are_packed_and_escaped(tmp_path):
    root = make_tree(tmp_path / "set", {"ant": 4, "bee": 4})
    names = ["a b.png", "ä漢.png", "a,b;'\".png", os.fsdecode(b"\xff.png")]
    for number, name in enumerate(names):
        paint(root / "ant" / name, (255, number, 0))
    assert pack(folder_data(root, tmp_path), workers=2)["splits"]["train"]["per_class"] == [4, 2]
    (root / "ant" / "new\nline.png").write_bytes(b"")
    assert "new\\nline.png" in refused(folder_data(root, tmp_path))
