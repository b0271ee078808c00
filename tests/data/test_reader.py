"""The reader on libjpeg-turbo: random numbers, decoding, crops, threads, errors."""

import io
import shutil
import struct
from dataclasses import replace
from pathlib import Path

import mxnet as mx
import numpy as np
import pytest
from batches import AUGMENTED, RAW, evaluation_data, micros, same, train_data
from PIL import Image
from records import make_records, noise, ramp

from mxscale.config.readers import READERS
from mxscale.config.training_settings import Augment
from mxscale.data import recordio
from mxscale.data.images import BadImage
from mxscale.data.reader import decoder, philox
from mxscale.data.reader.records import RecordFile
from mxscale.data.reader.transforms import Evaluation, Training
from mxscale.rundir.plan import Split


def photograph(width=500, height=375, seed=0) -> Image.Image:
    """Return an image with detail at all scales."""
    random = np.random.RandomState(seed)
    total = sum(
        np.asarray(Image.fromarray(random.randint(0, 256, (3 * 2**n, 4 * 2**n, 3)).astype("uint8"))
                   .resize((width, height), Image.Resampling.BICUBIC), "float64") / 1.8**n
        for n in range(7)
    )  # fmt: skip
    return Image.fromarray((255 * (total - total.min()) / np.ptp(total)).astype("uint8"))


def jpeg(image: Image.Image, **settings) -> bytes:
    out = io.BytesIO()
    image.save(out, "JPEG", **{"quality": 92, **settings})
    return out.getvalue()


def output(transform, content, draws=(), side=224) -> np.ndarray:
    """Return what a transform makes of an image, (side, side, 3)."""
    out = np.empty((3, side, side), "uint8")
    transform(content, draws, out)
    return out.transpose(1, 2, 0)


# ---------------------------------------------------------------- random numbers


@pytest.mark.parametrize("counter, key, words", [  # Random123, kat_vectors: philox4x32, 10 rounds
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    ((0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344), (0xA4093822, 0x299F31D0),
     (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1)),
])  # fmt: skip
def test_philox_gives_the_published_words(counter, key, words):
    assert philox.philox(np.array([counter] * 2, "uint64").T, key).T.tolist() == [list(words)] * 2


def test_an_image_has_the_same_numbers_in_every_batch():
    together = philox.uniform(7, 3, range(100), 23)
    assert np.array_equal(philox.uniform(7, 3, [41, 99], 23), together[[41, 99]])
    assert np.array_equal(philox.uniform(7, 3, [41], 9), together[[41], :9])
    assert together.min() >= 0 and together.max() < 1 and abs(together.mean() - 0.5) < 0.02
    for others in (philox.uniform(8, 3, range(100), 23), philox.uniform(7, 4, range(100), 23)):
        assert not np.isin(others, together).any()


def test_orders_are_permutations_that_differ():
    orders = [philox.order(seed, epoch, 1000) for seed, epoch in [(1, 0), (1, 1), (2, 0)]]
    assert all(sorted(order) == list(range(1000)) for order in orders)
    assert all(np.mean(one == other) < 0.01 for one in orders for other in orders if one is not other)


# ---------------------------------------------------------------- decoding


def test_jpegs_decode_as_in_pillow():
    image = photograph()
    for content in (jpeg(image), jpeg(image, subsampling="4:4:4", progressive=True), jpeg(image.convert("L"))):
        wanted = np.asarray(Image.open(io.BytesIO(content)).convert("RGB"), "int16")
        assert np.abs(decoder.decode(content) - wanted).max() <= 1


def test_other_formats_decode_in_the_order_rgb():
    for form in ("PNG", "BMP", "WEBP"):
        out = io.BytesIO()
        Image.fromarray(ramp()).save(out, form, lossless=True)
        assert np.array_equal(decoder.decode(out.getvalue()), ramp()), form


@pytest.mark.parametrize("scale", decoder.SCALES)
def test_reduced_decoding_is_the_mean_of_blocks(scale):
    image = photograph(320, 240)
    pixels = decoder.decode(jpeg(image, quality=100, subsampling="4:4:4"), scale)
    wanted = np.asarray(image.reduce(scale), "int16")
    assert pixels.shape == wanted.shape
    assert np.abs(pixels - wanted).mean() < 1.5


