"""Layouts of image folders: nested folders, names of splits, lists of images and labels, files of class names."""

import json
from pathlib import Path

import pytest
from image_trees import folder_data, make_tree, pack, paint, records, refused

from mxscale.config import signature
from mxscale.config.schema import Config, from_dict, to_dict
from mxscale.data import image_lists


@pytest.fixture
def flat(tmp_path):
    """Return a folder with ten images a0.png to b4.png, of two colours."""
    for n in range(5):
        paint(tmp_path / "set" / f"a{n}.png", (0, n, 0))
        paint(tmp_path / "set" / f"b{n}.png", (1, n, 0))
    return tmp_path / "set"


def written(path: Path, *lines) -> str:
    path.write_text("\n".join(lines) + "\n")
    return str(path)


def counts(made) -> dict:
    return {name: split["per_class"] for name, split in made["splits"].items()}


def colours_are_labels(made) -> bool:
    found = [record for split in made["splits"] for record in records(made, split)]
    return bool(found) and all(label == colour[0] for label, _, colour in found)


# ---------------------------------------------------------------- folders


def test_folders_below_a_class_belong_to_it(tmp_path):
    root = make_tree(tmp_path / "set", {"ant/red": 3, "ant/black/small": 2, "bee": 5})
    paint(root / "ant" / ".hidden" / "a.png", "red")
    paint(root / "ant" / "__MACOSX" / "a.png", "red")
    made = pack(folder_data(root, tmp_path, test_share=0))
    assert (made["classes"], counts(made)) == (["ant", "bee"], {"train": [4, 4], "val": [1, 1]})


def test_a_link_to_a_folder_above_ends_the_search(tmp_path):
    root = make_tree(tmp_path / "set", {"ant/red": 5, "bee": 5})
    (root / "ant" / "red" / "again").symlink_to(root / "ant" / "red")
    assert sum(split["count"] for split in pack(folder_data(root, tmp_path))["splits"].values()) == 10


@pytest.mark.parametrize(
    "names", [("Train", "VAL", "Test"), ("training", "validation", "testing"), ("train", "dev", "test")]
)
def test_folders_of_splits_have_their_usual_names(tmp_path, names):
    for blue, name in enumerate(names):
        make_tree(tmp_path / "set" / name, {"ant": 3 - blue, "bee": 3 - blue}, blue=blue)
    assert counts(pack(folder_data(tmp_path / "set", tmp_path))) == {"train": [3, 3], "val": [2, 2], "test": [1, 1]}


def test_splits_with_unknown_names_are_refused(tmp_path):
    root = tmp_path / "set"
    for blue, name in enumerate(("learn", "check")):
        make_tree(root / name, {"ant": 3, "bee": 3}, blue=blue)
    text = refused(folder_data(root, tmp_path))
    assert text == (
        f"data.root={root}: check and learn hold folders of images, no images: call them train, val and test if they "
        "are splits, or set 'data.classes=[check,learn]' if they are classes"
    )
    assert pack(folder_data(root, tmp_path, classes=["check", "learn"]))["classes"] == ["check", "learn"]


def test_folders_of_splits_that_an_archive_repeats_are_refused(tmp_path):
    root = tmp_path / "set"
    for blue, name in enumerate(("seg_train", "seg_test")):
        make_tree(root / name / name, {"ant": 3, "bee": 3}, blue=blue)
    make_tree(root / "seg_pred", {"seg_pred": 3}, blue=2)
    assert "seg_pred and seg_test and seg_train hold folders of images" in refused(folder_data(root, tmp_path))


def test_tiny_imagenet_has_a_list_and_a_folder_of_images(tmp_path):
    root = tmp_path / "set"
    make_tree(root / "train", {"n01/images": 3, "n02/images": 3})
    make_tree(root / "val", {"images": 2}, blue=1)
    make_tree(root / "test", {"images": 2}, blue=2)
    assert "data.val=FILE" in refused(folder_data(root, tmp_path))
    listed = written(root / "val" / "val_annotations.txt", "000.png\tn02\t0\t32\t44\t62", "001.png\tn01\t0\t0\t9\t9")
    made = pack(folder_data(root, tmp_path, val=listed))
    assert (made["classes"], counts(made)) == (["n01", "n02"], {"train": [3, 3], "val": [1, 1]})


