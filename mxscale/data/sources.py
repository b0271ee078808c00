"""The sets that need no publisher: the embedded digits and a folder of images."""

import gzip
import hashlib
import io
import os
from collections import Counter
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Callable, Container, Dict, List, NamedTuple, Optional, Tuple

from mxscale.config.schema import Data
from mxscale.data import image_lists
from mxscale.data.class_names import class_names
from mxscale.data.images import EXTENSIONS
from mxscale.data.tree import Item, Tree, chosen
from mxscale.data.tree_packer import PackJob, tree_job
from mxscale.util.errors import ConfigError
from mxscale.util.paths import absolute

SYSTEM_FOLDERS = (".", "__MACOSX")  # beginnings of names
SPLIT_NAMES = {  # split -> the names of its folder, in small letters
    "train": ("train", "training"),
    "val": ("val", "valid", "validation", "dev"),
    "test": ("test", "testing"),
}
Image = Tuple[str, int, int]  # path below root, bytes, time of change in ns

DIGITS = [str(digit) for digit in range(10)]
DIGITS_FILE = Path(__file__).with_name("files") / "digits.csv.gz"


def digits(data: Data, workers: Optional[int]) -> PackJob:
    """Return the job that packs the embedded digits, enlarged to the size that the network sees."""
    classes = chosen(data, DIGITS, "data=digits")
    return tree_job(data, lambda: _digits_tree(classes), 1, classes=classes)


def scans() -> tuple:
    """Return the 1,797 scans of files/digits.csv.gz, uint8 of shape (N, 8, 8) with 17 shades, and their digits."""
    import numpy as np

    with gzip.open(DIGITS_FILE, "rt") as rows:
        table = np.loadtxt(rows, delimiter=",")
    shades = (table[:, :-1].reshape(-1, 8, 8) * 255 / 16).round().astype("uint8")
    return shades, table[:, -1].astype(int)


def _digits_tree(classes: List[str]) -> Tree:
    """Return the scans as PNG files."""
    from PIL import Image

    by_class: List[List[Item]] = [[] for _ in classes]
    for number, (shades, digit) in enumerate(zip(*scans())):
        if str(digit) in classes:
            label, file = classes.index(str(digit)), io.BytesIO()
            Image.fromarray(shades).save(file, "PNG")
            by_class[label].append(Item(number, label, f"digit {number}", file.getvalue()))
    return Tree(classes, {"all": by_class}, "data=digits")


def imagefolder(data: Data, workers: Optional[int]) -> PackJob:
    """Return the job that packs data.root. Raises ConfigError if it is not a folder of images."""
    tree, fingerprint = list_folder(data)
    identity = {"classes": tree.classes, "source": fingerprint, "root": absolute(data.root)}
    if "train" in tree.splits:  # a set with its own splits does not depend on these settings
        identity.update(test_share=None)
    if "val" in tree.splits:
        identity.update(val_share=None)
    return tree_job(data, lambda: tree, workers, **identity)


def originals(data: Data, packed: Dict) -> Dict[int, str]:
    """Return the files of which a set was packed by the ids of its records; {} if it has none, or they have changed.

    Args:
        packed: The set's manifest.
    """
    if not data.root or "source" not in packed["settings"]:
        return {}
    try:
        tree, fingerprint = list_folder(data)
    except ConfigError:
        return {}
    if fingerprint != packed["settings"]["source"]:
        return {}
    return {item.id: item.source for split in tree.splits.values() for items in split for item in items}


class _Split(NamedTuple):
    """The images of a split, or of all splits together, before they have labels."""

    where: str  # for messages, such as data.root=/x or data.val=/x/val.csv
    folder: str  # that holds the classes, below data.root
    classes: List[str]
    images: Callable[[str], List[Image]]  # of a class, sorted by path
    listed: bool = False  # in a file, where a class may be missing


