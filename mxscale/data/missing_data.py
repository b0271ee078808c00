"""Detection of JPEG files with missing or damaged data, for which Pillow raises no error.

Decoders fill the missing part with grey, and continue with wrong pixels after damage. libjpeg warns of it, but Pillow
hides the warnings. Truncated files of other formats are errors of Pillow's; a PNG whose data ends properly with fewer
rows than its header states is not noticed.
"""

import re
from typing import Iterator, List, Optional, Tuple

from PIL import Image

try:
    import simplejpeg
except ImportError:  # where a model is served: Pillow decodes to the same pixels, without warnings
    simplejpeg = None

MARKER = re.compile(rb"\xff[^\x00\x01\xd0-\xd7\xff]")  # of a JPEG; in compressed data 0xff is followed by 0 or d0-d7
NOTES = re.compile(rb"\xff[\xe0-\xef\xfe]")  # markers of JFIF, Adobe, EXIF, comments
TRUNCATED = re.compile("Corrupt JPEG data: (premature end|found marker 0xd9)")
DAMAGED = re.compile("Corrupt JPEG data|Inconsistent progression|Invalid SOS parameters")
LEFT_OVER = re.compile("([1-9][0-9]{0,9}) extraneous bytes before marker 0xd9")
TRUNCATION = "truncated: data of some pixels is missing"
SCAN, END = b"\xff\xda", b"\xff\xd9"


def has_one_scan(image: Image.Image, content: bytes) -> bool:
    """Return whether the first scan of a JPEG has all its pixels, so that libjpeg warns of all missing data."""
    header = next((body for marker, _, body in _segments(content) if marker in (SCAN, END)), b"")
    return "progressive" not in image.info and header[:1] == bytes([image.layers])


def fault(image: Image.Image, content: bytes) -> Optional[str]:
    """Return what is wrong with the data of a decoded JPEG but for padding at its end; None: nothing, or no JPEG."""
    if image.format not in ("JPEG", "MPO"):
        return None
    segments = list(_segments(content))
    if "progressive" in image.info and _lacks_scans([body for marker, _, body in segments if marker == SCAN]):
        return TRUNCATION
    colours = "CMYK" if image.mode == "CMYK" else "RGB"
    data = _without_notes(content[: segments[-1][1]], segments)
    warning = _warning(data + END, colours)
    left_over = LEFT_OVER.search(warning)
    if left_over and not data[-int(left_over[1]) :].strip(b"\0\xff"):  # padding hides that data may be missing before
        warning = _warning(data[: -int(left_over[1])] + END, colours)
    if TRUNCATED.match(warning):
        return TRUNCATION
    return f"damaged: {warning}" if DAMAGED.match(warning) else None


def _without_notes(content: bytes, segments: List[Tuple[bytes, int, bytes]]) -> bytes:
    """Return a JPEG without notes before its first scan: libjpeg reports only its first warning, maybe of a note."""
    scan = next(place for place, (marker, *_) in enumerate(segments) if marker in (SCAN, END))
    starts = [at for _, at, _ in segments]
    kept = [content[starts[n] : starts[n + 1]] for n in range(scan) if not NOTES.match(segments[n][0])]
    return b"".join((content[:2], *kept, content[starts[scan] :]))


def _warning(content: bytes, colours: str) -> str:
    """Return the first warning of libjpeg about a JPEG, or why libjpeg-turbo cannot decode it; "": there is none."""
    if simplejpeg is None:
        return ""
    try:
        simplejpeg.decode_jpeg(content, colours, min_height=1, min_width=1)  # reduced: all data, but few pixels
    except (ValueError, KeyError) as error:
        return str(error)
    return ""


def _segments(content: bytes) -> Iterator[Tuple[bytes, int, bytes]]:
    """Yield marker, position and body of each segment of the first JPEG in `content`, and last its end marker."""
    at = 2
    while True:
        marker = MARKER.search(content, at)
        if marker is None or marker[0] == END:
            yield END, marker.start() if marker else len(content), b""
            return
        start = marker.end() + 2
        at = marker.end() + int.from_bytes(content[marker.end() : start], "big")
        yield marker[0], marker.start(), content[start:at]


def _lacks_scans(scans: List[bytes]) -> bool:
    """Return whether a coefficient of a progressive JPEG is not sent to its last bit.

    A scan's header is its number of components, two bytes for each (the first is its name), the first and the last
    coefficient, and in 4 bits each the lowest bit sent before and now.
    """
    lowest = {}  # of each (component, coefficient)
    for scan in scans:
        first, last, bits = scan[-3:]
        lowest.update({(name, k): bits & 15 for name in scan[1:-3:2] for k in range(first, last + 1)})
    names = {name for name, _ in lowest}
    return any(lowest.get((name, k), 1) for name in names for k in range(64))
