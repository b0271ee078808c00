"""The public data sets: their files, where the files come from, and how they become images.

Each SHA-256 has a source. TFDS: tensorflow/datasets, tensorflow_datasets/url_checksums/<set>.txt; torchvision:
pytorch/vision, torchvision/prototype/datasets/_builtin/<set>.py. CIFAR's page states only MD5 sums
(c32a1d4ab5d03f1284b67883e8d87530, 03b5dce01913d631647c71ecec9e9cb8); the other publishers state none.
"""

import dataclasses
import os
from typing import Any, Callable, Dict, NamedTuple, Optional, Tuple

from mxscale.config.datasets import DATASETS
from mxscale.config.schema import Data
from mxscale.data.class_names import class_names
from mxscale.data.public import formats
from mxscale.data.public.archives import BadArchive
from mxscale.data.public.fetch import File, Place, obtain, trusted
from mxscale.data.sources import imagefolder
from mxscale.data.tree import Tree, chosen
from mxscale.data.tree_packer import PackJob, photograph_recipe, scan_recipe, tree_job
from mxscale.util.errors import ConfigError
from mxscale.util.paths import absolute


class Public(NamedTuple):
    """A public set. Called with `(Data, workers)`, it returns the job that packs the set."""

    page: str  # the publisher's page, for messages
    files: Tuple[File, ...]
    tree: Callable[[str, Data, str], Tree]  # (folder of the files, data, where) -> images
    folder: Optional[str] = None  # folder of classes that its only archive unpacks to

    def __call__(self, data: Data, workers: Optional[int]) -> PackJob:
        folder = self.unpacked(data)
        if folder is not None:
            return imagefolder(folder, workers, nested=False)  # 056.dog/greg, which the archive's reader ignores too
        recipe = scan_recipe(data) if DATASETS[data.kind].scans else photograph_recipe(data)
        return tree_job(
            data,
            recipe,
            lambda: self.read(data),
            workers,
            classes=class_names(data),
            files=self.checksums(data),
            on_bad=data.on_bad,
            clutter=data.clutter,
        )

    def checksums(self, data: Data) -> Dict[str, Any]:
        """Return the SHA-256 of each file. The files are needed only if a checksum is not known yet."""
        if data.checksum == "published":
            return {file.name: file.sha256 for file in self.files}
        files, place = self._files(data), self._place(data)
        recorded = {file.name: trusted(file, place) for file in files}
        return recorded if all(recorded.values()) else obtain(files, place)

    def read(self, data: Data) -> Tree:
        """Return the set's images, from its files in data.root; fetch the missing files. Raises ConfigError."""
        place = self._place(data)
        obtain(self._files(data), place)
        try:
            return self.tree(place.folder, data, place.where)
        except (BadArchive, OSError) as bad:
            raise ConfigError(f"{place.where}: {bad}; place the files from {self.page} in {place.folder}") from None

    def unpacked(self, data: Data) -> Optional[Data]:
        """Return the set as a folder of images, if data.root holds it unpacked and without its archive."""
        root = absolute(data.root)
        if not self.folder or os.path.exists(os.path.join(root, self.files[0].name)):
            return None
        folder = os.path.join(root, self.folder)
        if not os.path.isdir(folder):
            return None
        names = [name for name in sorted(os.listdir(folder)) if formats.is_class(name, data)]
        return dataclasses.replace(data, root=folder, classes=chosen(data, names, f"data.root={data.root}"))

    def _files(self, data: Data) -> Tuple[File, ...]:
        if data.checksum == "published":
            return self.files
        return tuple(file._replace(bytes=None, sha256=None) for file in self.files)

    def _place(self, data: Data) -> Place:
        return Place(absolute(data.root), f"data.root={data.root}", self.page, data.mirror)


def _mnist(name: str, size: int, sha256: str) -> File:
    # The publisher's own address, which has refused downloads at times, comes last. The mirrors are those of
    # torchvision/datasets/mnist.py and TFDS (image_classification/mnist.py).
    bases = (
        "https://ossci-datasets.s3.amazonaws.com/mnist",
        "https://storage.googleapis.com/cvdf-datasets/mnist",
        "http://yann.lecun.com/exdb/mnist",
    )
    return File(name, size, sha256, tuple(f"{base}/{name}" for base in bases))


def _cifar(name: str, size: int, sha256: str) -> File:
    return File(name, size, sha256, (f"https://www.cs.toronto.edu/~kriz/{name}",))


MNIST = Public(
    "http://yann.lecun.com/exdb/mnist",
    (  # sizes and SHA-256: TFDS; the SHA-256 in torchvision as well
        _mnist(
            "train-images-idx3-ubyte.gz",
            9_912_422,
            "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
        ),
        _mnist(
            "train-labels-idx1-ubyte.gz",
            28_881,
            "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
        ),
        _mnist(
            "t10k-images-idx3-ubyte.gz",
            1_648_877,
            "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
        ),
        _mnist(
            "t10k-labels-idx1-ubyte.gz",
            4_542,
            "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
        ),
    ),
    formats.mnist,
)

CIFAR10 = Public(
    "https://www.cs.toronto.edu/~kriz/cifar.html",
    (  # size and SHA-256: TFDS
        _cifar(
            "cifar-10-binary.tar.gz",
            170_052_171,
            "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
        ),
    ),
    formats.CIFAR10,
)

CIFAR100 = Public(
    "https://www.cs.toronto.edu/~kriz/cifar.html",
    (  # size and SHA-256: TFDS
        _cifar(
            "cifar-100-binary.tar.gz",
            168_513_733,
            "58a81ae192c23a4be8b1804d68e518ed807d710a4eb253b1f2a199162a40d8ec",
        ),
    ),
    formats.CIFAR100,
)

CALTECH = "https://data.caltech.edu/records/nyy15-4j048"
CALTECH256 = Public(
    CALTECH,
    (
        File(
            "256_ObjectCategories.tar",
            1_183_006_720,  # the size that its server reports
            "08ff01b03c65566014ae88eb0490dbe4419fc7ac4de726ee1163e39fd809543e",  # torchvision
            (f"{CALTECH}/files/256_ObjectCategories.tar?download=1",),
        ),
    ),
    formats.caltech256,
    folder="256_ObjectCategories",
)

IMAGENET = Public(
    "https://image-net.org/download.php",
    (  # SHA-256: torchvision
        File(
            "ILSVRC2012_img_train.tar",
            147_897_477_120,
            "b08200a27a8e34218a0e58fde36b0fe8f73bc377f4acea2d91602057c3ca45bb",
            (),
        ),
        File(
            "ILSVRC2012_img_val.tar",
            6_744_924_160,
            "c7e06a6c0baccf06d8dbeb6577d71efff84673a5dbdd50633ab44f8ea0456ae0",
            (),
        ),
        File(
            "ILSVRC2012_devkit_t12.tar.gz",
            None,
            "b59243268c0d266621fd587d2018f69e906fb22875aca0e295b48cafaa927953",
            (),
        ),
    ),
    formats.imagenet,
)