def list_folder(data: Data) -> Tuple[Tree, str]:
    """Return the images below data.root and a fingerprint of the listing.

    The layout is root/<class>/<image>, or root/{train,val,test}/<class>/<image>; val or test may be missing. A file
    data.train, data.val or data.test that lists images and labels takes the place of a split's folder. With data.train
    alone, all images are those that it lists. The fingerprint changes with any image's path, size, time of change,
    split or class. Hidden files and folders are ignored; other files in the folders of classes are counted.

    Raises:
        ConfigError: data.root cannot be read, or has another layout.
    """
    root, where, unused = absolute(data.root), f"data.root={data.root}", Counter()
    splits = _splits(data, root, where, unused)
    base = splits.get("train") or splits["all"]
    # Labels that are numbers stay in their order; `chosen` sorts by name
    keeps_order = base.listed and data.classes is None
    classes = chosen(replace(data, classes=base.classes) if keeps_order else data, base.classes, base.where)
    for split in splits.values():
        _same_classes(data, classes, base, split)
    listing, fingerprint = {}, hashlib.sha256(root.encode("utf-8", "surrogateescape"))
    number = 0
    for name, split in splits.items():
        listing[name] = []
        for label, of_class in enumerate(classes):
            items = []
            for path, size, changed in split.images(of_class):
                stamp = f"{name}\0{of_class}\0{path}\0{size}\0{changed}\0"
                fingerprint.update(stamp.encode("utf-8", "surrogateescape"))
                items.append(Item(number, label, path, os.path.join(root, path)))
                number += 1
            if not items and name in ("train", "all") and not split.listed:
                shown = os.path.join(split.folder, of_class)
                raise ConfigError(f"{where}: class {shown} has no images; add some or remove it")
            listing[name].append(items)
        if not split.listed and not any(listing[name]):
            raise ConfigError(f"{where}: {split.folder}/ has no images; add some or remove it")
    return Tree(classes, listing, where, dict(unused.most_common())), fingerprint.hexdigest()


def _splits(data: Data, root: str, where: str, unused: Counter) -> Dict[str, _Split]:
    """Return the splits of a folder and of the lists of its images. See `images_in`."""
    top = _folders(root, where)
    lists = {split: getattr(data, split) for split in SPLIT_NAMES if getattr(data, split)}
    splits: Dict[str, _Split] = {}
    if "train" not in lists:
        folders = _split_folders(data, root, top, where, lists)
        if lists and not folders:
            raise ConfigError(f"{where} has no train/<class>/<image>.jpg beside the lists: give data.train=FILE too")
        if not folders and data.classes is None and top and all(map(_is_named_as_split, top)):
            raise ConfigError(
                f"{where}: {' and '.join(top)} are names of splits, which lack folders of classes: give the list of "
                f"the images as data.train=FILE, or set 'data.classes=[{','.join(top)}]' if they are classes"
            )
        for split, folder in (folders or {"all": ""}).items():
            path = os.path.join(root, folder) if folder else root
            classes = _folders(path, where)
            if split in ("all", "train"):
                _check_depth(data, path, classes, where)
            of_class = partial(lambda below, name: images_in(root, os.path.join(below, name), True, unused), folder)
            splits[split] = _Split(where, folder, classes, of_class)
    for split, path in lists.items():
        splits[split] = _listed(data, root, split, path, top, splits.get("train"))
    if len(splits) == 1 and "train" in splits:
        return {"all": splits["train"]}
    return {split: splits[split] for split in ("train", "val", "test", "all") if split in splits}


def _listed(data: Data, root: str, split: str, path: str, top: List[str], train: Optional[_Split]) -> _Split:
    """Return the split of a file that lists its images.

    Args:
        path: Of the file.
        top: The folders in root, of which one may be that of the split.
        train: The training images, whose classes a label must have; None: the list is theirs.
    """
    where = f"data.{split}={path}"
    of_split = [name for name in top if name.lower().startswith(SPLIT_NAMES[split])]
    folders = ["", *of_split, *(f"{name}/images" for name in of_split)]
    rows = image_lists.located(image_lists.read(absolute(path), where), root, folders, where)
    in_order = class_names(data)  # which numbers count
    if train and not train.listed and not isinstance(data.classes, str):
        in_order = train.classes  # data.classes selects some of them
    paths = image_lists.by_class(rows, in_order, train and train.classes, where)
    are_numbers = all(name.isdecimal() for name in paths)
    classes = train.classes if train else sorted(paths, key=int if are_numbers else None)
    return _Split(where, "", classes, lambda name: [_stamped(root, path) for path in sorted(paths.get(name, ()))], True)


def _is_named_as_split(name: str) -> bool:
    """Return whether a folder is named like a split; Kaggle's archives have `test1`."""
    return any(name.lower().rstrip("0123456789") in names for names in SPLIT_NAMES.values())


def _folders(path: str, where: str) -> List[str]:
    """Return the names of the visible folders in `path`, sorted."""
    try:
        with os.scandir(path) as entries:
            return sorted(e.name for e in entries if not e.name.startswith(SYSTEM_FOLDERS) and _is_folder(e))
    except OSError as error:
        expected = "expected a directory with <class>/<image>.jpg"
        raise ConfigError(f"{where}: cannot read {path} ({error.strerror.lower()}): {expected}") from None


def _is_folder(entry: os.DirEntry) -> bool:
    """Return whether an entry is a folder; a link to itself is not."""
    try:
        return entry.is_dir()
    except OSError:
        return False


