"""Where the images of a set come from, and which split each belongs to.

A `Tree` lists a set's images by split and class; `plan` turns it into the order of packing.  Nothing
is decoded here.  A class's split depends on its name, its list of images and data.split_seed alone:
not on the other classes, nor on data.train_per_class.
"""

import hashlib
import io
import os
from itertools import chain
from typing import Dict, FrozenSet, List, NamedTuple, Tuple

from mxscale.config.schema import Data
from mxscale.data.content import Source
from mxscale.data.images import EXTENSIONS
from mxscale.util.errors import ConfigError, nearest

VAL_NAMES = ("val", "valid", "validation")


class Item(NamedTuple):
    """One image before packing."""

    id: int  # its number in the whole listing
    label: int
    name: str  # for people: the path below data.root
    source: Source


class Tree(NamedTuple):
    classes: List[str]  # in label order
    splits: Dict[str, List[List[Item]]]  # split -> class -> images; without splits: {"all": ..}; val may be missing
    where: str  # for errors, as `data.root=/x`


# ---------------------------------------------------------------- splits and order


def plan(tree: Tree, data: Data, exclude: FrozenSet[int] = frozenset()) -> Dict[str, List[Item]]:
    """Split -> images in the order of packing.

    The training images are shuffled once, so that contiguous shards are mixed; the others stay in
    the order of the listing.  exclude: ids of images that can't be used; the splits stay as they
    are without them (with data.val_share=null others take their places in train).  Raises ConfigError
    where a class is too small.
    """
    shuffled = {
        split: [_shuffle(items, data.split_seed, tree.classes[label]) for label, items in enumerate(classes)]
        for split, classes in tree.splits.items()
    }
    if data.val_share is None:
        shuffled = {split: _without(classes, exclude) for split, classes in shuffled.items()}
    if "all" in shuffled:
        splits = _divide(tree, shuffled["all"], data, data.test_share)
    elif "val" in shuffled:
        splits = shuffled
    elif data.val_share == 0:  # validate on the publisher's test images, as papers do
        splits = {"train": shuffled["train"], "val": shuffled["test"]}
    else:
        splits = {**_divide(tree, shuffled["train"], data, 0), "test": shuffled["test"]}
    splits = {split: _without(classes, exclude) for split, classes in splits.items()}
    train = list(chain.from_iterable(_first(tree, splits.pop("train"), data.train_per_class)))
    others = {split: sorted(chain.from_iterable(each)) for split, each in splits.items()}
    return {"train": _shuffle(train, data.split_seed, "train"), **others}


def _without(classes: List[List[Item]], exclude: FrozenSet[int]) -> List[List[Item]]:
    return [[item for item in items if item.id not in exclude] for items in classes]


def _shuffle(items: List[Item], seed: int, name: str) -> List[Item]:
    from numpy.random import RandomState  # its stream is frozen: the same in every version

    own = int.from_bytes(hashlib.sha256(f"{seed},{name}".encode("utf-8", "surrogateescape")).digest()[:4], "little")
    return [items[i] for i in RandomState(own).permutation(len(items))]


def _divide(tree: Tree, classes: List[List[Item]], data: Data, test_share: float) -> Dict[str, List[List[Item]]]:
    if data.val_share == 0:
        raise ConfigError("data.val_share=0: the set has no val split of its own and validation needs images")
    splits: Dict[str, List[List[Item]]] = {"train": [], "val": [], "test": []}
    for name, items in zip(tree.classes, classes, strict=True):
        test = _share(len(items), test_share)
        rest = test + (_share(len(items), data.val_share) if data.val_share else _left(items[test:], data))
        if rest >= len(items) or rest == test:
            raise ConfigError(_too_few(tree, name, len(items), data, test_share))
        splits["test"].append(items[:test])
        splits["val"].append(items[test:rest])
        splits["train"].append(items[rest:])
    if not test_share:
        del splits["test"]
    return splits


