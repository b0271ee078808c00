"""The public data sets: their files, where the files come from, and how they become images.

The files, with the sources of their sizes and checksums, are in mxscale/tables/public_files.csv. TFDS is
tensorflow/datasets, tensorflow_datasets/url_checksums/<set>.txt; torchvision is pytorch/vision,
torchvision/prototype/datasets/_builtin/<set>.py.
"""

from typing import Any, Callable, Dict, NamedTuple, Optional, Tuple

from mxscale.config.schema import Data
from mxscale.data.class_names import class_names
from mxscale.data.images import one_line
from mxscale.data.public import formats
from mxscale.data.public.fetch import File, Place, obtain, trusted
from mxscale.data.tree import Tree
from mxscale.data.tree_packer import PackJob, tree_job
from mxscale.util import csv_tables
from mxscale.util.errors import ConfigError
from mxscale.util.paths import absolute


class Public(NamedTuple):
    """A public set. Called with `(Data, workers)`, it returns the job that packs the set."""

    page: str  # the publisher's page, for messages
    files: Tuple[File, ...]
    tree: Callable[[str, Data, str], Tree]  # (folder of the files, data, where) -> images

    def __call__(self, data: Data, workers: Optional[int]) -> PackJob:
        identity = {"classes": class_names(data), "files": self.checksums(data)}
        identity.update(on_bad=data.on_bad, clutter=data.clutter)
        return tree_job(data, lambda: self.read(data), workers, **identity)

    def checksums(self, data: Data) -> Dict[str, Any]:
        """Return the SHA-256 of each file. The files are needed only if a checksum is not known yet."""
        if data.checksum == "published":
            return {file.name: file.sha256 for file in self.files}
        recorded = {file.name: trusted(file, self._place(data)) for file in self.files}
        return recorded if all(recorded.values()) else self.fetch(data)

    def fetch(self, data: Data) -> Dict[str, str]:
        """Return the SHA-256 of each file, all of them in data.root and verified. Raises ConfigError."""
        return obtain(self._files(data), self._place(data))

    def read(self, data: Data) -> Tree:
        """Return the set's images, from its files in data.root; fetch the missing files. Raises ConfigError."""
        place = self._place(data)
        self.fetch(data)
        try:
            return self.tree(place.folder, data, place.where)
        except formats.ERRORS as error:
            how = f"an archive is damaged or another one ({one_line(error)})"
            raise ConfigError(f"{place.where}: {how}; place those of {self.page} in {place.folder}") from None

    def _files(self, data: Data) -> Tuple[File, ...]:
        if data.checksum == "published":
            return self.files
        return tuple(file._replace(bytes=None, sha256=None) for file in self.files)

    def _place(self, data: Data) -> Place:
        return Place(absolute(data.root), f"data.root={data.root}", self.page, data.mirror)


def _files_of(kind: str) -> Tuple[File, ...]:
    rows = [row for row in csv_tables.read("public_files") if row["set"] == kind]
    return tuple(
        File(row["file"], int(row["bytes"]) if row["bytes"] else None, row["sha256"], tuple(row["urls"].split()))
        for row in rows
    )


MNIST = Public("http://yann.lecun.com/exdb/mnist", _files_of("mnist"), formats.mnist)
CIFAR10 = Public("https://www.cs.toronto.edu/~kriz/cifar.html", _files_of("cifar10"), formats.CIFAR10)
CIFAR100 = Public("https://www.cs.toronto.edu/~kriz/cifar.html", _files_of("cifar100"), formats.CIFAR100)
CALTECH256 = Public("https://data.caltech.edu/records/nyy15-4j048", _files_of("caltech256"), formats.caltech256)
IMAGENET = Public("https://image-net.org/download.php", _files_of("imagenet"), formats.imagenet)
