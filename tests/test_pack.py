"""Packing folders of images and the digits: what is packed, in which order, and what is refused."""

import dataclasses
import hashlib
import io
import json
import os
import resource
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from mxscale.config.schema import Data
from mxscale.data import images, manifest, recordio, sources, workers
from mxscale.data.images import BadImage
from mxscale.data.pack import prepare
from mxscale.util.errors import ConfigError

ROOT = Path(__file__).resolve().parents[1]


def paint(path: Path, colour, size=(20, 16)) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, colour).save(path)


def make_tree(root: Path, counts, name="{}.png", blue=0) -> Path:
    """counts: class -> images; the n-th image of the c-th class has the colour (c, n, blue)."""
    for number, (folder, count) in enumerate(counts.items()):
        for n in range(count):
            paint(root / folder / name.format(f"{n:03d}"), (number, n, blue))
    return root


def folder_data(root, tmp_path, **more) -> Data:
    values = dict(kind="imagefolder", root=str(root), cache=str(tmp_path / "cache"), image_size=16, pack_format="png")
    return Data(**{**values, **more})


def pack(data, workers=1):
    return prepare(data, workers=workers, progress=False)


def records(made, split):
    """(label, id, colour of the first pixel) of each record, in order."""
    out = []
    for record in recordio.scan(manifest.path_of(made, split)[0]):
        colour = Image.open(io.BytesIO(record.payload)).getpixel((0, 0))
        out.append((int(record.header.label), record.header.id, colour))
    return out


def refused(data) -> str:
    with pytest.raises(ConfigError) as error:
        pack(data)
    text = str(error.value)
    assert "\n" not in text
    return text


# ---------------------------------------------------------------- digits


@pytest.fixture(scope="module")
def digits(tmp_path_factory):
    cache = tmp_path_factory.mktemp("digits")
    return lambda **more: pack(Data(**{**dict(kind="digits", cache=str(cache), pack_format="png"), **more}))


def test_all_digits_are_packed_once_in_three_splits(digits):
    made = digits()
    assert made["classes"] == [str(n) for n in range(10)]
    counts = {name: split["count"] for name, split in made["splits"].items()}
    assert sum(counts.values()) == 1797
    ids = [record[1] for split in counts for record in records(made, split)]
    assert sorted(ids) == list(range(1797))
    for split in ("val", "test"):  # a fifth of each class
        for part, whole in zip(made["splits"][split]["per_class"], [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]):
            assert abs(part - whole / 5) <= 0.5


def test_a_packed_digit_is_the_scan_enlarged(digits):
    *scans, labels = np.loadtxt(sources.DIGITS_FILE, delimiter=",").T
    scans = np.stack(scans, -1)
    made = digits()
    for record in list(recordio.scan(manifest.path_of(made, "val")[0]))[::50]:
        scan = scans[record.header.id].reshape(8, 8) * 255 / 16
        image = Image.fromarray(scan.round().astype("uint8")).resize((32, 32), Image.Resampling.BICUBIC)
        got = np.asarray(Image.open(io.BytesIO(record.payload)))
        np.testing.assert_array_equal(got, np.stack([np.asarray(image)] * 3, -1))
        assert record.header.label == labels[record.header.id]


def test_classes_keep_their_order_as_labels(digits):
    made = digits(classes=["7", "2"])
    assert made["classes"] == ["7", "2"] and made["splits"]["train"]["per_class"] == [107, 107]
    labels = np.loadtxt(sources.DIGITS_FILE, delimiter=",")[:, -1]
    assert all(labels[number] == [7, 2][label] for label, number, _ in records(made, "train"))


def test_a_class_is_split_the_same_whatever_other_classes_there_are(digits):
    few = {record[1] for record in records(digits(classes=["7", "2"]), "val")}
    assert few < {record[1] for record in records(digits(), "val")}


def test_few_labels_are_nested_and_leave_validation_alone(digits):
    made = {k: digits(classes=["5", "6", "7"], train_per_class=k) for k in (1, 2, 10)}
    ids = {k: {record[1] for record in records(one, "train")} for k, one in made.items()}
    assert ids[1] < ids[2] < ids[10]
    assert [made[k]["splits"]["train"]["per_class"] for k in ids] == [[k] * 3 for k in ids]
    for split in ("val", "test"):
        assert len({one["splits"][split]["sha256"] for one in made.values()}) == 1


