"""RecordIO files compared with MXNet's, and sets given as .rec files."""

import io
import os
from dataclasses import replace
from pathlib import Path

import mxnet as mx
import numpy as np
import pytest
from batches import evaluation_data
from encoded_images import wild
from PIL import Image
from refusals import error_of

from mxscale.config.readers import READERS
from mxscale.config.schema import Data
from mxscale.data import manifest, recordio, records
from mxscale.data.images import BadImage, decode
from mxscale.data.pack import prepare
from mxscale.data.reader import decoder
from mxscale.data.repack import Recipe
from mxscale.rundir.plan import Split
from mxscale.util.errors import ConfigError

# Bodies that hold the magic at a multiple of 4 (cut there) and elsewhere (not).
MAGIC = recordio.MAGIC
PAYLOADS = [
    b"",
    b"a",
    b"abcd",
    MAGIC,
    b"abcd" + MAGIC * 2 + b"x",
    b"ab" + MAGIC,
    MAGIC + b"abcde",
    b"x" * 1001 + MAGIC + b"12",
]


def test_records_are_identical_to_mxnets(tmp_path):
    theirs = mx.recordio.MXIndexedRecordIO(str(tmp_path / "b.idx"), str(tmp_path / "b.rec"), "w")
    with recordio.Writer(tmp_path, "a") as ours:
        for number, payload in enumerate(PAYLOADS):
            ours.write(number % 3, number, payload)
            theirs.write_idx(number, mx.recordio.pack(mx.recordio.IRHeader(0, number % 3, number, 0), payload))
        ours.close()
    theirs.close()
    for end in ("rec", "idx"):
        assert (tmp_path / f"a.{end}").read_bytes() == (tmp_path / f"b.{end}").read_bytes()


def test_a_scan_returns_every_record(tmp_path):
    with recordio.Writer(tmp_path, "a") as ours:
        for number, payload in enumerate(PAYLOADS):
            ours.write(number % 3, number, payload)
        ours.close()
    raw = []
    found = list(recordio.scan(tmp_path / "a.rec", raw.append))
    assert [record.payload for record in found] == PAYLOADS
    assert [(record.label, record.id) for record in found] == [(n % 3, n) for n in range(len(PAYLOADS))]
    assert [record.offset for record in found] == recordio.read_index(tmp_path / "a.idx")
    assert b"".join(raw) == (tmp_path / "a.rec").read_bytes()


def jpeg(seed=0) -> bytes:
    out = io.BytesIO()
    Image.fromarray(np.random.RandomState(seed).randint(0, 256, (20, 24, 3), "uint8")).save(out, "JPEG")
    return out.getvalue()


def write(folder, name, labels, contents=None):
    """Write a .rec and its .idx as im2rec does, by default of distinct images; return the path."""
    first = {"train": 0, "val": 1000, "test": 2000}.get(name, 3000)
    rec, idx = str(folder / f"{name}.rec"), str(folder / f"{name}.idx")
    writer = mx.recordio.MXIndexedRecordIO(idx, rec, "w")
    for number, label in enumerate(labels):
        header = mx.recordio.IRHeader(0, label, 100 + number, 0)
        writer.write_idx(number, mx.recordio.pack(header, contents[number] if contents else jpeg(first + number)))
    writer.close()
    return rec


@pytest.fixture
def given(tmp_path):
    """Return a function that returns the settings of a valid set."""
    write(tmp_path, "train", [0, 1, 2, 1, 0, 1])
    write(tmp_path, "val", [2, 0, 1])

    def data(**more):
        files = {split: str(tmp_path / f"{split}.rec") for split in ("train", "val")}
        return Data(**{**dict(kind="recordio", image_size=16, cache=str(tmp_path / "cache"), **files), **more})

    return data


def refused(data) -> str:
    return error_of(prepare, data)


