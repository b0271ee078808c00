"""Readers of the public sets' formats, each of which returns a `Tree`. No archive is unpacked, no image is decoded.

Small scans become Netpbm files in memory (a header and the pixels). Photographs are slices of their archive. As no
file is written, an archive's links, devices and names outside its folder are harmless; members without use are ignored.
"""

import gzip
import math
import os
import re
import struct
import tarfile
import zlib
from pathlib import PurePosixPath
from typing import Dict, Iterator, List, NamedTuple, Optional, Sequence, Tuple

from mxscale.config.schema import Data
from mxscale.data.images import Slice, Source
from mxscale.data.sources import DIGITS
from mxscale.data.tree import Item, Tree, chosen
from mxscale.data.workers import Progress
from mxscale.util import csv_tables
from mxscale.util.errors import ConfigError
from mxscale.util.regular_files import open_regular

MAX_BYTES = 1 << 30  # of a decompressed set of small images; CIFAR has 184,380,000
BLOCK = 512  # bytes of a tar's block; a block of zeros ends the tar


class BadArchive(Exception):
    """An archive without the content of its set; the message is one line."""


# What the readers raise for other files, but for ConfigError
ERRORS = (BadArchive, OSError, EOFError, OverflowError, zlib.error, tarfile.TarError)


def members(path: str, start: int = 0, end: Optional[int] = None) -> Iterator[Tuple[str, Slice]]:
    """Yield name and content of each file of the uncompressed tar in bytes `start` to `end` (None: the last) of a file.

    Raises:
        BadArchive: The tar is truncated; see `ERRORS` for others.
    """
    end = os.path.getsize(path) if end is None else end
    with open_regular(path) as file:
        file.seek(start)
        tar = tarfile.TarFile(fileobj=file)
        for member in tar:
            if member.isreg():
                yield member.name, Slice(path, member.offset_data, member.size)
        # tarfile takes a truncation, and garbage after the first member, for the end
        file.seek(tar.offset)
        if tar.offset + BLOCK > end or file.read(BLOCK).strip(b"\0"):
            raise BadArchive(f"{path} is truncated or damaged at byte {tar.offset}")


def contents(path: str, wanted: Sequence[str]) -> Dict[str, bytes]:
    """Return the content of files in a .tar.gz, by the last part of their name. Raises `ERRORS`."""
    content_of, total = {}, 0
    with open_regular(path) as file, tarfile.open(fileobj=file, mode="r:gz") as tar:
        for member in tar:
            total += member.size  # before decompression: a few kB of gzip may hold gigabytes
            if total > MAX_BYTES:
                raise BadArchive(f"{path} has more than {MAX_BYTES:,} bytes when decompressed")
            name = PurePosixPath(member.name).name
            if name in wanted and member.isreg():
                content_of[name] = tar.extractfile(member).read()
    missing = sorted(set(wanted) - set(content_of))
    if missing:
        raise BadArchive(f"{path} has no {', '.join(missing)}")
    return content_of


def _tree(data: Data, where: str, names: List[str], splits: Dict[str, List[Tuple[str, str, Source]]]) -> Tree:
    """Return a tree of (class, name, source) by split, without the classes that data.classes omits."""
    classes = chosen(data, names, where)
    labels, number, by_split = {name: label for label, name in enumerate(classes)}, 0, {}
    for split, images in splits.items():
        by_split[split] = [[] for _ in classes]
        for name, path, source in images:
            if name in labels:
                by_split[split][labels[name]].append(Item(number, labels[name], path, source))
            number += 1
    return Tree(classes, by_split, where)


def mnist(folder: str, data: Data, where: str) -> Tree:
    """Read idx files: big-endian magic and sizes, then a byte per pixel or label (yann.lecun.com/exdb/mnist)."""
    splits = {}
    for split, prefix in (("train", "train"), ("test", "t10k")):
        pixels, count, height, width = _idx(folder, f"{prefix}-images-idx3-ubyte.gz", 3)
        labels, labelled = _idx(folder, f"{prefix}-labels-idx1-ubyte.gz", 1)
        if labelled != count or (count and max(labels) > 9):
            raise BadArchive(
                f"{prefix}-labels-idx1-ubyte.gz does not match its images ({labelled:,} labels, {count:,})"
            )
        size, header = height * width, b"P5 %d %d 255\n" % (width, height)
        splits[split] = [
            (str(label), f"{prefix} image {n}", header + pixels[n * size : (n + 1) * size])
            for n, label in enumerate(labels)
        ]
    return _tree(data, where, DIGITS, splits)


def _idx(folder: str, name: str, dimensions: int):
    """Return (content, size of each dimension) of an .idx.gz file of unsigned bytes."""
    with open_regular(os.path.join(folder, name)) as packed, gzip.open(packed) as file:
        content = file.read(MAX_BYTES)
    start = 4 + 4 * dimensions
    header = content[:start].ljust(start, b"\0")
    sizes = struct.unpack_from(f">{dimensions}I", header, 4)
    if header[:4] != bytes([0, 0, 8, dimensions]) or len(content) != start + math.prod(sizes):  # 8: unsigned byte
        raise BadArchive(f"{name} is not a complete idx file of {dimensions} dimension{'s' if dimensions > 1 else ''}")
    return (content[start:], *sizes)


class _Cifar(NamedTuple):
    """A reader of a binary version of CIFAR: records of labels and 3,072 pixels (www.cs.toronto.edu/~kriz/cifar.html).

    Called as the other readers here.
    """

    archive: str
    names: str  # file of the class names
    batches: Dict[str, List[str]]  # split -> files
    label_bytes: int  # the last one is the label

    def __call__(self, folder: str, data: Data, where: str) -> Tree:
        wanted = [self.names, *(name for names in self.batches.values() for name in names)]
        content_of = contents(os.path.join(folder, self.archive), wanted)
        names = content_of[self.names].decode("ascii", "replace").split()
        splits = {
            split: [image for name in files for image in _records(name, content_of[name], self.label_bytes, names)]
            for split, files in self.batches.items()
        }
        return _tree(data, where, names, splits)


