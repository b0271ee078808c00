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
from mxscale.data.tree_packer import PackJob, limits
from mxscale.data.workers import Pool, Progress
from mxscale.util.errors import ConfigError
from mxscale.util.paths import absolute
from mxscale.util.regular_files import open_regular

TYPICAL_BYTES = 4096  # of a small image, to estimate the number of images for the number of processes
CHECK = 2  # version of `check`, part of the cache key


def recordio_job(data: Data, workers: Optional[int]) -> PackJob:
    """Return the job that checks data.train, data.val and data.test."""
    return PackJob(settings(data), lambda folder: build(data, folder, workers))


def settings(data: Data) -> Dict[str, Any]:
    """Return what the manifest depends on: the files' paths, sizes and times of change. Raises ConfigError."""
    if data.train_per_class is not None:
        raise ConfigError(
            "data.train_per_class: with data=recordio all records are used; pack fewer, or use data=imagefolder"
        )
    files = {split: _stamp(rec, f"data.{split}={getattr(data, split)}") for split, rec in _files(data).items()}
    names = ("num_classes", "on_bad", "pack_format", "pack_quality")
    chosen = {"classes": class_names(data), **{name: getattr(data, name) for name in names}}
    versions = {"policy": POLICY, "check": CHECK}
    return {"files": files, "limits": limits(data)._asdict(), "least": data.image_size, **versions, **chosen}