def images_in(
    root: str, folder: str, nested: bool = False, unused: Optional[Counter] = None, above: Tuple = ()
) -> List[Image]:
    """Return the image files in a folder, sorted by path.

    Args:
        nested: Whether those of the folders below belong to it.
        unused: Gets the other files, by extension.
        above: Identities of the folders above, which a link in it may name again.
    """
    images = []
    try:
        with os.scandir(os.path.join(root, folder)) as entries:
            for entry in entries:
                path = f"{folder}/{entry.name}"
                if entry.name.startswith("."):
                    continue
                if _is_folder(entry):
                    status = entry.stat()
                    identity = (status.st_dev, status.st_ino)
                    if nested and identity not in above and not entry.name.startswith(SYSTEM_FOLDERS):
                        images += images_in(root, path, nested, unused, (*above, identity))
                    continue
                extension = os.path.splitext(entry.name)[1].lower()
                if extension in EXTENSIONS:
                    images.append(_stamped(root, path))
                elif unused is not None:
                    unused[extension or "without extension"] += 1
    except OSError as error:
        raise ConfigError(f"{os.path.join(root, folder)}: cannot be read ({error.strerror})") from None
    return sorted(images)


def _stamped(root: str, path: str) -> Image:
    try:
        status = os.stat(os.path.join(root, path))
    except OSError:  # a broken link, which packing reports as a bad image
        return path, -1, -1
    return path, status.st_size, status.st_mtime_ns


def _check_depth(data: Data, path: str, classes: List[str], where: str) -> None:
    """Raise ConfigError if the folders in `path` may be no classes: they hold no images, or only in several folders."""
    if any(images_in(path, name) for name in classes):
        return
    folders = {name: {os.path.dirname(image) for image, *_ in images_in(path, name, nested=True)} for name in classes}
    filled = [name for name in classes if folders[name]]
    if len(filled) < 2:
        hint = f"; did you mean data.root={os.path.join(path, filled[0])}?" if len(filled) == 1 else ""
        raise ConfigError(f"{where} has no images: expected {path}/<class>/<image>.jpg{hint}")
    if data.classes is None and any(len(folders[name]) > 1 for name in filled):
        raise ConfigError(
            f"{where}: {' and '.join(filled)} hold folders of images, no images: call them train, val and test if they "
            f"are splits, or set 'data.classes=[{','.join(filled)}]' if they are classes"
        )


def _split_folders(data: Data, root: str, top: List[str], where: str, lists: Container[str]) -> Dict[str, str]:
    """Return the folder of each split; {} if the folders in root are classes.

    They are classes if none is called train, if that one holds no folders, or if data.classes names only folders in
    root.

    Args:
        top: The folders in root.
        lists: The splits that a file lists, whose folders are not used.
    """
    named = {split: [name for name in top if name.lower() in names] for split, names in SPLIT_NAMES.items()}
    if not named["train"] or set(class_names(data) or [""]) <= set(top):
        return {}
    train = named["train"][0]
    classes = set(_folders(os.path.join(root, train), where))
    if not classes:
        return {}
    if stray := images_in(root, train):
        raise ConfigError(
            f"{where}: {stray[0][0]} is beside the folders of classes, in none of them: remove it, or set "
            f"'data.classes=[{','.join(top)}]' if {train} is a class"
        )
    folders = {}
    for split, names in named.items():
        if split in lists or not names:
            continue
        if len(names) > 1:
            raise ConfigError(f"{where} has {' and '.join(name + '/' for name in names)}: keep one of them")
        (folder,) = names
        inside = set(_folders(os.path.join(root, folder), where))
        if classes & inside or not inside <= {"images", folder}:
            folders[split] = folder
        elif split == "val":  # test images may have no labels
            expected = f"expected {folder}/<class>/<image>.jpg, or the list of its images as data.val=FILE"
            raise ConfigError(f"{where}: {folder}/ has no folders of classes: {expected}")
    if folders.keys() == {"train"} and not lists:
        raise ConfigError(
            f"{where} has {train}/ but no val/ or test/ with classes: expected {root}/val/<class>/<image>.jpg; "
            f"data.root={os.path.join(root, train)} is split"
        )
    return folders


def _same_classes(data: Data, classes: List[str], base: _Split, split: _Split) -> None:
    """Raise ConfigError if the folders of a split are not those of the training images."""
    missing = [name for name in classes if name not in split.classes]
    further = [name for name in split.classes if name not in classes] if data.classes is None else []
    both = f"{base.folder}/ and {split.folder}/ have different classes"
    if missing:
        hint = f"for a class without images there, add an empty folder to {split.folder}/"
        raise ConfigError(f"{split.where}: {both}: only in {base.folder}/: {', '.join(missing)}; {hint}")
    if further:
        raise ConfigError(f"{split.where}: {both}: only in {split.folder}/: {', '.join(further)}")