def _records(file: str, content: bytes, label_bytes: int, names: List[str]) -> Iterator[Tuple[str, str, bytes]]:
    """Yield (class, name, PPM) of each record; planes of red, green and blue become pixels."""
    import numpy as np

    length = label_bytes + 3 * 1024
    if not content or len(content) % length:
        raise BadArchive(f"{file} has {len(content):,} bytes: not a multiple of the record size {length:,}")
    records = np.frombuffer(content, "uint8").reshape(-1, length)
    labels, planes = records[:, label_bytes - 1], records[:, label_bytes:].reshape(-1, 3, 1024)
    if labels.max() >= len(names):
        raise BadArchive(f"{file} has the label {labels.max()}, but there are {len(names)} class names")
    for n, (label, image) in enumerate(zip(labels, planes, strict=True)):
        yield names[label], f"{file} image {n}", b"P6 32 32 255\n" + image.T.tobytes()


CIFAR10 = _Cifar(
    "cifar-10-binary.tar.gz",
    "batches.meta.txt",
    {"train": [f"data_batch_{n}.bin" for n in range(1, 6)], "test": ["test_batch.bin"]},
    label_bytes=1,
)
CIFAR100 = _Cifar(  # a coarse label, then a fine one: the 100 classes
    "cifar-100-binary.tar.gz", "fine_label_names.txt", {"train": ["train.bin"], "test": ["test.bin"]}, label_bytes=2
)


def caltech256(folder: str, data: Data, where: str) -> Tree:
    """Read 256_ObjectCategories/<NNN.name>/<image>.jpg; the 257th folder, clutter, is not a class.

    Other members of the archive (198.spider/RENAME2, 056.dog/greg) are ignored.
    """
    path, images = os.path.join(folder, "256_ObjectCategories.tar"), []
    is_class = re.compile(r"\d{3}\." if data.clutter else r"(?!257)\d{3}\.")
    for name, content in members(path):
        parts = name.removeprefix("./").split("/")
        if len(parts) == 3 and is_class.match(parts[1]) and parts[2].lower().endswith((".jpg", ".jpeg")):
            images.append((parts[1], "/".join(parts[1:]), content))
    if not images:
        raise BadArchive("256_ObjectCategories.tar has no 256_ObjectCategories/<NNN.name>/<image>.jpg")
    return _tree(data, where, sorted({name for name, _, _ in images}), {"all": sorted(images)})


DEVKIT = "ILSVRC2012_devkit_t12.tar.gz"
TRUTH = "ILSVRC2012_validation_ground_truth.txt"


def imagenet(folder: str, data: Data, where: str) -> Tree:
    """Read ILSVRC 2012: training images in a tar of one tar per class, validation images in a flat tar.

    The devkit has the labels of the validation images. A class is named by its WordNet id. Sorted ids are the label
    order of torchvision, timm and Keras.
    """
    train = _training_images(os.path.join(folder, "ILSVRC2012_img_train.tar"), data)
    wnids = sorted({name for name, _, _ in train})
    val = _validation_images(folder)
    unknown = sorted({name for name, _, _ in val} - set(wnids))
    if unknown and data.classes is None:
        raise ConfigError(f"{where}: ILSVRC2012_img_train.tar has no class {unknown[0]}, which the devkit lists")
    return _tree(data, where, wnids, {"train": train, "val": val})


def _training_images(path: str, data: Data) -> List[Tuple[str, str, Slice]]:
    images, selected = [], data.classes if isinstance(data.classes, list) else None
    with Progress("listing ILSVRC2012_img_train.tar", os.path.getsize(path), "B") as bar:
        for tar_name, tar in members(path):
            bar.add(tar.size)
            wnid = tar_name.removeprefix("./").removesuffix(".tar")
            if not re.fullmatch(r"n\d{8}", wnid):
                raise BadArchive(f"{path} has {tar_name}; expected a tar per class, such as n01440764.tar")
            if selected is not None and wnid not in selected:
                continue
            for name, content in members(path, tar.offset, tar.offset + tar.size):
                images.append((wnid, f"{wnid}/{name}", content))
    return images


def _validation_images(folder: str) -> List[Tuple[str, str, Slice]]:
    """Return the validation images. Line n of the ground truth is the class of the n-th image by name."""
    wnids, path = _ground_truth(os.path.join(folder, DEVKIT)), os.path.join(folder, "ILSVRC2012_img_val.tar")
    images = sorted(members(path))
    if len(images) != len(wnids):
        raise BadArchive(f"ILSVRC2012_img_val.tar has {len(images):,} images, the devkit {len(wnids):,} labels")
    return [(wnid, f"val/{name}", content) for wnid, (name, content) in zip(wnids, images, strict=True)]


def _ground_truth(path: str) -> List[str]:
    """Return the WordNet ids of the validation images, in their order.

    tables/imagenet_classes.csv has the ids of the devkit's meta.mat and of map_clsloc.txt in later devkits.
    """
    wnids = {row["id"]: row["wnid"] for row in csv_tables.read("imagenet_classes")}
    ids = contents(path, [TRUTH])[TRUTH].decode("ascii", "replace").split()
    for class_id in ids:
        if class_id not in wnids:
            raise BadArchive(f"{TRUTH} in {DEVKIT} has the label {class_id[:20]!a}: expected 1 to {len(wnids):,}")
    return [wnids[class_id] for class_id in ids]
