"""`mxscale test-io`: rates of the input pipeline."""

import itertools
import json
import subprocess
import sys

import pytest
from conftest import ROOT
from PIL import Image
from records import make_records, noise
from refusals import command_error

from mxscale.config.readers import READERS
from mxscale.config.schema import Batch, Config, Data
from mxscale.data import test_io


def asked(tmp_path, **data) -> Config:
    (tmp_path / "val").mkdir()
    train, val = noise(tmp_path, 60), make_records(tmp_path / "val", [[[[9] * 3] * 24] * 24] * 10, [1] * 10)
    files = {"kind": "recordio", "train": train.rec, "val": val.rec, "cache": str(tmp_path / "cache")}
    return Config(data=Data(**{**files, "num_classes": 60, "image_size": 16, **data}), batch=Batch(per_device=8))


def test_each_reader_work_and_thread_count_is_a_row(tmp_path, capsys):
    figure = str(tmp_path / "rates.png")
    test_io.show(asked(tmp_path), test_io.Request(0.05, [1, 2], list(READERS), figure))
    *table, last = capsys.readouterr().out.splitlines()
    rows = json.loads(last)["rates"]
    works = [("turbojpeg", test_io.DECODER)]
    works += [(reader, what) for reader in READERS for what in (test_io.TRAINING, test_io.VALIDATION)]
    assert [(row["reader"], row["what"], row["threads"]) for row in rows] == [
        (*work, threads) for work in works for threads in (1, 2)
    ]
    for row in rows:
        rate = row["images_per_s"]
        assert 0 < rate["min"] <= rate["median"] <= rate["max"] and rate["runs"] == test_io.INTERVALS
        assert row["ms_per_image"] == pytest.approx(1000 / rate["median"])
    assert len(table) == 2 + len(rows)
    assert Image.open(figure).size == (1080, 540)


def test_the_rate_is_images_per_second(monkeypatch):
    clock = iter(range(1000))
    monkeypatch.setattr(test_io.time, "perf_counter", lambda: next(clock))

    # each reading of the clock adds a second: batches of 8, 8 and 6 after one that is not counted
    found = test_io.images_per_second(itertools.chain([100], itertools.cycle([8, 8, 6])), 15)
    assert found == pytest.approx([22 / 3] * test_io.INTERVALS)


@pytest.mark.parametrize(
    "settings, message",
    [
        (["data=synthetic"], "data=synthetic: its images are generated"),
        (["io.seconds=0"], "io.seconds=0: expected a number above 0"),
        (["io.threads=2"], "io.threads=2: expected a list of whole numbers"),
        (["io.threads=[0,1]"], "io.threads=[0, 1]: expected a list of whole numbers"),
        (["io.second=5"], "io.second"),
        (["io.threads=[257]"], "io.threads=[257]: expected a list of whole numbers of 1 to 256"),
        (["io.readers=[disk]"], "io.readers=disk: expected one of record_iter, turbojpeg"),
        (["io.figure=a.jpg"], "io.figure=a.jpg: expected a name that ends in .png"),
        (["io.figure=/no/such/a.png"], "io.figure=/no/such/a.png: its folder does not exist"),
        (["data.reader=disk"], "data.reader=disk: expected one of record_iter, turbojpeg"),
    ],
)
def test_invalid_setting_is_one_line(settings, message, capsys):
    assert message in command_error(capsys, "test-io", *settings)


@pytest.mark.slow
def test_the_command_ends_with_one_json_object(data_cache):
    settings = ["data=digits", f"data.cache={data_cache}", "io.seconds=0.1", "io.threads=[1,3]"]
    argv = [sys.executable, "-m", "mxscale", "test-io", *settings]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=True)
    last = json.loads(done.stdout.splitlines()[-1])
    assert last["image_size"] == 32 and last["batch"] == 32
    assert [row["threads"] for row in last["rates"]] == [1, 3] * 5
