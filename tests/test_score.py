"""The model held against published throughputs: mxscale score."""

import csv
import json

import numpy as np
import pytest

from mxscale.cli import main
from mxscale.perfmodel import hardware
from mxscale.perfmodel.published import fitting, published_parse, score
from mxscale.perfmodel.published import rows as published
from mxscale.perfmodel.published.fitting import Rows
from mxscale.util import csv_tables

SHARED = csv_tables.FOLDER / "published_scaling.csv"
ROW = {
    "source": "ours",
    "framework": "MXNet",
    "model": "resnet50",
    "gpu": "V100",
    "nodes": "1",
    "gpus": "1",
    "comm": "horovod/NCCL",
    "precision": "fp32",
    "batch_per_gpu": "64",
    "network_gbps": "",
    "img_per_s": "350",
    "flag": "",
    "note": "",
}


@pytest.fixture
def points(tmp_path):
    """points(dict(gpus=8, ...), ...): a file of rows that differ from ROW in those cells."""

    def write(*rows, columns=tuple(ROW)):
        path = tmp_path / "points.csv"
        with open(path, "w", newline="") as file:
            writer = csv.DictWriter(file, columns, extrasaction="ignore")
            writer.writeheader()
            writer.writerows({**ROW, **{key: str(value) for key, value in row.items()}} for row in rows)
        return str(path)

    return write


def series(path):
    pairs, alone = published.pairs(published.read(path)[0])
    return [(base.devices, point.devices, point.batch) for base, point in pairs], [row.line for row in alone]


# ---------------------------------------------------------------- the goal


@pytest.fixture(scope="module")
def found():
    return score.score(str(SHARED))


def test_published_throughputs_are_predicted_within_the_goal(found):
    assert found["overall"]["rows"] == 107
    assert found["overall"]["median"] <= 5 and found["overall"]["mean"] <= 10
    assert found["linear"]["mean"] > 13  # what the model has to be better than


def test_and_by_constants_that_never_saw_the_source(found):
    assert set(found["left_out"]) == {*found["sources"], "all"}
    assert found["left_out"]["all"]["rows"] == 107
    assert found["left_out"]["all"]["median"] <= 5 and found["left_out"]["all"]["mean"] <= 10


def test_every_row_is_predicted_flagged_a_base_or_skipped_with_its_reason(found):
    lines = {row["line"] for kind in ("rows", "flagged", "skipped") for row in found[kind]}
    lines |= {row["base_line"] for row in found["rows"] + found["flagged"]}
    with open(SHARED, newline="") as file:
        assert lines == set(range(2, len(list(csv.DictReader(file))) + 2))
    assert all(row["why"] for row in found["skipped"])
    assert {row["flag"] for row in found["flagged"]} == {"suspect-network"}


def test_figures_agree_with_the_rows(found):
    errors = [abs(row["predicted"] / row["img_per_s"] - 1) * 100 for row in found["rows"]]
    assert [row["error"] for row in found["rows"]] == pytest.approx(errors)
    assert found["overall"]["median"] == pytest.approx(np.median(errors))
    mine = [row["error"] for row in found["rows"] if row["source"] == "ddl-benchmarks"]
    assert found["sources"]["ddl-benchmarks"]["mean"] == pytest.approx(np.mean(mine))


# ---------------------------------------------------------------- prediction


def test_a_base_is_predicted_as_it_was_published(points):
    """What is taken from a base for its exchange and stragglers is what a prediction adds."""
    path = points({"gpus": 4, "img_per_s": 900}, {"gpus": 8, "img_per_s": 1700})
    base, _ = published.pairs(published.read(path)[0])[0][0]
    assert fitting.rates(Rows.of([(base, base)]), hardware.constants()) == pytest.approx([900], rel=1e-3)


def predicted(path):
    pairs, _ = published.pairs(published.read(path)[0])
    return [row.predicted for row in score.predict(pairs)]


def test_a_faster_network_is_never_slower(points):
    slow, fast = (
        predicted(points({}, {"nodes": 4, "gpus": 32, "network_gbps": gbps, "img_per_s": 9000}))[0] for gbps in (10, 25)
    )
    assert slow < fast < 32 * 350


