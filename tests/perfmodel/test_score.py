"""Errors of the model against published throughputs: `mxscale score`."""

import csv
import functools
import json

import numpy as np
import pytest
from published_table import ROW, predicted, series, write_points
from refusals import command_error

from mxscale.cli import main
from mxscale.perfmodel import hardware
from mxscale.perfmodel.published import jobs, score
from mxscale.perfmodel.published import rows as published
from mxscale.util import csv_tables

SHARED = csv_tables.FOLDER / "published_scaling.csv"


@pytest.fixture
def points(tmp_path):
    return functools.partial(write_points, tmp_path)


@pytest.fixture(scope="module")
def found():
    return score.score(str(SHARED))


def test_errors_are_within_the_goal(found):
    assert found["overall"]["rows"] == 107
    assert found["overall"]["median"] <= 5 and found["overall"]["mean"] <= 10
    assert found["linear"]["mean"] > 13  # the model must be better


def test_every_row_is_accounted_for(found):
    lines = {row["line"] for kind in ("rows", "flagged", "skipped") for row in found[kind]}
    lines |= {row["base_line"] for row in found["rows"] + found["flagged"]}
    with open(SHARED, newline="") as file:
        assert lines == set(range(2, len(list(csv.DictReader(file))) + 2))
    assert all(row["why"] for row in found["skipped"])
    assert {row["flag"] for row in found["flagged"]} == {"suspect-network"}


def test_summaries_agree_with_the_rows(found):
    errors = [abs(row["predicted"] / row["img_per_s"] - 1) * 100 for row in found["rows"]]
    assert [row["error"] for row in found["rows"]] == pytest.approx(errors)
    assert found["overall"]["median"] == pytest.approx(np.median(errors))
    mine = [row["error"] for row in found["rows"] if row["source"] == "ddl-benchmarks"]
    assert found["sources"]["ddl-benchmarks"]["mean"] == pytest.approx(np.mean(mine))


def test_prediction_of_a_base_is_its_published_rate(points):
    """A prediction adds what was subtracted from the base for exchange and stragglers."""
    path = points({"gpus": 4, "img_per_s": 900}, {"gpus": 8, "img_per_s": 1700})
    base, _ = published.pairs(published.read(path)[0])[0][0]
    same = jobs.Jobs.of([base])
    assert jobs.predict(same, same, hardware.constants()) == pytest.approx([900], rel=1e-3)


def test_faster_network_is_never_slower(points):
    slow, fast = (
        predicted(points({}, {"nodes": 4, "gpus": 32, "network_gbps": gbps, "img_per_s": 9000}))[0] for gbps in (10, 25)
    )
    assert slow < fast < 32 * 350


def test_half_a_batch_takes_more_than_half_the_time(points):
    rows = [{"batch_per_gpu": 128}, {"gpus": 2, "batch_per_gpu": 64, "img_per_s": 600}]
    weak = predicted(points(rows[0], {**rows[1], "batch_per_gpu": 128}))[0]
    assert predicted(points(*rows))[0] < weak < 700


def test_unknown_names_have_defaults(points):
    odd = {"model": "own-net", "gpu": "", "framework": "", "comm": "", "batch_per_gpu": "unstated", "precision": ""}
    rates = predicted(points(odd, {**odd, "nodes": "", "gpus": 64, "img_per_s": 9000}))
    assert 0 < rates[0] < 64 * 350


def test_machines_without_gpus_count_as_devices(points):
    cpu = {"gpu": "CPU Xeon 8180", "gpus": 0, "network_gbps": 10, "batch_per_gpu": 64}
    path = points({**cpu, "img_per_s": 70}, {**cpu, "nodes": 8, "img_per_s": 520})
    assert series(path) == ([(1, 8, 64)], [])
    assert predicted(path)[0] == pytest.approx(520, rel=0.1)


