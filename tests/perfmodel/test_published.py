"""Published throughputs: parsed rows, and the series that they form."""

import functools

import pytest
from published_table import predicted, series, write_points

from mxscale.config.backends import ALL_TO_ALL, RING, SERVERS
from mxscale.perfmodel import hardware, step_time
from mxscale.perfmodel.published import rows as published
from mxscale.perfmodel.published.jobs import Jobs
from mxscale.util import csv_tables

PRIORS = {row["name"]: float(row["value"]) for row in csv_tables.read("hardware") if row["kind"] == "prior"}


@pytest.fixture
def points(tmp_path):
    return functools.partial(write_points, tmp_path)


@pytest.mark.parametrize(
    "written, name",
    [
        ("ResNet50_v1.5", "resnet-50"),
        ("vgg16", "vgg-16"),
        ("Inception V3", "inception-v3"),
        ("bert_base", "bert-base"),
        ("BERT-Large", "bert-large"),
        ("resnext101-32x4d", "resnext-101"),
        ("AlexNet", "alexnet"),
        ("resnet_v1_152", "resnet-152"),
        ("ResNet-200", "resnet-200"),
        ("ResNet v1.5", "resnet-50"),
        ("wide resnet 101", "wide-resnet-101"),
        ("WRN-28-10", "wide-resnet-28-10"),
        ("VGG-A", "vgg-11"),
        ("ViT-L/16", "vit-l16"),
        ("Swin Transformer", "swin-t"),
        ("Transformer (big)", "transformer-big"),
        ("Inception ResNet v2", "inception-resnet-v2"),
        ("mobilenetv3_small", "mobilenet-v3-small"),
    ],
)
def test_network_is_found_by_any_spelling(written, name):
    assert hardware.network(written).name == name


@pytest.mark.parametrize(
    "written, link, gbps",
    [
        ("Pascal", "nvlink1", 56),
        ("GTX 1080 Ti (Pascal)", "pcie3", 10),
        ("GeForce RTX 4090", "pcie4", 10),
        ("H200-SXM5-141GB", "nvlink4", 3200),
        ("A800-SXM4-80GB", "nvlink3_8", 1600),
        ("GB200", "nvlink5", 3200),
        ("AMD MI250X", "infinity3", 800),
        ("Gaudi2", "gaudi2", 2400),
        ("TPU-v3-32", "tpu3", 2624),
        ("Ascend 910", "hccs", 800),
        ("A10G", "pcie4", 100),
        ("unstated in README", "pcie3", 10),
        ("Intel Skylake 8160", "pcie3", 10),
        ("", "pcie3", 10),
        ("an accelerator of next year", "nvlink2", 100),
    ],
)
def test_device_has_its_usual_links(written, link, gbps):
    assert (hardware.usual_link(written), hardware.usual_gbps(written)) == (link, gbps)
    assert link.startswith("pcie") or hardware.link_in_node(link)[0] > 50e9


def test_pcie_card_has_the_generation_of_its_device(points):
    for gpu, generation in {"V100-PCIE-16GB": 1, "A100-PCIe-40GB": 2, "H100 PCIe": 2, "MI250X": 1}.items():
        found = Jobs.of(published.read(points({"gpu": gpu}))[0])
        assert (found.pcie[0], found.nvlink[0] > 0) == (generation, gpu == "MI250X")


def test_every_network_is_found_by_its_name():
    for pattern, network in hardware.networks():
        assert hardware.network(network.name) is network, pattern
        assert 0 < network.early < 1 and 0 < network.largest < 1 and network.parameters > 1e5
    assert all(row["source"] for row in csv_tables.read("models"))


@pytest.mark.parametrize(
    "comm, details, exchange",
    [
        ("horovod/NCCL", "", RING),
        ("Horovod on 8 servers", "", RING),
        ("MPI", "", RING),
        ("kvstore dist_device_sync (PS)", "", SERVERS),
        ("parameter server 2:1", "", SERVERS),
        ("BytePS", "", SERVERS),
        ("kvstore device", "", ALL_TO_ALL),
        ("replicated", "exchange=ring", RING),
    ],
)
def test_exchange_is_named_or_stated(points, comm, details, exchange):
    assert Jobs.of(published.read(points({"comm": comm, "details": details}))[0]).comm == [exchange]


@pytest.mark.parametrize(
    "cells, gbps",
    [
        ({"network_gbps": 25, "details": "gbps=100"}, 25),
        ({"details": "gbps=40"}, 40),
        ({"note": "1GbE for management alone"}, 100),
        ({"gpu": "K80"}, 10),
    ],
)
def test_network_rate_is_stated_or_usual(points, cells, gbps):
    path = points({"gpus": 8}, {"nodes": 8, "gpus": 64, **cells})
    assert Jobs.of(published.read(path)[0]).wire[1] == gbps * 1e9 / 8


def test_details_replace_the_defaults(points):
    words = "servers=4 push=device link=nvlink1 rdma=yes bytes=2 overlap=none unsplit layerwise host processors"
    found = Jobs.of(published.read(points({"gpus": 8, "details": f"{words} double_buffering"}))[0])
    assert (found.servers, found.pushes, found.nvlink, found.rdma, found.bytes_each) == (4, 8, 80e9, True, 2)
    assert found.largest > 0 and found.hidden == "none"
    assert all((found.layerwise, found.host, found.processors, found.double_buffering))