def test_half_a_batch_takes_more_than_half_the_time(points):
    rows = [{"batch_per_gpu": 128}, {"gpus": 2, "batch_per_gpu": 64, "img_per_s": 600}]
    weak = predicted(points(rows[0], {**rows[1], "batch_per_gpu": 128}))[0]
    assert predicted(points(*rows))[0] < weak < 700


def test_names_that_nobody_knows_have_defaults(points):
    odd = {"model": "own-net", "gpu": "", "framework": "", "comm": "", "batch_per_gpu": "unstated", "precision": ""}
    rates = predicted(points(odd, {**odd, "nodes": "", "gpus": 64, "img_per_s": 9000}))
    assert 0 < rates[0] < 64 * 350


def test_machines_without_gpus_count_as_devices(points):
    cpu = {"gpu": "CPU Xeon 8180", "gpus": 0, "network_gbps": 10, "batch_per_gpu": 64}
    path = points({**cpu, "img_per_s": 70}, {**cpu, "nodes": 8, "img_per_s": 520})
    assert series(path) == ([(1, 8, 64)], [])
    assert predicted(path)[0] == pytest.approx(520, rel=0.1)


@pytest.mark.parametrize(
    "written, name",
    [
        ("ResNet50_v1.5", "resnet-50"),
        ("vgg16", "vgg-16"),
        ("Inception V3", "inception-v3"),
        ("resnet152_v2", "resnet-152"),
        ("bert_base", "bert-base"),
        ("BERT-Large", "bert-large"),
        ("resnext101-32x4d", "resnext-101"),
        ("AlexNet", "alexnet"),
        ("CaffeNet", "alexnet"),
        ("resnet_v1_152", "resnet-152"),
        ("resnet_v2_101", "resnet-101"),
        ("ResNet-101", "resnet-101"),
        ("ResNet-110", "resnet-110"),
        ("resnet-20", "resnet-20"),
        ("ResNet-200", "resnet-200"),
        ("ResNet v1.5", "resnet-50"),
        ("wide resnet 101", "wide-resnet-101"),
        ("WRN-28-10", "wide-resnet-28-10"),
        ("VGG-A", "vgg-11"),
        ("VGG-D", "vgg-16"),
        ("VGG-E", "vgg-19"),
        ("VGG-13", "vgg-13"),
        ("ViT-L/16", "vit-l16"),
        ("vit_b_16", "vit-b16"),
        ("Swin Transformer", "swin-t"),
        ("Transformer (big)", "transformer-big"),
        ("Inception ResNet v2", "inception-resnet-v2"),
        ("mobilenetv3_small", "mobilenet-v3-small"),
    ],
)
def test_a_network_is_known_however_it_is_written(written, name):
    assert hardware.network(written).name == name


@pytest.mark.parametrize(
    "written, link, gbps",
    [
        ("Pascal", "nvlink1", 56),
        ("Titan X (Pascal)", "pcie3", 10),
        ("GTX 1080 Ti (Pascal)", "pcie3", 10),
        ("GeForce RTX 4090", "pcie4", 10),
        ("Tesla M40", "pcie3", 10),
        ("H200-SXM5-141GB", "nvlink4", 3200),
        ("A800-SXM4-80GB", "nvlink3_8", 1600),
        ("GB200", "nvlink5", 3200),
        ("AMD MI250X", "infinity3", 800),
        ("Gaudi2", "gaudi2", 2400),
        ("TPU-v3-32", "tpu3", 2624),
        ("Ascend 910", "hccs", 800),
        ("A10G", "pcie4", 100),
        ("unstated in README", "pcie3", 10),
        ("8x GPU", "pcie3", 10),
        ("Intel Skylake 8160", "pcie3", 10),
        ("", "pcie3", 10),
        ("an accelerator of next year", "nvlink2", 100),
    ],
)
def test_a_device_has_the_links_of_its_kind(written, link, gbps):
    assert (hardware.usual_link(written), hardware.usual_gbps(written)) == (link, gbps)
    assert link.startswith("pcie") or hardware.link_bytes_per_s(link) > 50e9


