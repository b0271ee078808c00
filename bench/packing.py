"""Packing of photographs to 256 pixels at quality 95: `imagefolder` over a page of Python that does im2rec's work.

    python bench/packing.py [--quick] [--images FOLDER] [--workers N]

FOLDER holds JPEG files; without it, 1,000 synthetic ones of 375 x 500 pixels are made. Rows run in turn, each as a
command with N worker processes; the times include its start. The difference is that of the packed pixels, before they
are encoded, from Pillow's bicubic resizing of the same originals.
"""

import resource
import sys
import tempfile
import time
from pathlib import Path
from statistics import mean

import measure
import numpy as np
from PIL import Image

from mxscale.data.images import decode
from mxscale.data.repack import resized

CLASSES = 10
SIDE = 256
OURS = """
import sys
from mxscale.config.schema import Data
from mxscale.data.pack import prepare
root, cache, workers = sys.argv[1:]
packing = dict(pack_short_side=256, pack_quality=95, allow_duplicates=True, on_bad="skip")
prepare(Data(kind="imagefolder", root=root, cache=cache, **packing), int(workers))
"""
PAGE = "bench/im2rec_page.py"
ROWS = {
    "imagefolder": lambda *arguments: ["-c", OURS, *arguments],
    "page, INTER_AREA": lambda *arguments: [PAGE, *arguments, "INTER_AREA"],
    "page, INTER_LINEAR (aliases)": lambda *arguments: [PAGE, *arguments, "INTER_LINEAR"],
}


def cpu() -> float:
    """Return the CPU seconds of finished commands."""
    return sum(resource.getrusage(resource.RUSAGE_CHILDREN)[:2])


def timed(row, root: str, workers: int) -> tuple:
    """Return (CPU seconds, wall seconds) of packing into an empty folder."""
    with tempfile.TemporaryDirectory() as folder:
        before, began = cpu(), time.monotonic()
        measure.run([sys.executable, *row(root, folder, workers)])
        return cpu() - before, time.monotonic() - began


def lay_out(images: str, root: Path, count: int) -> None:
    """Make a tree of links to the images, or of synthetic ones."""
    files = sorted(Path(images).glob("*.[jJ]*")) if images else []
    random = np.random.RandomState(0)
    for number in range(min(count, len(files)) if files else count):
        path = root / f"class{number % CLASSES}" / f"{number:05d}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        if files:
            path.symlink_to(files[number].resolve())
        else:
            noise = Image.fromarray(random.randint(0, 256, (24, 32, 3)).astype("uint8"))
            noise.resize((500, 375), Image.Resampling.BICUBIC).save(path, quality=92)


def difference(path: Path) -> float:
    """Return the mean absolute difference of an image's packed pixels from Pillow's, of 255."""
    whole = decode(str(path), wanted=SIDE)
    packed = resized(whole, SIDE)
    theirs = Image.fromarray(whole).resize(packed.shape[1::-1], Image.Resampling.BICUBIC, reducing_gap=3.0)
    return float(np.abs(packed.astype(int) - np.asarray(theirs)).mean())


def main() -> None:
    options = measure.arguments(__doc__.splitlines()[0], images=("", "folder of JPEG files"), workers=(2, "processes"))
    seconds = {name: [] for name in ROWS}
    with tempfile.TemporaryDirectory() as root:
        lay_out(options.images, Path(root), 200 if options.quick else 1000)
        for _ in range(2 if options.quick else 5):
            for name, row in ROWS.items():
                seconds[name].append(timed(row, root, options.workers))
        differences = [difference(path) for path in sorted(Path(root).glob("*/*"))]
    figures = {}
    for name, values in seconds.items():
        cpu_s, wall_s = map(measure.spread, zip(*values, strict=True))
        ratio = measure.spread([own / other[0] for (own, _), other in zip(seconds["imagefolder"], values, strict=True)])
        figures[name] = {"cpu_s": cpu_s, "wall_s": wall_s, "cpu_of_imagefolder": ratio}
        print(f"{name:29} CPU {measure.show(cpu_s, '{:.2f}')} s  wall {measure.show(wall_s, '{:.2f}')} s")
        print(f"{'':29} CPU of imagefolder over it {measure.show(ratio, '{:.2f}')}")
    print(f"difference from Pillow        mean {mean(differences):.2f}, largest image {max(differences):.2f} of 255")
    measure.finish({**figures, "difference": {"mean": mean(differences), "max": max(differences)}})


if __name__ == "__main__":
    main()
