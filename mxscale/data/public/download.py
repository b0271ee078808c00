"""Download of one file over HTTP, with retries and resumption.

PART.of, beside the partial file, holds its address and its validator (ETag or Last-Modified). A download is resumed
only if both are unchanged; otherwise it starts from the beginning.
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
from typing import BinaryIO, Optional

from mxscale.data.images import one_line
from mxscale.data.workers import Progress
from mxscale.util.redaction import SHOWN

TIMEOUT = 30.0  # seconds without a byte
PAUSES = (1.0, 2.0, 4.0, 8.0)  # seconds before consecutive retries of an address that sends nothing new
MAX_PAUSE = 30.0  # seconds, for a server's Retry-After
TRANSIENT = (408, 425, 429, 500, 502, 503, 504)  # HTTP statuses to retry
CHUNK = 1 << 20


class Unreached(Exception):
    """An address that did not return the file; the message is one short line."""


class _Transient(Exception):
    """A transient failure."""

    def __init__(self, reason: str, wait: float = 0.0):
        super().__init__(reason)
        self.wait = wait


def download(url: str, part: str, size: Optional[int], bar: Progress) -> None:
    """Download `url` to the file `part`, resuming at its end.

    Args:
        size: The expected size in bytes; None: unknown.
        bar: Advanced by the received bytes.

    Raises:
        Unreached: The address did not return the file.
        OSError: `part` cannot be written.
    """
    idle = 0
    with open(part, "ab") as out:
        bar.add(out.tell())
        while True:
            before = out.tell()
            try:
                _attempt(url, out, size, bar)
                break
            except _Transient as error:
                idle = 1 if out.tell() > before else idle + 1
                if idle > len(PAUSES):
                    raise Unreached(str(error)) from None
                time.sleep(max(PAUSES[idle - 1], min(error.wait, MAX_PAUSE)))
        out.flush()
        os.fsync(out.fileno())
    with contextlib.suppress(FileNotFoundError):
        os.remove(part + ".of")


def _attempt(url: str, out: BinaryIO, size: Optional[int], bar: Progress) -> None:
    """Request the rest of the file and append it to `out`. Raises Unreached and _Transient."""
    start, validator = out.tell(), _validator(out.name, url)
    headers = {"User-Agent": "mxscale", "Accept-Encoding": "identity"}
    if start and validator:
        headers.update({"Range": f"bytes={start}-", "If-Range": validator})
    with _open(urllib.request.Request(url, headers=headers)) as response:
        if response.status == 416:
            if response.headers.get("Content-Range") == f"bytes */{start}":
                return  # it is complete already
            _empty(out, bar)
            raise _Transient("the file on the server has become shorter")
        total = _begin(response, url, out, size, bar)
        _copy(response, out, total, bar)


def _open(request: urllib.request.Request):
    """Return the response, of status 200, 206 or 416. Raises Unreached and _Transient."""
    try:
        return urllib.request.urlopen(request, timeout=TIMEOUT)
    except urllib.error.HTTPError as error:
        if error.code == 416:
            return error
        error.close()
        reason = f"{error.code} {error.reason}".strip()[:SHOWN]
        if error.code in TRANSIENT:
            raise _Transient(reason, _seconds(error.headers.get("Retry-After"))) from None
        raise Unreached(reason) from None
    except (OSError, http.client.HTTPException) as error:
        cause = getattr(error, "reason", error)
        if isinstance(cause, socket.gaierror) or getattr(cause, "errno", None) == errno.ENETUNREACH:
            raise Unreached(_reason(error)) from None  # no network: a retry is useless
        raise _Transient(_reason(error)) from None


def _begin(response, url: str, out: BinaryIO, size: Optional[int], bar: Progress) -> Optional[int]:
    """Position `out` where the response continues; return the size of the complete file, if known."""
    if response.status == 206:
        part = response.headers.get("Content-Range", "")
        if not re.match(rf"bytes {out.tell()}-\d+/", part):
            raise Unreached(f"returns another range than requested ({part[:SHOWN]})")
    else:  # the server has no ranges, or its file has changed: start from the beginning
        _empty(out, bar)
        _record(out.name, url, response.headers.get("ETag") or response.headers.get("Last-Modified"))
    total = size if response.length is None else out.tell() + response.length
    if size not in (None, total):
        _empty(out, bar)
        raise Unreached(f"has {total:,} bytes, not {size:,}")
    return total


def _copy(response, out: BinaryIO, total: Optional[int], bar: Progress) -> None:
    while True:
        try:
            chunk = response.read1(CHUNK)
        except (OSError, http.client.HTTPException) as error:
            raise _Transient(_reason(error)) from None
        if not chunk:
            break
        if total is not None and out.tell() + len(chunk) > total:
            _empty(out, bar)
            raise Unreached(f"sends more than {total:,} bytes")
        out.write(chunk)
        bar.add(len(chunk))
    if total is not None and out.tell() < total:
        raise _Transient(f"truncated after {out.tell():,} of {total:,} bytes")


def _validator(part: str, url: str) -> Optional[str]:
    """Return the recorded validator of the partial file, if it came from `url`."""
    try:
        with open(part + ".of") as file:
            known, validator = file.read().splitlines()
    except (OSError, ValueError):
        return None
    # A weak validator does not guarantee the same bytes (RFC 9110, sec. 13.1.5).
    return validator if known == url and not validator.startswith("W/") else None


def _record(part: str, url: str, validator: Optional[str]) -> None:
    with open(part + ".of", "w") as file:
        file.write(f"{url}\n{validator or 'W/'}\n")


def _empty(out: BinaryIO, bar: Progress) -> None:
    bar.add(-out.tell())
    out.truncate(0)
    out.seek(0)


def _reason(error: BaseException) -> str:
    """Return a short description of a network failure."""
    cause = getattr(error, "reason", error)
    if isinstance(cause, TimeoutError):
        return "no answer in time"
    if isinstance(cause, socket.gaierror):
        return "unknown host"
    if isinstance(cause, OSError) and cause.strerror:
        return cause.strerror.lower()
    return one_line(cause)


def _seconds(text: Optional[str]) -> float:
    return float(text) if re.fullmatch("[0-9]{1,9}", text or "") else 0.0