def test_the_split_is_a_function_of_its_seed(digits):
    first, again, other = (
        digits(classes=["0", "1"], split_seed=s, pack_quality=q) for s, q in ((0, 95), (0, 90), (1, 95))
    )
    assert first["digest"] == again["digest"] != other["digest"]


def test_contiguous_shards_of_the_training_images_are_mixed(digits):
    labels = [record[0] for record in records(digits(), "train")]
    for shard in np.array_split(labels, 4):
        assert np.bincount(shard, minlength=10).min() >= 10


def test_unknown_digits_are_refused_with_the_nearest(digits):
    with pytest.raises(ConfigError, match=r"data.classes: data=digits has no class 55: did you mean 5\?"):
        digits(classes=["1", "55"])


# ---------------------------------------------------------------- folders


def test_a_folder_is_split_by_shares_in_each_class(tmp_path):
    root = make_tree(tmp_path / "set", {"ant": 10, "bee": 20})
    made = pack(folder_data(root, tmp_path, val_share=0.2, test_share=0.1))
    assert made["classes"] == ["ant", "bee"]
    assert {name: split["per_class"] for name, split in made["splits"].items()} == {
        "train": [7, 14],
        "val": [2, 4],
        "test": [1, 2],
    }
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


def test_other_and_hidden_files_are_left_out_and_extensions_are_of_any_case(tmp_path):
    root = make_tree(tmp_path / "set", {"ant": 3, "bee": 3})
    paint(root / "ant" / "upper.JPG", "red")
    paint(root / "ant" / "below" / "deep.png", "red")
    paint(root / ".hidden" / "a.png", "red")
    (root / "bee" / ".DS_Store.png").write_text("x")
    (root / "bee" / "notes.txt").write_text("x")
    made = pack(folder_data(root, tmp_path))
    assert sum(split["count"] for split in made["splits"].values()) == 7


def test_the_manifest_says_what_is_there(tmp_path):
    root = make_tree(tmp_path / "set", {"ant": 5, "bee": 5})
    paint(root / "ant" / "large.png", "red", (40, 50))
    made = pack(folder_data(root, tmp_path))
    written = json.loads((Path(made["dir"]) / "manifest.json").read_text())
    assert "dir" not in written and {**written, "dir": made["dir"]} == made == manifest.load(made["dir"])
    assert Path(made["dir"]).parent == tmp_path / "cache" and Path(made["dir"]).name.startswith("imagefolder-")
    for split, entry in made["splits"].items():
        rec, idx = manifest.path_of(made, split)
        assert hashlib.sha256(Path(rec).read_bytes()).hexdigest() == entry["sha256"]
        assert len(Path(idx).read_text().splitlines()) == entry["count"] == sum(entry["per_class"])
        assert entry["min_side"] == 16
    assert made["digest"] == manifest.digest(made["classes"], made["splits"])
    with pytest.raises(ConfigError, match="has no extra split"):
        manifest.path_of(made, "extra")


def test_a_pack_size_is_every_images_shorter_side(tmp_path):
    root = make_tree(tmp_path / "set", {"ant": 4, "bee": 4})
    made = pack(folder_data(root, tmp_path, pack_short_side=24, pack_format="jpeg"))
    for split, entry in made["splits"].items():
        assert entry["min_side"] == 24
        for record in recordio.scan(manifest.path_of(made, split)[0]):
            assert Image.open(io.BytesIO(record.payload)).size == (30, 24)


def test_the_workers_do_not_change_a_byte(tmp_path):
    root = make_tree(tmp_path / "set", {"ant": 30, "bee": 30})
    (root / "ant" / "000.png").write_bytes(b"")
    made = [
        pack(folder_data(root, tmp_path, cache=str(tmp_path / str(n)), on_bad="skip", pack_short_side=64), workers=n)
        for n in (1, 3)
    ]
    assert made[0]["digest"] == made[1]["digest"] and made[0]["skipped"] == made[1]["skipped"]
    for name in os.listdir(made[0]["dir"]):
        assert (Path(made[0]["dir"]) / name).read_bytes() == (Path(made[1]["dir"]) / name).read_bytes()


