"""Reading of archives without unpacking them, so that no file is written.

Members that a set of images does not need are refused by name: a path outside the archive's folder, a link, a device,
a member beyond the end, more bytes than expected.
"""

import gzip
import os
import tarfile
import zlib
from pathlib import PurePosixPath
from typing import Callable, Dict, Iterable, Iterator, NamedTuple, Optional

from mxscale.data.images import one_line
from mxscale.util.regular_files import open_regular

BLOCK = 512  # bytes of a tar's block; a block of zeros ends the tar


class BadArchive(ValueError):
    """A damaged or unsafe archive; the message is one line without the archive's path."""


class Member(NamedTuple):
    """A file in an uncompressed tar."""

    name: str
    offset: int  # of its content, from the start of the file that holds the tar
    size: int


def members(
    path: str, start: int = 0, end: Optional[int] = None, seen: Callable[[int], None] = lambda n: None
) -> Iterator[Member]:
    """Yield the files of an uncompressed tar in its order.

    Args:
        start: First byte of the tar in `path`.
        end: Its last byte + 1; None: the end of `path`.
        seen: Called with the bytes that each member occupies.

    Raises:
        BadArchive: The tar is damaged or unsafe.
        OSError: `path` cannot be read.
    """
    end = os.path.getsize(path) if end is None else end
    with open_regular(path) as file:
        file.seek(start)
        try:
            tar = tarfile.TarFile(fileobj=file)
            for info in tar:
                _check(info)
                if info.offset_data + info.size > end:
                    raise BadArchive(f"truncated inside {_shown(info.name)}")
                if info.isreg():
                    yield Member(info.name, info.offset_data, info.size)
                seen(tar.offset - info.offset)
        except (tarfile.TarError, OverflowError) as error:
            raise BadArchive(f"not a tar, or truncated ({error})") from None
        # tarfile treats a truncation between two members, and garbage after the first, as the end.
        file.seek(tar.offset)
        if tar.offset + BLOCK > end or file.read(BLOCK).strip(b"\0"):
            raise BadArchive(f"truncated or damaged at byte {tar.offset - start}")


def contents(path: str, wanted: Iterable[str], max_bytes: int) -> Dict[str, bytes]:
    """Return the content of files in a .tar.gz, by the last part of their name.

    Args:
        wanted: Last parts of the files' names.
        max_bytes: The largest allowed size of the decompressed archive.

    Raises:
        BadArchive: The archive is damaged, unsafe or too large, or lacks a file.
        OSError: `path` cannot be read.
    """
    wanted, content_of, total = set(wanted), {}, 0
    try:
        with open_regular(path) as file, tarfile.open(fileobj=file, mode="r:gz") as tar:
            for info in tar:
                _check(info)
                total += info.size  # before decompression: a few kB of gzip may hold gigabytes
                if total > max_bytes:
                    raise BadArchive(f"more than {max_bytes:,} bytes when decompressed")
                name = PurePosixPath(info.name).name
                if name in wanted and info.isreg():
                    content_of[name] = tar.extractfile(info).read()
    except (tarfile.TarError, gzip.BadGzipFile, zlib.error, EOFError, OverflowError) as error:
        raise BadArchive(f"not a .tar.gz, or truncated ({one_line(error)})") from None
    missing = sorted(wanted - set(content_of))
    if missing:
        raise BadArchive(f"has no {', '.join(missing)}")
    return content_of


def gunzip(path: str, max_bytes: int) -> bytes:
    """Return the content of a .gz of at most `max_bytes` bytes. Raises BadArchive and OSError."""
    try:
        with open_regular(path) as packed, gzip.open(packed) as file:
            content = file.read(max_bytes + 1)
    except (gzip.BadGzipFile, zlib.error, EOFError) as error:
        raise BadArchive(f"not a .gz, or truncated ({one_line(error)})") from None
    if len(content) > max_bytes:
        raise BadArchive(f"more than {max_bytes:,} bytes when decompressed")
    return content


def _check(info: tarfile.TarInfo) -> None:
    name = _shown(info.name)
    if info.name.startswith("/") or ".." in info.name.split("/"):
        raise BadArchive(f"{name} is outside the archive's folder")
    if info.issym() or info.islnk():
        raise BadArchive(f"{name} is a link")
    if not (info.isreg() or info.isdir()) or info.sparse is not None:
        raise BadArchive(f"{name} is neither a regular file nor a folder")


def _shown(name: str) -> str:
    return ascii(name)[1:-1][:120]
