"""`mxscale test-io`: rates of the input pipeline."""

import itertools
import json
import subprocess
import sys

import pytest
from conftest import ROOT
from records import make_records, noise
from refusals import command_error

from mxscale.config.readers import READERS
from mxscale.config.schema import Batch, Config, Data
from mxscale.config.training_settings import Augment
from mxscale.data import test_io


def asked(tmp_path, **data) -> Config:
    (tmp_path / "val").mkdir()
    train, val = noise(tmp_path, 60), make_records(tmp_path / "val", [[[[9] * 3] * 24] * 24] * 10, [1] * 10)
    files = {"kind": "recordio", "train": train.rec, "val": val.rec, "cache": str(tmp_path / "cache")}
    return Config(data=Data(**{**files, "num_classes": 60, "image_size": 16, **data}), batch=Batch(per_device=8))


@pytest.mark.parametrize("reader", READERS)
def test_each_split_work_and_thread_count_is_a_row(reader, tmp_path, capsys):
    test_io.show(asked(tmp_path, reader=reader), 0.05, [1, 2])
    *table, last = capsys.readouterr().out.splitlines()
    rows = json.loads(last)["rates"]
    assert [(row["split"], row["work"], row["threads"]) for row in rows] == [
        (split, work, threads) for split in ("train", "val") for work in ("decode", "all") for threads in (1, 2)
    ]
    for row in rows:
        rate = row["images_per_s"]
        assert 0 < rate["min"] <= rate["median"] <= rate["max"] and rate["runs"] == test_io.INTERVALS
        assert row["ms_per_image"] == pytest.approx(1000 / rate["median"])
        assert row["reader"] == reader
    assert len(table) == 2 + len(rows)


def test_the_rate_is_images_per_second(monkeypatch):
    clock = iter(range(1000))
    monkeypatch.setattr(test_io.time, "perf_counter", lambda: next(clock))

    # each reading of the clock adds a second: batches of 8, 8 and 6 after one that is not counted
    found = test_io.images_per_second(itertools.chain([100], itertools.cycle([8, 8, 6])), 15)
    assert found == pytest.approx([22 / 3] * test_io.INTERVALS)


def test_decode_excludes_augmentation_and_resizing():
    data = test_io.decoding_alone(Data(image_size=16, eval_resize=20, augment=Augment(hue=0.1)))
    assert data.augment == Augment(crop="center", flip=False) and data.eval_resize is None


@pytest.mark.parametrize(
    "settings, message",
    [
        (["data=synthetic"], "data=synthetic: its images are generated"),
        (["io.seconds=0"], "io.seconds=0: expected a number above 0"),
        (["io.threads=2"], "io.threads=2: expected a list of whole numbers"),
        (["io.threads=[0,1]"], "io.threads=[0, 1]: expected a list of whole numbers"),
        (["io.second=5"], "io.second"),
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
    assert [row["threads"] for row in last["rates"]] == [1, 3] * 4