def test_mxnet_reads_what_is_packed(tmp_path):
    import mxnet as mx

    root = make_tree(tmp_path / "set", {"ant": 6, "bee": 6})
    made = pack(folder_data(root, tmp_path))
    rec, idx = manifest.path_of(made, "train")
    reader = mx.io.ImageRecordIter(path_imgrec=rec, path_imgidx=idx, data_shape=(3, 16, 16), batch_size=2)
    got = [
        (int(label), *image[:2, 0, 0].astype(int))
        for batch in reader
        for image, label in zip(batch.data[0].asnumpy(), batch.label[0].asnumpy())
    ]
    assert got == [(label, colour[0], colour[1]) for label, _, colour in records(made, "train")]


# ---------------------------------------------------------------- packed once


def stamps(folder):
    return {path.name: path.stat().st_mtime_ns for path in Path(folder).iterdir()}


def test_a_packed_set_is_found_again(tmp_path):
    data = folder_data(make_tree(tmp_path / "set", {"ant": 30, "bee": 30}), tmp_path)
    made = pack(data)
    before, start = stamps(made["dir"]), time.perf_counter()
    again = pack(data)
    assert time.perf_counter() - start < 0.1
    assert again == made and stamps(made["dir"]) == before


def test_a_changed_source_or_setting_is_another_set(tmp_path):
    root = make_tree(tmp_path / "set", {"ant": 5, "bee": 5})
    data = folder_data(root, tmp_path)
    first = pack(data)
    paint(root / "ant" / "000.png", "white")
    os.utime(root / "ant" / "000.png", (1, 1))
    changed = pack(data)
    assert changed["dir"] != first["dir"] and changed["digest"] != first["digest"]
    paint(root / "ant" / "new.png", "white")
    assert pack(data)["dir"] not in (first["dir"], changed["dir"])
    assert manifest.intact(first["dir"]) == first  # a run may still be reading it


def test_a_damaged_set_is_packed_again(tmp_path):
    data = folder_data(make_tree(tmp_path / "set", {"ant": 5, "bee": 5}), tmp_path)
    made = pack(data)
    for damage in (lambda rec: rec.unlink(), lambda rec: rec.write_bytes(rec.read_bytes()[:-4])):
        damage(Path(made["dir"]) / "train.rec")
        assert pack(data) == made
        assert manifest.intact(made["dir"])


def child(data: Data, **options):
    """A process that prepares `data` and prints its manifest."""
    code = (
        "import json, sys; from mxscale.config.training_settings import Augment, Data\n"
        "from mxscale.util.errors import ConfigError\n"
        "from mxscale.data.pack import prepare\n"
        "values = json.loads(sys.argv[1]); values['augment'] = Augment(**values['augment'])\n"
        "try: print(json.dumps(prepare(Data(**values), workers=2)))\n"
        "except ConfigError as error: sys.exit(f'refused: {error}')"
    )
    return subprocess.Popen(
        [sys.executable, "-c", code, json.dumps(dataclasses.asdict(data))],
        cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options,
    )  # fmt: skip


def test_two_processes_pack_a_set_once(tmp_path):
    data = folder_data(make_tree(tmp_path / "set", {"ant": 60, "bee": 60}), tmp_path, pack_short_side=300)
    children = [child(data) for _ in range(2)]
    outs = [process.communicate(timeout=60) for process in children]
    assert [process.returncode for process in children] == [0, 0], outs
    first, second = (json.loads(out) for out, _ in outs)
    assert first == second == pack(data)
    assert sum("another process is packing this set" in err for _, err in outs) <= 1
    visible = [name for name in os.listdir(tmp_path / "cache") if not name.endswith(".lock")]
    assert visible == [Path(first["dir"]).name]


def helpers_of(pid: int):
    """The packing processes that a process started."""
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        return [int(child) for child in children if running(int(child))]
    except FileNotFoundError:
        return []