def test_fast_network_is_bound_by_adapters_and_sockets():
    def gbytes(gbps, rdma):
        return float(step_time.between_nodes(PRIORS, gbps / 8 * 1e9, rdma).bytes_per_s) / 1e9

    assert gbytes(10, True) == pytest.approx(0.9 * 1.25) and gbytes(10, False) == pytest.approx(0.95 * 1.25)
    assert gbytes(100, True) == pytest.approx(5.6) and gbytes(100, False) == pytest.approx(3.0)
    assert gbytes(400, True) == pytest.approx(4 * 5.6)  # four adapters


OTHERS = ({"comm": "kvstore device"}, {"precision": "amp"}, {"model": "vgg16"})
NOTE = {"note": "one\ntwo"}
GRID = [*({"gpus": n, "batch_per_gpu": 32} for n in (1, 2, 4)), *({"gpus": n} for n in (2, 4, 8))]


@pytest.mark.parametrize(
    "rows, pairs, alone",
    [
        ([{"gpus": 8, "img_per_s": 2700}, {"gpus": 2}, {"gpus": 4}], [(2, 8, 64), (2, 4, 64)], []),
        ([{}, {"gpus": 2}, *({"gpus": n, "batch_per_gpu": batch} for n, batch in ((1, 32), (2, 32), (4, 16)))],
         [(1, 2, 64), (1, 2, 32), (1, 4, 16)], []),
        ([{}, *({"gpus": 2, **other} for other in OTHERS)],
         [], [2, 3, 4, 5]),
        ([{"gpus": 8}, {"gpus": 8, "nodes": 8}, {"gpus": 16, "nodes": 2}], [(8, 8, 64), (8, 16, 64)], []),
        (GRID, [(1, 2, 32), (1, 4, 32), (2, 4, 64), (2, 8, 64)], []),
        ([NOTE, {"gpus": 2, **NOTE}], [(1, 2, 64)], []),
    ],
    ids=["fewest devices", "strong scaling", "other columns", "more nodes", "several sizes", "two lines"],
)  # fmt: skip
def test_rows_form_series(points, rows, pairs, alone):
    assert series(points(*rows)) == (pairs, alone)


def test_notes_separate_experiments_of_equal_sizes(points):
    path = points(
        {"note": "synthetic"}, {"gpus": 2, "note": "synthetic"}, {"note": "real"}, {"gpus": 2, "note": "real"}
    )
    pairs, _ = published.pairs(published.read(path)[0])
    assert [(base.line, point.line) for base, point in pairs] == [(2, 3), (4, 5)]


def test_note_of_one_size_is_a_remark(points):
    sizes = [{"gpus": n, "note": f"run of day {n}"} for n in (1, 2, 4, 8)]
    path = points(*sizes, {"gpus": 8, "note": "again"})
    assert series(path) == ([(1, 2, 64), (1, 4, 64), (1, 8, 64), (1, 8, 64)], [])
    both = [{"gpus": n, "note": note} for note in ("synthetic", "real") for n in (2, 4)]
    assert series(points(*both, {"gpus": 8, "note": "again"})) == ([(2, 4, 64), (2, 4, 64), (2, 8, 64)], [])


def test_flagged_row_is_not_a_base(points):
    path = points({"flag": "input-bound"}, {}, {}, {"gpus": 2})
    pairs, skipped = published.pairs(published.read(path)[0])
    assert [(base.line, point.line) for base, point in pairs] == [(3, 5)]
    assert {(row.line, row.why) for row in skipped} == {(line, "no smaller row in its series") for line in (2, 4)}


def test_strong_scaling_uses_the_nearest_batch(points):
    sizes = ((1, 408), (8, 204), (16, 204), (96, 45))  # 204 at two sizes has its own base
    strong = points(*({"nodes": n, "gpus": 8 * n, "batch_per_gpu": batch} for n, batch in sizes))
    assert series(strong) == ([(64, 128, 204), (8, 768, 45)], [])
    path = points({"batch_per_gpu": 256}, {"batch_per_gpu": 32}, {"gpus": 4, "batch_per_gpu": 16})
    pairs, skipped = published.pairs(published.read(path)[0])
    assert [(base.batch, point.batch) for base, point in pairs] == [(32, 16)] and [row.line for row in skipped] == [2]


@pytest.mark.parametrize("batches", [(32, "", ""), ("", 32, 32), (32, "", 32)])
def test_unknown_batch_matches_the_others(points, batches):
    sizes = [{"gpus": n, "img_per_s": 350 * n, "batch_per_gpu": batch} for n, batch in zip((1, 4, 8), batches)]
    assert series(points(*sizes))[0] == [(1, 4, 32), (1, 8, 32)]
    assert predicted(points(*sizes)) == predicted(points(*({**row, "batch_per_gpu": 32} for row in sizes)))


@pytest.mark.parametrize("gbps", ["", 0, 25, 100])
def test_one_node_uses_no_network(points, gbps):
    path = points({"gpus": 8, "network_gbps": gbps}, *({"nodes": 2, "gpus": 16, "network_gbps": n} for n in (10, 100)))
    assert series(path) == ([(8, 16, 64), (8, 16, 64)], [])
