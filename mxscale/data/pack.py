"""A set of images -> RecordIO files and a manifest, packed once and found again.

    <data.cache>/<kind>-<12 hex digits>/{manifest.json,train.rec,train.idx,val.rec,...}

The digits of the folder's name are a hash of the settings and of the source (paths, sizes, times of
change; of a public set the checksums of its files), so that a set that other runs are reading is never
written to.  A set is built under another name, by one process at a time, and renamed when all of it is
on the disk: what is there is whole.  Sets that are no longer wanted can be removed by hand.
"""

import contextlib
import errno
import os
import shutil
import sys
import uuid
from functools import partial
from itertools import chain
from typing import Any, Callable, Dict, List, Optional

import PIL

from mxscale.config.schema import Data
from mxscale.config.signature import hash_of
from mxscale.data import content, manifest, recordio, records, sources
from mxscale.data.duplicates import Copies
from mxscale.data.images import POLICY, BadImage, Recipe
from mxscale.data.public import sets
from mxscale.data.workers import Pool, Progress
from mxscale.util import file_lock
from mxscale.util.atomic_files import sync
from mxscale.util.errors import ConfigError

MANY = 100  # bad images, after which the rest isn't tried
NO_LOCKS = (errno.ENOLCK, errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS)  # of some shared file systems


def prepare(data: Data, workers: Optional[int] = None, progress: bool = True) -> Dict[str, Any]:
    """The manifest of the set that `data` asks for, packed now if it isn't yet; "dir" is its folder.

    workers: processes that decode and encode; None: as many as the cores and the images suggest.
    The packed bytes do not depend on them.  progress: say on stderr what takes long.
    Any kind but synthetic.  Raises ConfigError: bad input, or a cache that can't be written.
    """
    try:
        made = _find_or_make(data, workers, progress)
        if not data.allow_duplicates:
            manifest.refuse_copies(made, f"data.root={data.root}" if data.root else f"data={data.kind}")
        return made
    except ConfigError as error:  # file names may hold line ends and worse
        raise ConfigError("".join(c if c.isprintable() else ascii(c)[1:-1] for c in str(error))) from None


def _find_or_make(data: Data, workers: Optional[int], progress: bool) -> Dict[str, Any]:
    settings, build = KINDS[data.kind](data, workers, progress)
    cache = os.path.abspath(os.path.expanduser(data.cache))
    folder = os.path.join(cache, f"{data.kind}-{hash_of([manifest.FORMAT, settings])[:12]}")
    found = manifest.intact(folder)
    if found:
        return found
    try:
        os.makedirs(cache, exist_ok=True)
        with _alone(folder, progress) as alone:
            found = manifest.intact(folder)
            if not found:
                found = _publish(folder, build, alone)
    except OSError as error:
        why = error.strerror or str(error)
        raise ConfigError(
            f"data.cache={data.cache}: can't write there ({why}); make room or set data.cache=DIR"
        ) from None
    if progress:
        _say(_summary(found, data))
    return found


# ---------------------------------------------------------------- one builder, whole sets


@contextlib.contextmanager
def _alone(folder: str, progress: bool):
    """Holds the set's lock; yields False on file systems that have none.  The system frees a dead holder's."""
    path = _hidden(folder, "lock")
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(file_lock.locked(path, wait=False))
        except BlockingIOError:
            if progress:
                _say("another process is packing this set: waiting for it")
            stack.enter_context(file_lock.locked(path))
        except OSError as error:
            if error.errno not in NO_LOCKS:
                raise
            yield False
            return
        yield True


def _publish(folder: str, build: Callable[[str], None], alone: bool) -> Dict[str, Any]:
    """Build under another name, then rename; where someone was faster, theirs is taken."""
    if alone:
        for name in os.listdir(os.path.dirname(folder)):  # of builders that were killed
            if name.startswith(os.path.basename(_hidden(folder, "new-"))):
                shutil.rmtree(os.path.join(os.path.dirname(folder), name), ignore_errors=True)
        shutil.rmtree(folder, ignore_errors=True)  # there, but not whole
    new = _hidden(folder, f"new-{uuid.uuid4().hex[:8]}")
    os.mkdir(new)
    try:
        build(new)
        sync(new)
        try:
            os.rename(new, folder)
        except OSError as error:
            if error.errno not in (errno.EEXIST, errno.ENOTEMPTY):
                raise
        sync(os.path.dirname(folder))
    finally:
        shutil.rmtree(new, ignore_errors=True)
    return manifest.load(folder)