def test_a_folder_of_train_alone_gets_a_suggestion(tmp_path):
    make_tree(tmp_path / "set" / "train", {"ant": 3, "bee": 3})
    assert refused(folder_data(tmp_path / "set", tmp_path)).endswith(f"data.root={tmp_path}/set/train is split")


@pytest.mark.parametrize("extension", [".JPG", ".Jpeg", ".PNG", ".TiF"])
def test_extensions_have_any_case(tmp_path, extension):
    root = make_tree(tmp_path / "set", {"ant": 3, "bee": 3})
    paint(root / "ant" / f"x{extension}", "red")
    assert sum(split["count"] for split in pack(folder_data(root, tmp_path))["splits"].values()) == 7


# ---------------------------------------------------------------- lists

LISTS = {
    "train.csv": [f"{name}{n}.png,{name}" for n in range(5) for name in "ab"],
    "header.csv": ["id,class", *(f"{name}{n},{name}" for n in range(5) for name in "ab")],
    "columns.csv": ["label;size;file name", *(f"{name};7;{name}{n}.png" for n in range(5) for name in "ab")],
    "train.tsv": [f"{name}{n}.png\t{name}" for n in range(5) for name in "ab"],
    "train.txt": [f"{name}{n}.png {label}" for n in range(5) for label, name in enumerate("ab")],
}


@pytest.mark.parametrize("name", LISTS)
def test_a_list_labels_the_images_of_a_flat_folder(flat, tmp_path, name):
    made = pack(folder_data(flat, tmp_path, train=written(tmp_path / name, *LISTS[name]), test_share=0))
    assert made["classes"] == (["0", "1"] if name == "train.txt" else ["a", "b"])
    assert counts(made) == {"train": [4, 4], "val": [1, 1]} and colours_are_labels(made)


def test_each_split_has_a_list(flat, tmp_path):
    lines = LISTS["train.csv"]
    train, val, test = (written(tmp_path / f"{n}.csv", *lines[n::3]) for n in range(3))
    made = pack(folder_data(flat, tmp_path, train=train, val=val, test=test))
    assert counts(made) == {"train": [2, 2], "val": [1, 2], "test": [2, 1]} and colours_are_labels(made)
    made = pack(folder_data(flat, tmp_path, train=train, test=test, val_share=0.5))
    assert counts(made) == {"train": [1, 1], "val": [1, 1], "test": [2, 1]}


@pytest.mark.parametrize(
    "lines",
    [
        ["val_0.png 1", "val_1.png 0"],  # Caffe's val.txt: numbers in the order of the names of the folders
        ["ImageId,PredictionString", "val_0,n02 10 20 30 40", "val_1,n01 1 2 3 4 n01 5 6 7 8"],  # LOC_val_solution.csv
    ],
    ids=["numbers", "boxes"],
)
def test_a_flat_folder_of_validation_images_has_a_list(tmp_path, lines):
    root = tmp_path / "set"
    make_tree(root / "train", {"n01": 3, "n02": 4})
    paint(root / "val" / "val_0.png", (1, 9, 9))
    paint(root / "val" / "val_1.png", (0, 9, 9))
    text = refused(folder_data(root, tmp_path))
    assert text.endswith("expected val/<class>/<image>.jpg, or the list of its images as data.val=FILE")
    listed = written(tmp_path / ("val.csv" if "," in lines[0] else "val.txt"), *lines)
    made = pack(folder_data(root, tmp_path, val=listed))
    assert counts(made) == {"train": [3, 4], "val": [1, 1]} and colours_are_labels(made)
    (root / "train" / "n01" / "000.png").unlink()
    first = folder_data(root, tmp_path, val=listed, classes=["n02", "n01"])
    assert counts(pack(first)) == {"train": [4, 2], "val": [1, 1]}
    assert {label: colour[0] for label, _, colour in records(pack(first), "val")} == {0: 1, 1: 0}


