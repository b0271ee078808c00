"""Archives are read where they lie and never unpacked, so that nothing is written outside any folder.

What an honest archive of images has no need of is refused all the same, with its name: a path that
leads outside, a link, a device, a member beyond the end, more bytes than expected.
"""

import gzip
import os
import tarfile
import zlib
from pathlib import PurePosixPath
from typing import Callable, Dict, Iterable, Iterator, NamedTuple, Optional

BLOCK = 512  # of a tar; one of zeros ends it


class BadArchive(ValueError):
    """An archive that is damaged or not to be trusted; one line without the archive's path."""


class Member(NamedTuple):
    """A file in an uncompressed tar."""

    name: str
    offset: int  # of its content, from the start of the file that holds the tar
    size: int


def members(
    path: str, start: int = 0, end: Optional[int] = None, seen: Callable[[int], None] = lambda n: None
) -> Iterator[Member]:
    """The files in the uncompressed tar that lies from byte `start` to byte `end` of `path`, in its order.

    `seen` is called with the bytes that each takes.  Raises BadArchive, and OSError.
    """
    end = os.path.getsize(path) if end is None else end
    with open(path, "rb") as file:
        file.seek(start)
        try:
            tar = tarfile.TarFile(fileobj=file)
            for info in tar:
                _check(info)
                if info.offset_data + info.size > end:
                    raise BadArchive(f"cut off inside {_shown(info.name)}")
                if info.isreg():
                    yield Member(info.name, info.offset_data, info.size)
                seen(tar.offset - info.offset)
        except (tarfile.TarError, OverflowError) as error:
            raise BadArchive(f"no tar, or cut off ({error})") from None
        # tarfile takes a cut between two members, and rubbish after the first, for the end
        file.seek(tar.offset)
        if tar.offset + BLOCK > end or file.read(BLOCK).strip(b"\0"):
            raise BadArchive(f"cut off or damaged at byte {tar.offset - start}")


def contents(path: str, wanted: Iterable[str], most: int) -> Dict[str, bytes]:
    """Last part of the name -> content, of the wanted files in a .tar.gz.

    most: bytes that all of the archive may have once decompressed.  Raises BadArchive, and OSError.
    """
    wanted, found, total = set(wanted), {}, 0
    try:
        with tarfile.open(path, "r:gz") as tar:
            for info in tar:
                _check(info)
                total += info.size  # before it is decompressed: a few kB of gzip may hold gigabytes
                if total > most:
                    raise BadArchive(f"more than {most:,} bytes when decompressed")
                name = PurePosixPath(info.name).name
                if name in wanted and info.isreg():
                    found[name] = tar.extractfile(info).read()
    except (tarfile.TarError, gzip.BadGzipFile, zlib.error, EOFError, OverflowError) as error:
        raise BadArchive(f"no .tar.gz, or cut off ({_one_line(error)})") from None
    missing = sorted(wanted - set(found))
    if missing:
        raise BadArchive(f"has no {', '.join(missing)}")
    return found


def gunzip(path: str, most: int) -> bytes:
    """The content of a .gz of `most` bytes or less.  Raises BadArchive, and OSError."""
    try:
        with gzip.open(path) as file:
            content = file.read(most + 1)
    except (gzip.BadGzipFile, zlib.error, EOFError) as error:
        raise BadArchive(f"no .gz, or cut off ({_one_line(error)})") from None
    if len(content) > most:
        raise BadArchive(f"more than {most:,} bytes when decompressed")
    return content


def _check(info: tarfile.TarInfo) -> None:
    name = _shown(info.name)
    if info.name.startswith("/") or ".." in info.name.split("/"):
        raise BadArchive(f"{name} would lie outside the archive's folder")
    if info.issym() or info.islnk():
        raise BadArchive(f"{name} is a link")
    if not (info.isreg() or info.isdir()) or info.sparse is not None:
        raise BadArchive(f"{name} is neither a plain file nor a folder")


def _shown(name: str) -> str:
    return ascii(name)[1:-1][:120]


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())[:120] or type(error).__name__
