"""Invalid files of the public sets; and a run with a public set."""

import gzip
import hashlib
from collections import Counter
from pathlib import Path

import made_sets
import pytest
from made_sets import data_of, public
from refusals import error_of
from run_files import read_json

from mxscale.data.public.formats import BadArchive
from mxscale.util import csv_tables
from mxscale.util.errors import ConfigError


def refused(tmp_path, kind, files) -> str:
    folder = tmp_path / "refused"
    folder.mkdir(exist_ok=True)
    for name, content_of in files.items():
        (folder / name).write_bytes(content_of)
    call, data = public(kind).tree, data_of(kind, tmp_path)
    return error_of(call, str(folder), data, "data.root=x", kind=(BadArchive, ConfigError))


def test_inconsistent_mnist_files_are_refused(tmp_path):
    files = made_sets.mnist()
    name, labels = "train-images-idx3-ubyte.gz", "train-labels-idx1-ubyte.gz"
    assert "does not match its images (20 labels, 100)" in refused(
        tmp_path, "mnist", {**files, labels: files["t10k-labels-idx1-ubyte.gz"]}
    )
    assert f"{name} is not a complete idx file of 3" in refused(tmp_path, "mnist", {**files, name: files[labels]})
    assert f"{labels} does not match" in refused(tmp_path, "mnist", {**files, labels: made_sets.idx([10] * 100)})
    short = gzip.compress(gzip.decompress(files[name])[:-1])
    assert "is not a complete idx file" in refused(tmp_path, "mnist", {**files, name: short})


def test_invalid_cifar_records_are_refused(tmp_path):
    names = [f"data_batch_{n}.bin" for n in range(1, 6)] + ["test_batch.bin"]
    record = bytes([3]) + bytes(3072)

    def archive(first, meta=b"a\nb\nc\nd\n"):
        members = [(name, first if name == names[0] else record) for name in names]
        return {"cifar-10-binary.tar.gz": made_sets.tar([*members, ("batches.meta.txt", meta)], "w:gz")}

    assert "not a multiple of the record size 3,073" in refused(tmp_path, "cifar10", archive(record + b"x"))
    assert "has the label 3, but there are 2 class names" in refused(tmp_path, "cifar10", archive(record, b"a\nb\n"))
    few = made_sets.tar([*((name, record) for name in names[:-1]), ("batches.meta.txt", b"a")], "w:gz")
    assert "has no test_batch.bin" in refused(tmp_path, "cifar10", {"cifar-10-binary.tar.gz": few})


def test_a_devkit_of_another_set_is_refused(tmp_path):
    files, other = made_sets.imagenet(), made_sets.imagenet(val=3)
    devkit = "ILSVRC2012_devkit_t12.tar.gz"
    assert "has 6 images, the devkit 3 labels" in refused(tmp_path, "imagenet", {**files, devkit: other[devkit]})
    few = made_sets.tar([("n01440764.tar", made_sets.tar([("a.JPEG", b"x")]))])
    train = "ILSVRC2012_img_train.tar"
    error = refused(tmp_path, "imagenet", {**files, train: few})
    assert f"{train} has no class n01443537, which the devkit lists" in error
    flat = files["ILSVRC2012_img_val.tar"]
    assert "expected a tar per class" in refused(tmp_path, "imagenet", {**files, train: flat})


def test_a_damaged_devkit_is_refused(tmp_path):
    truth = "ILSVRC2012_devkit_t12/data/ILSVRC2012_validation_ground_truth.txt"
    for damaged, shown in ((b"1001\n" * 6, "1001"), (b"0\n", "0"), (b"\xffx\n", "\\ufffdx"), (b"9" * 5000, "9" * 20)):
        devkit = {"ILSVRC2012_devkit_t12.tar.gz": made_sets.tar([(truth, damaged)], "w:gz")}
        text = refused(tmp_path, "imagenet", {**made_sets.imagenet(), **devkit})
        assert f"has the label '{shown}': expected 1 to 1,000" in text


def test_the_classes_of_imagenet_are_those_of_the_devkit():
    wnids = [row["wnid"] for row in csv_tables.read("imagenet_classes")]
    assert len(set(wnids)) == 1000 and (wnids[0], wnids[489], wnids[999]) == ("n02119789", "n01751748", "n03255030")
    # Labels of the first validation images by the devkit, and by the sorted ids (torchvision, TensorFlow)
    devkit, sorted_ids = (490, 361, 171, 822, 297, 482), (65, 970, 230, 809, 516, 57)
    assert [sorted(wnids).index(wnids[number - 1]) for number in devkit] == list(sorted_ids)


def test_an_archive_without_images_is_refused(tmp_path):
    other = {"256_ObjectCategories.tar": made_sets.tar([("readme.txt", b"x")])}
    assert "has no 256_ObjectCategories/<NNN.name>/<image>.jpg" in refused(tmp_path, "caltech256", other)


@pytest.mark.slow
def test_a_run_fetches_packs_trains_and_records_the_set(publisher, cli, tmp_path):
    import mlflow

    publisher.files.update(made_sets.cifar10(per_batch=40))
    own = [f"data.mirror={publisher.base}", f"data.root={tmp_path}/set", "data.checksum=first_use"]
    own += ["tracking=mlflow", f"tracking.uri=sqlite:///{tmp_path}/mlflow.db"]
    run = cli("train", "data=cifar10", *own, "data.train_per_class=12", "epochs=1", "launch.ranks=1").run
    assert Counter(publisher.asked) == {"cifar-10-binary.tar.gz": 1}
    plan = run.plan()
    made = read_json(Path(plan.data_dir) / "manifest.json")
    assert plan.data_digest == made["digest"]
    assert hashlib.sha256(publisher.files["cifar-10-binary.tar.gz"]).hexdigest() in made["settings"]["files"].values()

    recorded = mlflow.MlflowClient(f"sqlite:///{tmp_path}/mlflow.db").get_run(run.read("tracking.json")["run_id"])
    assert recorded.data.tags["data.digest"] == made["digest"]