def test_a_row_that_says_pcie_has_a_card_of_its_devices_age(points):
    for gpu, generation in {"V100-PCIE-16GB": 1, "A100-PCIe-40GB": 2, "H100 PCIe": 2, "MI250X": 1}.items():
        found = published_parse.describe(published.read(points({"gpu": gpu}))[0])
        assert (found.pcie[0], found.nvlink[0] > 0) == (generation, gpu == "MI250X")


def test_every_network_of_the_table_is_found_by_its_own_name():
    for pattern, network in hardware.networks():
        assert hardware.network(network.name) is network, pattern
        assert 0 < network.early < 1 and 0 < network.largest < 1 and network.parameters > 1e5 and network.source


def test_what_no_table_knows_is_said_once_with_what_was_taken(points, capsys):
    odd = {"model": "own-net", "gpu": "abacus"}
    path = points(odd, {**odd, "gpus": 2}, {**odd, "gpus": 4}, {"model": "vgg16"}, {"model": "vgg16", "gpus": 2})
    assert main.main(["score", f"points={path}"]) == 0
    told = capsys.readouterr().out.splitlines()
    assert "  model own-net: 25.6 million gradients (line 2-4)" in told
    assert "  gpu abacus: nvlink2, 100 Gbit/s if the row has no other (line 2-4)" in told
    assert [row["value"] for row in score.score(path)["unknown"]] == ["own-net", "abacus"]


@pytest.mark.parametrize(
    "comm, servers",
    [
        ("PS, 1 server", 1),
        ("PS, one parameter server", 1),
        ("PS, 4 servers", 4),
        ("parameter server 2:1", 16),
        ("parameter servers 1:1", 8),
        ("PS 1:2", 4),
        ("PS (2x)", 16),
        ("2x parameter servers", 16),
        ("PS, 2 servers per node", 16),
        ("BytePS, 8 servers", 8),
        ("PS", 0),
        ("PS 2x25GbE", 0),
        ("PS, 1 server on each node", 0),
        ("parameter_server (servers beside the workers)", 0),
        ("Horovod on 8 servers", 0),
    ],
)
def test_servers_are_as_many_as_the_row_says(points, comm, servers):
    path = points({"comm": comm, "gpus": 8}, {"comm": comm, "nodes": 8, "gpus": 64})
    one, eight = published_parse.describe(published.read(path)[0]).servers
    assert (one, eight) == (0, servers)


def test_one_server_for_eight_nodes_is_slower_than_eight_and_than_one_on_each(points):
    def of(comm):
        sizes = [{"gpus": 8, "img_per_s": 2800}, {"nodes": 8, "gpus": 64, "img_per_s": 20000}]
        return predicted(points(*({"comm": comm, "network_gbps": 25, **row} for row in sizes)))[0]

    assert of("PS, 1 server") < 0.8 * of("PS, 8 servers") and of("PS, 8 servers") <= of("PS")
    assert of("parameter server 2:1") == of("PS, 16 servers")  # MXNet's words are not TensorFlow's way


@pytest.mark.parametrize(
    "comm, processors",
    [
        ("Horovod MPI", False),
        ("MVAPICH2-GDR MPI", False),
        ("MPI all-reduce", False),
        ("horovod/NCCL, gloo", False),
        ("horovod, gloo", True),
        ("horovod TCP, allreduce on CPU", True),
        ("MPI, staged through the host", True),
    ],
)
def test_processors_add_where_the_row_says_so(points, comm, processors):
    assert published_parse.describe(published.read(points({"comm": comm}))[0]).processors == [processors]