def _hidden(folder: str, what: str) -> str:
    return os.path.join(os.path.dirname(folder), f".{os.path.basename(folder)}.{what}")


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _summary(made: Dict[str, Any], data: Data) -> str:
    counts = ", ".join(f"{entry['count']:,} {split}" for split, entry in made["splits"].items())
    skipped = f"; {len(made['skipped']):,} bad images skipped, see its manifest.json" if made["skipped"] else ""
    across = made["duplicates"]["across"]
    copies = f"; {across:,} images are exact copies of images in another split" if across else ""
    anew = sum(entry.get("rewritten", 0) for entry in made["splits"].values())
    copied = f"; copied, {anew:,} images written anew that MXNet would take for others" if anew else ""
    return f"{data.kind}: {len(made['classes'])} classes, {counts} images in {made['dir']}{skipped}{copies}{copied}"


# ---------------------------------------------------------------- what each kind is made of


def _digits(data: Data, workers, progress):
    classes = sources.chosen(data, sources.DIGITS, "data=digits")
    # The scans are enlarged to what the network sees; they are too small to be cropped from.
    recipe = _recipe(data, pack_size=data.short_side or data.image_size, min_side=1)
    settings = _settings(data, recipe, classes=classes)

    def build(folder: str) -> None:
        _pack(sources.digits(classes), data, recipe, settings, folder, 1, progress)

    return settings, build


def _imagefolder(data: Data, workers, progress):
    _refuse_small(data)
    tree, stamp = sources.imagefolder(data)
    recipe = _recipe(data, data.short_side, data.min_side or data.image_size)
    settings = _settings(data, recipe, classes=tree.classes, source=stamp, on_bad=data.on_bad)
    settings["root"] = os.path.abspath(os.path.expanduser(data.root))
    if "train" in tree.splits:  # it came with its splits
        settings.update(val_share=None, test_share=None)

    def build(folder: str) -> None:
        _pack(tree, data, recipe, settings, folder, workers, progress)

    return settings, build


def _public(data: Data, workers, progress):
    known = sets.SETS[data.kind]
    folder = sets.unpacked(known, data)
    if folder is not None:
        return _imagefolder(folder, workers, progress)
    if known.scans:
        recipe = _recipe(data, data.short_side or data.image_size, min_side=1)
    else:
        _refuse_small(data)
        recipe = _recipe(data, data.short_side, data.min_side or data.image_size)
    files = sets.identity(known, data, progress)
    settings = _settings(data, recipe, classes=data.classes, files=files, on_bad=data.on_bad, clutter=data.clutter)

    def build(folder: str) -> None:
        _pack(sets.tree(known, data, progress), data, recipe, settings, folder, workers, progress)

    return settings, build


def _refuse_small(data: Data) -> None:
    if data.short_side is not None and data.short_side < data.image_size:
        raise ConfigError(
            f"data.pack_short_side={data.pack_short_side} is less than data.image_size={data.image_size}: "
            "expected images at least as large as the network sees"
        )


def _recordio(data: Data, workers, progress):
    return records.settings(data), lambda folder: records.build(data, folder, workers, progress)


KINDS = {
    "digits": _digits,
    "imagefolder": _imagefolder,
    "recordio": _recordio,
    **{name: _public for name in sets.SETS},
}


def _recipe(data: Data, pack_size: Optional[int], min_side: int) -> Recipe:
    quality = data.pack_quality if data.pack_format == "jpeg" else 0
    return Recipe(data.pack_format, quality, pack_size, min_side)


