"""A new data set is an entry in config/datasets.py and a module; its name appears nowhere else."""

import textwrap

import mxnet as mx
import numpy as np
import pytest

from mxscale.config.datasets import DATASETS, DataSet
from mxscale.config.schema import from_dict
from mxscale.data import manifest, pack
from mxscale.data.reader.batches import Reading
from mxscale.data.reader.turbojpeg import TrainData

MODULE = """
    from mxscale.data.tree import Item, Tree, chosen
    from mxscale.data.tree_packer import tree_job


    def tiles(data, workers):
        classes = chosen(data, ["black", "white"], "data=tiles")
        return tree_job(data, lambda: listing(classes), workers, classes=classes)


    def listing(classes):
        shades = {"black": 0, "white": 255}
        images = [b"P5 8 8 255 " + bytes([shades[name]] * 64) for name in classes]
        return Tree(
            classes,
            {"all": [[Item(20 * label + n, label, f"tile {n}", images[label]) for n in range(20)] for label in (0, 1)]},
            "data=tiles",
        )
"""


@pytest.fixture
def tiles(tmp_path, monkeypatch):
    (tmp_path / "toy_tiles.py").write_text(textwrap.dedent(MODULE))
    monkeypatch.syspath_prepend(str(tmp_path))
    entry = DataSet("tiles", "tiles", "toy_tiles:tiles", required=("root",), expected="data.root=DIR", scans=True)
    monkeypatch.setitem(DATASETS, "tiles", entry)

    def config(**data):
        return from_dict({"data": {"kind": "tiles", "image_size": 8, "cache": str(tmp_path / "cache"), **data}})

    return config


def test_a_new_data_set_is_packed_and_read(tiles):
    data = tiles(root="x", pack_format="png", allow_duplicates=True, mean=[0, 0, 0], std=[1, 1, 1]).data
    packed = pack.prepare(data)
    assert packed["classes"] == ["black", "white"]
    records = manifest.split_of(packed, "train")
    batches = TrainData(records, Reading(data, 4, [0], 1, 1, records.count // 4, 1, [mx.cpu()], 1))
    (micro,) = batches.step(0)
    assert micro.images.shape == (4, 3, 8, 8)
    np.testing.assert_array_equal(micro.images.asnumpy()[:, 0, 4, 4], 255 * micro.labels.asnumpy())
