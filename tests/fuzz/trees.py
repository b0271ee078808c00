"""Folders of images: splits, classes, names, copies, and files that are no images."""

import os
from functools import partial
from pathlib import Path

from PIL import Image

from . import images
from .case import DONE, REFUSED, Case, choice
from .damage import place

NAMES = ("ant", "bee", "a b", "-x", "train", "é\u0301", "日本", "x\ny", "\x1b[31mred", "$HOME", "a=b,c", "%s{}", "'q\"",
         "n" * 200, os.fsdecode(b"\xff\xfe"), "CON", "a.jpg", "0", "null")  # fmt: skip
SYSTEM = (".DS_Store", "._000.png", ".hidden.png", "Thumbs.db", "notes.txt", "000.png.part", "labels.csv")
ODD = ("fifo", "broken link", "link to itself", "link to /dev/zero", "empty", "directory", "sparse")


def make(draw, folder: Path, command: bool) -> Case:
    root = folder / "input" / "set"
    own = choice(draw, ((), (), ("train", "val"), ("train", "valid", "test"), ("train", "test"), ("train",)))
    names = list(dict.fromkeys(choice(draw, NAMES[:2] if draw.random() < 0.4 else NAMES) for _ in range(4)))
    names = names[: int(draw.integers(1, 5))]
    counts, flaws = {}, [] if len(names) > 1 else ["one class"]
    for split in own or ("",):
        for name in names:
            count = 0 if draw.random() < 0.05 else int(draw.integers(3, 9))
            counts[split, name] = count
            if not count:
                flaws.append("a class without images")
            fill(root / split / name, count, (names.index(name), own.index(split) if own else 0))
    if own == ("train",):
        flaws.append("no val/")
    if not own and "train" in names:
        flaws.append("a class train")  # may be taken for a split
    system = clutter(draw, root, own, names)
    odd = [add_odd(draw, root / choice(draw, own or ("",)) / choice(draw, names))] if draw.random() < 0.3 else []
    copied = draw.random() < 0.2 and copy(draw, root, counts)
    on_bad = choice(draw, ("error", "error", "skip"))
    refused = "one class" in flaws or (odd and odd[0] != "directory" and on_bad == "error")
    expect = REFUSED if refused else None if flaws or odd or copied else DONE
    wanted = sum(counts.values()) + ("a deeper folder" in system)
    settings = dict(root=str(root), image_size=8, on_bad=on_bad)
    argv = ["train", "data=imagefolder", "model=small", *(f"data.{key}={value}" for key, value in settings.items()),
            "data.pack_format=png", "data.pack_short_side=original", "max_steps=1", "batch.per_device=1", "comm=local",
            "launch.ranks=1", "tracking=none", f"runs={folder}/runs", f"data.cache={folder}/cache"]  # fmt: skip
    return Case(
        f"{'+'.join(own) or 'flat'}, classes {names}, {list(counts.values())} images, on_bad={on_bad}"
        + "".join(f", {each}" for each in [*flaws, *odd, *system, *(["a copy"] if copied else [])]),
        argv,
        (str(root), "data.root"),
        partial(images.pack, folder, **settings),
        expect,
        partial(complete, folder, sorted(names), None if copied or odd else wanted),
    )


def fill(path: Path, count: int, colour) -> None:
    """Write images of the colour (class, split, number)."""
    path.mkdir(parents=True, exist_ok=True)
    for number in range(count):
        Image.new("RGB", (12, 10), (*colour, number)).save(path / f"{number:03d}.png")


def clutter(draw, root: Path, own, names) -> list:
    """Add files and folders that systems and archivers leave; return what was added."""
    added = [name for name in SYSTEM if draw.random() < 0.1]
    for name in added:
        (root / choice(draw, own or ("",)) / choice(draw, names) / name).write_bytes(b"x")
    if draw.random() < 0.1:
        fill(root / "__MACOSX" / "ant", 0, ())
        (root / "__MACOSX" / "ant" / "._000.png").write_bytes(b"x")
        added.append("__MACOSX")
    if draw.random() < 0.1:
        fill(root / (own[0] if own else "") / names[0] / "deeper", 1, (9, 9))
        added.append("a deeper folder")
    return added


def add_odd(draw, path: Path) -> str:
    """Add something that has the name of an image and is none; return what."""
    how = choice(draw, ODD)
    place(path / "odd.jpg", how)
    return how


def copy(draw, root: Path, counts) -> bool:
    """Copy an image to another folder of the tree; return whether there is one."""
    filled = [place for place, count in counts.items() if count]
    if len(filled) < 2:
        return False
    source, target = filled[int(draw.integers(len(filled)))], filled[int(draw.integers(len(filled)))]
    (root / target[0] / target[1] / "copy.png").write_bytes((root / source[0] / source[1] / "000.png").read_bytes())
    return True


def complete(folder: Path, names, wanted) -> None:
    """Assert that each image of the tree is packed once, with the label of its class."""
    found = list(images.records(folder))
    assert wanted is None or len(found) == wanted, f"{len(found)} of {wanted} images are packed"
    order = sorted(names)
    for _, label, pixels in found:
        assert 0 <= label < len(order)
        assert (pixels == pixels[0, 0]).all(), "pixels differ from those of the file"