def _settings(data: Data, recipe: Recipe, **more) -> Dict[str, Any]:
    names = ("kind", "train_per_class", "val_share", "test_share", "split_seed")
    # Another Pillow may encode otherwise: its sets are others.
    chosen = {name: getattr(data, name) for name in names}
    return {**chosen, **recipe._asdict(), "pillow": PIL.__version__, "policy": POLICY, **more}


# ---------------------------------------------------------------- packing


def _pack(tree, data: Data, recipe: Recipe, settings, folder: str, workers, progress: bool) -> None:
    """Write a tree's splits and manifest into `folder`.  Raises ConfigError and OSError."""
    bad: Dict[int, Dict[str, str]] = {}
    while True:
        splits = sources.plan(tree, data, frozenset(bad))
        pool = Pool(workers, sum(map(len, splits.values())))
        most = MANY if data.on_bad == "error" else None
        copies = Copies()
        made, new = _write(tree, splits, recipe, folder, pool, most, copies, progress)
        bad.update(new)
        if new and data.on_bad == "error":
            raise ConfigError(_about(tree, [new[number] for number in sorted(new)]))
        if not new or data.train_per_class is None:
            break
        for name in os.listdir(folder):  # others take the places of the bad ones
            os.remove(os.path.join(folder, name))
    _refuse_empty(tree, made, len(bad))
    skipped = [bad[number] for number in sorted(bad)]
    manifest.save(folder, data.kind, tree.classes, made, settings, skipped, copies.in_manifest())


def _write(tree, splits, recipe: Recipe, folder: str, pool: Pool, most: Optional[int], copies, progress: bool):
    """(the manifest's splits, id -> path and reason of each bad image); no further than `most` bad ones."""
    made, bad = {}, {}
    items = list(chain.from_iterable(splits.values()))
    with Progress("packing", len(items), " images", progress) as bar:
        results = pool.map((item.source for item in items), partial(content.pack, recipe=recipe))
        with contextlib.closing(results):
            for split, wanted in splits.items():
                made[split] = _write_split(folder, split, wanted, results, len(tree.classes), bad, most, copies, bar)
                if len(bad) == most:
                    break
    return made, bad


def _write_split(
    folder, split, items: List[sources.Item], results, classes: int, bad, most, copies, bar
) -> Dict[str, Any]:
    names = f"{split}.rec", f"{split}.idx"
    per_class, min_side = [0] * classes, None
    with recordio.Writer(*(os.path.join(folder, name) for name in names)) as writer:
        for item in items:
            result = next(results)
            bar.add()
            if isinstance(result, BadImage):
                bad[item.id] = {"path": item.name, "reason": result.reason}
                if len(bad) == most:
                    break
                continue
            writer.write(item.label, item.id, result.image)
            copies.seen(result.key, item.name, split)
            per_class[item.label] += 1
            min_side = min(result.size) if min_side is None else min(min_side, *result.size)
        sha256, length = writer.close()
    return {
        "count": writer.count,
        "per_class": per_class,
        "rec": names[0],
        "idx": names[1],
        "sha256": sha256,
        "bytes": length,
        "min_side": min_side,
    }


def _about(tree, bad: List[Dict[str, str]]) -> str:
    first, more = bad[0], len(bad) - 1
    at_least = "at least " if len(bad) == MANY else ""
    further = f" and {at_least}{more} further image{'s' if more > 1 else ''}" if more else ""
    return (
        f"{tree.where}: can't use {first['path']} ({first['reason']}){further}: "
        "replace what is bad, or set data.on_bad=skip"
    )


def _refuse_empty(tree, made: Dict[str, Any], bad: int) -> None:
    """Skipping may leave nothing of a class to learn, or nothing to validate with."""
    for split, entry in made.items():
        empty = [name for name, count in zip(tree.classes, entry["per_class"], strict=True) if not count]
        if empty and (split == "train" or not entry["count"]):
            raise ConfigError(
                f"{tree.where}: class {empty[0]} has no usable {split} image, {bad} bad images were skipped; "
                "see them with data.on_bad=error"
            )