@pytest.mark.parametrize(
    "cells, gbps",
    [
        ({"network_gbps": 25, "comm": "NCCL 100GbE"}, 25),
        ({"comm": "NCCL 40 GbE TCP"}, 40),
        ({"comm": "NCCL 2x25 Gbit/s"}, 50),
        ({"comm": "NCCL, NVLink 300 GB/s, 56 Gb/s"}, 56),
        ({"comm": "NCCL", "note": "1GbE for management alone"}, 100),
        ({"comm": "NCCL IB FDR"}, 56),
        ({"comm": "NCCL, 4x EDR"}, 400),
        ({"note": "p3.16xlarge"}, 25),
        ({"note": "p2.xlarge", "gpu": "K80"}, 10),
        ({"note": "16 GB of memory"}, 100),
    ],
)
def test_a_network_without_a_cell_is_read_from_the_words(points, cells, gbps):
    path = points({"gpus": 8}, {"nodes": 8, "gpus": 64, **cells})
    assert published_parse.describe(published.read(path)[0]).wire[1] == gbps * 1e9 / 8


# ---------------------------------------------------------------- series


def test_the_smallest_number_of_devices_is_the_base(points):
    path = points({"gpus": 8, "img_per_s": 2700}, {"gpus": 2, "img_per_s": 690}, {"gpus": 4, "img_per_s": 1380})
    assert series(path) == ([(2, 8, 64), (2, 4, 64)], [])


def test_rows_of_one_batch_scale_weakly_and_a_lone_batch_strongly(points):
    path = points(
        {}, {"gpus": 2}, {"batch_per_gpu": 32}, {"gpus": 2, "batch_per_gpu": 32}, {"gpus": 4, "batch_per_gpu": 16}
    )
    assert series(path) == ([(1, 2, 64), (1, 2, 32), (1, 4, 16)], [])


def test_what_differs_in_more_than_devices_is_another_series(points):
    path = points(
        {}, {"gpus": 2, "comm": "kvstore device"}, {"gpus": 2, "precision": "amp"}, {"gpus": 2, "model": "vgg16"}
    )
    assert series(path) == ([], [2, 3, 4, 5])


def test_two_experiments_of_the_same_size_are_told_apart_by_their_note(points):
    path = points(
        {"note": "synthetic"}, {"gpus": 2, "note": "synthetic"}, {"note": "real"}, {"gpus": 2, "note": "real"}
    )
    pairs, _ = published.pairs(published.read(path)[0])
    assert [(base.line, point.line) for base, point in pairs] == [(2, 3), (4, 5)]


def test_a_note_of_one_size_is_a_remark_and_its_row_has_the_base_of_the_others(points):
    sizes = [{"gpus": n, "note": f"run of day {n}"} for n in (1, 2, 4, 8)]
    path = points(*sizes, {"gpus": 8, "note": "again"})
    assert series(path) == ([(1, 2, 64), (1, 4, 64), (1, 8, 64), (1, 8, 64)], [])
    both = [{"gpus": n, "note": note} for note in ("synthetic", "real") for n in (2, 4)]
    assert series(points(*both, {"gpus": 8, "note": "again"})) == ([(2, 4, 64), (2, 4, 64), (2, 8, 64)], [])
    assert series(points({"gpus": 1, "note": "one device"}, *both))[0] == [(1, 2, 64), (1, 4, 64)] * 2


def test_the_same_devices_on_more_nodes_are_another_size(points):
    path = points({"gpus": 8}, {"gpus": 8, "nodes": 8}, {"gpus": 16, "nodes": 2})
    assert series(path) == ([(8, 8, 64), (8, 16, 64)], [])


def test_a_second_base_is_skipped_and_a_flagged_one_is_not_taken(points):
    path = points({"flag": "input-bound"}, {}, {}, {"gpus": 2})
    pairs, skipped = published.pairs(published.read(path)[0])
    assert [(base.line, point.line) for base, point in pairs] == [(3, 5)]
    assert {(row.line, row.why) for row in skipped} == {(line, "as small as the base of its series") for line in (2, 4)}


def test_batches_that_have_sizes_of_their_own_have_bases_of_their_own(points):
    grid = [{"gpus": n, "batch_per_gpu": 32} for n in (1, 2, 4)] + [{"gpus": n} for n in (2, 4, 8)]
    assert series(points(*grid)) == ([(1, 2, 32), (1, 4, 32), (2, 4, 64), (2, 8, 64)], [])


