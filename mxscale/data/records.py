"""Sets of .rec files, as im2rec writes them: read in place and validated.

Each file is read once, on all cores: its digest, labels, offsets and checksums, and every image is decoded. An .idx is
not needed. Later starts use the manifest. With data.on_bad=skip a file with bad images is copied without them. A file
with images that a reader refuses, or MXNet decodes differently from images.py (transparent, rotated, CMYK, 16 bits,
other formats), is copied with these re-encoded.
"""

import contextlib
import hashlib
import os
from collections import Counter
from functools import partial
from typing import Any, Dict, Iterator, List, Optional, Set

from mxscale.config.schema import Data
from mxscale.data import manifest, recordio
from mxscale.data.class_names import class_names
from mxscale.data.images import POLICY, BadImage, Examined, examine
from mxscale.data.manifest import Copies
from mxscale.data.repack import Recipe, repack
from mxscale.data.tree_packer import PackJob, limits_in_key
from mxscale.data.workers import Pool, Progress
from mxscale.util.errors import ConfigError
from mxscale.util.paths import absolute
from mxscale.util.regular_files import open_regular

TYPICAL_BYTES = 4096  # of a small image, to estimate the number of images for the number of processes
CHECK = 2  # version of `check`, part of the cache key


def recordio_job(data: Data, workers: Optional[int]) -> PackJob:
    """Return the job that checks data.train, data.val and data.test."""
    used = _settings(data)  # before reading: a file that changes during reading is read again next time
    return PackJob(used, lambda folder: _build(data, folder, used, workers))


def _settings(data: Data) -> Dict[str, Any]:
    """Return what the manifest depends on: the files' paths, sizes and times of change. Raises ConfigError."""
    if data.train_per_class is not None:
        raise ConfigError(
            "data.train_per_class: with data=recordio all records are used; pack fewer, or use data=imagefolder"
        )
    names = ("num_classes", "on_bad", "pack_format", "pack_quality")
    return {
        "files": {split: _stamp(absolute(path), f"data.{split}={path}") for split, path in _files(data).items()},
        "limits": limits_in_key(data.min_side or 1),
        "least": data.image_size,
        "policy": POLICY,
        "check": CHECK,
        "classes": class_names(data),
        **{name: getattr(data, name) for name in names},
    }


def _files(data: Data) -> Dict[str, str]:
    return {split: path for split in ("train", "val", "test") if (path := getattr(data, split))}


def _stamp(path: str, where: str) -> Dict[str, Any]:
    try:
        with open_regular(path) as file:
            status = os.fstat(file.fileno())
    except OSError as error:
        raise _unreadable(where, error) from None
    return {"path": path, "bytes": status.st_size, "mtime_ns": status.st_mtime_ns}


def _unreadable(where: str, error: OSError) -> ConfigError:
    reason = (error.strerror or str(error)).lower()
    return ConfigError(f"{where}: {reason}; expected a .rec file of im2rec")