OPTIONS = [
    {"subsampling": "4:2:0"},
    {"subsampling": "4:2:2"},
    {"subsampling": "4:4:4"},
    {"restart_marker_rows": 1},
    {"progressive": True},
]


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("scale", [1, *decoder.SCALES])
def test_the_rows_of_a_crop_decode_as_in_the_complete_image(options, scale):
    image = Image.fromarray(np.random.RandomState(0).randint(0, 256, (203, 150, 3), "uint8"))
    for mode in ("RGB", "L"):
        content = jpeg(image.convert(mode), **options)
        complete = decoder.decode(content, scale).copy()
        for rows in (1, 8, 15, 16, 17, 100, 190, 201, 203):
            pixels = decoder.decode(content, scale, rows)
            needed = -(-rows // scale)
            assert np.array_equal(pixels[:needed], complete[:needed]), (mode, rows)
            assert len(pixels) < len(complete) or "progressive" in options or rows > 203 - 3 * scale


def segments(content: bytes):
    """Return the segments of a JPEG by marker, and the data of its only scan."""
    at, found = 2, {}
    while content[at + 1] != 0xDA:
        end = at + 2 + int.from_bytes(content[at + 2 : at + 4], "big")
        found[content[at + 1]] = found.get(content[at + 1], b"") + content[at:end]
        at = end
    return found, content[at + 2 + int.from_bytes(content[at + 2 : at + 4], "big") : -2]


def in_several_scans(image) -> bytes:
    """Return a baseline JPEG with one scan for each component, as `jpegtran -scans` makes them."""
    planes = [segments(jpeg(plane)) for plane in image.convert("YCbCr").split()]
    header = planes[0][0]
    components = b"".join(bytes([number, 0x11, 0]) for number in (1, 2, 3))
    frame = header[0xC0][:2] + (17).to_bytes(2, "big") + header[0xC0][4:9] + b"\3" + components
    scans = [
        b"\xff\xda\0\x08\1" + bytes([number, 0]) + b"\0\x3f\0" + data for number, (_, data) in enumerate(planes, 1)
    ]
    return b"\xff\xd8" + header[0xE0] + header[0xDB] + frame + header[0xC4] + b"".join(scans) + b"\xff\xd9"


def test_rows_of_an_image_in_several_scans_decode_as_in_the_complete_image():
    content = in_several_scans(photograph(320, 240))
    complete = decoder.decode(content).copy()
    assert np.array_equal(decoder.decode(content, rows=40)[:40], complete[:40])


def test_rows_with_damage_are_bad_and_rows_below_a_crop_are_not_read():
    content = bytearray(jpeg(photograph(320, 240)))
    middle = len(content) // 2
    content[middle : middle + 2] = b"\xff\xd9"  # the end of the image
    decoder.decode(bytes(content), rows=40)
    with pytest.raises(BadImage):
        decoder.decode(bytes(content), rows=200)


@pytest.mark.parametrize("content", [b"", b"\xff\xd8", b"no image", jpeg(photograph())[:9000]])
def test_bad_images_are_named(content, tmp_path):
    with pytest.raises(BadImage):
        decoder.decode(content)
    with recordio.Writer(tmp_path, "bad") as writer:
        for label, each in enumerate([jpeg(photograph(64, 48)), content]):
            writer.write(label, label, each)
        writer.close()
    rec, idx = str(tmp_path / "bad.rec"), str(tmp_path / "bad.idx")
    with pytest.raises(RuntimeError, match=f"record 1 at byte [0-9]+ of {rec}"):
        list(evaluation_data(Split(2, rec, idx)))


def test_a_truncated_file_is_an_error_not_a_crash(tmp_path):
    records = noise(tmp_path, 4)
    file = RecordFile(records)
    with open(records.rec, "r+b") as rec:
        rec.truncate(200)
    with pytest.raises(recordio.BadRecords, match=r"truncated at byte|no record at byte"):
        file[3]


def test_records_divided_at_the_magic_number_are_joined(tmp_path):
    content = b"\xff\xd8" + b"abcd" * 3 + b"ab" + recordio.MAGIC * 2 + b"rest"
    with recordio.Writer(tmp_path, "t") as writer:
        for label in (3, 4):
            writer.write(label, 0, content)
        writer.close()
    file = RecordFile(Split(2, *(str(tmp_path / f"t.{end}") for end in ("rec", "idx", "crc"))))
    assert [(label, bytes(image)) for label, image in (file[0], file[1])] == [(3, content), (4, content)]


# ---------------------------------------------------------------- damaged records


def damaged(contents, start=0):
    """Return copies of encoded images, each with four random bytes from byte `start` on."""
    random = np.random.RandomState(0)
    copies = [bytearray(content) for content in contents]
    for copy in copies:
        for place in random.randint(start, len(copy), 4):
            copy[place] = random.randint(256)
    return [bytes(copy) for copy in copies]


def packed(folder, contents, classes=None) -> Split:
    """Write records with checksums, with the labels 0, 1, 0, 1, ..."""
    with recordio.Writer(folder, "set") as writer:
        for number, content in enumerate(contents):
            writer.write(number % 2, number, content)
        writer.close()
    return Split(len(contents), *(str(folder / f"set.{end}") for end in ("rec", "idx", "crc")), classes)


def overwrite(records: Split, contents) -> None:
    """Replace the images of the same sizes in a .rec."""
    with open(records.rec, "r+b") as rec:
        for offset, content in zip(recordio.read_index(records.idx), contents, strict=True):
            rec.seek(offset + recordio.PREFIX.size + recordio.HEADER.size)
            rec.write(content)


def refused(function, *arguments) -> bool:
    """Return whether a call raises an error of an image or record."""
    try:
        function(*arguments)
    except (BadImage, recordio.BadRecords, ValueError):
        return True
    return False


def png(image) -> bytes:
    out = io.BytesIO()
    image.save(out, "PNG")
    return out.getvalue()


@pytest.mark.parametrize("form", [jpeg, png])
def test_every_damaged_record_is_refused(form, tmp_path):
    contents = [form(photograph(160, 120))] * 400
    records, transform = packed(tmp_path, contents), Training(replace(RAW, image_size=32, augment=Augment()))
    copies = damaged(contents)
    overwrite(records, copies)
    changed = [copy != content for copy, content in zip(copies, contents, strict=True)]
    assert [refused(RecordFile(records).__getitem__, number) for number in range(400)] == changed
    unverified = RecordFile(replace(records, crc=None))

    def crop(number):
        transform(unverified[number][1], [0.5] * transform.draws, np.empty((3, 32, 32), "uint8"))

    complete = [refused(decoder.decode, copy) for copy in copies]
    assert [refused(crop, number) for number in range(400)] == complete and sum(complete) > 100


def test_a_truncated_record_without_a_checksum_is_refused(tmp_path):
    content = jpeg(photograph(160, 120))
    records = packed(tmp_path, [content[: len(content) * part // 10] + b"\xff\xd9" for part in range(3, 10)])
    file = RecordFile(replace(records, crc=None))
    assert all(refused(file.__getitem__, number) for number in range(len(file)))


@pytest.mark.parametrize("reader", READERS)
def test_damage_after_packing_is_named_by_each_reader(reader, tmp_path):
    contents, data = [jpeg(photograph(32, 32, seed)) for seed in range(8)], replace(RAW, reader=reader)
    records = packed(tmp_path, contents)
    assert len(micros(train_data(records, data), range(2))) == len(list(evaluation_data(records, data))) == 2
    overwrite(records, [*contents[:5], contents[5][:-9] + b"x" + contents[5][-8:], *contents[6:]])
    message = rf"record 5 at byte [0-9]+ of {records.rec}: its checksum differs: .*remove {tmp_path}, and"
    with pytest.raises(RuntimeError, match=message):
        micros(train_data(records, data), range(2))
    with pytest.raises(RuntimeError, match=message):
        list(evaluation_data(records, data))
    elsewhere = tmp_path / "checksums"
    elsewhere.mkdir()
    with pytest.raises(RuntimeError, match="copy the file again, or create it again with im2rec"):
        list(evaluation_data(replace(records, crc=shutil.copy(records.crc, elsewhere)), data))


@pytest.mark.parametrize("reader", READERS)
def test_a_record_with_a_damaged_header_names_the_remedy(reader, tmp_path):
    records = packed(tmp_path, [png(photograph(32, 32))] * 8)
    with open(records.rec, "r+b") as rec:
        rec.seek(recordio.read_index(records.idx)[3] + 4)
        rec.write(struct.pack("<I", 8))  # the length of the record
    with pytest.raises(RuntimeError, match=rf"record 3 at byte [0-9]+ of {records.rec}: .*remove {tmp_path}, and"):
        micros(train_data(records, replace(RAW, reader=reader)), range(2))


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("label", [9.0, -1.0, 0.5, float("nan")])
def test_a_changed_label_is_refused_by_each_reader(reader, label, tmp_path):
    records, data = packed(tmp_path, [png(photograph(32, 32))] * 8, classes=2), replace(RAW, reader=reader)
    with open(records.rec, "r+b") as rec:
        rec.seek(recordio.read_index(records.idx)[3] + recordio.LABEL_OFFSET)
        rec.write(struct.pack("<f", label))
    message = rf"record 3 at byte [0-9]+ of {records.rec}: "
    with pytest.raises(RuntimeError, match=message + "its checksum differs"):
        micros(train_data(records, data), range(2))
    with pytest.raises(RuntimeError, match=message + rf"has the label {label:g}; .* from 0 to 1"):
        micros(train_data(replace(records, crc=None), data), range(2))


def test_swapped_labels_are_refused(tmp_path):
    records = packed(tmp_path, [png(photograph(32, 32))] * 2)
    with open(records.rec, "r+b") as rec:
        for offset, label in zip(recordio.read_index(records.idx), (1.0, 0.0), strict=True):
            rec.seek(offset + recordio.LABEL_OFFSET)
            rec.write(struct.pack("<f", label))
    assert all(refused(RecordFile(records).__getitem__, number) for number in (0, 1))


def test_checksums_of_another_number_of_records_are_refused(tmp_path):
    records = packed(tmp_path, [png(photograph(32, 32))] * 2)
    Path(records.crc).write_bytes(bytes(12))
    with pytest.raises(recordio.BadRecords, match="3 checksums of 2 records"):
        RecordFile(records)


def test_a_damaged_index_is_named_with_its_remedy(tmp_path):
    records = packed(tmp_path, [jpeg(photograph())] * 2)
    with open(records.idx, "w") as file:
        file.write("0\t0\n1\tx\n")
    remedy = f"remove {tmp_path}, and the set is packed again"
    with pytest.raises(recordio.BadRecords, match=f"{records.idx} is damaged: line 2 is not .*; {remedy}"):
        RecordFile(records)


# ---------------------------------------------------------------- crops


def test_crops_differ_between_the_batches_of_an_epoch(tmp_path):
    records = make_records(tmp_path, [ramp()] * 64)
    data = replace(RAW, image_size=16, augment=Augment())
    batches = [pixels for *_, pixels in micros(train_data(records, data, 8), range(8))]
    assert len({image.tobytes() for batch in batches for image in batch}) == 64


def test_a_large_crop_is_decoded_reduced():
    """The crop of the reduced image shows the same as that of the complete one."""
    image, data = photograph(1200, 900), replace(RAW, image_size=100, augment=Augment(scale=[0.5, 1.0], flip=False))
    content, draws = jpeg(image), [0.5] * Training(data).draws
    box = Training(data).random_resized(900, 1200, draws)
    assert min(box.height, box.width) >= 4 * 100
    part = image.crop((box.left, box.top, box.left + box.width, box.top + box.height))
    wanted = np.asarray(part.resize((100, 100), Image.Resampling.BOX), "int16")
    assert np.abs(output(Training(data), content, draws, 100) - wanted).mean() < 6


@pytest.mark.parametrize("size", [(500, 375), (375, 500), (256, 256), (300, 224), (180, 400)])
@pytest.mark.parametrize("resize", [256, None])
def test_validation_resizes_as_pillow_and_torchvision(size, resize):
    """torchvision: Resize(256), CenterCrop(224) (transforms/functional.py: resize, center_crop)."""
    content = jpeg(photograph(*size))
    image = Image.open(io.BytesIO(content)).convert("RGB")
    short = max(resize or min(size), 224)
    width, height = (short if side == min(size) else int(short * side / min(size)) for side in size)
    if (width, height) != size:
        image = image.resize((width, height), Image.Resampling.BILINEAR)
    left, top = round((width - 224) / 2.0), round((height - 224) / 2.0)
    wanted = np.asarray(image.crop((left, top, left + 224, top + 224)), "int16")
    difference = np.abs(output(Evaluation(replace(RAW, image_size=224, eval_resize=resize)), content) - wanted)
    assert difference.mean() < 0.5 and difference.max() <= 3


# ---------------------------------------------------------------- threads and ranks


EVERYTHING = replace(AUGMENTED, augment=replace(
    AUGMENTED.augment, lighting=0.1, hls=[9, 20, 20], rotate=15, shear=0.1, stretch=0.2, erase=0.5
))  # fmt: skip


@pytest.mark.parametrize("data", [AUGMENTED, EVERYTHING], ids=["usual", "everything"])
@pytest.mark.parametrize("threads", [3, 8])
def test_threads_and_a_start_within_an_epoch_do_not_change_a_bit(threads, data, tmp_path):
    records = noise(tmp_path, 50)
    alone = micros(train_data(records, data, threads=1), range(15))
    assert same(micros(train_data(records, data, threads=threads), range(15)), alone)
    assert same(micros(train_data(records, data, threads=threads), range(7, 15)), alone[7:])


def test_a_global_batch_has_the_same_images_with_any_number_of_shards(tmp_path):
    records = noise(tmp_path, 48)

    def images(batch, of):
        found = micros(train_data(records, AUGMENTED, batch, of=of), range(6))
        return [{image.tobytes() for step, _, _, pixels in found if step == at for image in pixels} for at in range(6)]

    assert images(8, 1) == images(4, 2) == images(2, 4)


def test_batches_stay_valid_while_others_are_read(tmp_path):
    """Batches are handed over without a copy, and their memory is not reused."""
    records = noise(tmp_path, 40)
    source = train_data(records, AUGMENTED, 8)
    kept = [micro.images for step in range(10) for micro in source.step(step)]
    again = [micro.images.asnumpy() for step in range(10) for micro in train_data(records, AUGMENTED, 8).step(step)]
    mx.nd.waitall()
    assert all(np.array_equal(one.asnumpy(), other) for one, other in zip(kept, again, strict=True))
