"""Packing of an image tree: decode every image, encode it by one recipe, write it to the RecordIO file of its split."""

import contextlib
import json
import os
import zlib
from functools import partial
from itertools import chain
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Optional, Tuple, Union

import cv2
import PIL
import simplejpeg

from mxscale.config.datasets import DATASETS
from mxscale.config.schema import Data
from mxscale.data import manifest, recordio, tree
from mxscale.data.images import POLICY, BadImage
from mxscale.data.manifest import Copies
from mxscale.data.repack import Packed, Recipe, repack
from mxscale.data.workers import Pool, Progress
from mxscale.util.errors import ConfigError

LIBRARIES = {library.__name__: library.__version__ for library in (PIL, simplejpeg, cv2)}


class PackJob(NamedTuple):
    """What the implementation of a data set returns."""

    settings: Dict[str, Any]  # JSON values that determine the packed bytes: the key of the cache
    build: Callable[[str], None]  # writes records and manifest into a new folder; raises ConfigError and OSError


def _recipe(data: Data) -> Recipe:
    """Return the recipe of a set. Raises ConfigError if it packs photographs smaller than the network's input."""
    quality = data.pack_quality if data.pack_format == "jpeg" else 0
    if DATASETS[data.kind].scans:  # enlarged to what the network sees
        return Recipe(data.pack_format, quality, data.short_side or data.image_size, data.min_side or 1)
    if data.short_side is not None and data.short_side < data.image_size:
        raise ConfigError(
            f"data.pack_short_side={data.pack_short_side} is less than data.image_size={data.image_size}: "
            "expected images at least as large as the network sees"
        )
    return Recipe(data.pack_format, quality, data.short_side, data.min_side or 1, data.image_size)


def limits_in_key(min_side: int) -> Dict[str, int]:
    """Return the limits of images in the key of the cache, by which sets of earlier versions are found again."""
    return {"min_side": min_side, "max_pixels": 120_000_000, "max_file_mb": 512}


def tree_job(data: Data, list_images: Callable[[], tree.Tree], workers: Optional[int], **identity) -> PackJob:
    """Return the job that packs an image tree.

    Args:
        list_images: Returns the tree; called only if the set is not in the cache.
        workers: As in pack.prepare.
        **identity: What else determines the packed bytes, such as class names and the files' checksums.
    """
    recipe = _recipe(data)
    packing = recipe._asdict()
    names = ("kind", "train_per_class", "val_share", "test_share", "split_seed")
    settings = {
        **{name: getattr(data, name) for name in names},
        "limits": limits_in_key(packing.pop("min_side")),
        **packing,
        "libraries": LIBRARIES,  # another version may encode differently
        "policy": POLICY,
        **identity,
    }
    return PackJob(settings, lambda folder: _Packer(list_images(), data, recipe, folder).pack(settings, workers))