def test_unknown_names_are_reported_with_their_defaults(points, capsys):
    odd = {"model": "own-net", "gpu": "abacus"}
    path = points(odd, {**odd, "gpus": 2}, {**odd, "gpus": 4}, {"model": "vgg16"}, {"model": "vgg16", "gpus": 2})
    assert main.main(["score", f"points={path}"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "  model own-net: 25.6 million gradients (rows: 3, from line 2 on)" in lines
    assert "  gpu abacus: nvlink2, 100 Gbit/s unless the row states another (rows: 3, from line 2 on)" in lines
    assert [row["value"] for row in score.score(path)["unknown"]] == ["own-net", "abacus"]


@pytest.mark.parametrize("stated", [{"network_gbps": 25}, {"details": "gbps=25"}, {"comm": "horovod/NCCL, TCP"}])
def test_an_unstated_network_is_reported_with_its_default(points, stated):
    sizes = [{"gpu": "V100"}, {"gpu": "V100", "nodes": 2, "gpus": 2}]
    (unstated,) = score.score(points(*sizes))["unknown"]
    assert (unstated["column"], unstated["value"], unstated["lines"]) == ("network_gbps", "of V100", [3])
    assert unstated["taken"].startswith("100 Gbit/s")
    assert score.score(points(*[{**row, **stated} for row in sizes]))["unknown"] == []


def test_one_server_is_slower_than_eight(points):
    def of(details, model="resnet50"):
        sizes = [{"gpus": 8, "img_per_s": 2800}, {"nodes": 8, "gpus": 64, "img_per_s": 20000, "details": details}]
        return predicted(points(*({"model": model, "comm": "PS", "network_gbps": 25, **row} for row in sizes)))[0]

    assert of("servers=1") < 0.8 * of("servers=8") and of("servers=8") <= of("")
    assert of("servers=8 unsplit", "vgg16") < of("servers=8", "vgg16")  # as TensorFlow does, unlike MXNet


def test_command_prints_json(points, capsys):
    path = points({}, {"gpus": 2, "img_per_s": 690}, {"gpus": 8, "img_per_s": ""}, {"model": "vgg16"})
    assert main.main(["score", f"points={path}", "json=true"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["overall"]["rows"] == 1 and found["overall"]["median"] == found["rows"][0]["error"]
    assert [(row["line"], row["why"]) for row in found["skipped"]] == [
        (4, "no img_per_s"),
        (5, "no smaller row in its series"),
    ]


def refused(capsys, match, *argv):
    assert match in command_error(capsys, "score", *argv)


@pytest.mark.parametrize(
    "cells, match",
    [
        ({"img_per_s": "fast"}, "line 3: img_per_s=fast: expected a number"),
        ({"img_per_s": "nan"}, "line 3: img_per_s=nan"),
        ({"img_per_s": "-4"}, "line 3: img_per_s=-4"),
        ({"gpus": "two"}, "line 3: gpus=two"),
        ({"network_gbps": "inf"}, "line 3: network_gbps=inf"),
        ({"batch_per_gpu": "nan"}, "line 3: batch_per_gpu=nan: expected a number above 0, or nothing"),
        ({"batch_per_gpu": "-3"}, "line 3: batch_per_gpu=-3"),
        ({"gpus": "2e12"}, "line 3: gpus=2e12: expected a whole number above 0, or nothing"),
        ({"details": "server=2"}, "line 3: details=server=2: did you mean servers?"),
        ({"details": "rdma=maybe"}, "line 3: details=rdma=maybe: expected rdma=yes|no"),
        ({"details": "unsplit=1"}, "line 3: details=unsplit=1: expected unsplit"),
        ({"img_per_s": ""}, "no series has two numbers of devices"),
    ],
)
def test_invalid_cell_is_named_with_its_line(points, capsys, cells, match):
    refused(capsys, match, f"points={points({}, {'gpus': 2, **cells})}")


def test_invalid_file_is_one_line(points, capsys, tmp_path):
    refused(capsys, "points is missing: points=PATH")
    refused(capsys, "No such file", f"points={tmp_path / 'none.csv'}")
    refused(capsys, "a folder, not a regular file", f"points={tmp_path}")
    empty = tmp_path / "empty.csv"
    empty.write_bytes(b"")
    refused(capsys, "no column source, framework", f"points={empty}")
    empty.write_bytes(b"\xff\xfe\x00")
    refused(capsys, "points=", f"points={empty}")
    empty.write_text(",".join(ROW) + "\n" + "x" * 200_000)
    refused(capsys, "field larger than field limit", f"points={empty}")
    refused(
        capsys,
        "no column gpu, flag",
        f"points={points({}, columns=[n for n in ROW if n not in ('gpu', 'flag')])}",
    )
    refused(capsys, "nothing can be predicted", f"points={points()}")


def test_invalid_setting_is_one_line(points, capsys):
    path = f"points={points({}, {'gpus': 2})}"
    refused(capsys, "json=7", path, "json=7")
    for removed in ("figure=x.png", "leave_out=framework"):
        refused(capsys, "python tools/scaling_model.py", path, removed)


def test_flagged_rows_alone_have_no_summary(points, capsys):
    path = points({"flag": "input-bound"}, {"gpus": 2})  # the flag of a base applies to its rows
    assert score.score(path)["overall"] == {"rows": 0, "median": None, "mean": None}
    assert main.main(["score", f"points={path}"]) == 0
    assert "input-bound" in capsys.readouterr().out