def test_after_a_kill_midway_the_next_one_starts_clean(tmp_path):
    data = folder_data(make_tree(tmp_path / "set", {"ant": 100, "bee": 100}), tmp_path, pack_short_side=500)
    process = child(data)
    cache, deadline = tmp_path / "cache", time.monotonic() + 30
    while len(helpers := helpers_of(process.pid)) < 2 and time.monotonic() < deadline:
        time.sleep(0.01)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    assert list(cache.glob(".*.new-*")) and not list(cache.glob("imagefolder-*"))
    made = pack(data, workers=2)
    assert sum(split["count"] for split in made["splits"].values()) == 200
    assert not list(cache.glob(".*.new-*"))
    assert len(helpers) == 2 and not any(map(running, helpers))


def running(pid: int) -> bool:
    try:
        return "mxscale.data.workers" in Path(f"/proc/{pid}/cmdline").read_text()
    except FileNotFoundError:
        return False


def test_a_decoder_that_dies_makes_its_image_bad_and_is_replaced(tmp_path):
    paint(tmp_path / "a.png", "red")
    worker = workers._Worker()
    try:
        os.kill(worker._child.pid, signal.SIGKILL)
        result = worker(str(tmp_path / "a.png"), partial(images.examine, min_side=1))
        assert isinstance(result, BadImage) and result.reason == "its decoder crashed (signal SIGKILL)"
        assert worker(str(tmp_path / "a.png"), partial(images.examine, min_side=1)).side == 16
    finally:
        worker.close()


def test_workers_import_neither_mxnet_nor_numpy():
    code = "import sys, mxscale.data.workers; sys.exit(any(name in sys.modules for name in ('mxnet', 'numpy')))"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT).returncode == 0


# ---------------------------------------------------------------- a cache that can't be written


def limit_files():
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))


def test_a_full_disk_is_one_line_that_names_the_cache(tmp_path):
    data = folder_data(make_tree(tmp_path / "set", {"ant": 20, "bee": 20}), tmp_path, pack_short_side=500)
    process = child(data, preexec_fn=limit_files)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 1
    assert (
        err.strip()
        .splitlines()[-1]
        .startswith(f"refused: data.cache={data.cache}: cannot write there (File too large)")
    )
    assert not list((tmp_path / "cache").glob(".*.new-*")) and not list((tmp_path / "cache").glob("imagefolder-*"))


def test_an_unwritable_cache_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    assert refused(Data(kind="digits", cache=str(tmp_path / "file" / "cache"))).startswith(
        f"data.cache={tmp_path}/file/cache: cannot write there (Not a directory)"
    )
    assert "data.cache=/proc/cache: cannot write there" in refused(Data(kind="digits", cache="/proc/cache"))


# ---------------------------------------------------------------- bad input


def test_a_missing_or_empty_root_is_refused(tmp_path):
    root = tmp_path / "set"
    assert refused(folder_data(root, tmp_path)) == f"data.root={root}: no such directory"
    root.mkdir()
    expected = f"data.root={root} has no images: expected {root}/<class>/<image>.jpg"
    assert refused(folder_data(root, tmp_path)) == expected
    (root / "ant").mkdir()
    assert refused(folder_data(root, tmp_path)) == expected
    (root / "a.tar").write_text("")
    assert "is a file" in refused(folder_data(root / "a.tar", tmp_path))


def test_a_root_that_is_one_level_too_high_is_recognised(tmp_path):
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
        f"data.root={root}: train/ and val/ have different classes (only in train/: bee; only in val/: cow)"
    )


def test_unknown_and_repeated_class_names_are_refused(tmp_path):
    root = make_tree(tmp_path / "set", {"ant": 5, "bee": 5})
    assert "has no class amt: did you mean ant?" in refused(folder_data(root, tmp_path, classes=["amt", "bee"]))
    assert "bee is listed 2 times" in refused(folder_data(root, tmp_path, classes=["bee", "bee"]))
    assert "data.num_classes=7" in refused(folder_data(root, tmp_path, num_classes=7))


def test_too_few_images_for_the_splits_or_the_labels_are_refused(tmp_path):
    root = make_tree(tmp_path / "set", {"ant": 2, "bee": 9})
    assert "class ant has 2 images, too few to split" in refused(folder_data(root, tmp_path))
    assert pack(folder_data(root, tmp_path, test_share=0))["splits"].keys() == {"train", "val"}
    assert "data.val_share=0" in refused(folder_data(root, tmp_path, val_share=0))
    text = refused(folder_data(root, tmp_path, test_share=0, train_per_class=3))
    assert text == "data.train_per_class=3: class ant has only 1 usable training images; use at most 1"