class _Packer:
    """Packs one tree into one folder."""

    def __init__(self, images: tree.Tree, data: Data, recipe: Recipe, folder: str):
        self.tree, self.data, self.recipe, self.folder = images, data, recipe, folder
        self.bad: Dict[int, Dict[str, str]] = {}  # id -> path and reason
        self.copies = Copies()

    def pack(self, settings: Dict[str, Any], workers: Optional[int]) -> None:
        """Write the splits and the manifest. Raises ConfigError and OSError."""
        splits = tree.plan(self.tree, self.data)
        with Progress("packing", sum(map(len, splits.values())), " images") as bar, _Journal(self.folder) as journal:
            with contextlib.closing(self._results(splits, workers, journal, bar)) as results:
                entries = {split: self._write_split(split, items, results, journal) for split, items in splits.items()}
            journal.remove()
        self._refuse_empty(entries)
        skipped = [self.bad[number] for number in sorted(self.bad)]
        findings = {"skipped": skipped, "duplicates": self.copies.in_manifest, "unused": self.tree.unused}
        manifest.save(self.folder, self.data.kind, self.tree.classes, entries, settings, **findings)

    def _results(
        self, splits: Dict[str, List[tree.Item]], workers: Optional[int], journal: "_Journal", bar: Progress
    ) -> Iterator[Tuple[Union[Packed, BadImage], bool]]:
        """Yield for each image its result, and whether a killed packing has left it."""
        for result in journal.results(splits):
            bar.add()
            yield result, True
        sources = [item.source for item in chain.from_iterable(splits.values())][journal.count :]
        for result in Pool(workers, len(sources)).map(sources, partial(repack, recipe=self.recipe)):
            bar.add()
            yield result, False

    def _write_split(
        self, split: str, items: List[tree.Item], results: Iterator, journal: "_Journal"
    ) -> Dict[str, Any]:
        per_class, min_side, enlarged = [0] * len(self.tree.classes), None, 0
        with recordio.Writer(self.folder, split) as writer:
            for item in items:
                result, left = next(results)
                if isinstance(result, BadImage):
                    if self.data.on_bad == "error":
                        raise manifest.unusable(self.tree.where, item.name, str(result))
                    if not left:
                        journal.add([item.id, str(result)])
                    self.bad[item.id] = {"path": item.name, "reason": str(result)}
                    continue
                crc = writer.write(item.label, item.id, result.image, written=left)
                if not left:
                    journal.add([item.id, crc, result.key.hex(), result.size, result.enlarged])
                self.copies.add(result.key, item.name, split, item.label)
                enlarged += result.enlarged
                per_class[item.label] += 1
                min_side = min(result.size) if min_side is None else min(min_side, *result.size)
            files = writer.close()
        return {"count": writer.count, "per_class": per_class, **files, "min_side": min_side, "enlarged": enlarged}

    def _refuse_empty(self, entries: Dict[str, Any]) -> None:
        """Raise ConfigError if skipping leaves a class without training images, or a split without any."""
        for split, entry in entries.items():
            empty = [name for name, count in zip(self.tree.classes, entry["per_class"], strict=True) if not count]
            if empty and (split == "train" or not entry["count"]):
                first = next((f", such as {bad['path']} ({bad['reason']})" for bad in self.bad.values()), "")
                raise ConfigError(
                    f"{self.tree.where}: class {empty[0]} has no usable {split} image; {len(self.bad)} bad images "
                    f"were skipped{first}"
                )


class _Journal(contextlib.AbstractContextManager):
    """The results of the images in the order of packing, from which the packing continues after a kill.

    A line per image: the CRC of the rest of the line, and as JSON the image's id, and the reason if it is bad, or else
    the CRC of its record, its key, its size and whether it was enlarged.
    """

    def __init__(self, folder: str):
        self._folder, self._path = folder, os.path.join(folder, "journal")
        self._file = open(self._path, "a+b")
        self._file.seek(0)
        self.count = 0  # of results that a killed packing has left

    def results(self, splits: Dict[str, List[tree.Item]]) -> Iterator[Union[Packed, BadImage]]:
        """Yield the results that are on disk, up to the first that is missing or damaged; what follows is removed."""
        valid = 0
        with contextlib.suppress(OSError, recordio.BadRecords):  # a missing file, or one that ends in a record
            for result in self._intact(splits):
                valid, self.count = self._file.tell(), self.count + 1
                yield result
        self._file.truncate(valid)

    def _intact(self, splits: Dict[str, List[tree.Item]]) -> Iterator[Union[Packed, BadImage]]:
        for split, items in splits.items():
            records = recordio.scan(os.path.join(self._folder, f"{split}.rec"))
            for item in items:
                entry = self._next()
                if entry is None or entry[0] != item.id:
                    return
                if len(entry) == 2:
                    yield BadImage(entry[1])
                    continue
                record = next(records, None)
                _, crc, key, size, enlarged = entry
                if record is None or record.crc != crc:
                    return
                yield Packed(record.payload, tuple(size), bytes.fromhex(key), bool(enlarged))

    def _next(self) -> Optional[List]:
        """Return the next line's entry; None at the end, or if the line is torn or damaged."""
        crc, _, text = self._file.readline().partition(b" ")
        return json.loads(text) if crc == _crc(text) and text.endswith(b"\n") else None

    def add(self, entry: List) -> None:
        text = json.dumps(entry).encode() + b"\n"
        self._file.write(_crc(text) + b" " + text)

    def remove(self) -> None:
        os.remove(self._path)

    def __exit__(self, *_):
        self._file.close()


def _crc(text: bytes) -> bytes:
    return b"%08x" % zlib.crc32(text)