def _build(data: Data, folder: str, used: Dict[str, Any], workers: Optional[int]) -> None:
    """Validate the files and write their manifest into `folder`, with indexes, checksums and necessary copies.

    Raises:
        ConfigError: A file is invalid.
        OSError: `folder` cannot be written.
    """
    total = sum(file["bytes"] for file in used["files"].values())
    pool, copies = Pool(workers, total // TYPICAL_BYTES), Copies()
    with Progress("checking records", total, "B") as bar:
        checked = {split: _Checked(split, data, pool, copies, bar) for split in used["files"]}
    classes = _classes(data, {split: set(file.labels) for split, file in checked.items()})
    splits = {split: file.in_manifest(folder, len(classes)) for split, file in checked.items()}
    skipped = [
        {"path": file.name_of(number), "reason": reason}
        for file in checked.values()
        for number, reason in file.bad.items()
    ]
    manifest.save(folder, data.kind, classes, splits, used, skipped=skipped, duplicates=copies.in_manifest)


def check(payload: bytes, recipe: Recipe) -> Examined:
    """Return the properties of a record's image, which both readers have decoded too.

    Raises BadImage, also for an image that has to be encoded again and cannot.
    """
    import mxnet as mx  # imported here, by the workers that check records

    from mxscale.data.reader import decoder

    image = examine(payload, recipe.min_side)
    try:
        decoded = (mx.image.imdecode(payload).asnumpy(), decoder.decode(payload)) if image.same_in_mxnet else ()
        readable = bool(decoded) and all(min(pixels.shape[:2]) == image.side for pixels in decoded)
    except (mx.MXNetError, BadImage):  # libjpeg-turbo refuses what libjpeg only warns about
        readable = False
    if not readable or image.side < recipe.least:
        repack(payload, recipe)
    return image._replace(same_in_mxnet=readable)


class _Checked:
    """The validated content of one file, read when it is constructed."""

    def __init__(self, split: str, data: Data, pool: Pool, copies: Copies, bar: Progress):
        path = getattr(data, split)
        self.split, self.rec, self.where = split, absolute(path), f"data.{split}={path}"
        self.recipe = Recipe(data.pack_format, data.pack_quality, None, data.min_side or 1, data.image_size)
        self.labels: List[int] = []
        self.offsets: List[int] = []
        self.checksums: List[int] = []
        self.bad: Dict[int, str] = {}  # number of the record -> reason
        self.rewritten: Set[int] = set()
        self.misread = 0  # images that a reader would decode differently, or refuse
        self.enlarged = 0
        self.smallest: Optional[int] = None  # shorter side in pixels
        self._digest = hashlib.sha256()
        with contextlib.closing(pool.map(self._images(bar), partial(check, recipe=self.recipe))) as results:
            for number, result in enumerate(results):
                if not isinstance(result, BadImage):
                    self._add(number, result, copies)
                elif data.on_bad == "skip":
                    self.bad[number] = str(result)
                else:
                    raise ConfigError(
                        f"{self.where}: cannot use the image of record {number} ({result}): "
                        "create the file again without it, or set data.on_bad=skip"
                    )
        if not self.offsets:
            raise ConfigError(f"{self.where} has no records; create it again with im2rec")

    def _add(self, number: int, image: Examined, copies: Copies) -> None:
        side = max(image.side, self.recipe.least)
        self.smallest = min(side, self.smallest or side)
        self.misread += not image.same_in_mxnet
        if not image.same_in_mxnet or side > image.side:
            self.rewritten.add(number)
        copies.add(image.key, f"{os.path.basename(self.rec)} record {number}", self.split, self.labels[number])

    def _images(self, bar: Progress) -> Iterator[bytes]:
        def seen(raw: bytes) -> None:
            self._digest.update(raw)
            bar.add(len(raw))

        try:
            for number, record in enumerate(recordio.scan(self.rec, seen)):
                try:
                    self.labels.append(record.class_number(None))
                except recordio.BadRecords as bad:
                    raise ConfigError(f"{self.where}: record {number} {bad}") from None
                self.offsets.append(record.offset)
                self.checksums.append(record.crc)
                yield record.payload
        except recordio.BadRecords as bad:
            raise ConfigError(f"{self.where}: {bad}; copy the file again, or create it again with im2rec") from None
        except OSError as error:
            raise _unreadable(self.where, error) from None

    def name_of(self, number: int) -> str:
        return f"{self.rec}, record {number} at byte {self.offsets[number]}"

    def in_manifest(self, folder: str, classes: int) -> Dict[str, Any]:
        """Return the split's entry of the manifest. Raises ConfigError if a class has no images left, and OSError."""
        usable = Counter(label for number, label in enumerate(self.labels) if number not in self.bad)
        empty = sorted(set(self.labels) - set(usable))
        if empty and (self.split == "train" or not usable):
            raise ConfigError(
                f"{self.where}: class {empty[0]} has no usable image; {len(self.bad)} bad images were skipped, such as "
                f"record {min(self.bad)} ({self.bad[min(self.bad)]})"
            )
        if self.bad or self.rewritten:
            files = self._copy(folder)
        else:
            names = recordio.write_companions(os.path.join(folder, self.split), self.offsets, self.checksums)
            size = os.path.getsize(self.rec)
            files = {"rec": self.rec, **names, "sha256": self._digest.hexdigest(), "bytes": size}
        per_class = [usable[label] for label in range(classes)]
        counts = {"count": sum(per_class), "per_class": per_class, "rewritten": self.misread}
        return {**counts, "min_side": self.smallest, **files, "enlarged": self.enlarged}

    def _copy(self, folder: str) -> Dict[str, Any]:
        with recordio.Writer(folder, self.split) as writer:
            for number, record in enumerate(recordio.scan(self.rec)):
                if number in self.bad:
                    continue
                image = record.payload
                if number in self.rewritten:
                    image, _, _, enlarged = repack(image, self.recipe)
                    self.enlarged += enlarged
                writer.write(self.labels[number], record.id, image)
            return writer.close()


def _classes(data: Data, labels: Dict[str, Set[int]]) -> List[str]:
    """Return data.classes, or else the label numbers as names. Raises ConfigError for a label out of range."""
    names = class_names(data)
    count = data.num_classes or len(names or ()) or max(labels["train"]) + 1
    if names is not None and len(names) != count:
        raise ConfigError(f"data.classes has {len(names)} names for data.num_classes={count}: expected one per label")
    if count < 2:
        raise ConfigError(f"data.train={data.train} has {count} class; expected at least 2")
    for split, found in labels.items():
        where = f"data.{split}={getattr(data, split)}"
        if max(found) >= count:
            by = "data.num_classes" if data.num_classes else "data.classes" if names else "data.train"
            raise ConfigError(f"{where}: label {max(found)} is outside the {count} classes of {by} (0 to {count - 1})")
        if unknown := sorted(found - labels["train"]):
            raise ConfigError(
                f"{where}: label {unknown[0]} is not in data.train={data.train}: "
                "create both with the same list of classes"
            )
    return names or [str(label) for label in range(count)]
