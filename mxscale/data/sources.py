"""The sets that need no publisher: the embedded digits and a folder of images."""

import gzip
import hashlib
import io
import os
from collections import Counter
from pathlib import Path
from typing import Dict, List, Optional, Tuple

from mxscale.config.schema import Data
from mxscale.data.images import EXTENSIONS
from mxscale.data.tree import Item, Tree, chosen
from mxscale.data.tree_packer import PackJob, photograph_recipe, scan_recipe, tree_job
from mxscale.util.errors import ConfigError

SYSTEM_FOLDERS = (".", "__MACOSX")  # beginnings of names
VAL_NAMES = ("val", "valid", "validation")

DIGITS = [str(digit) for digit in range(10)]
DIGITS_FILE = Path(__file__).with_name("files") / "digits.csv.gz"


def digits(data: Data, workers: Optional[int]) -> PackJob:
    """Return the job that packs the embedded digits, enlarged to the size that the network sees."""
    classes = chosen(data, DIGITS, "data=digits")
    return tree_job(data, scan_recipe(data), lambda: _digits_tree(classes), 1, classes=classes)


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
    recipe = photograph_recipe(data)
    tree, fingerprint = list_folder(data)
    identity = {"classes": tree.classes, "source": fingerprint, "on_bad": data.on_bad, "root": _absolute(data.root)}
    if "train" in tree.splits:  # a set with its own splits does not depend on these settings
        identity.update(test_share=None)
    if "val" in tree.splits:
        identity.update(val_share=None)
    return tree_job(data, recipe, lambda: tree, workers, **identity)


def _absolute(path: str) -> str:
    return os.path.abspath(os.path.expanduser(path))


def list_folder(data: Data) -> Tuple[Tree, str]:
    """Return the images below data.root and a fingerprint of the listing.

    The layout is root/<class>/<image>, or root/{train,val,test}/<class>/<image>; val or test may be missing. The
    fingerprint changes with any image's path, size or time of change. Hidden files and folders below a class are
    ignored; files with other extensions are counted.

    Raises:
        ConfigError: data.root cannot be read, or has another layout.
    """
    root = _absolute(data.root)
    where = f"data.root={data.root}"
    top = _folders(root, where)
    train = _split_folders(root, top, where)
    if not train:
        classes = chosen(data, _not_empty(root, top, where), where)
        tops = {"all": ""}
    else:
        names = {split: _folders(os.path.join(root, folder), where) for split, folder in train.items()}
        classes = chosen(data, _not_empty(os.path.join(root, train["train"]), names["train"], where), where)
        _same_classes(data, classes, names, train, where)
        tops = train
    listing, fingerprint = {}, hashlib.sha256(root.encode("utf-8", "surrogateescape"))
    unused: Counter = Counter()
    number = 0
    for split, folder in tops.items():
        listing[split] = []
        for label, name in enumerate(classes):
            items = []
            for path, size, changed in _images(root, os.path.join(folder, name), unused):
                fingerprint.update(f"{path}\0{size}\0{changed}\0".encode("utf-8", "surrogateescape"))
                items.append(Item(number, label, path, f"{root}/{path}"))
                number += 1
            if not items:
                raise ConfigError(f"{where}: class {os.path.join(folder, name)} has no images; add some or remove it")
            listing[split].append(items)
    return Tree(classes, listing, where, dict(unused.most_common())), fingerprint.hexdigest()


def _folders(path: str, where: str) -> List[str]:
    """Return the names of the visible folders in `path`, sorted."""
    try:
        with os.scandir(path) as entries:
            return sorted(e.name for e in entries if not e.name.startswith(SYSTEM_FOLDERS) and _is_folder(e))
    except FileNotFoundError:
        raise ConfigError(f"{where}: no such directory") from None
    except NotADirectoryError:
        raise ConfigError(f"{where} is a file: expected a directory with <class>/<image>.jpg") from None
    except OSError as error:
        raise ConfigError(f"{where}: cannot read {path} ({error.strerror})") from None


def _is_folder(entry: os.DirEntry) -> bool:
    """Return whether an entry is a folder; a link to itself is not."""
    try:
        return entry.is_dir()
    except OSError:
        return False


def _images(root: str, folder: str, unused: Optional[Counter] = None) -> List[Tuple[str, int, int]]:
    """Return (path below root, bytes, time of change in ns) of each image file in a folder, sorted by path.

    The other files are added to `unused` by their extension.
    """
    found = []
    try:
        with os.scandir(os.path.join(root, folder)) as entries:
            for entry in entries:
                if entry.name.startswith(".") or _is_folder(entry):
                    continue
                extension = os.path.splitext(entry.name)[1].lower()
                if extension not in EXTENSIONS:
                    if unused is not None:
                        unused[extension or "without extension"] += 1
                    continue
                try:
                    status = entry.stat()
                    size, changed = status.st_size, status.st_mtime_ns
                except OSError:  # a broken link, which packing reports as a bad image
                    size, changed = -1, -1
                found.append((f"{folder}/{entry.name}", size, changed))
    except OSError as error:
        raise ConfigError(f"data.root: cannot read {os.path.join(root, folder)} ({error.strerror})") from None
    return sorted(found)


def _not_empty(path: str, classes: List[str], where: str) -> List[str]:
    """Return `classes`. Raises ConfigError if none of their folders holds an image."""
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
    """Return the folder of each split; {} if root/train holds images (it is a class) or no folders."""
    if "train" not in top or _images(root, "train") or not _folders(os.path.join(root, "train"), where):
        return {}
    val = [name for name in VAL_NAMES if name in top]
    if len(val) > 1:
        raise ConfigError(f"{where} has {' and '.join(name + '/' for name in val)}: keep one of them")
    others = {"val": val[0]} if val else {}
    if "test" in top and _folders(os.path.join(root, "test"), where):  # otherwise images without labels
        others["test"] = "test"
    if not others:
        raise ConfigError(f"{where} has train/ but no val/ or test/: expected {root}/val/<class>/<image>.jpg")
    return {"train": "train", **others}


def _same_classes(data: Data, classes: List[str], names: Dict[str, List[str]], folders: Dict[str, str], where: str):
    for split in names:
        missing = [name for name in classes if name not in names[split]]
        further = [name for name in names[split] if name not in classes] if data.classes is None else []
        if missing or further:
            sides = [f"only in train/: {', '.join(missing)}"] if missing else []
            sides += [f"only in {folders[split]}/: {', '.join(further)}"] if further else []
            raise ConfigError(f"{where}: train/ and {folders[split]}/ have different classes ({'; '.join(sides)})")