def test_images_of_a_list_are_found_in_the_folder_of_their_split(flat, tmp_path):
    (tmp_path / "data").mkdir()
    flat.rename(tmp_path / "data" / "train_images")
    listed = written(tmp_path / "data" / "train.csv", *LISTS["header.csv"])
    assert colours_are_labels(pack(folder_data(tmp_path / "data", tmp_path, train=listed)))


def test_a_missing_image_is_named_although_it_is_the_last_of_its_list(flat, tmp_path):
    (tmp_path / "data").mkdir()
    flat.rename(tmp_path / "data" / "train")
    listed = written(tmp_path / "data" / "train.csv", *LISTS["train.csv"], "gone.png,a")
    assert "line 11: gone.png is no image below" in refused(folder_data(tmp_path / "data", tmp_path, train=listed))


def test_numbers_of_a_list_count_the_names_of_classes(flat, tmp_path):
    names = written(tmp_path / "classes.txt", "zebra", "ant")
    listed = written(tmp_path / "train.txt", *LISTS["train.txt"])
    made = pack(folder_data(flat, tmp_path, train=listed, classes=names))
    assert made["classes"] == ["zebra", "ant"] and colours_are_labels(made)


def test_numbers_beside_a_list_of_numbers_are_the_same_classes(flat, tmp_path):
    lists = {}
    for split, number in (("train", 0), ("val", 1)):
        (tmp_path / split).mkdir()
        lines = [f"{name}{number}.png {label}" for label, name in enumerate("ab", 3)]
        lists[split] = written(tmp_path / split / "l.txt", *lines)
    made = pack(folder_data(flat, tmp_path, **lists))
    assert made["classes"] == ["3", "4"] and counts(made) == {"train": [1, 1], "val": [1, 1]}
    assert colours_are_labels(made)


def test_numbers_beside_a_list_of_names_are_refused(flat, tmp_path):
    train, val = written(tmp_path / "a.csv", "a0.png,a", "b0.png,b"), written(tmp_path / "b.csv", "a1.png,0")
    text = refused(folder_data(flat, tmp_path, train=train, val=val))
    assert text.startswith(f"data.val={val} line 1: 0 is no class of train")


def test_classes_that_are_numbers_are_in_numerical_order(flat, tmp_path):
    lines = [f"{name}{n}.png {10 if name == 'b' else 9}" for n in range(5) for name in "ab"]
    assert pack(folder_data(flat, tmp_path, train=written(tmp_path / "l.txt", *lines)))["classes"] == ["9", "10"]


def test_a_list_of_classes_selects_images_of_a_list(flat, tmp_path):
    for n in range(5):
        paint(flat / f"c{n}.png", (2, n, 0))
    listed = written(tmp_path / "l.csv", *LISTS["train.csv"], *(f"c{n}.png,c" for n in range(5)))
    made = pack(folder_data(flat, tmp_path, train=listed, classes=["c", "a"], test_share=0))
    assert (made["classes"], counts(made)) == (["c", "a"], {"train": [4, 4], "val": [1, 1]})


def test_a_changed_label_packs_the_set_again(flat, tmp_path):
    first = pack(folder_data(flat, tmp_path, train=written(tmp_path / "l.csv", *LISTS["train.csv"])))
    swapped = [line.replace("a0.png,a", "a0.png,b") for line in LISTS["train.csv"]]
    again = pack(folder_data(flat, tmp_path, train=written(tmp_path / "l.csv", *swapped)))
    assert again["digest"] != first["digest"]


