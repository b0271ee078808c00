"""A publisher's files: those that lie in a folder are checked, the others fetched.

A file appears under its name when all of it is there and its SHA-256 is the expected one, which lies
beside it as NAME.sha256 (as sha256sum writes it) where none is published: what was first seen then is trusted.
"""

import contextlib
import hashlib
import os
from typing import Dict, List, NamedTuple, Optional, Sequence, Tuple

from mxscale.data.public.download import CHUNK, PAUSES, Unreached, download
from mxscale.data.workers import Progress
from mxscale.util import file_lock
from mxscale.util.atomic_files import replacing, sync
from mxscale.util.errors import ConfigError


class File(NamedTuple):
    """A file as its publisher has it."""

    name: str
    bytes: Optional[int]  # None: not known
    sha256: Optional[str]  # None: trusted on first use
    urls: Tuple[str, ...]  # tried in turn; (): behind a licence


class Place(NamedTuple):
    """Where files are wanted, and what people are told about them."""

    folder: str
    where: str  # for errors, as `data.root=/x`
    page: str  # where a person finds the files
    mirror: Optional[str] = None  # base address in place of the publisher's
    progress: bool = True
    pauses: Tuple[float, ...] = PAUSES


def obtain(files: Sequence[File], place: Place) -> Dict[str, str]:
    """Name -> SHA-256 of `files`, all of them in the folder and checked.  Raises ConfigError."""
    with _errors(place):
        missing = [file for file in files if not os.path.exists(_path(place, file))]
        fetched = _fetch_all(missing, place) if missing else {}
        return {file.name: _checked(file, place, fetched.get(file.name)) for file in files}


def _path(place: Place, file: File) -> str:
    return os.path.join(place.folder, file.name)


# ---------------------------------------------------------------- checking


def _checked(file: File, place: Place, found: Optional[str]) -> str:
    """The file's SHA-256, `found` where it was just computed.  Raises ConfigError where it is another's."""
    path = _path(place, file)
    size = os.path.getsize(path)
    if file.bytes not in (None, size):
        _refuse(file, place, f"has {size:,} bytes, not {file.bytes:,}")
    found = found or sha256_of(path, place.progress)
    known = file.sha256 or trusted(file, place)
    if known is None:
        _trust(path, found)
    elif found != known:
        _refuse(file, place, f"has the SHA-256 {found}, not {known}")
    return found


def _refuse(file: File, place: Place, how: str) -> None:
    again = "remove it and it is fetched again" if _addresses(file, place) else "place the right one there"
    raise ConfigError(f"{place.where}: {_path(place, file)} {how}: it is damaged or another file; {again}")


def trusted(file: File, place: Place) -> Optional[str]:
    """The SHA-256 that was noted on first use; None before."""
    try:
        with open(_path(place, file) + ".sha256") as note:
            return note.read().split()[0]
    except (FileNotFoundError, IndexError):
        return None


def _trust(path: str, found: str) -> None:
    with replacing(path + ".sha256") as new, open(new, "w") as note:
        note.write(f"{found}  {os.path.basename(path)}\n")


def sha256_of(path: str, progress: bool = True) -> str:
    """SHA-256 of a file.  Raises OSError."""
    digest, size = hashlib.sha256(), os.path.getsize(path)
    with open(path, "rb") as file, Progress(f"checking {os.path.basename(path)}", size, "B", progress) as bar:
        for chunk in iter(lambda: file.read(CHUNK), b""):
            digest.update(chunk)
            bar.add(len(chunk))
    return digest.hexdigest()


# ---------------------------------------------------------------- fetching


def _addresses(file: File, place: Place) -> Tuple[str, ...]:
    return (f"{place.mirror.rstrip('/')}/{file.name}",) if place.mirror else file.urls


def _fetch_all(files: Sequence[File], place: Place) -> Dict[str, str]:
    """Name -> SHA-256 of what was fetched: all of `files`, but those that another process has fetched meanwhile."""
    names, found = ", ".join(file.name for file in files), {}
    if not all(_addresses(file, place) for file in files):
        raise ConfigError(
            f"{place.where} lacks {names}, which their licence keeps from being fetched: get them at {place.page} "
            f"and place them in {place.folder}"
        )
    os.makedirs(place.folder, exist_ok=True)
    with _exclusive(place.folder):
        for file in files:
            if os.path.exists(_path(place, file)):
                continue
            found[file.name], reasons = _fetch(file, place)
            if reasons:
                raise ConfigError(
                    f"{place.where} lacks {names}, and {file.name} could not be fetched ({'; '.join(reasons)}): "
                    f"place them in {place.folder} (from {place.page}), or set data.mirror=URL"
                )
    return found


def _fetch(file: File, place: Place) -> Tuple[str, List[str]]:
    """(SHA-256, []) of the file, now there; or why each address failed."""
    path, reasons = _path(place, file), []
    part = path + ".part"
    for url in _addresses(file, place):
        try:
            resumed = os.path.exists(part)
            found = _whole(url, part, file, place)
            if found is None and resumed:  # what an earlier attempt left may have been damaged: all of it again
                found = _whole(url, part, file, place)
            if found is None:
                raise Unreached(f"what came has another SHA-256 than {file.sha256}")
            os.replace(part, path)
            sync(place.folder)
            return found, []
        except Unreached as error:
            reasons.append(f"{url}: {error}")
    return "", reasons


def _whole(url: str, part: str, file: File, place: Place) -> Optional[str]:
    """SHA-256 of `url`, fetched to `part`; None where it is not the file, and `part` is gone.  Raises Unreached."""
    with Progress(f"fetching {file.name}", file.bytes or 0, "B", place.progress) as bar:
        download(url, part, file.bytes, bar, place.pauses)
    found = sha256_of(part, place.progress)
    if file.sha256 in (None, found):
        return found
    os.remove(part)
    return None


# ---------------------------------------------------------------- the folder


@contextlib.contextmanager
def _errors(place: Place):
    try:
        yield
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise ConfigError(
            f"{place.where}: can't read or write the files in {place.folder} ({reason}); "
            "place them there, or set data.root=DIR"
        ) from None


@contextlib.contextmanager
def _exclusive(folder: str):
    """Hold the folder's lock, if its file system has locks, so that two processes do not fetch the same file."""
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError):
            stack.enter_context(file_lock.locked(folder))
        yield