def _left(items: List[Item], data: Data) -> int:
    """What data.train_per_class leaves."""
    return max(0, len(items) - data.train_per_class)


def _too_few(tree: Tree, name: str, count: int, data: Data, test_share: float) -> str:
    if data.val_share is None:
        needed, by = data.train_per_class + (2 if test_share else 1), f"data.train_per_class={data.train_per_class}"
    else:
        needed, by = (3 if test_share else 2), f"data.val_share={data.val_share}"
    by += f" and data.test_share={test_share}" if test_share else ""
    return f"{tree.where}: class {name} has {count} images, too few to split by {by}: expected at least {needed}"


def _share(count: int, share: float) -> int:
    return max(1, int(count * share + 0.5)) if share else 0


def _first(tree: Tree, classes: List[List[Item]], limit) -> List[List[Item]]:
    if limit is None:
        return classes
    for name, items in zip(tree.classes, classes, strict=True):
        if len(items) < limit:
            raise ConfigError(
                f"data.train_per_class={limit}: class {name} has only {len(items)} usable training images; "
                f"use at most {min(map(len, classes))}"
            )
    return [items[:limit] for items in classes]


# ---------------------------------------------------------------- classes


def chosen(data: Data, available: List[str], where: str) -> List[str]:
    """data.classes, checked against what there is; null: all, sorted."""
    classes = sorted(available) if data.classes is None else list(data.classes)
    for name in classes:
        if name not in available:
            raise ConfigError(f"data.classes: {where} has no class {name}{nearest(name, available)}")
        if classes.count(name) > 1:
            raise ConfigError(f"data.classes: {name} is there {classes.count(name)} times; name each class once")
    if len(classes) < 2:
        only = f" ({classes[0]})" if classes else ""
        raise ConfigError(f"{where}: {len(classes)} class{only} to learn; expected at least 2")
    if data.num_classes not in (None, len(classes)):
        raise ConfigError(f"data.num_classes={data.num_classes}: {where} gives {len(classes)} classes; leave it out")
    return classes


# ---------------------------------------------------------------- embedded digits

DIGITS = [str(digit) for digit in range(10)]


def digits(classes: List[str]) -> Tree:
    """scikit-learn's 1,797 scans of handwritten digits, 8x8 pixels of 17 shades (0-16), as PNG files."""
    from PIL import Image
    from sklearn.datasets import load_digits

    numbers, labels = load_digits(return_X_y=True)
    by_class: List[List[Item]] = [[] for _ in classes]
    for number, (pixels, digit) in enumerate(zip(numbers, labels, strict=True)):
        if str(digit) in classes:
            label, file = classes.index(str(digit)), io.BytesIO()
            shades = (pixels.reshape(8, 8) * 255 / 16).round().astype("uint8")
            Image.fromarray(shades).save(file, "PNG")
            by_class[label].append(Item(number, label, f"digit {number}", file.getvalue()))
    return Tree(classes, {"all": by_class}, "data=digits")


# ---------------------------------------------------------------- a folder of images


def imagefolder(data: Data) -> Tuple[Tree, str]:
    """root/<class>/<image>, or root/{train,val,test}/<class>/<image> -> the listing and its fingerprint.

    The fingerprint changes with any image's path, size or time of change.  Hidden files, other
    extensions and folders below a class are left out.  Raises ConfigError.
    """
    root = os.path.abspath(os.path.expanduser(data.root))
    where = f"data.root={data.root}"
    top = _folders(root, where)
    train = _split_folders(root, top, where)
    if not train:
        classes = chosen(data, _not_empty(root, top, where), where)
        tops = {"all": ""}
    else:
        names = {split: _folders(os.path.join(root, folder), where) for split, folder in train.items()}
        if "test" in names and not names["test"]:
            del train["test"]  # a flat folder of images without labels
        classes = chosen(data, _not_empty(os.path.join(root, train["train"]), names["train"], where), where)
        _same_classes(data, classes, {split: names[split] for split in train}, train, where)
        tops = train
    listing, stamp = {}, hashlib.sha256(root.encode("utf-8", "surrogateescape"))
    number = 0
    for split, folder in tops.items():
        listing[split] = []
        for label, name in enumerate(classes):
            items = []
            for path, size, changed in _images(root, os.path.join(folder, name)):
                stamp.update(f"{path}\0{size}\0{changed}\0".encode("utf-8", "surrogateescape"))
                items.append(Item(number, label, path, os.path.join(root, path)))
                number += 1
            if not items:
                raise ConfigError(f"{where}: class {os.path.join(folder, name)} has no images; add some or remove it")
            listing[split].append(items)
    return Tree(classes, listing, where), stamp.hexdigest()


