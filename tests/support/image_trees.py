"""Folders of small images, packed."""

import io
from pathlib import Path

from PIL import Image
from refusals import error_of

from mxscale.config.schema import Data
from mxscale.data import manifest, recordio
from mxscale.data.pack import prepare


def paint(path: Path, colour, size=(20, 16)) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, colour).save(path)


def make_tree(root: Path, counts, name="{}.png", blue=0) -> Path:
    """Write images; counts: class -> images; the n-th image of the c-th class has the colour (c, n, blue)."""
    for number, (folder, count) in enumerate(counts.items()):
        for n in range(count):
            paint(root / folder / name.format(f"{n:03d}"), (number, n, blue))
    return root


def folder_data(root, tmp_path, **more) -> Data:
    values = dict(kind="imagefolder", root=str(root), cache=str(tmp_path / "cache"), image_size=16, pack_format="png")
    return Data(**{**values, **more})


def pack(data, workers=1):
    return prepare(data, workers=workers)


def records(made, split):
    """Return (label, id, colour of the first pixel) of each record, in order."""
    out = []
    for record in recordio.scan(manifest.split_of(made, split).rec):
        colour = Image.open(io.BytesIO(record.payload)).getpixel((0, 0))
        out.append((int(record.label), record.id, colour))
    return out


def refused(data) -> str:
    return error_of(pack, data)