def test_where_the_smallest_size_has_a_batch_of_its_own_all_scale_strongly_from_the_nearest_batch(points):
    mixed = points({"batch_per_gpu": 128}, *({"gpus": n} for n in (8, 16)))
    assert series(mixed) == ([(1, 8, 64), (1, 16, 64)], [])
    sizes = ((1, 408), (8, 204), (16, 204), (96, 45))
    strong = points(*({"nodes": n, "gpus": 8 * n, "batch_per_gpu": batch} for n, batch in sizes))
    assert series(strong) == ([(8, 64, 204), (8, 128, 204), (8, 768, 45)], [])
    path = points({"batch_per_gpu": 256}, {"batch_per_gpu": 32}, {"gpus": 4, "batch_per_gpu": 16})
    pairs, skipped = published.pairs(published.read(path)[0])
    assert [(base.batch, point.batch) for base, point in pairs] == [(32, 16)] and [row.line for row in skipped] == [2]


@pytest.mark.parametrize("batches", [(32, "", ""), ("", 32, 32), (32, "", 32)])
def test_an_unknown_batch_is_that_of_the_others(points, batches):
    sizes = [{"gpus": n, "img_per_s": 350 * n, "batch_per_gpu": batch} for n, batch in zip((1, 4, 8), batches)]
    assert series(points(*sizes))[0] == [(1, 4, 32), (1, 8, 32)]
    assert predicted(points(*sizes)) == predicted(points(*({**row, "batch_per_gpu": 32} for row in sizes)))


@pytest.mark.parametrize("gbps", [0, 25, 100])
def test_one_node_uses_no_network_whatever_its_cell_says(points, gbps):
    path = points({"gpus": 8, "network_gbps": gbps}, *({"nodes": 2, "gpus": 16, "network_gbps": n} for n in (10, 100)))
    assert series(path) == ([(8, 16, 64), (8, 16, 64)], [])


def test_the_rows_of_one_node_are_the_base_of_every_network(points):
    path = points({"gpus": 4}, *({"nodes": 2, "gpus": 8, "network_gbps": gbps} for gbps in (10, 100)))
    assert series(path) == ([(4, 8, 64), (4, 8, 64)], [])


def test_a_cell_of_several_lines_is_one_cell(points):
    assert series(points({"note": "one\ntwo"}, {"gpus": 2, "note": "one\ntwo"}))[0] == [(1, 2, 64)]


def test_a_flag_on_a_base_is_one_on_its_rows(points):
    path = points({"flag": "input-bound"}, {"gpus": 2}, {"model": "vgg16"}, {"model": "vgg16", "gpus": 2})
    pairs, _ = published.pairs(published.read(path)[0])
    assert [row.flag for row in score.predict(pairs)] == ["input-bound", ""]


def test_a_file_with_flagged_rows_alone_has_no_overall_figure(points, capsys):
    path = points({"flag": "input-bound"}, {"gpus": 2})
    assert score.score(path)["overall"] == {"rows": 0, "median": None, "mean": None}
    assert main.main(["score", f"points={path}"]) == 0
    assert "input-bound" in capsys.readouterr().out
    refused(capsys, "nothing to draw", f"points={path}", "figure=x.png")


# ---------------------------------------------------------------- the command