def test_record_files_are_read_in_place(given, tmp_path):
    write(tmp_path, "test", [1])
    made = prepare(given(test=str(tmp_path / "test.rec")))
    assert made["classes"] == ["0", "1", "2"]
    assert {name: (s["count"], s["per_class"]) for name, s in made["splits"].items()} == {
        "train": (6, [2, 3, 1]),
        "val": (3, [1, 1, 1]),
        "test": (1, [0, 1, 0]),
    }
    assert manifest.split_of(made, "val") == Split(
        3, str(tmp_path / "val.rec"), os.path.join(made["dir"], "val.idx"), os.path.join(made["dir"], "val.crc"), 3
    )
    assert made["splits"]["train"]["min_side"] == 20
    assert sorted(os.listdir(made["dir"])) == sorted(
        ["manifest.json", *(f"{split}.{end}" for split in ("train", "val", "test") for end in ("idx", "crc"))]
    )


@pytest.mark.parametrize("beside", ["of im2rec", "of another file", None])
def test_an_index_is_written_beside_the_manifest(given, tmp_path, beside):
    expected, idx = (tmp_path / "train.idx").read_text(), tmp_path / "train.idx"
    if beside is None:
        idx.unlink()
    elif beside == "of another file":
        idx.write_text("hello")
    made = prepare(given())
    train = manifest.split_of(made, "train")
    assert train.rec == str(tmp_path / "train.rec") and train.idx == os.path.join(made["dir"], "train.idx")
    assert open(train.idx).read() == expected


def test_a_file_is_scanned_again_only_if_changed(given, tmp_path, monkeypatch):
    first = prepare(given())
    with monkeypatch.context() as patch:
        patch.setattr(recordio, "scan", lambda *_: pytest.fail("scanned again"))
        assert prepare(given()) == first
    write(tmp_path, "train", [0, 1, 2, 2])
    assert prepare(given())["splits"]["train"]["count"] == 4


def test_class_names_can_be_set(given):
    assert prepare(given(classes=["a", "b", "c"]))["classes"] == ["a", "b", "c"]
    assert prepare(given(num_classes=5))["splits"]["val"]["per_class"] == [1, 1, 1, 0, 0]
    assert "data.classes has 2 names for data.num_classes=3" in refused(given(classes=["a", "b"], num_classes=3))


def test_labels_out_of_range_are_refused(given, tmp_path):
    train, val = tmp_path / "train.rec", tmp_path / "val.rec"
    assert (
        refused(given(num_classes=2))
        == f"data.train={train}: label 2 is outside the 2 classes of data.num_classes (0 to 1)"
    )
    write(tmp_path, "val", [0, 7])
    assert refused(given()) == f"data.val={val}: label 7 is outside the 3 classes of data.train (0 to 2)"
    for label, shown in ((-1, "-1"), (0.5, "0.5"), (float("nan"), "nan"), (2**24, "1.67772e+07")):
        write(tmp_path, "train", [0, label])
        assert f"record 1 has the label {shown}; expected a class number" in refused(given())
    write(tmp_path, "train", [0, [1.0, 2.0]])
    assert "record 1 has 2 labels; expected one class number per image" in refused(given())
    write(tmp_path, "train", [0, 0])
    assert "has 1 class; expected at least 2" in refused(given())


def test_missing_and_invalid_files_are_refused(given, tmp_path):
    train = tmp_path / "train.rec"
    assert refused(given(val=str(tmp_path / "x.rec"))) == (
        f"data.val={tmp_path}/x.rec: no such file or directory; expected a .rec file of im2rec"
    )
    assert "a folder, not a regular file; expected a .rec file" in refused(given(train=str(tmp_path)))
    train.write_bytes(b"")
    assert refused(given()) == f"data.train={train} has no records; create it again with im2rec"
    train.write_bytes(jpeg())
    assert refused(given()).startswith(f"data.train={train}: no record at byte 0; copy the file again")
    assert "train_per_class: with data=recordio" in refused(given(train_per_class=3))