def build(data: Data, folder: str, workers: Optional[int]) -> None:
    """Validate the files and write their manifest into `folder`, with indexes, checksums and necessary copies.

    Raises:
        ConfigError: A file is invalid.
        OSError: `folder` cannot be written.
    """
    _check_lists(data)
    used = settings(data)  # before reading: a file that changes during reading is read again next time
    splits, skipped = {}, []
    total = sum(file["bytes"] for file in used["files"].values())
    pool = Pool(workers, total // TYPICAL_BYTES)
    copies = Copies()
    with Progress("checking records", total, "B") as bar:
        checked = {split: _Checked(split, rec, data, pool, copies, bar) for split, rec in _files(data).items()}
    classes = _classes(data, {split: file.all_labels for split, file in checked.items()})
    for split, file in checked.items():
        splits[split] = file.in_manifest(folder, len(classes))
        skipped += [{"path": file.name_of(number), "reason": reason} for number, reason in file.bad.items()]
    duplicates = copies.in_manifest
    manifest.save(folder, data.kind, classes, splits, used, skipped=skipped, duplicates=duplicates)


def _check_lists(data: Data) -> None:
    """Raise ConfigError if im2rec's .lst files, which may lie beside the records, give a folder different labels."""
    labels = {split: _labels_of_folders(os.path.splitext(rec)[0] + ".lst") for split, rec in _files(data).items()}
    for split, labels_of in labels.items():
        for folder, of_folder in labels_of.items():
            in_train = labels["train"].get(folder, of_folder)
            if other := of_folder - in_train:
                raise ConfigError(
                    f"data.{split}={getattr(data, split)}: its list has {folder} as label {min(other):g}, that of "
                    f"data.train as {min(in_train):g}: create both with the same list of classes"
                )


def _labels_of_folders(path: str) -> Dict[str, Set[float]]:
    """Return the labels of each folder of images in a .lst, whose lines are `number<tab>label<tab>path`.

    It is advice only: lines of another form are ignored, and {} is returned if the file cannot be read.
    """
    labels: Dict[str, Set[float]] = {}
    with contextlib.suppress(OSError), open_regular(path, "r", errors="replace") as file:
        for line in file:
            fields = line.rstrip("\n").split("\t")
            folder = os.path.basename(os.path.dirname(fields[-1]))
            if len(fields) == 3 and folder:
                with contextlib.suppress(ValueError):
                    labels.setdefault(folder, set()).add(float(fields[1]))
    return labels


def _files(data: Data) -> Dict[str, str]:
    paths = {"train": data.train, "val": data.val, "test": data.test}
    return {split: absolute(path) for split, path in paths.items() if path}


def _stamp(path: str, where: str) -> Dict[str, Any]:
    try:
        status = os.stat(path)
    except OSError as error:
        raise ConfigError(f"{where}: {_lower(error)}; expected a .rec file of im2rec") from None
    if not os.path.isfile(path):
        raise ConfigError(f"{where}: not a file; expected a .rec file of im2rec")
    return {"path": path, "bytes": status.st_size, "mtime_ns": status.st_mtime_ns}


def _lower(error: OSError) -> str:
    return (error.strerror or str(error)).lower()


def check(payload: bytes, recipe: Recipe) -> Examined:
    """Return the properties of a record's image, which both readers have decoded too.

    Raises BadImage, also for an image that has to be encoded again and cannot.
    """
    import mxnet as mx  # imported here, by the workers that check records

    from mxscale.data.reader import decoder

    image = examine(payload, recipe.limits)
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

    def __init__(self, split: str, rec: str, data: Data, pool: Pool, copies: Copies, bar: Progress):
        self.split, self.rec, self.where = split, rec, f"data.{split}={getattr(data, split)}"
        self.recipe = Recipe(data.pack_format, data.pack_quality, None, limits(data), data.image_size)
        self.labels: List[int] = []
        self.offsets: List[int] = []
        self.checksums: List[int] = []
        self.bad: Dict[int, str] = {}  # number of the record -> reason
        self.rewritten: Set[int] = set()
        self.misread = 0  # images that a reader would decode differently, or refuse
        self.enlarged = 0
        self.smallest: Optional[int] = None  # shorter side in pixels
        self._digest = hashlib.sha256()
        results = pool.map(self._images(bar), partial(check, recipe=self.recipe))
        with contextlib.closing(results):
            for number, result in enumerate(results):
                if isinstance(result, BadImage):
                    if data.on_bad == "error":
                        raise ConfigError(
                            f"{self.where}: cannot use the image of record {number} ({result.reason}): "
                            "create the file again without it, or set data.on_bad=skip"
                        )
                    self.bad[number] = result.reason
                    continue
                side = max(result.side, data.image_size)
                self.smallest = min(side, self.smallest or side)
                self.misread += not result.same_in_mxnet
                if not result.same_in_mxnet or side > result.side:
                    self.rewritten.add(number)
                copies.add(result.key, f"{os.path.basename(rec)} record {number}", split, self.labels[number])
        if not self.offsets:
            raise ConfigError(f"{self.where} has no records; create it again with im2rec")
        self.all_labels = Counter(self.labels)

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
            raise ConfigError(f"{self.where}: {_lower(error)}; expected a .rec file of im2rec") from None

    def name_of(self, number: int) -> str:
        return f"{self.rec}, record {number} at byte {self.offsets[number]}"

    def in_manifest(self, folder: str, classes: int) -> Dict[str, Any]:
        """Return the split's entry of the manifest. Raises ConfigError if a class has no images left, and OSError."""
        usable = Counter(label for number, label in enumerate(self.labels) if number not in self.bad)
        empty = [label for label in self.all_labels if not usable[label]]
        if empty and (self.split == "train" or not usable):
            raise ConfigError(
                f"{self.where}: class {empty[0]} has no usable image; {len(self.bad)} bad images were skipped, such as "
                f"record {min(self.bad)} ({self.bad[min(self.bad)]})"
            )
        files = self._copy(folder) if self.bad or self.rewritten else self._in_place(folder)
        per_class = [usable[label] for label in range(classes)]
        counts = {"count": sum(per_class), "per_class": per_class, "rewritten": self.misread}
        return {**counts, "min_side": self.smallest, **files, "enlarged": self.enlarged}

    def _in_place(self, folder: str) -> Dict[str, Any]:
        files = recordio.write_companions(os.path.join(folder, self.split), self.offsets, self.checksums)
        return {"rec": self.rec, **files, "sha256": self._digest.hexdigest(), "bytes": os.path.getsize(self.rec)}

    def _copy(self, folder: str) -> Dict[str, Any]:
        with recordio.Writer(folder, self.split) as writer:
            for number, record in enumerate(recordio.scan(self.rec)):
                if number in self.bad:
                    continue
                image = record.payload
                if number in self.rewritten:
                    image, _, _, enlarged = repack(image, self.recipe)
                    self.enlarged += enlarged
                writer.write(self.labels[number], record.header.id, image)
            return writer.close()


def _classes(data: Data, labels: Dict[str, Counter]) -> List[str]:
    """Return data.classes, or else the label numbers as names. Raises ConfigError for a label out of range."""
    known, names = max(labels["train"]) + 1, class_names(data)
    if data.num_classes is not None:
        count, source = data.num_classes, f"data.num_classes={data.num_classes}"
    elif names is not None:
        count, source = len(names), f"the {len(names)} names of data.classes"
    else:
        count, source = known, f"the {known} classes of data.train"
    if names is not None and len(names) != count:
        raise ConfigError(f"data.classes has {len(names)} names for data.num_classes={count}: expected one per label")
    if count < 2:
        raise ConfigError(f"data.train={data.train} has {count} class; expected at least 2")
    for split, counts in labels.items():
        unknown = sorted(set(counts) - set(labels["train"]))
        if unknown and max(counts) < count:
            raise ConfigError(
                f"data.{split}={getattr(data, split)}: label {unknown[0]} is not in data.train={data.train}: "
                "create both with the same list of classes"
            )
        if max(counts) >= count:
            raise ConfigError(
                f"data.{split}={getattr(data, split)}: label {max(counts)} is outside {source} (0 to {count - 1})"
            )
    return list(names) if names is not None else [str(label) for label in range(count)]
