"""Sets that come as .rec files, as im2rec makes them: nothing is copied, everything is checked.

Each file is read once, for its digest, its labels and its index; after that the manifest answers.
"""

import hashlib
import os
from collections import Counter, deque
from typing import Any, Dict, List, Optional, Tuple

from mxscale.config import ConfigError, Data
from mxscale.data import manifest, recordio
from mxscale.data.images import BadImage, decode
from mxscale.data.workers import Progress

TRIED = 2  # images decoded at either end of a file
MOST_CLASSES = 1 << 24  # labels are float32: whole numbers beyond are not exact


def settings(data: Data) -> Dict[str, Any]:
    """What the manifest depends on: the files' paths, sizes and times of change.  Raises ConfigError."""
    if data.train_per_class is not None:
        raise ConfigError(
            "data.train_per_class: with data=recordio all records are used; pack fewer, or use data=imagefolder"
        )
    files = {}
    for split, rec in _files(data).items():
        idx = _beside(rec)
        files[split] = {"rec": _stamp(rec, f"data.{split}={getattr(data, split)}"), "idx": idx and _stamp(idx, idx)}
    return {"files": files, "num_classes": data.num_classes, "classes": data.classes}


def build(data: Data, folder: str, progress: bool) -> None:
    """Check the files and write their manifest (and an .idx that is missing) into `folder`.

    Raises ConfigError, and OSError where `folder` can't be written.
    """
    made = settings(data)  # before reading: a file that changes meanwhile is read again next time
    splits, labels = {}, {}
    total = sum(file["rec"]["bytes"] for file in made["files"].values())
    with Progress("checking records", total, "B", progress) as bar:
        for split, rec in _files(data).items():
            splits[split], labels[split] = _check(split, rec, getattr(data, split), folder, bar)
    classes = _classes(data, labels)
    for split, counts in labels.items():
        splits[split]["per_class"] = [counts[label] for label in range(len(classes))]
    manifest.save(folder, "recordio", classes, splits, made)


def _files(data: Data) -> Dict[str, str]:
    given = {"train": data.train, "val": data.val, "test": data.test}
    return {split: os.path.abspath(os.path.expanduser(path)) for split, path in given.items() if path}


def _beside(rec: str) -> Optional[str]:
    idx = os.path.splitext(rec)[0] + ".idx"
    return idx if os.path.exists(idx) else None


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


def _check(split: str, rec: str, given: str, folder: str, bar: Progress) -> Tuple[Dict[str, Any], Counter]:
    """A split's part of the manifest and how many images each label has."""
    where = f"data.{split}={given}"
    digest, labels, offsets = hashlib.sha256(), Counter(), []
    first, last = [], deque(maxlen=TRIED)

    def seen(raw: bytes) -> None:
        digest.update(raw)
        bar.add(len(raw))

    try:
        for number, record in enumerate(recordio.scan(rec, seen)):
            labels[_label(record.header, number, where)] += 1
            offsets.append(record.offset)
            if number < TRIED:
                first.append((number, record.payload))
            last.append((number, record.payload))
    except recordio.BadRecords as bad:
        raise ConfigError(f"{where}: {bad}; copy the file again, or make it again with im2rec") from None
    except OSError as error:
        raise ConfigError(f"{where}: {_lower(error)}; expected a .rec file of im2rec") from None
    if not offsets:
        raise ConfigError(f"{where} has no records; make it again with im2rec")
    for number, payload in dict([*first, *last]).items():
        try:
            decode(payload)
        except BadImage as bad:
            raise ConfigError(f"{where}: the image of record {number} can't be decoded ({bad.reason})") from None
    return {
        "count": len(offsets),
        "rec": rec,
        "idx": _index(rec, offsets, folder, split, where),
        "sha256": digest.hexdigest(),
        "bytes": os.path.getsize(rec),
        "min_side": None,
    }, labels


def _label(header: recordio.Header, number: int, where: str) -> int:
    if header.flag:
        raise ConfigError(f"{where}: record {number} has {header.flag} labels; expected one class number per image")
    label = header.label
    if not 0 <= label < MOST_CLASSES or label != int(label):  # NaN too
        raise ConfigError(f"{where}: record {number} has the label {label:g}; expected a class number 0, 1, 2, ...")
    return int(label)


def _index(rec: str, offsets: List[int], folder: str, split: str, where: str) -> str:
    """The user's .idx, checked against the records, or a new one in `folder`."""
    idx = _beside(rec)
    if idx is None:
        recordio.write_index(os.path.join(folder, f"{split}.idx"), offsets)
        return f"{split}.idx"
    try:
        given = recordio.read_index(idx)
    except recordio.BadRecords as bad:
        raise ConfigError(f"{where}: {idx} is no index: {bad}; remove it and it is made again") from None
    except OSError as error:
        raise ConfigError(f"{where}: {idx}: {_lower(error)}") from None
    if given != offsets:
        how = f"{len(given)} entries for {len(offsets)} records" if len(given) != len(offsets) else "other offsets"
        raise ConfigError(f"{where}: {idx} is the index of another file ({how}); remove it and it is made again")
    return idx


def _classes(data: Data, labels: Dict[str, Counter]) -> List[str]:
    """Names in label order: data.classes, else the numbers.  Raises ConfigError for a label outside."""
    known = max(labels["train"]) + 1
    if data.num_classes is not None:
        count, source = data.num_classes, f"data.num_classes={data.num_classes}"
    elif data.classes is not None:
        count, source = len(data.classes), f"the {len(data.classes)} names of data.classes"
    else:
        count, source = known, f"the {known} classes of data.train"
    if data.classes is not None and len(data.classes) != count:
        raise ConfigError(
            f"data.classes has {len(data.classes)} names for data.num_classes={count}: expected one per label"
        )
    if count < 2:
        raise ConfigError(f"data.train={data.train}: {count} class to learn; expected at least 2")
    for split, counts in labels.items():
        if max(counts) >= count:
            raise ConfigError(
                f"data.{split}={getattr(data, split)}: label {max(counts)} is outside {source} (0 to {count - 1})"
            )
    return list(data.classes) if data.classes is not None else [str(label) for label in range(count)]