@pytest.mark.parametrize("keep", [3, 30, -1, -5, -900])
def test_a_truncated_file_is_refused_with_the_byte(given, tmp_path, keep):
    train = tmp_path / "train.rec"
    content = train.read_bytes()[:keep]
    train.write_bytes(content)
    error = refused(given())
    assert f"truncated at byte {len(content)}, inside a record" in error and "create it again with im2rec" in error


def test_records_without_images_are_refused(given, tmp_path):
    write(tmp_path, "val", [0, 1], [b"no image"] * 2)
    assert "cannot use the image of record 0 (not an image of a known format)" in refused(given())


@pytest.fixture
def with_bad_images(given, tmp_path):
    """Return `given` with two unusable training images: a truncated and a small one."""
    small = io.BytesIO()
    Image.new("RGB", (15, 40)).save(small, "JPEG")
    contents = [jpeg(number) for number in range(12)]
    contents[5], contents[7] = contents[5][:200], small.getvalue()
    write(tmp_path, "train", [number % 3 for number in range(12)], contents)
    return given


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2])
def test_a_bad_image_is_refused_with_its_number(with_bad_images, workers):
    with pytest.raises(ConfigError, match=r"train\.rec: cannot use the image of record 5 \(.*\): .*data\.on_bad=skip"):
        prepare(with_bad_images(), workers)


def test_bad_images_are_skipped_in_a_copy(with_bad_images, tmp_path):
    before = (tmp_path / "train.rec").read_bytes()
    made = prepare(with_bad_images(on_bad="skip", min_side=16))
    assert made["splits"]["train"]["per_class"] == [4, 3, 3] and made["splits"]["train"]["count"] == 10
    assert [skipped["path"].split(", ")[1].split(" at")[0] for skipped in made["skipped"]] == ["record 5", "record 7"]
    assert made["skipped"][1]["reason"] == "15x40 pixels, smaller than 16 (data.min_side)"
    train = manifest.split_of(made, "train")
    assert os.path.dirname(train.rec) == made["dir"] and (tmp_path / "train.rec").read_bytes() == before
    kept = [record.id for record in recordio.scan(train.rec)]
    assert kept == [100, 101, 102, 103, 104, 106, 108, 109, 110, 111]
    assert recordio.read_index(train.idx) == [record.offset for record in recordio.scan(train.rec)]
    assert manifest.split_of(made, "val").rec == str(tmp_path / "val.rec")  # a valid file is not copied


def test_small_images_are_enlarged_in_a_copy(with_bad_images, capfd):
    made = prepare(with_bad_images(on_bad="skip"))
    train = made["splits"]["train"]
    assert len(made["skipped"]) == 1 and (train["min_side"], train["enlarged"], train["rewritten"]) == (16, 1, 0)
    assert "1 images smaller than the network's input (16) enlarged" in capfd.readouterr().err
    records = list(recordio.scan(manifest.split_of(made, "train").rec))
    assert [decode(r.payload).shape for r in records if r.id == 107] == [(43, 16, 3)]


def test_a_record_that_is_too_long_when_enlarged_is_bad(given, tmp_path):
    file = io.BytesIO()
    Image.new("RGB", (8, 60_000)).save(file, "PNG")
    write(tmp_path, "train", [0, 1, 2, 1, 0, 1], [*(jpeg(number) for number in range(5)), file.getvalue()])
    assert "the image of record 5 (16x120000 pixels after packing, longer than 65,500)" in refused(given())
    assert prepare(given(on_bad="skip"))["splits"]["train"]["count"] == 5


def test_images_that_mxnet_refuses_are_reencoded(given, tmp_path):
    out = io.BytesIO()
    Image.fromarray(np.full((20, 24, 3), 90, "uint8")).save(out, "PNG")
    content = bytearray(out.getvalue())
    content[content.index(b"IEND") - 5] ^= 1  # the checksum of the pixels, which Pillow ignores
    with pytest.raises(mx.MXNetError):
        mx.image.imdecode(bytes(content)).asnumpy()
    contents = [jpeg(number) for number in range(6)]
    contents[4] = bytes(content)
    write(tmp_path, "train", [0, 1, 2, 1, 0, 1], contents)
    made = prepare(given())
    assert made["splits"]["train"]["rewritten"] == 1 and made["skipped"] == []
    records = list(recordio.scan(manifest.split_of(made, "train").rec))
    assert mx.image.imdecode(records[4].payload).asnumpy()[5, 5].tolist() == [90, 90, 90]


