"""A publisher's files: existing files are verified, missing files are fetched over HTTP.

A file gets its name when it is complete and its SHA-256 is the expected one. If none is expected, the first file is
trusted, and its SHA-256 is recorded beside it in NAME.sha256, in sha256sum's format.
"""

import contextlib
import os
import re
from typing import Dict, NamedTuple, Optional, Sequence, Tuple

from mxscale.data.workers import Progress
from mxscale.util import file_lock
from mxscale.util.atomic_files import digest_of, sync, write_text
from mxscale.util.errors import ConfigError
from mxscale.util.redaction import READ, excerpt
from mxscale.util.regular_files import open_regular

TIMEOUT_S = 30  # without a byte
RETRIES, BACKOFF_S = 4, 0.5  # of a request without an answer: after 0, 1, 2 and 4 s
TRANSIENT = (408, 425, 429, 500, 502, 503, 504)  # HTTP statuses to retry
CHUNK = 1 << 20  # bytes
CAUSES = (
    (r"failed to resolve|name resolution", "unknown host"),
    (r"connection refused", "connection refused"),
    (r"timed out", "no answer in time"),
    (r"connection broken|incompleteread|remote end closed", "connection lost"),
)


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

    def path(self, file: File) -> str:
        return os.path.join(self.folder, file.name)

    def addresses(self, file: File) -> Tuple[str, ...]:
        return (f"{self.mirror.rstrip('/')}/{file.name}",) if self.mirror else file.urls


class Unreached(Exception):
    """An address that did not return the file; the message is one short line."""


def obtain(files: Sequence[File], place: Place) -> Dict[str, str]:
    """Return the SHA-256 of each file, all of them in the folder and verified. Raises ConfigError."""
    try:
        missing = [file for file in files if not os.path.exists(place.path(file))]
        if missing:
            _fetch_all(missing, place)
        return {file.name: _verified(file, place) for file in files}
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise ConfigError(
            f"{place.where}: cannot read or write the files in {place.folder} ({reason}); "
            "place them there, or set data.root=DIR"
        ) from None


def _verified(file: File, place: Place) -> str:
    """Return the file's SHA-256. Raises ConfigError if it is not the expected one."""
    path = place.path(file)
    size, sha256, expected = os.path.getsize(path), None, file.sha256 or trusted(file, place)
    if file.bytes in (None, size):
        sha256 = sha256_of(path)
        if expected is None:
            write_text(path + ".sha256", f"{sha256}  {file.name}\n")
        if expected in (None, sha256):
            return sha256
    how = f"has the SHA-256 {sha256}, not {expected}" if sha256 else f"has {size:,} bytes, not {file.bytes:,}"
    action = "remove it, and it is fetched again" if place.addresses(file) else "replace it"
    raise ConfigError(f"{place.where}: {path} {how}: it is damaged or another file; {action}")


def trusted(file: File, place: Place) -> Optional[str]:
    """Return the SHA-256 recorded on first use; None before."""
    try:
        with open_regular(place.path(file) + ".sha256", "r") as record:
            return record.read().split()[0]
    except (FileNotFoundError, IndexError):
        return None


def sha256_of(path: str) -> str:
    """Return the SHA-256 of a file, which may take minutes. Raises OSError."""
    with Progress(f"checking {os.path.basename(path)}", os.path.getsize(path), "B") as bar:
        return digest_of(path, bar.add)


def _fetch_all(files: Sequence[File], place: Place) -> None:
    """Fetch `files`, except those that another process has fetched by now."""
    names = ", ".join(file.name for file in files)
    if not all(place.addresses(file) for file in files):
        raise ConfigError(
            f"{place.where} lacks {names}, which the licence does not allow to fetch: download them from {place.page} "
            f"and place them in {place.folder}"
        )
    os.makedirs(place.folder, exist_ok=True)
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError):  # a file system without locks: the file may be fetched twice
            stack.enter_context(file_lock.locked(place.folder))
        for file in files:
            try:
                if not os.path.exists(place.path(file)):
                    _fetch(file, place)
            except Unreached as reasons:
                raise ConfigError(
                    f"{place.where} lacks {names}, and {file.name} cannot be fetched ({reasons}): "
                    f"place them in {place.folder} (from {place.page}), or set data.mirror=URL"
                ) from None


def _fetch(file: File, place: Place) -> None:
    """Fetch a file from the first address that has it. Raises Unreached if none has it, and OSError."""
    path, reasons = place.path(file), []
    part = path + ".part"  # one name, so that a killed download leaves at most one file, which the next replaces
    try:
        for url in place.addresses(file):
            try:
                _download(url, part, file.bytes)
                if file.sha256 not in (None, sha256_of(part)):
                    raise Unreached(f"its SHA-256 is not {file.sha256}")
                sync(part)
                os.replace(part, path)
                return sync(place.folder)
            except Unreached as error:
                reasons.append(f"{url}: {error}")
    finally:
        with contextlib.suppress(OSError):
            os.remove(part)
    raise Unreached("; ".join(reasons))


def _download(url: str, path: str, size: Optional[int]) -> None:
    """Download `url` to a new file; `size` is the expected one in bytes. Raises Unreached and OSError."""
    import requests
    from requests.adapters import HTTPAdapter
    from urllib3 import Retry
    from urllib3.exceptions import HTTPError

    retry = Retry(RETRIES, backoff_factor=BACKOFF_S, status_forcelist=TRANSIENT, raise_on_status=False,
                  respect_retry_after_header=False)  # fmt: skip
    with requests.Session() as session, Progress(f"fetching {os.path.basename(url)}", size or 0, "B") as bar:
        session.mount("http://", HTTPAdapter(max_retries=retry))
        session.mount("https://", HTTPAdapter(max_retries=retry))
        session.headers.update({"User-Agent": "mxscale", "Accept-Encoding": "identity"})
        try:
            with session.get(url, stream=True, timeout=TIMEOUT_S) as response, open(path, "wb") as out:
                response.raise_for_status()
                length = response.raw.length_remaining  # None: unknown
                if size and length not in (None, size):
                    raise Unreached(f"has {length:,} bytes, not {size:,}")
                while chunk := response.raw.read1(CHUNK):
                    out.write(chunk)
                    bar.add(len(chunk))
                    if size and out.tell() > size:
                        raise Unreached(f"sends more than {size:,} bytes")
        except (requests.RequestException, HTTPError) as error:
            raise Unreached(_reason(error)) from None


def _reason(error: Exception) -> str:
    """Return a short description of a network failure."""
    if getattr(error, "response", None) is not None:
        return excerpt(f"{error.response.status_code} {error.response.reason}")
    cause = error.args[0] if error.args else error
    text = str(getattr(cause, "reason", cause))[:READ]  # of urllib3 behind the address, which may be long
    for pattern, cause in CAUSES:
        if re.search(pattern, text, re.IGNORECASE):
            return cause
    return excerpt(text)
