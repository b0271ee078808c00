"""Small archives in the public sets' real formats."""

import dataclasses
import functools
import gzip
import io
import struct
import tarfile
from pkgutil import resolve_name

import numpy as np
from composed import composed
from PIL import Image

from mxscale.config.datasets import DATASETS
from mxscale.config.schema import Data


def tar(members, mode="w") -> bytes:
    """Return a tar of (name, content); content is bytes, or (TarInfo type, target) for links and devices."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode=mode) as archive:
        for name, content in members:
            info = tarfile.TarInfo(name)
            if isinstance(content, tuple):
                info.type, info.linkname = content
                archive.addfile(info)
            else:
                info.size = len(content)
                archive.addfile(info, io.BytesIO(content))
    return out.getvalue()


def jpeg(seed: int, side=24) -> bytes:
    out = io.BytesIO()
    Image.fromarray(np.random.RandomState(seed).randint(0, 256, (side, side + 4, 3), "uint8")).save(out, "JPEG")
    return out.getvalue()


def idx(array) -> bytes:
    array = np.asarray(array, "uint8")
    return gzip.compress(struct.pack(f">4B{array.ndim}I", 0, 0, 8, array.ndim, *array.shape) + array.tobytes(), mtime=0)


def mnist(train=100, test=20):
    """Image n of a split has the label n % 10."""
    files = {}
    for seed, (prefix, count) in enumerate((("train", train), ("t10k", test))):
        pixels = np.random.RandomState(seed).randint(0, 256, (count, 28, 28))
        files[f"{prefix}-images-idx3-ubyte.gz"] = idx(pixels)
        files[f"{prefix}-labels-idx1-ubyte.gz"] = idx(np.arange(count) % 10)
    return files


CIFAR10 = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]
CIFAR100 = [f"class{n:02d}" for n in range(100)]


def cifar_pixels(seed, count):
    """(count, 3, 32, 32)"""
    return np.random.RandomState(seed).randint(0, 256, (count, 3, 32, 32)).astype("uint8")


def cifar10(per_batch=20, test=20):
    """Image n of a batch has the label n % 10."""
    folder, members = "cifar-10-batches-bin", []
    for seed, name in enumerate([f"data_batch_{n}.bin" for n in range(1, 6)] + ["test_batch.bin"]):
        count = test if name.startswith("test") else per_batch
        records = [bytes([n % 10]) + image.tobytes() for n, image in enumerate(cifar_pixels(seed, count))]
        members.append((f"{folder}/{name}", b"".join(records)))
    members.append((f"{folder}/batches.meta.txt", ("\n".join(CIFAR10) + "\n\n").encode()))
    return {"cifar-10-binary.tar.gz": tar(members, "w:gz")}


def cifar100(train=300, test=100):
    """Image n has the fine label n % 100 and the coarse one 7."""
    folder, members = "cifar-100-binary", []
    for seed, (name, count) in enumerate((("train.bin", train), ("test.bin", test))):
        records = [bytes([7, n % 100]) + image.tobytes() for n, image in enumerate(cifar_pixels(seed, count))]
        members.append((f"{folder}/{name}", b"".join(records)))
    members.append((f"{folder}/fine_label_names.txt", ("\n".join(CIFAR100) + "\n").encode()))
    members.append((f"{folder}/coarse_label_names.txt", b"many\n"))
    return {"cifar-100-binary.tar.gz": tar(members, "w:gz")}


def caltech256(classes=("001.ak47", "002.american-flag", "257.clutter"), per_class=8, further=()):
    """Return folders of JPEG files with a stray file and a stray folder, as in the real archive."""
    top, members, seed = "256_ObjectCategories", [("256_ObjectCategories/", (tarfile.DIRTYPE, ""))], 0
    for name in classes:
        members.append((f"{top}/{name}/", (tarfile.DIRTYPE, "")))
        for n in range(1, per_class + 1):
            members.append((f"{top}/{name}/{name[:3]}_{n:04d}.jpg", jpeg(seed)))
            seed += 1
    members += [(f"{top}/{classes[0]}/RENAME2", b"mv a b"), (f"{top}/{classes[0]}/greg/", (tarfile.DIRTYPE, ""))]
    members += [(f"{top}/{classes[0]}/greg/vision.jpg", b"no class's image")]
    return {"256_ObjectCategories.tar": tar([*members, *further])}


WNIDS = ["n01440764", "n01443537", "n02119789"]
IDS = {"n02119789": 1, "n01440764": 449, "n01443537": 450}  # of the devkit, in another order


def imagenet(per_class=4, val=6, further=()):
    """Return the files of three classes; validation image n is of class WNIDS[-1 - n % 3]."""
    inner, seed = [], 0
    for wnid in WNIDS:
        images = []
        for n in range(per_class):
            images.append((f"{wnid}_{n}.JPEG", jpeg(seed)))
            seed += 1
        inner.append((f"{wnid}.tar", tar(images)))
    flat = [(f"ILSVRC2012_val_{n:08d}.JPEG", jpeg(1000 + n)) for n in range(1, val + 1)]
    truth = "".join(f"{IDS[WNIDS[-1 - n % 3]]}\n" for n in range(val))
    devkit = [("ILSVRC2012_devkit_t12/data/ILSVRC2012_validation_ground_truth.txt", truth.encode())]
    return {
        "ILSVRC2012_img_train.tar": tar([*inner, *further]),
        "ILSVRC2012_img_val.tar": tar(flat[::-1]),  # the order of its members does not matter
        "ILSVRC2012_devkit_t12.tar.gz": tar(devkit, "w:gz"),
    }


SETS = {"mnist": mnist, "cifar10": cifar10, "cifar100": cifar100, "caltech256": caltech256, "imagenet": imagenet}


@functools.lru_cache
def made(kind):
    """Return {file name: content} of a valid set."""
    return SETS[kind]()


@functools.lru_cache
def conf(kind) -> Data:
    """Return the conf of a set, with small images."""
    small = {"caltech256": {"train_per_class": 6, "image_size": 16, "pack_short_side": 20}}
    small["imagenet"] = {"image_size": 16, "pack_short_side": 20}
    return dataclasses.replace(composed("train", f"data={kind}").data, **small.get(kind, {}))


def data_of(kind, tmp_path, **more) -> Data:
    own = {"root": str(tmp_path / "set"), "cache": str(tmp_path / "cache"), "checksum": "first_use"}
    return dataclasses.replace(conf(kind), **{**own, **more})


def public(kind):
    return resolve_name(DATASETS[kind].implementation)
