"""Image trees: a set's images by split and class, and the order in which they are packed.

No image is decoded here. The split of an image depends on its class's name and list of images and on
data.split_seed. It depends neither on the other classes nor on data.train_per_class.
"""

import hashlib
from itertools import chain
from typing import Dict, FrozenSet, List, NamedTuple

from mxscale.config.schema import Data
from mxscale.data.class_names import class_names
from mxscale.data.images import Source
from mxscale.util.errors import ConfigError, nearest


class Item(NamedTuple):
    """One image before packing."""

    id: int  # its position in the listing of the set
    label: int
    name: str  # for messages: the path below data.root
    source: Source


class Tree(NamedTuple):
    """The images of a set."""

    classes: List[str]  # in label order
    splits: Dict[str, List[List[Item]]]  # split -> class -> images; "all" if the set has no splits; val is optional
    where: str  # for errors, such as `data.root=/x`
    unused: Dict[str, int] = {}  # extension, or "without extension" -> files of a folder that are no images


def plan(tree: Tree, data: Data, exclude: FrozenSet[int] = frozenset()) -> Dict[str, List[Item]]:
    """Return the images of each split in the order of packing.

    The training images are shuffled once, so that contiguous shards are mixed. The other splits keep the order of
    the listing. With data.test_share=1, a set without splits has the one split "all".

    Args:
        exclude: Ids of unusable images. The splits stay as they are without them; with data.val_share=null,
            other images replace them in the training split.

    Raises:
        ConfigError: A class has too few images.
    """
    shuffled = {
        split: [_shuffle(items, data.split_seed, tree.classes[label]) for label, items in enumerate(classes)]
        for split, classes in tree.splits.items()
    }
    if data.val_share is None:
        shuffled = {split: _without(classes, exclude) for split, classes in shuffled.items()}
    if "all" in shuffled and data.test_share == 1:
        return {"all": sorted(chain.from_iterable(_without(shuffled["all"], exclude)))}
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
    others = {split: sorted(chain.from_iterable(classes)) for split, classes in splits.items()}
    return {"train": _shuffle(train, data.split_seed, "train"), **others}


def _without(classes: List[List[Item]], exclude: FrozenSet[int]) -> List[List[Item]]:
    return [[item for item in items if item.id not in exclude] for items in classes]


def _shuffle(items: List[Item], seed: int, name: str) -> List[Item]:
    from numpy.random import RandomState  # its stream is the same in every version of NumPy

    seed_of_list = int.from_bytes(
        hashlib.sha256(f"{seed},{name}".encode("utf-8", "surrogateescape")).digest()[:4], "little"
    )
    return [items[i] for i in RandomState(seed_of_list).permutation(len(items))]


def _divide(tree: Tree, classes: List[List[Item]], data: Data, test_share: float) -> Dict[str, List[List[Item]]]:
    if data.val_share == 0:
        raise ConfigError("data.val_share=0: the set has no val split; expected a share above 0")
    splits: Dict[str, List[List[Item]]] = {"train": [], "val": [], "test": []}
    for name, items in zip(tree.classes, classes, strict=True):
        test = _share(len(items), test_share)
        if data.val_share:
            val = _share(len(items), data.val_share)
        else:
            val = max(0, len(items) - test - data.train_per_class)
        rest = test + val
        if rest >= len(items) or rest == test:
            raise ConfigError(_too_few(tree, name, len(items), data, test_share))
        splits["test"].append(items[:test])
        splits["val"].append(items[test:rest])
        splits["train"].append(items[rest:])
    if not test_share:
        del splits["test"]
    return splits


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


def chosen(data: Data, available: List[str], where: str) -> List[str]:
    """Return data.classes, or all available classes, sorted, if it is null.

    Raises ConfigError for unknown names, and for a class that a file of names lacks.
    """
    names = class_names(data)
    classes = sorted(available) if names is None else list(names)
    for name in classes:
        if name not in available:
            raise ConfigError(f"data.classes: {where} has no class {name}{nearest(name, available)}")
    if isinstance(data.classes, str) and len(classes) < len(available):
        left_out = next(name for name in available if name not in classes)
        raise ConfigError(
            f"data.classes={data.classes} lacks {left_out}, a class of {where}: add it; a list such as "
            "'data.classes=[a,b]' selects some classes"
        )
    for name in classes:
        if classes.count(name) > 1:
            raise ConfigError(f"data.classes: {name} is listed {classes.count(name)} times; list each class once")
    if len(classes) < 2 and data.test_share < 1:
        only = f" ({classes[0]})" if classes else ""
        raise ConfigError(f"{where} has {len(classes)} class{only}; expected at least 2")
    if data.num_classes not in (None, len(classes)):
        raise ConfigError(f"data.num_classes={data.num_classes}: {where} has {len(classes)} classes; omit it")
    return classes
