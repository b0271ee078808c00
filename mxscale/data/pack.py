"""The cache of packed sets: RecordIO files and a manifest, packed once and found again.

    <data.cache>/<kind>-<12 hex digits>/{manifest.json,train.rec,train.idx,val.rec,...}

The digits are a hash of the settings and of the source: paths, sizes and times of change, or the checksums of a
public set's files. A set that other runs read is therefore never written to. One process at a time builds a set under
another name and renames it when it is on disk. A folder with the final name is therefore complete. If the process is
killed, the next one continues in the folder that it left. Sets can be removed by hand.
"""

import contextlib
import errno
import os
import shutil
import sys
import uuid
from pkgutil import resolve_name
from typing import Any, Callable, Dict, Optional

from mxscale.config.datasets import DATASETS
from mxscale.config.schema import Data
from mxscale.config.signature import hash_of
from mxscale.data import manifest
from mxscale.data.tree_packer import PackJob
from mxscale.util import file_lock
from mxscale.util.atomic_files import sync
from mxscale.util.errors import ConfigError
from mxscale.util.paths import absolute
from mxscale.util.terminal import echo

NO_LOCKS = (errno.ENOLCK, errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS)  # of some shared file systems


def prepare(data: Data, workers: Optional[int] = None) -> Dict[str, Any]:
    """Return the manifest of a packed set, with its folder as "dir"; pack the set first if it is not in the cache.

    Args:
        data: The set's settings; not of a generated set.
        workers: Processes that decode and encode; None: by the cores and the number of images. The packed bytes do
            not depend on it.

    Raises:
        ConfigError: The input is invalid, or the cache cannot be written.
    """
    try:
        packed = _find_or_pack(data, workers)
        where = f"data.root={data.root}" if data.root else f"data={data.kind}"
        if data.on_bad == "error":
            for image in packed["skipped"][:1]:
                raise manifest.unusable(where, image["path"], image["reason"])
        if not data.allow_duplicates:
            manifest.refuse_copies(packed, where)
        return packed
    except ConfigError as error:  # file names may hold line ends and control characters
        raise ConfigError("".join(c if c.isprintable() else ascii(c)[1:-1] for c in str(error))) from None


def _find_or_pack(data: Data, workers: Optional[int]) -> Dict[str, Any]:
    job: PackJob = resolve_name(DATASETS[data.kind].implementation)(data, workers)
    cache = absolute(data.cache)
    folder = os.path.join(cache, f"{data.kind}-{hash_of([manifest.FORMAT, job.settings])[:12]}")
    packed = manifest.intact(folder)
    if packed:
        if not all("crc" in entry for entry in packed["splits"].values()):
            how = "without checksums of its records, so each image is decoded completely, which takes longer"
            echo(f"{folder}: an earlier version packed it {how}; remove it, and it is packed again", sys.stderr)
        return packed
    try:
        os.makedirs(cache, exist_ok=True)
        with _exclusive(folder) as locked:
            packed = manifest.intact(folder) or _publish(folder, job.build, locked)
    except OSError as error:
        reason = error.strerror or str(error)
        raise ConfigError(
            f"data.cache={data.cache}: cannot write there ({reason}); make room or set data.cache=DIR"
        ) from None
    echo(manifest.summary(packed, data), sys.stderr)
    return packed


@contextlib.contextmanager
def _exclusive(folder: str):
    """Hold the set's lock within the block. Yields False if the file system has no locks."""
    path = _hidden(folder, "lock")
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(file_lock.locked(path, wait=False))
        except BlockingIOError:
            echo("another process is packing this set: waiting for it", sys.stderr)
            stack.enter_context(file_lock.locked(path))
        except OSError as error:
            if error.errno not in NO_LOCKS:
                raise
            yield False
            return
        yield True


def _publish(folder: str, build: Callable[[str], None], locked: bool) -> Dict[str, Any]:
    """Build under another name, then rename. If another process was faster, which a lock prevents, its set is used."""
    partial = _hidden(folder, "partial" if locked else f"partial-{uuid.uuid4().hex[:8]}")
    os.makedirs(partial, exist_ok=True)
    try:
        build(partial)
        sync(partial)
        if not manifest.intact(folder):
            shutil.rmtree(folder, ignore_errors=True)  # damaged
            os.rename(partial, folder)
            sync(os.path.dirname(folder))
    except (ConfigError, OSError):
        shutil.rmtree(partial, ignore_errors=True)
        raise
    shutil.rmtree(partial, ignore_errors=True)
    return manifest.load(folder)


def _hidden(folder: str, suffix: str) -> str:
    return os.path.join(os.path.dirname(folder), f".{os.path.basename(folder)}.{suffix}")