def test_an_image_that_changes_its_split_packs_the_set_again(tmp_path):
    root = make_tree(tmp_path / "set", {"train/c": 2, "train/d": 3, "val/c": 1, "val/d": 1})
    names = ["c/000.png,c", "d/001.png,d", "d/002.png,d"]
    found = []
    for start in (1, 2):  # the second image of d is in the list of val, then in that of train
        lists = {"train": ["c/000.png,c", "d/000.png,d", *names[1:start]], "val": names[start:]}
        files = {split: written(tmp_path / f"{split}.csv", *lines) for split, lines in lists.items()}
        found.append(counts(pack(folder_data(root / "train", tmp_path, test_share=0, **files))))
    assert found == [{"train": [1, 1], "val": [0, 2]}, {"train": [1, 2], "val": [0, 1]}]


@pytest.mark.parametrize("head, images", [(["id,class"], 4), (["Image ID,Label"], 4), (["a0,cat"], 5), ([], 4)])
def test_a_header_names_the_columns(flat, tmp_path, head, images):
    listed = written(tmp_path / "l.csv", *head, "a1,ant", "a2,ant", "b1,bee", "b2,bee")
    rows = image_lists.located(image_lists.read(listed, "l.csv"), str(flat), [""], "l.csv")
    assert len(rows) == images


@pytest.mark.parametrize(
    "name, lines, message",
    [
        ("l.csv", [], "lists no image; expected a .csv or .tsv file"),
        ("l.xml", ["a0.png a"], ": expected a .csv or .tsv file, or a .txt file of `path label`, in UTF-8"),
        ("l.csv", ["a0.png,a", "a1.png"], "line 2: has no label: a1.png"),
        ("l.csv", ["a0.png,a", "a1.png,"], "line 2: has no label"),
        ("l.csv", ["a0.png,a", "a9.png,a", "b9.png,b"], "line 2: a9.png is no image below data.root={root}: set"),
        ("l.csv", ["a0.png,a", "b0.png,b", "a0.png,b"], "line 3: a0.png is in line 1 too; list each image once"),
        ("l.csv", ["a0.png,1,2", "a1.png,2,3"], "has 3 columns: name those of the images path and label in line 1"),
        ("l.lst", ["0\t1.0\ta0.png"], "; im2rec packs its .lst files, and data=recordio reads the result"),
        ("l.csv", ["path,label"], "lists no image below its header"),
        (
            "l.csv",
            ["id,breed", "a0.png,a", "b0.png,b"],
            "line 1: id is no image below data.root={root}: set data.root to the folder that the paths begin in; if "
            "the line names the columns, name those of the images path and label in line 1",
        ),
        (
            "l.csv",
            ["path,label", "gone,a", "b0.png,b"],
            "line 2: gone is no image below data.root={root}: set data.root to the folder",
        ),
        ("l.csv", ["gone.png,a", "b0.png,b"], "line 1: gone.png is no image below data.root={root}: set data.root"),
        ("l.csv", ["a\0/a0.png,a", "b0.png,b"], "not a text file"),
        ("l.csv", ['a0.png,"a', "a1.png,a", "b0.png,b"], "unexpected end of data"),
        ("l.txt", ["a0.png"], "line 1: has no label: a0.png"),
        ("l.csv", ["a0.png,a", "a1.png,a"], "has 1 class (a); expected at least 2"),
    ],
)
def test_an_invalid_list_is_refused(flat, tmp_path, name, lines, message):
    listed = tmp_path / name
    listed.write_text("\n".join(lines))
    text = refused(folder_data(flat, tmp_path, train=str(listed)))
    assert text.startswith(f"data.train={listed}") and message.format(root=flat) in text


def test_a_list_in_another_encoding_is_refused(flat, tmp_path):
    (tmp_path / "l.csv").write_bytes("a0.png;Löwe\nb0.png;Maus\n".encode("cp1252"))
    text = refused(folder_data(flat, tmp_path, train=str(tmp_path / "l.csv")))
    assert "codec can't decode" in text and text.endswith("in UTF-8")


