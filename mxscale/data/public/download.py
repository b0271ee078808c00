"""Download of one file over HTTP, with retries, resumed where the partial file ends."""

import os
import re
from typing import BinaryIO

from mxscale.data.workers import Progress
from mxscale.util.redaction import READ, excerpt

TIMEOUT_S = 30  # without a byte
RETRIES, BACKOFF_S = 4, 0.5  # of a request without an answer: after 0, 1, 2 and 4 s
TRANSIENT = (408, 425, 429, 500, 502, 503, 504)  # HTTP statuses to retry
CHUNK = 1 << 20
CAUSES = (
    (r"failed to resolve|name resolution", "unknown host"),
    (r"connection refused", "connection refused"),
    (r"timed out", "no answer in time"),
    (r"connection broken|incompleteread|remote end closed", "connection lost"),
)


class Unreached(Exception):
    """An address that did not return the file; the message is one short line."""


def download(url: str, part: str, size: int, bar: Progress) -> None:
    """Download `url` to the file `part`, resuming at its end. The caller verifies the content.

    Args:
        size: The expected size in bytes; 0: unknown. Without it a partial file is not resumed.
        bar: Advanced by the received bytes.

    Raises:
        Unreached: The address did not return the file.
        OSError: `part` cannot be written.
    """
    import requests
    from requests.adapters import HTTPAdapter
    from urllib3 import Retry
    from urllib3.exceptions import HTTPError

    retry = Retry(RETRIES, backoff_factor=BACKOFF_S, status_forcelist=TRANSIENT, raise_on_status=False,
                  respect_retry_after_header=False)  # fmt: skip
    with requests.Session() as session, open(part, "ab") as out:
        session.mount("http://", HTTPAdapter(max_retries=retry))
        session.mount("https://", HTTPAdapter(max_retries=retry))
        session.headers.update({"User-Agent": "mxscale", "Accept-Encoding": "identity"})
        bar.add(out.tell())
        if out.tell() > size:
            _empty(out, bar)
        while not size or out.tell() < size:
            before, failure = out.tell(), None
            try:
                _append(session, url, out, size, bar)
            except (requests.RequestException, HTTPError) as error:
                failure = _reason(error)
            if not size and not failure:
                break
            if out.tell() <= before or not size:
                raise Unreached(failure or f"truncated after {out.tell():,} of {size:,} bytes")
        out.flush()
        os.fsync(out.fileno())


def _append(session, url: str, out: BinaryIO, size: int, bar: Progress) -> None:
    """Append the rest of the file to `out`. Raises Unreached, and errors of requests and urllib3."""
    headers = {"Range": f"bytes={out.tell()}-"} if out.tell() else {}
    with session.get(url, headers=headers, stream=True, timeout=TIMEOUT_S) as response:
        if response.status_code in (200, 416):  # without ranges, or shorter than the partial file
            _empty(out, bar)
        response.raise_for_status()
        left = response.raw.length_remaining  # None: unknown
        if size and left is not None and out.tell() + left != size:
            total = out.tell() + left
            _empty(out, bar)
            raise Unreached(f"has {total:,} bytes, not {size:,}")
        while chunk := response.raw.read1(CHUNK):
            if size and out.tell() + len(chunk) > size:
                _empty(out, bar)
                raise Unreached(f"sends more than {size:,} bytes")
            out.write(chunk)
            bar.add(len(chunk))


def _empty(out: BinaryIO, bar: Progress) -> None:
    bar.add(-out.tell())
    out.truncate(0)
    out.seek(0)


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
