"""Lists of images with their labels: CSV and TSV files, and text files of `path label`."""

import csv
import os
from functools import lru_cache
from typing import Dict, List, NamedTuple, Optional, Sequence, Tuple

from mxscale.data.images import EXTENSIONS
from mxscale.util.errors import ConfigError, nearest
from mxscale.util.regular_files import open_regular

EXPECTED = "expected a .csv or .tsv file, or a .txt file of `path label`, in UTF-8"
# Names of columns, the first that a file has. They are needed in files with more than two columns.
PATHS = ("path", "file", "filename", "file_name", "filepath", "file_path", "image", "image_path", "image_name", "img",
         "image_id", "imageid", "id", "name")  # fmt: skip
LABELS = ("label", "labels", "class", "class_name", "category", "target", "predictionstring")
NAME_COLUMNS = "name those of the images path and label in line 1"


class Row(NamedTuple):
    """One image of a list."""

    line: int  # in the file, from 1
    path: str  # below data.root
    label: str


def read(path: str, where: str) -> List[Row]:
    """Return the images of a list as it names them.

    Args:
        where: For messages, such as data.train=/x/train.csv.

    Raises:
        ConfigError: The file cannot be read, or is no list.
    """
    kind = os.path.splitext(path)[1].lower()
    if kind not in (".csv", ".tsv", ".txt"):
        raise ConfigError(f"{where}: {EXPECTED}; im2rec packs its .lst files, and data=recordio reads the result")
    try:
        with open_regular(path, "r", encoding="utf-8-sig", newline="") as file:
            lines = _lines(file, kind)
    except (OSError, csv.Error, ValueError) as error:
        raise ConfigError(f"{where}: {getattr(error, 'strerror', None) or error}; {EXPECTED}") from None
    if not lines:
        raise ConfigError(f"{where} lists no image; {EXPECTED}")
    rows = _rows(lines, where)
    if not rows:
        raise ConfigError(f"{where} lists no image below its header; {EXPECTED}")
    for row in rows:
        if not row.path or not row.label:
            raise ConfigError(f"{where} line {row.line}: has no {'label' if row.path else 'path'}")
    return rows


def _lines(file, kind: str) -> List[Tuple[int, List[str]]]:
    """Return (number of the line, its stripped cells) of each line that is not blank."""
    if kind == ".txt":
        lines = ((number, line.strip()) for number, line in enumerate(file, 1))
        # After tabs more may follow the label: in Tiny ImageNet a box
        split = ((number, text.split("\t")[:2] if "\t" in text else text.rsplit(None, 1)) for number, text in lines)
    else:
        first = file.readline()
        file.seek(0)
        reader = csv.reader(file, delimiter=max(",;\t", key=first.count), strict=True)
        split = ((reader.line_num, cells) for cells in reader)
    stripped = ((number, [cell.strip() for cell in cells]) for number, cells in split)
    lines = [(number, cells) for number, cells in stripped if any(cells)]
    if any("\0" in cell for _, cells in lines for cell in cells):
        raise ValueError("not a text file")
    return lines


def _rows(lines: List[Tuple[int, List[str]]], where: str) -> List[Row]:
    (_, head), *rest = lines
    columns = _columns(head)
    if columns is None and len(head) > 2:
        raise ConfigError(f"{where} has {len(head)} columns: {NAME_COLUMNS}")
    path, label = columns or (0, 1)
    for number, cells in lines:
        if len(cells) <= max(path, label):
            raise ConfigError(f"{where} line {number}: has no label: {' '.join(cells)[:80]}")
    return [Row(number, cells[path], cells[label]) for number, cells in (rest if columns else lines)]


def _columns(head: Sequence[str]) -> Optional[Tuple[int, int]]:
    """Return the columns of path and label if the first line names both."""
    names = [cell.lower().replace(" ", "_") for cell in head]
    columns = [next((names.index(name) for name in known if name in names), None) for known in (PATHS, LABELS)]
    return None if None in columns else tuple(columns)


def located(rows: List[Row], root: str, folders: Sequence[str], where: str) -> List[Row]:
    """Return the rows with the paths of existing files below `root`. A path without extension gets that of its file.

    Args:
        folders: Below root; the paths begin in the first that has one of the first three images. "" is root itself.

    Raises:
        ConfigError: An image does not exist, or is listed twice.
    """
    file_of = lru_cache(maxsize=None)(_images_by_stem)
    folder = next((name for name in folders if any(_file(row.path, root, name, file_of) for row in rows[:3])), "")
    existing, lines = [], {}
    for row in rows:
        path = _file(row.path, root, folder, file_of)
        if path is None:
            how = "set data.root to the folder that the paths begin in"
            how += f"; if the line names the columns, {NAME_COLUMNS}" if row.line == 1 else ""
            raise ConfigError(f"{where} line {row.line}: {row.path} is no image below data.root={root}: {how}")
        if path in lines:
            raise ConfigError(f"{where} line {row.line}: {row.path} is in line {lines[path]} too; list each image once")
        lines[path] = row.line
        existing.append(row._replace(path=path))
    return existing


def _file(path: str, root: str, folder: str, file_of) -> Optional[str]:
    """Return the path below root of a listed image; None if no such file exists."""
    path = os.path.join(folder, path)
    if os.path.isfile(os.path.join(root, path)):
        return path
    parent, stem = os.path.split(path)
    name = file_of(os.path.join(root, parent)).get(stem)
    return name and os.path.join(parent, name)


def _images_by_stem(folder: str) -> Dict[str, str]:
    try:
        names = [os.path.splitext(name) for name in sorted(os.listdir(folder))]
    except OSError:
        return {}
    return {stem: stem + extension for stem, extension in names if extension.lower() in EXTENSIONS}


def by_class(
    rows: List[Row], order: Optional[List[str]], known: Optional[List[str]], where: str
) -> Dict[str, List[str]]:
    """Return the paths of the images by class.

    Args:
        order: Classes that labels which are whole numbers count; None: such labels are names.
        known: The classes that a label may have; None: any. In a label of several words, such as those of ImageNet's
            LOC_val_solution.csv, the first may be the class.

    Raises:
        ConfigError: A label is not a known class.
    """
    names = set(known or order or ())
    are_numbers = order and all(row.label.isdecimal() and row.label not in names for row in rows)
    paths: Dict[str, List[str]] = {}
    for row in rows:
        name = row.label
        if are_numbers:
            if len(name) > 9 or int(name) >= len(order):
                raise ConfigError(f"{where} line {row.line}: label {name} is outside the {len(order)} classes")
            name = order[int(name)]
        if known and name not in names:
            name = name.split()[0]
            if name not in names:
                raise ConfigError(f"{where} line {row.line}: {row.label} is no class of train{nearest(name, known)}")
        paths.setdefault(name, []).append(row.path)
    return paths
