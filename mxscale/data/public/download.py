"""One address -> one file, over HTTP: it goes on where an earlier attempt ended, and tries again for a while.

Beside the file, in PART.of, are its address and its validator (ETag or Last-Modified): it goes on with the
same file alone, and else begins again.
"""

import contextlib
import errno
import http.client
import os
import re
import socket
import time
import urllib.error
import urllib.request
from typing import BinaryIO, Optional, Tuple

from mxscale.data.workers import Progress

TIMEOUT = 30.0  # seconds without a byte
PAUSES = (1.0, 2.0, 4.0, 8.0)  # seconds before another attempt at an address that gave nothing new
LONGEST_PAUSE = 30.0  # that a server's Retry-After is obeyed for
PASSING = (408, 425, 429, 500, 502, 503, 504)  # HTTP statuses that another attempt may change
CHUNK = 1 << 20


class Unreached(Exception):
    """An address that did not give the file; a few words on one line."""


class _Passing(Exception):
    """A failure that another attempt may not have."""

    def __init__(self, reason: str, wait: float = 0.0):
        super().__init__(reason)
        self.wait = wait


def download(url: str, part: str, size: Optional[int], bar: Progress, pauses: Tuple[float, ...] = PAUSES) -> None:
    """The whole of `url` in the file `part`, from where that ends.

    size: bytes that it must have; None: not known.  `len(pauses)` further attempts in a row may bring
    nothing.  Raises Unreached, and OSError where `part` can't be written.
    """
    idle = 0
    with open(part, "ab") as out:
        bar.add(out.tell())
        while True:
            before = out.tell()
            try:
                _attempt(url, out, size, bar)
                break
            except _Passing as error:
                idle = 1 if out.tell() > before else idle + 1
                if idle > len(pauses):
                    raise Unreached(str(error)) from None
                time.sleep(max(pauses[idle - 1], min(error.wait, LONGEST_PAUSE)))
        out.flush()
        os.fsync(out.fileno())
    with contextlib.suppress(FileNotFoundError):
        os.remove(part + ".of")


def _attempt(url: str, out: BinaryIO, size: Optional[int], bar: Progress) -> None:
    """One request for what `out` lacks, appended to it.  Raises Unreached and _Passing."""
    start, validator = out.tell(), _validator(out.name, url)
    headers = {"User-Agent": "mxscale", "Accept-Encoding": "identity"}
    if start and validator:
        headers.update({"Range": f"bytes={start}-", "If-Range": validator})
    with _open(urllib.request.Request(url, headers=headers)) as response:
        if response.status == 416:
            if response.headers.get("Content-Range") == f"bytes */{start}":
                return  # it was whole already
            _empty(out, bar)
            raise _Passing("the file there has become shorter")
        total = _begin(response, url, out, size, bar)
        _copy(response, out, total, bar)


def _open(request: urllib.request.Request):
    """The answer, of status 200, 206 or 416.  Raises Unreached and _Passing."""
    try:
        return urllib.request.urlopen(request, timeout=TIMEOUT)
    except urllib.error.HTTPError as error:
        if error.code == 416:
            return error
        error.close()
        reason = f"{error.code} {error.reason}".strip()
        if error.code in PASSING:
            raise _Passing(reason, _seconds(error.headers.get("Retry-After"))) from None
        raise Unreached(reason) from None
    except (OSError, http.client.HTTPException) as error:
        cause = getattr(error, "reason", error)
        if isinstance(cause, socket.gaierror) or getattr(cause, "errno", None) == errno.ENETUNREACH:
            raise Unreached(_reason(error)) from None  # no network: waiting won't bring it
        raise _Passing(_reason(error)) from None


def _begin(response, url: str, out: BinaryIO, size: Optional[int], bar: Progress) -> Optional[int]:
    """Put `out` where the answer goes on; returns the bytes that the whole file has, where they are known."""
    length = response.headers.get("Content-Length")
    if response.status == 206:
        part = response.headers.get("Content-Range", "")
        if not re.match(rf"bytes {out.tell()}-\d+/", part):
            raise Unreached(f"answers another part than was asked for ({part})")
    else:  # a server without ranges, or whose file has changed: from the beginning
        _empty(out, bar)
        _note(out.name, url, response.headers.get("ETag") or response.headers.get("Last-Modified"))
    total = out.tell() + int(length) if length and length.isdigit() else size
    if size not in (None, total):
        _empty(out, bar)
        raise Unreached(f"has {total:,} bytes there, not {size:,}")
    return total


def _copy(response, out: BinaryIO, total: Optional[int], bar: Progress) -> None:
    while True:
        try:
            chunk = response.read1(CHUNK)
        except (OSError, http.client.HTTPException) as error:
            raise _Passing(_reason(error)) from None
        if not chunk:
            break
        if total is not None and out.tell() + len(chunk) > total:
            _empty(out, bar)
            raise Unreached(f"sends more than {total:,} bytes")
        out.write(chunk)
        bar.add(len(chunk))
    if total is not None and out.tell() < total:
        raise _Passing(f"cut off after {out.tell():,} of {total:,} bytes")


# ---------------------------------------------------------------- what there is already


def _validator(part: str, url: str) -> Optional[str]:
    """What identifies the file that `part` is the beginning of, where it came from `url`."""
    try:
        with open(part + ".of") as file:
            known, validator = file.read().splitlines()
    except (OSError, ValueError):
        return None
    # A weak validator stands for content that is about the same, not for the same bytes (RFC 9110, sec. 13.1.5)
    return validator if known == url and not validator.startswith("W/") else None


def _note(part: str, url: str, validator: Optional[str]) -> None:
    with open(part + ".of", "w") as file:
        file.write(f"{url}\n{validator or 'W/'}\n")


def _empty(out: BinaryIO, bar: Progress) -> None:
    bar.add(-out.tell())
    out.truncate(0)
    out.seek(0)


# ---------------------------------------------------------------- words


def _reason(error: BaseException) -> str:
    """A failure of the network in a few words."""
    cause = getattr(error, "reason", error)
    if isinstance(cause, TimeoutError):
        return "no answer in time"
    if isinstance(cause, socket.gaierror):
        return "unknown host"
    if isinstance(cause, OSError) and cause.strerror:
        return cause.strerror.lower()
    return " ".join(str(cause).split())[:120] or type(cause).__name__


def _seconds(text: Optional[str]) -> float:
    return float(text) if text and text.isdigit() else 0.0
