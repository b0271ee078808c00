"""`mxscale data ROOT`: a page on a folder of images: counts, sizes, samples, and a batch as the network sees it."""

import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any, Dict, Iterator, List

import numpy as np
from PIL import Image

from mxscale.config.schema import Config
from mxscale.data import manifest, pack
from mxscale.data.images import BadImage, decode
from mxscale.data.survey import ALL, Sized, Survey, survey
from mxscale.data.test_io import first_batch
from mxscale.rendering import page
from mxscale.rundir.plan import Split
from mxscale.serve.predict import in_base64
from mxscale.util.terminal import echo

TEMPLATE = Path(__file__).with_name("data_page.html")
UNUSUAL = 2.0  # factor between an image's shorter side and the median, above which it is listed
LISTED = 20  # of these
SAMPLES = 6  # of each class
SAMPLED_CLASSES = 40
THUMBNAIL = 112  # pixels
BATCH = 24  # augmented images


def main(config: Config, output: str) -> None:
    """Pack the folder as training does, bad images left out and named; write the page. Raises ConfigError."""
    page.check_installed("mxscale data")
    config = replace(config, data=replace(config.data, on_bad="skip", allow_duplicates=True))
    found, packed = survey(config.data, ALL), pack.prepare(config.data)
    file = Path(output)
    page.save({file.name: page.render(TEMPLATE, **facts(config, found, packed))}, [], file.parent)
    echo(f"sizes     {found.describe_sizes()}\npage      {output}")
    echo(f"next: mxscale finetune data=imagefolder {shlex.quote(f'data.root={config.data.root}')}")


def facts(config: Config, found: Survey, packed: Dict[str, Any]) -> Dict[str, Any]:
    """Return what the page shows."""
    splits = {name: entry["per_class"] for name, entry in packed["splits"].items()}
    rows = list(zip(packed["classes"], zip(*splits.values())))  # class, its images by split
    train = manifest.split_of(packed, "train")
    return {
        "root": config.data.root,
        "found": found,
        "packed": packed,
        "splits": list(splits),
        "rows": sorted(rows, key=lambda row: sum(row[1])),
        "most": max(sum(counts) for _, counts in rows),
        "unusual": unusual(found),
        "listed": LISTED,
        "samples": list(samples(found)),
        "batch": augmented(config, train, packed["classes"]),
        "data": config.data,
    }


def unusual(found: Survey) -> List[Sized]:
    """Return the images much smaller or larger than the median, the largest first."""
    median = found.short_side
    return [size for size in reversed(found.sizes) if not 1 / UNUSUAL <= size.short_side / median <= UNUSUAL]


def samples(found: Survey) -> Iterator[tuple]:
    """Yield the name of a class and some of its images, evenly spaced over its files."""
    for label, name in enumerate(found.classes[:SAMPLED_CLASSES]):
        items = [item for split in found.splits.values() for item in split[label]]
        shown = []
        for item in items[:: max(1, len(items) // SAMPLES)][:SAMPLES]:
            try:
                image = Image.fromarray(decode(item.source, wanted=THUMBNAIL))
            except BadImage:
                continue
            image.thumbnail((2 * THUMBNAIL, THUMBNAIL))
            shown.append((item.name, in_base64(np.asarray(image))))
        yield name, shown


def augmented(config: Config, train: Split, classes: List[str]) -> List[tuple]:
    """Return the class and the content of the first training images as the network sees them."""
    pixels, labels = first_batch(config.data, train, BATCH, config.seed)
    return [(classes[label], in_base64(image)) for label, image in zip(labels, pixels)]
