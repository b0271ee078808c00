"""Image trees: a set's images by split and class, and the order in which they are packed.

No image is decoded here. The split of an image depends on its class's name and list of images and on
data.split_seed. It depends neither on the other classes nor on data.train_per_class.
"""

import hashlib
from itertools import chain
from typing import Dict, List, NamedTuple, Optional

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


def plan(tree: Tree, data: Data) -> Dict[str, List[Item]]:
    """Return the images of each split in the order of packing.

    The training images are shuffled once, so that contiguous shards are mixed. The other splits keep the order of
    the listing. With data.test_share=1, a set without splits has the one split "all".

    Raises:
        ConfigError: A class has too few images.
    """
    if "all" in tree.splits and data.test_share == 1:
        return {"all": sorted(chain.from_iterable(tree.splits["all"]))}
    splits = {
        split: [_shuffle(items, data.split_seed, tree.classes[label]) for label, items in enumerate(classes)]
        for split, classes in tree.splits.items()
    }
    if "all" in splits:
        splits = _divide(tree, splits["all"], data, data.test_share)
    elif "val" not in splits and data.val_share == 0:  # validate on the publisher's test images, as papers do
        splits = {"train": splits["train"], "val": splits["test"]}
    elif "val" not in splits:
        splits = {**_divide(tree, splits["train"], data, 0), "test": splits["test"]}
    train = list(chain.from_iterable(_first(tree, splits.pop("train"), data.train_per_class)))
    others = {split: sorted(chain.from_iterable(classes)) for split, classes in splits.items()}
    return {"train": _shuffle(train, data.split_seed, "train"), **others}


def _shuffle(items: List[Item], seed: int, name: str) -> List[Item]:
    from numpy.random import RandomState  # its stream is the same in every version of NumPy

    digest = hashlib.sha256(f"{seed},{name}".encode("utf-8", "surrogateescape")).digest()
    return [items[i] for i in RandomState(int.from_bytes(digest[:4], "little")).permutation(len(items))]


def _divide(tree: Tree, classes: List[List[Item]], data: Data, test_share: float) -> Dict[str, List[List[Item]]]:
    if data.val_share == 0:
        raise ConfigError("data.val_share=0: the set has no val split; expected a share above 0")
    splits: Dict[str, List[List[Item]]] = {"train": [], "val": [], "test": []}
    for name, items in zip(tree.classes, classes, strict=True):
        test = _share(len(items), test_share)
        rest = test + _share(len(items), data.val_share)
        if data.val_share is None:
            rest = max(test, len(items) - data.train_per_class)
        if rest >= len(items) or rest == test:
            shares = {"val_share": data.val_share, "test_share": test_share, "train_per_class": data.train_per_class}
            by = ", ".join(f"data.{key}={share}" for key, share in shares.items() if share)
            raise ConfigError(f"{tree.where}: class {name} has {len(items)} images, too few to split by {by}")
        splits["test"].append(items[:test])
        splits["val"].append(items[test:rest])
        splits["train"].append(items[rest:])
    if not test_share:
        del splits["test"]
    return splits


def _share(count: int, share: Optional[float]) -> int:
    return max(1, int(count * share + 0.5)) if share else 0


def _first(tree: Tree, classes: List[List[Item]], limit: Optional[int]) -> List[List[Item]]:
    for name, items in zip(tree.classes, classes, strict=True):
        if len(items) < (limit or 0):
            most = min(map(len, classes))
            raise ConfigError(
                f"data.train_per_class={limit}: class {name} has fewer training images; use at most {most}"
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
        if classes.count(name) > 1:
            raise ConfigError(f"data.classes: {name} is listed {classes.count(name)} times; list each class once")
    if isinstance(data.classes, str) and len(classes) < len(available):
        left_out = next(name for name in available if name not in classes)
        raise ConfigError(
            f"data.classes={data.classes} lacks {left_out}, a class of {where}: add it; a list such as "
            "'data.classes=[a,b]' selects some classes"
        )
    if len(classes) < 2 and data.test_share < 1:
        only = f" ({classes[0]})" if classes else ""
        raise ConfigError(f"{where} has {len(classes)} class{only}; expected at least 2")
    if data.num_classes not in (None, len(classes)):
        raise ConfigError(f"data.num_classes={data.num_classes}: {where} has {len(classes)} classes; omit it")
    return classes
