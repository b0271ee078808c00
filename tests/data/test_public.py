"""The public sets, from small archives in their real formats on a local server."""

import io
import os
import re
from pathlib import Path
from pkgutil import resolve_name

import made_sets
import numpy as np
import pytest
from composed import composed
from made_sets import data_of, public
from PIL import Image
from refusals import error_of

from mxscale.config.datasets import DATASETS
from mxscale.data import manifest, pack, recordio
from mxscale.util.errors import ConfigError

KINDS = sorted(made_sets.SETS)


def packed(publisher, kind, tmp_path, **more):
    publisher.files.update(made_sets.made(kind))
    return pack.prepare(data_of(kind, tmp_path, mirror=publisher.base, **more), workers=1)


def images(made, split):
    """Return (class, id, pixels) of each record."""
    records = list(recordio.scan(manifest.split_of(made, split).rec))
    pixels = [np.asarray(Image.open(io.BytesIO(record.payload))) for record in records]
    headers = [(made["classes"][int(record.label)], record.id) for record in records]
    return [(*header, image) for header, image in zip(headers, pixels)]


def counts(made):
    return {name: split["per_class"] for name, split in made["splits"].items()}


def test_every_public_set_is_tested_and_has_a_conf():
    assert {name for name, entry in DATASETS.items() if entry.published} == set(KINDS)
    for kind in KINDS:
        assert composed("train", f"data={kind}").data.kind == kind


def test_every_implementation_can_be_imported():
    assert all(callable(resolve_name(entry.implementation)) for entry in DATASETS.values())


def test_files_have_distinct_checksums_and_addresses():
    files = [file for kind in KINDS for file in public(kind).files]
    assert len({file.sha256 for file in files}) == len(files) == 10
    for file in files:
        assert re.fullmatch(r"[0-9a-f]{64}", file.sha256)
        assert all(re.fullmatch(r"https?://\S+", url) and file.name in url for url in file.urls)


def test_mnist_keeps_pixels_and_labels(publisher, tmp_path):
    made = packed(publisher, "mnist", tmp_path)
    assert made["classes"] == [str(n) for n in range(10)]
    assert counts(made) == {"train": [9] * 10, "val": [1] * 10, "test": [2] * 10}
    pixels = np.random.RandomState(0).randint(0, 256, (100, 28, 28))
    for label, number, image in images(made, "train") + images(made, "val"):
        by_class = [n for n in range(100) if str(n % 10) == label]
        assert any((image == pixels[n][..., None]).all() for n in by_class), number


def test_cifar10_keeps_pixels_and_labels(publisher, tmp_path):
    made = packed(publisher, "cifar10", tmp_path)
    assert made["classes"] == made_sets.CIFAR10
    assert counts(made) == {"train": [9] * 10, "val": [1] * 10, "test": [2] * 10}
    planes = made_sets.cifar_pixels(5, 20)  # of the test batch
    expected = {(made_sets.CIFAR10[n % 10], image.transpose(1, 2, 0).tobytes()) for n, image in enumerate(planes)}
    assert {(label, image.tobytes()) for label, _, image in images(made, "test")} == expected


def test_cifar100_uses_fine_labels(publisher, tmp_path):
    made = packed(publisher, "cifar100", tmp_path)
    assert made["classes"] == made_sets.CIFAR100
    assert counts(made) == {"train": [2] * 100, "val": [1] * 100, "test": [1] * 100}
    first = made_sets.cifar_pixels(1, 100)[42].transpose(1, 2, 0)
    found = {label: image for label, _, image in images(made, "test")}
    np.testing.assert_array_equal(found["class42"], first)


def test_val_share_0_validates_on_the_test_images(publisher, tmp_path):
    made = packed(publisher, "mnist", tmp_path, val_share=0.0)
    assert counts(made) == {"train": [10] * 10, "val": [2] * 10}


def test_scans_are_enlarged_to_the_input_size(publisher, tmp_path):
    made = packed(publisher, "mnist", tmp_path, image_size=32)
    assert made["splits"]["train"]["min_side"] == 32


def test_caltech256_validates_on_images_beyond_train_per_class(publisher, tmp_path):
    made = packed(publisher, "caltech256", tmp_path)
    assert made["classes"] == ["001.ak47", "002.american-flag"]
    assert counts(made) == {"train": [6, 6], "val": [2, 2]}
    assert made["settings"]["split_seed"] == 0 and made["settings"]["clutter"] is False
    ids = [number for split in ("train", "val") for _, number, _ in images(made, split)]
    assert sorted(ids) == list(range(16))