def test_an_image_with_two_labels_is_refused(given, tmp_path):
    write(tmp_path, "train", [0, 1, 2, 1], [jpeg(0), jpeg(1), jpeg(2), jpeg(0)])
    text = f"data={given().kind}: train.rec record 0 and train.rec record 3 are the same image in two classes: "
    assert refused(given()).startswith(text)
    assert prepare(given(allow_duplicates=True))["duplicates"]["two_classes"] == 1


def test_a_fifo_beside_records_is_not_read(given, tmp_path):
    (tmp_path / "val.idx").unlink()
    os.mkfifo(tmp_path / "val.idx")
    assert prepare(given())["splits"]["train"]["count"] == 6


def test_a_class_without_usable_images_is_refused(given, tmp_path):
    write(tmp_path, "train", [0, 1, 2], [b"no image"] * 3)
    assert "class 0 has no usable image; 3 bad images were skipped, such as record 0 (not an image" in refused(
        given(on_bad="skip")
    )


def test_images_that_mxnet_decodes_differently_are_reencoded(given, tmp_path):
    """Both readers return the pixels that `decode` returns."""
    random = np.random.RandomState(3)
    photo = Image.fromarray(random.randint(0, 256, (4, 5, 3), "uint8")).resize((40, 30), Image.Resampling.BICUBIC)
    contents = {name: content for name, (content, _) in wild(photo).items()}
    rec = str(tmp_path / "wild.rec")
    with recordio.Writer(tmp_path, "wild") as writer:
        for number, content in enumerate(contents.values()):
            writer.write(number, 100 + number, content)
        writer.close()
    before = open(rec, "rb").read()
    plain = {"eval_resize": None, "mean": [0.0] * 3, "std": [1.0] * 3}
    data = given(allow_duplicates=True, pack_format="png", train=rec, val=rec, image_size=16, **plain)
    made = prepare(data)
    entry = made["splits"]["train"]
    assert entry["count"] == len(contents) and entry["rewritten"] == sum(not alike for _, alike in wild(photo).values())
    assert open(rec, "rb").read() == before and entry["rec"] == "train.rec"
    records = manifest.split_of(made, "train")
    assert [record.id for record in recordio.scan(records.rec)] == [100 + n for n in range(len(contents))]
    for reader in READERS:
        read = evaluation_data(records, replace(data, reader=reader), 1)
        seen = np.concatenate([images.asnumpy().astype("float32") for images, *_ in read])
        for pixels, (name, content) in zip(seen, contents.items(), strict=True):
            image = decode(content)
            top, left = ((length - 16) // 2 for length in image.shape[:2])
            expected = image[top : top + 16, left : left + 16].transpose(2, 0, 1)
            assert np.abs(pixels - expected).max() <= 2, (reader, name)


def test_files_of_plain_images_are_not_copied(given):
    made = prepare(given())
    assert made["splits"]["train"]["rewritten"] == 0 and not list(Path(made["dir"]).glob("*.rec"))


def test_a_jpeg_that_a_reader_refuses_is_encoded_again():
    """libjpeg only warns about bytes before the end marker; simplejpeg takes the warning for an error."""
    file = io.BytesIO()
    Image.fromarray(np.random.RandomState(0).randint(0, 255, (40, 30, 3), dtype="uint8")).save(file, "JPEG")
    content = file.getvalue()[:-2] + bytes(8) + b"\xff\xd9"
    with pytest.raises(BadImage, match="extraneous bytes"):
        decoder.decode(content)
    assert not records.check(content, Recipe("png", 0, None)).same_in_mxnet
    assert records.check(file.getvalue(), Recipe("png", 0, None)).same_in_mxnet