def test_lists_that_contradict_the_folder_are_refused(flat, tmp_path):
    listed = written(tmp_path / "train.csv", *LISTS["train.csv"][:6])
    wrong = written(tmp_path / "val.csv", "a3.png,a", "b3.png,bb")
    text = refused(folder_data(flat, tmp_path, train=listed, val=wrong))
    assert text == f"data.val={wrong} line 2: bb is no class of train: did you mean b?"
    assert "no train/<class>/<image>.jpg beside the lists" in refused(folder_data(flat, tmp_path, val=listed))
    absent = str(tmp_path / "no.csv")
    assert f"data.train={absent}: No such file" in refused(folder_data(flat, tmp_path, train=absent))
    names = written(tmp_path / "classes.txt", "x", "y")
    for label in ("2", "9" * 5000):
        numbers = written(tmp_path / "l.txt", "a0.png 0", f"b0.png {label}")
        text = refused(folder_data(flat, tmp_path, train=numbers, classes=names))
        assert f"line 2: label {label} is outside the 2 classes" in text


# ---------------------------------------------------------------- names of classes


def test_the_order_of_labels_is_that_of_the_file(tmp_path):
    root = make_tree(tmp_path / "set", {"ant": 5, "bee": 5, "cow": 5})
    (tmp_path / "classes.txt").write_bytes(b"\xef\xbb\xbfcow\r\n\r\nant\r\nbee\r\n")
    made = pack(folder_data(root, tmp_path, classes=str(tmp_path / "classes.txt")))
    assert made["classes"] == ["cow", "ant", "bee"]
    assert {(label, colour[0]) for label, _, colour in records(made, "train")} == {(0, 2), (1, 0), (2, 1)}
    listed = pack(folder_data(root, tmp_path, classes=["cow", "ant", "bee"]))
    assert (listed["dir"], listed["digest"]) == (made["dir"], made["digest"])


@pytest.mark.parametrize(
    "lines, message",
    [
        (["ant", "bee", "caw"], "data.classes: data.root={root} has no class caw: did you mean cow?"),
        (["ant", "bee"], "data.classes={file} lacks cow, a class of data.root={root}: add it"),
        (["ant", "bee", "ant"], "data.classes={file} line 3: ant is in line 1 too; list it once"),
        ([], "data.classes={file} is empty: expected a class in each line"),
        (None, "data.classes={file}: no such file or directory; expected a text file with a class in each line"),
    ],
)
def test_an_invalid_file_of_classes_is_refused(tmp_path, lines, message):
    root = make_tree(tmp_path / "set", {"ant": 5, "bee": 5, "cow": 5})
    file = tmp_path / "classes.txt"
    if lines is not None:
        written(file, *lines)
    assert refused(folder_data(root, tmp_path, classes=str(file))).startswith(message.format(root=root, file=file))


def test_a_file_of_classes_is_a_setting_outside_the_signature():
    config = from_dict({"data": {"classes": "classes.txt"}})
    assert from_dict(to_dict(config)).data.classes == "classes.txt"
    assert signature.signature(config, "digest", None) == signature.signature(Config(), "digest", None)


@pytest.mark.slow
def test_names_of_classes_survive_prediction_evaluation_and_export(cli, tmp_path):
    root = make_tree(tmp_path / "set", {"ant": 9, "bee": 9, "cow": 9})
    names = written(tmp_path / "classes.txt", "cow", "ant", "bee")
    small = ["data.image_size=16", "data.eval_resize=16", "data.pack_short_side=16"]
    data = ["data=imagefolder", f"data.root={root}", f"data.classes={names}", *small]
    quick = ["launch.ranks=1", "batch.per_device=5", "epochs=1", "tracking=none"]
    run = cli("train", *data, *quick, small=False).run
    assert run.plan().class_names == ("cow", "ant", "bee")
    for verb in ("evaluate", "export"):
        cli(verb, str(run), "tracking=none", small=False)
    out = cli("predict", str(run), str(root / "ant" / "000.png"), "tracking=none", small=False).out
    assert {"cow", "ant", "bee"} <= set(out.split())
    import onnx

    card = onnx.load(run.path / "model.onnx").metadata_props
    assert json.loads({entry.key: entry.value for entry in card}["class_names"]) == ["cow", "ant", "bee"]