def test_an_unreadable_image_is_named_with_how_many_more(tmp_path):
    root = make_tree(tmp_path / "set", {"ant": 8, "bee": 8})
    (root / "bee" / "003.png").write_bytes(b"")
    text = refused(folder_data(root, tmp_path))
    assert text == (
        f"data.root={root}: cannot use bee/003.png (empty file): replace the bad images, or set data.on_bad=skip"
    )
    (root / "ant" / "001.png").write_text("hello")
    (root / "ant" / "broken.jpg").symlink_to("nowhere")
    assert "and 2 other images: replace" in refused(folder_data(root, tmp_path))
    assert not list((tmp_path / "cache").glob("imagefolder-*"))


def test_bad_images_can_be_skipped_and_are_recorded(tmp_path):
    root = make_tree(tmp_path / "set", {"ant": 8, "bee": 8})
    whole = pack(folder_data(root, tmp_path))
    (root / "bee" / "003.png").write_bytes(b"")
    paint(root / "ant" / "001.png", "red", (10, 30))
    made = pack(folder_data(root, tmp_path, on_bad="skip"))
    assert made["skipped"] == [
        {"path": "ant/001.png", "reason": "10x30 pixels, smaller than 16 (data.min_side)"},
        {"path": "bee/003.png", "reason": "empty file"},
    ]
    bad = {1, 11}  # their ids
    for split in whole["splits"]:
        assert records(made, split) == [r for r in records(whole, split) if r[1] not in bad]


def test_a_skipped_image_of_few_labels_is_replaced_by_the_next(tmp_path):
    root = make_tree(tmp_path / "set", {"ant": 12, "bee": 12})
    first = records(pack(folder_data(root, tmp_path, train_per_class=2)), "train")
    lost = next(colour[1] for label, _, colour in first if label == 0)
    (root / "ant" / f"{lost:03d}.png").write_bytes(b"")
    made = pack(folder_data(root, tmp_path, train_per_class=2, on_bad="skip"))
    assert made["splits"]["train"]["per_class"] == [2, 2]
    assert len(set(records(made, "train")) & set(first)) == 3
    assert [one["path"] for one in made["skipped"]] == [f"ant/{lost:03d}.png"]


def test_a_class_with_nothing_left_is_refused(tmp_path):
    root = make_tree(tmp_path / "set", {"ant": 5, "bee": 5})
    for path in (root / "bee").iterdir():
        path.write_bytes(b"")
    assert "class bee has no usable train image; 5 bad images were skipped" in refused(
        folder_data(root, tmp_path, on_bad="skip")
    )


def test_small_images_pass_where_they_are_allowed(tmp_path):
    root = make_tree(tmp_path / "set", {"ant": 5, "bee": 5})
    assert "20x16 pixels, smaller than 32 (data.min_side)" in refused(folder_data(root, tmp_path, image_size=32))
    made = pack(folder_data(root, tmp_path, image_size=32, min_side=8, pack_short_side=40))
    assert made["splits"]["train"]["min_side"] == 40
    assert "data.pack_short_side=24 is less than" in refused(
        folder_data(root, tmp_path, image_size=32, pack_short_side=24)
    )


def test_odd_file_names_are_packed_and_named_on_one_line(tmp_path):
    root = make_tree(tmp_path / "set", {"ant": 4, "bee": 4})
    names = ["a b.png", "ä漢.png", "a,b;'\".png", os.fsdecode(b"\xff.png")]
    for number, name in enumerate(names):
        paint(root / "ant" / name, (255, number, 0))
    assert pack(folder_data(root, tmp_path), workers=2)["splits"]["train"]["per_class"] == [4, 2]
    (root / "ant" / "new\nline.png").write_bytes(b"")
    assert "new\\nline.png" in refused(folder_data(root, tmp_path))


def test_many_bad_images_end_it_early(tmp_path):
    root = make_tree(tmp_path / "set", {"ant": 3, "bee": 3})
    for n in range(150):
        (root / "ant" / f"bad{n}.png").write_bytes(b"")
    assert "(empty file) and at least 99 other images" in refused(folder_data(root, tmp_path))