def test_split_seed_selects_other_images(publisher, tmp_path):
    draws = [packed(publisher, "caltech256", tmp_path, split_seed=seed) for seed in (0, 0, 1)]
    ids = [sorted(number for _, number, _ in images(made, "val")) for made in draws]
    assert ids[0] == ids[1] != ids[2]


def test_clutter_is_an_optional_class(publisher, tmp_path):
    made = packed(publisher, "caltech256", tmp_path, clutter=True)
    assert made["classes"][-1] == "257.clutter" and counts(made)["train"] == [6, 6, 6]


def test_imagenet_has_the_devkits_labels(publisher, tmp_path):
    made = packed(publisher, "imagenet", tmp_path)
    assert made["classes"] == made_sets.WNIDS  # sorted, not in the order of ILSVRC's ids
    assert counts(made) == {"train": [4, 4, 4], "val": [2, 2, 2]}
    seen = {number: label for label, number, _ in images(made, "val")}
    assert [seen[number] for number in sorted(seen)] == ["n02119789", "n01443537", "n01440764"] * 2


def test_imagenet_can_be_limited_to_some_classes(publisher, tmp_path):
    made = packed(publisher, "imagenet", tmp_path, classes=["n02119789", "n01440764"])
    assert counts(made) == {"train": [4, 4], "val": [2, 2]}


@pytest.mark.parametrize("kind, name", [("imagenet", "n01440764"), ("caltech256", "001.ak47")])
def test_a_file_of_classes_lacks_none(publisher, tmp_path, kind, name):
    (tmp_path / "classes.txt").write_text(f"{name}\n")
    with pytest.raises(ConfigError, match=r"lacks .*, a class of .*: add it"):
        packed(publisher, kind, tmp_path, classes=str(tmp_path / "classes.txt"))


def test_two_workers_pack_the_same_bytes(publisher, tmp_path):
    publisher.files.update(made_sets.made("caltech256"))
    digests = set()
    for workers in (1, 2):
        data = data_of("caltech256", tmp_path, mirror=publisher.base, cache=str(tmp_path / f"cache{workers}"))
        digests.add(pack.prepare(data, workers=workers)["digest"])
    assert len(digests) == 1


def test_a_packed_set_does_not_need_its_archive(publisher, tmp_path):
    made = packed(publisher, "cifar10", tmp_path)
    (tmp_path / "set" / "cifar-10-binary.tar.gz").unlink()
    publisher.files.clear()
    assert pack.prepare(data_of("cifar10", tmp_path, mirror=publisher.base)) == made


def test_no_archive_is_unpacked(publisher, tmp_path):
    packed(publisher, "caltech256", tmp_path)
    assert sorted(os.listdir(tmp_path / "set")) == ["256_ObjectCategories.tar", "256_ObjectCategories.tar.sha256"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_placed_file_with_a_wrong_checksum_is_refused(tmp_path, kind):
    data = data_of(kind, tmp_path, checksum="published")
    os.makedirs(data.root)
    for name, content_of in made_sets.made(kind).items():
        (tmp_path / "set" / name).write_bytes(content_of)
    text = error_of(pack.prepare, data)
    assert re.search(r"has [\d,]+ bytes, not [\d,]+|has the SHA-256", text) and str(tmp_path / "set") in text
    assert not [name for name in os.listdir(tmp_path / "cache") if not name.startswith(".")]


def test_links_and_names_outside_an_archive_write_nothing(publisher, tmp_path):
    further = [("../evil.jpg", b"x"), ("256_ObjectCategories/001.ak47/l.jpg", (b"2", "/etc/passwd"))]
    publisher.files.update(made_sets.caltech256(further=further))
    made = pack.prepare(data_of("caltech256", tmp_path, mirror=publisher.base))
    assert counts(made) == {"train": [6, 6], "val": [2, 2]} and not list(tmp_path.rglob("evil*"))


def test_another_archive_is_refused_and_leaves_nothing(publisher, tmp_path):
    publisher.files["256_ObjectCategories.tar"] = b"<html>not found</html>" * 100
    data = data_of("caltech256", tmp_path, mirror=publisher.base)
    text = error_of(pack.prepare, data)
    assert text.startswith(f"data.root={data.root}: an archive is damaged or another one (")
    assert not list(Path(data.cache).glob("[!.]*"))


def test_imagenet_is_never_fetched_without_a_mirror(tmp_path):
    data = data_of("imagenet", tmp_path, checksum="published")
    assert error_of(pack.prepare, data) == (
        f"data.root={data.root} lacks ILSVRC2012_img_train.tar, ILSVRC2012_img_val.tar, ILSVRC2012_devkit_t12.tar.gz, "
        f"which the licence does not allow to fetch: download them from https://image-net.org/download.php and place "
        f"them in {data.root}"
    )