def test_the_command_prints_one_object_and_draws(points, capsys, tmp_path):
    path = points({}, {"gpus": 2, "img_per_s": 690}, {"gpus": 8, "img_per_s": ""}, {"model": "vgg16"})
    figure = tmp_path / "made" / "figure.png"
    assert main.main(["score", f"points={path}", "json=true", f"figure={figure}", "leave_out=framework"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["overall"]["rows"] == 1 and found["overall"]["median"] == found["rows"][0]["error"]
    assert [(row["line"], row["why"]) for row in found["skipped"]] == [
        (4, "no img_per_s"),
        (5, "a series of one number of devices"),
    ]
    assert set(found["left_out"]) == {"MXNet", "all"}
    assert figure.read_bytes()[:4] == b"\x89PNG"


def refused(capsys, match, *argv):
    assert main.main(["score", *argv]) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ") and error.count("\n") == 1
    assert match in error


@pytest.mark.parametrize(
    "cells, match",
    [
        ({"img_per_s": "fast"}, "line 3: img_per_s=fast: expected a number"),
        ({"img_per_s": "nan"}, "line 3: img_per_s=nan"),
        ({"img_per_s": "-4"}, "line 3: img_per_s=-4"),
        ({"img_per_s": "0"}, "line 3: img_per_s=0: expected a rate above 0"),
        ({"gpus": "two"}, "line 3: gpus=two"),
        ({"network_gbps": "inf"}, "line 3: network_gbps=inf"),
        ({"batch_per_gpu": "nan"}, "line 3: batch_per_gpu=nan: expected a number above 0, or nothing"),
        ({"batch_per_gpu": "-3"}, "line 3: batch_per_gpu=-3"),
        ({"gpus": "2000000"}, "line 3: 2e+06 devices: expected 1,000,000 at most"),
        ({"img_per_s": ""}, "no series has two numbers of devices"),
    ],
)
def test_a_cell_that_is_no_number_is_named_with_its_line(points, capsys, cells, match):
    refused(capsys, match, f"points={points({}, {'gpus': 2, **cells})}")


def test_a_file_that_cannot_be_scored_is_one_line(points, capsys, tmp_path):
    refused(capsys, "points is missing: points=PATH")
    refused(capsys, "No such file", f"points={tmp_path / 'none.csv'}")
    refused(capsys, "Is a directory", f"points={tmp_path}")
    empty = tmp_path / "empty.csv"
    empty.write_bytes(b"")
    refused(capsys, "columns are missing: source, framework", f"points={empty}")
    empty.write_bytes(b"\xff\xfe\x00")
    refused(capsys, "points=", f"points={empty}")
    empty.write_text(",".join(ROW) + "\n" + "x" * 200_000)
    refused(capsys, "field larger than field limit", f"points={empty}")
    refused(
        capsys,
        "columns are missing: gpu, flag",
        f"points={points({}, columns=[n for n in ROW if n not in ('gpu', 'flag')])}",
    )
    refused(capsys, "nothing to predict", f"points={points()}")


def test_a_wrong_key_is_one_line(points, capsys):
    path = f"points={points({}, {'gpus': 2})}"
    refused(capsys, "json=7", path, "json=7")
    refused(capsys, "ends in .png", path, "figure=x.gif")
    refused(capsys, "figure=/proc", path, "figure=/proc/none/x.png")
    refused(capsys, "leave_out=model", path, "leave_out=model")


# ---------------------------------------------------------------- the constants


def test_every_constant_has_a_source_and_a_start_and_no_source_or_framework_its_own():
    rows = csv_tables.read("hardware")
    assert all(row["source"] for row in rows)
    assert set(hardware.priors()) == set(hardware.constants()) == set(hardware.fitted())
    assert {row["kind"] for row in rows} == {"device", "link", "network", "other", "prior", "fitted"}


def test_the_constants_are_those_that_fit_the_published_rows():
    """The table's fitted rows are made by `fit` from the priors; to three digits."""
    again = fitting.fit(Rows.of(score.evidence()), hardware.priors())
    assert again == pytest.approx(hardware.constants(), rel=0.01)


def test_a_fast_network_is_bound_by_its_adapters_way_through_the_node_and_tcp_by_its_sockets():
    def gbytes(gbps, rdma):
        return float(published_parse.between_nodes(hardware.priors(), gbps / 8 * 1e9, rdma).bytes_per_s) / 1e9

    assert gbytes(10, True) == pytest.approx(0.9 * 1.25) and gbytes(10, False) == pytest.approx(0.95 * 1.25)
    assert gbytes(100, True) == pytest.approx(5.6) and gbytes(100, False) == pytest.approx(3.0)
    assert gbytes(400, True) == pytest.approx(4 * 5.6)  # four adapters
