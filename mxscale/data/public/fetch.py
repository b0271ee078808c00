"""A publisher's files: existing files are verified, missing files are fetched.

A file gets its name when it is complete and its SHA-256 is the expected one. If the publisher states none, the first
file is trusted, and its SHA-256 is recorded beside it in NAME.sha256, in sha256sum's format.
"""

import contextlib
import hashlib
import os
from typing import Dict, NamedTuple, Optional, Sequence, Tuple

from mxscale.data.public.download import CHUNK, Unreached, download
from mxscale.data.workers import Progress
from mxscale.util import file_lock
from mxscale.util.atomic_files import replacing, sync
from mxscale.util.errors import ConfigError
from mxscale.util.regular_files import open_regular


class File(NamedTuple):
    """A publisher's file."""

    name: str
    bytes: Optional[int]  # None: unknown
    sha256: Optional[str]  # None: trusted on first use
    urls: Tuple[str, ...]  # tried in order; (): the licence forbids fetching


class Place(NamedTuple):
    """Where files are stored, and how messages name them."""

    folder: str
    where: str  # for messages, such as `data.root=/x`
    page: str  # the publisher's page
    mirror: Optional[str] = None  # base address in place of the publisher's


def obtain(files: Sequence[File], place: Place) -> Dict[str, str]:
    """Return the SHA-256 of each file, all of them in the folder and verified. Raises ConfigError."""
    with _errors(place):
        missing = [file for file in files if not os.path.exists(_path(place, file))]
        fetched = _fetch_all(missing, place) if missing else {}
        return {file.name: _verified(file, place, fetched.get(file.name)) for file in files}


def _path(place: Place, file: File) -> str:
    return os.path.join(place.folder, file.name)


def _verified(file: File, place: Place, sha256: Optional[str]) -> str:
    """Return the file's SHA-256 (`sha256`, if just computed). Raises ConfigError if it is not the expected one."""
    path = _path(place, file)
    size = os.path.getsize(path)
    if file.bytes not in (None, size):
        _refuse(file, place, f"has {size:,} bytes, not {file.bytes:,}")
    sha256 = sha256 or sha256_of(path)
    expected = file.sha256 or trusted(file, place)
    if expected is None:
        with replacing(path + ".sha256") as new, open(new, "w") as record:
            record.write(f"{sha256}  {file.name}\n")
    elif sha256 != expected:
        _refuse(file, place, f"has the SHA-256 {sha256}, not {expected}")
    return sha256


def _refuse(file: File, place: Place, how: str) -> None:
    action = "remove it, and it is fetched again" if _addresses(file, place) else "replace it"
    raise ConfigError(f"{place.where}: {_path(place, file)} {how}: it is damaged or another file; {action}")


def trusted(file: File, place: Place) -> Optional[str]:
    """Return the SHA-256 recorded on first use; None before."""
    try:
        with open_regular(_path(place, file) + ".sha256", "r") as record:
            return record.read().split()[0]
    except (FileNotFoundError, IndexError):
        return None


def sha256_of(path: str) -> str:
    """Return the SHA-256 of a file. Raises OSError."""
    digest, size = hashlib.sha256(), os.path.getsize(path)
    with open_regular(path) as file, Progress(f"checking {os.path.basename(path)}", size, "B") as bar:
        for chunk in iter(lambda: file.read(CHUNK), b""):
            digest.update(chunk)
            bar.add(len(chunk))
    return digest.hexdigest()


def _addresses(file: File, place: Place) -> Tuple[str, ...]:
    return (f"{place.mirror.rstrip('/')}/{file.name}",) if place.mirror else file.urls


def _fetch_all(files: Sequence[File], place: Place) -> Dict[str, str]:
    """Fetch `files`, except those that another process has fetched by now. Return the SHA-256 of each fetched file."""
    names, fetched = ", ".join(file.name for file in files), {}
    if not all(_addresses(file, place) for file in files):
        raise ConfigError(
            f"{place.where} lacks {names}, which the licence does not allow to fetch: download them from {place.page} "
            f"and place them in {place.folder}"
        )
    os.makedirs(place.folder, exist_ok=True)
    with _exclusive(place.folder):
        for file in files:
            if os.path.exists(_path(place, file)):
                continue
            try:
                fetched[file.name] = _fetch(file, place)
            except Unreached as reasons:
                raise ConfigError(
                    f"{place.where} lacks {names}, and {file.name} cannot be fetched ({reasons}): "
                    f"place them in {place.folder} (from {place.page}), or set data.mirror=URL"
                ) from None
    return fetched


def _fetch(file: File, place: Place) -> str:
    """Fetch a file from the first address that has it; return its SHA-256. Raises Unreached if none has it."""
    path, reasons = _path(place, file), []
    part = path + ".part"
    for url in _addresses(file, place):
        try:
            was_resumed = os.path.exists(part)
            sha256 = _download(url, part, file)
            if sha256 is None and was_resumed:  # the earlier part may have been damaged: fetch all of it again
                sha256 = _download(url, part, file)
            if sha256 is None:
                raise Unreached(f"its SHA-256 is not {file.sha256}")
            os.replace(part, path)
            sync(place.folder)
            return sha256
        except Unreached as error:
            reasons.append(f"{url}: {error}")
    raise Unreached("; ".join(reasons))


def _download(url: str, part: str, file: File) -> Optional[str]:
    """Fetch `url` to `part` and return its SHA-256; None if that is wrong, with `part` removed. Raises Unreached."""
    with Progress(f"fetching {file.name}", file.bytes or 0, "B") as bar:
        download(url, part, file.bytes or 0, bar)
    sha256 = sha256_of(part)
    if file.sha256 in (None, sha256):
        return sha256
    os.remove(part)
    return None


@contextlib.contextmanager
def _errors(place: Place):
    try:
        yield
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise ConfigError(
            f"{place.where}: cannot read or write the files in {place.folder} ({reason}); "
            "place them there, or set data.root=DIR"
        ) from None


@contextlib.contextmanager
def _exclusive(folder: str):
    """Hold the folder's lock, if its file system has locks, so that two processes do not fetch the same file."""
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError):
            stack.enter_context(file_lock.locked(folder))
        yield
