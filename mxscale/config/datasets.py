"""Registry of the data sets: one entry for each value of data.kind."""

from dataclasses import dataclass
from typing import Optional, Tuple


@dataclass(frozen=True)
class DataSet:
    """A data set and its properties.

    The implementation is "module:attribute". Of a packed set it is a callable `(Data, workers) -> PackJob` as in
    mxscale.data.tree_packer; of a generated set, a class with the interface of
    mxscale.data.reader.batches.SyntheticData.
    """

    name: str  # value of data.kind
    help: str
    implementation: str
    required: Tuple[str, ...] = ()  # settings of `data` that have no default
    expected: str = ""  # what to set, for the error if one of them is missing
    published: bool = False  # a publisher distributes the files; they are fetched to, or placed in, data.root
    generated: bool = False  # images are generated on the device; nothing is packed or read
    reencoded: bool = False  # packing encodes the images again, at a size that data.pack_short_side sets
    folder: bool = False  # of the user's image files: it can be surveyed, and defaults follow it
    scans: bool = False  # its small images are enlarged to what the network sees
    own_validation: bool = False  # validation images are a split of their own, not a share of the training images
    train_images: Optional[int] = None  # published number of training images, before any validation share
    classes: Optional[int] = None  # published number of classes
    source: str = ""  # of these two numbers


def _published(name: str, help: str, **more) -> DataSet:
    return DataSet(name, help, f"mxscale.data.public.sets:{name.upper()}", required=("root",),
                   expected="data.root=DIR, where its files are or will be fetched to",
                   published=True, reencoded=True, **more)  # fmt: skip


CIFAR = "https://www.cs.toronto.edu/~kriz/cifar.html"
DATASETS = {
    entry.name: entry
    for entry in (
        DataSet("digits", "1,797 scans of handwritten digits, 8x8 pixels, included in the package",
                "mxscale.data.sources:digits", scans=True),
        DataSet("imagefolder", "a folder of images, one folder per class", "mxscale.data.sources:imagefolder",
                required=("root",), expected="data.root=DIR with DIR/<class>/<image>.jpg", reencoded=True, folder=True),
        DataSet("recordio", "RecordIO files as im2rec writes them", "mxscale.data.records:recordio_job",
                required=("train", "val"), expected="data.train=FILE.rec data.val=FILE.rec"),
        DataSet("synthetic", "random images generated on the device, to measure training without input",
                "mxscale.data.reader.batches:SyntheticData", generated=True),
        _published("mnist", "70,000 scans of handwritten digits in 10 classes, 28x28 pixels", scans=True,
                   train_images=60_000, classes=10, source="http://yann.lecun.com/exdb/mnist/"),
        _published("cifar10", "60,000 photographs in 10 classes, 32x32 pixels", scans=True,
                   train_images=50_000, classes=10, source=CIFAR),
        _published("cifar100", "60,000 photographs in 100 classes, 32x32 pixels", scans=True,
                   train_images=50_000, classes=100, source=CIFAR),
        _published("caltech256", "30,607 photographs in 256 classes",
                   classes=256, source="https://data.caltech.edu/records/nyy15-4j048"),
        _published("imagenet", "ILSVRC 2012: 1,281,167 training and 50,000 validation photographs in 1,000 classes",
                   own_validation=True, train_images=1_281_167, classes=1000, source="arXiv:1409.0575, table 2"),
    )
}  # fmt: skip