def _folders(path: str, where: str) -> List[str]:
    """Names of the visible folders in `path`, sorted."""
    try:
        with os.scandir(path) as entries:
            return sorted(e.name for e in entries if not e.name.startswith(".") and e.is_dir())
    except FileNotFoundError:
        raise ConfigError(f"{where}: no such directory") from None
    except NotADirectoryError:
        raise ConfigError(f"{where} is a file: expected a directory with <class>/<image>.jpg") from None
    except OSError as error:
        raise ConfigError(f"{where}: can't read {path} ({error.strerror})") from None


def _images(root: str, folder: str) -> List[Tuple[str, int, int]]:
    """(path below root, bytes, time of change in ns) of the image files in a folder, sorted by name."""
    found = []
    try:
        with os.scandir(os.path.join(root, folder)) as entries:
            for entry in entries:
                if entry.name.startswith(".") or not entry.name.lower().endswith(EXTENSIONS) or entry.is_dir():
                    continue
                try:
                    status = entry.stat()
                    size, changed = status.st_size, status.st_mtime_ns
                except OSError:  # a broken link: named as a bad image when packed
                    size, changed = -1, -1
                found.append((os.path.join(folder, entry.name), size, changed))
    except OSError as error:
        raise ConfigError(f"data.root: can't read {os.path.join(root, folder)} ({error.strerror})") from None
    return sorted(found)


def _not_empty(path: str, classes: List[str], where: str) -> List[str]:
    """`classes`; raises ConfigError where none of them holds an image."""
    if any(_images(path, name) for name in classes):
        return classes
    deeper = [
        name
        for name in classes
        if any(_images(path, os.path.join(name, below)) for below in _folders(os.path.join(path, name), where))
    ]
    hint = f"; did you mean data.root={os.path.join(path, deeper[0])}?" if len(deeper) == 1 else ""
    raise ConfigError(f"{where} has no images: expected {path}/<class>/<image>.jpg{hint}")


def _split_folders(root: str, top: List[str], where: str) -> Dict[str, str]:
    """Split -> folder, where root/train holds folders and no images (a class may be called train); else {}."""
    if "train" not in top or _images(root, "train") or not _folders(os.path.join(root, "train"), where):
        return {}
    val = [name for name in VAL_NAMES if name in top]
    if not val:
        raise ConfigError(f"{where} has train/ but no val/: expected {root}/val/<class>/<image>.jpg")
    if len(val) > 1:
        raise ConfigError(f"{where} has {' and '.join(name + '/' for name in val)}: keep one of them")
    return {"train": "train", "val": val[0], **({"test": "test"} if "test" in top else {})}


def _same_classes(data: Data, classes: List[str], names: Dict[str, List[str]], folders: Dict[str, str], where: str):
    for split in names:
        missing = [name for name in classes if name not in names[split]]
        further = [name for name in names[split] if name not in classes] if data.classes is None else []
        if missing or further:
            sides = [f"only in train/: {', '.join(missing)}"] if missing else []
            sides += [f"only in {folders[split]}/: {', '.join(further)}"] if further else []
            raise ConfigError(f"{where}: train/ and {folders[split]}/ have different classes ({'; '.join(sides)})")
