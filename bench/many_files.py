"""Memory and start time with many small files: packing 1,000, 10,000, ... and --files JPEGs of 32 x 32 pixels.

    python bench/many_files.py [--quick] [--files 1000000]

"peak" is the memory of the packing process without its workers. "later" is the time that another run needs until it
has found the packed set: it lists the files again, because they may have changed.
"""

import json
import sys
import tempfile
from pathlib import Path

import measure
import numpy as np
import simplejpeg

CLASSES = 100
PREPARE = """
import json, resource, sys, time
from mxscale.config.schema import Data
from mxscale.data.pack import prepare
before, began = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.monotonic()
settings = dict(image_size=32, pack_short_side="original", pack_quality=95, allow_duplicates=True)
prepare(Data(kind="imagefolder", root=sys.argv[1], cache=sys.argv[2], **settings))
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print(json.dumps({"s": time.monotonic() - began, "peak_mib": peak / 1024, "at_start_mib": before / 1024}))
"""


def add_files(root: Path, first: int, end: int) -> None:
    """Write the images number `first` to `end` - 1."""
    random = np.random.RandomState(first)
    for number in range(first, end):
        folder = root / f"class{number % CLASSES:02d}"
        folder.mkdir(exist_ok=True)
        image = random.randint(0, 256, (2, 2, 3), np.uint8).repeat(16, 0).repeat(16, 1)
        (folder / f"{number}.jpg").write_bytes(simplejpeg.encode_jpeg(image, 90))


def prepared(*arguments) -> dict:
    """Return the seconds and the peak memory of a process that prepares the set."""
    return json.loads(measure.run([sys.executable, "-c", PREPARE, *arguments]).stdout.splitlines()[-1])


def main() -> None:
    options = measure.arguments(__doc__.splitlines()[0], files=(100_000, "largest number of files"))
    counts = [count for count in (1_000, 10_000, 100_000) if count < options.files] + [options.files]
    figures, made = {}, 0
    with tempfile.TemporaryDirectory() as work:
        Path(work, "images").mkdir()
        for count in counts[:2] if options.quick else counts:
            add_files(Path(work, "images"), made, count)
            made = count
            packing, *later = (prepared(f"{work}/images", f"{work}/cache") for _ in range(4))
            again = measure.spread([run["s"] for run in later])
            memory = max(run["peak_mib"] for run in later)
            print(
                f"{count:9,} files: packed in {packing['s']:.1f} s ({count / packing['s']:,.0f} images/s), peak "
                f"{packing['peak_mib']:.0f} MiB ({packing['at_start_mib']:.0f} at the start); "
                f"later {measure.show(again, '{:.2f}')} s, {memory:.0f} MiB",
                flush=True,
            )
            figures[count] = {"packing": packing, "later_s": again, "later_mib": memory}
    measure.finish(figures)


if __name__ == "__main__":
    main()
