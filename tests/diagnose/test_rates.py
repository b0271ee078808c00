"""`mxscale test-io`: rates of the input pipeline, and their record."""

import itertools
import os
import signal

import pytest
from records import make_records, noise
from refusals import command_error
from run_files import recorded_in

from mxscale.cli import main
from mxscale.config.readers import READERS
from mxscale.config.verb_settings import InputRates
from mxscale.data import test_io
from mxscale.data.reader import batches
from mxscale.diagnose import input_rates
from mxscale.rundir.directory import RunDir, runs_of


@pytest.fixture
def measured(tmp_path, capsys):
    """Return a function that runs the command on 70 images; it returns the exit status, the RunDir and the output."""
    (tmp_path / "val").mkdir()
    train, val = noise(tmp_path, 60), make_records(tmp_path / "val", [[[[9] * 3] * 24] * 24] * 10, [1] * 10)

    def run(*settings):
        data = ["data=recordio", f"data.train={train.rec}", f"data.val={val.rec}", f"data.cache={tmp_path}/cache",
                "data.num_classes=60", "data.image_size=16", "batch.per_device=8"]  # fmt: skip
        status = main.main(["test-io", *data, f"runs={tmp_path}/runs", "io.seconds=0.05", *settings])
        (record,) = (tmp_path / "runs" / "test-io").iterdir()
        return status, RunDir(record), capsys.readouterr()

    return run


def test_each_reader_and_thread_count_is_a_row(measured):
    status, record, printed = measured("io.threads=[1,2]", "tracking=none")
    rows = record.read("test-io.json")["rates"]
    assert status == 0 and record.state == "FINISHED"
    assert [(row["reader"], row["threads"]) for row in rows] == [(name, n) for name in READERS for n in (1, 2)]
    for row in rows:
        rate = row["images_per_s"]
        assert 0 < rate["min"] <= rate["median"] <= rate["max"] and rate["runs"] == batches.INTERVALS
        assert row["ms_per_image"] == pytest.approx(1000 / rate["median"])
        assert input_rates.line(row) in printed.out and len(input_rates.line(row)) <= 80


@pytest.mark.slow
def test_mlflow_has_the_rates_by_threads(measured, tmp_path):
    from mlflow import MlflowClient

    uri = f"sqlite:///{tmp_path}/mlflow.db"
    MlflowClient(uri).search_experiments()  # makes the tables, which on a busy machine takes longer than sending waits
    _, record, _ = measured("io.threads=[1,2]", "io.readers=[turbojpeg]", "claims=[test-io]", f"tracking.uri={uri}")
    client, run = recorded_in(uri)
    assert (run.info.status, run.data.tags["kind"], run.data.tags["claims"]) == ("FINISHED", "test-io", "test-io")
    assert "signature" not in run.data.tags  # a report on training runs leaves it out
    settings = {"io.threads": "[1,2]", "io.readers": "[turbojpeg]", "data.kind": "recordio", "entry": "test-io"}
    assert settings.items() <= run.data.params.items()
    rows = {row["threads"]: row["images_per_s"] for row in record.read("test-io.json")["rates"]}
    points = client.get_metric_history(run.info.run_id, "io/images_per_s/turbojpeg")
    assert {point.step: point.value for point in points} == pytest.approx({n: rows[n]["median"] for n in (1, 2)})
    assert run.data.metrics["io/images_per_s"] == pytest.approx(rows[2]["median"])
    assert run.data.metrics["io/images_per_s_low"] == pytest.approx(rows[2]["min"])
    assert {"config.yaml", "environment.json", "test-io.json"} <= {
        file.path for file in client.list_artifacts(run.info.run_id)
    }
    assert run.data.tags["data.digest"] == record.plan().data_digest


@pytest.mark.parametrize(
    "threads, cores, counts",
    [
        ([], 1, [1]),
        ([], 2, [1, 2]),
        ([], 6, [1, 2, 4, 6]),
        ([], 8, [1, 2, 4, 8]),
        ([], 500, [1, 2, 4, 8, 16, 32, 64, 128, 256]),
        ([4, 1, 4], 2, [4, 1]),
    ],
)
def test_threads_are_powers_of_two_up_to_the_cores(threads, cores, counts):
    assert test_io.resolved(InputRates(1, threads, ["turbojpeg"]), cores).threads == counts


def test_ctrl_c_keeps_the_rates_measured_so_far(measured, monkeypatch):
    def measure(config, packed, request, watched):
        for row in test_io_measure(config, packed, request, watched):
            yield row
            os.kill(os.getpid(), signal.SIGINT)

    test_io_measure = input_rates.measure
    monkeypatch.setattr(input_rates, "measure", measure)
    status, record, printed = measured("tracking=none", "io.threads=[1,2]")
    assert (status, record.state) == (75, "KILLED")
    assert "interrupted (SIGINT); partial result in" in printed.out
    assert len(record.read("test-io.json")["rates"]) == len(list(record.lines())) == 1
    assert [str(run) for run in runs_of(record.path.parent.parent, "test-io")] == [str(record)]


def test_unreadable_image_ends_the_measurement(measured, monkeypatch):
    def measure(*arguments):
        raise RuntimeError("record 7 at byte 0 of a.rec: truncated\nfile")
        yield

    monkeypatch.setattr(input_rates, "measure", measure)
    status, record, printed = measured("tracking=none")
    assert (status, record.state, record.read("test-io.json")) == (1, "FAILED", None)
    assert printed.err.splitlines()[-1] == "error: record 7 at byte 0 of a.rec: truncated file"


@pytest.mark.slow
def test_server_that_does_not_answer_leaves_the_record(measured):
    status, record, printed = measured("io.threads=[1]", "tracking.uri=http://127.0.0.1:9", "tracking.timeout_s=0.2")
    assert (status, record.state) == (0, "FINISHED")
    assert f"send with: mxscale sync {record}" in printed.out


def test_the_rate_is_images_per_second(monkeypatch):
    clock = iter(range(1000))
    monkeypatch.setattr(batches.time, "perf_counter", lambda: next(clock))

    # each reading of the clock adds a second
    found = batches.rates(itertools.cycle([8, 8, 6]), 15)
    assert found == pytest.approx([22 / 3] * batches.INTERVALS)


@pytest.mark.parametrize(
    "settings, message",
    [
        (["data=synthetic"], "data=synthetic: its images are generated"),
        (["io.seconds=0"], "io.seconds=0.0: expected above 0"),
        (["io.threads=2"], "io.threads=2: expected a list such as [1,2]"),
        (["io.threads=[0,1]"], "io.threads=0: expected from 1 to 256"),
        (["io.threads=[auto,1]"], "io.threads=auto: expected a whole number"),
        (["io.readers=null"], "io.readers is missing: io.readers=[turbojpeg,record_iter]"),
        (["io.second=5"], "io.second"),
        (["io.threads=[257]"], "io.threads=257: expected from 1 to 256"),
        (["io.readers=[disk]"], "io.readers=disk: expected one of record_iter, turbojpeg"),
        (["data.augment.erase=0.1"], "data.augment.erase=0.1: data.reader=record_iter does not have it"),
        (["claims=[test]"], "claims: no published figure is called test: did you mean test-io?"),
        (["resume=auto"], "resume=auto: a measurement of the input starts its own runs"),
        (["budget.max_usd=1"], "budget.*: a measurement of the input is limited by io.seconds"),
        (["tracking.uri=x://y"], "tracking.uri=x://y: expected"),
        (["data.reader=disk"], "data.reader=disk: expected one of record_iter, turbojpeg"),
    ],
)
def test_invalid_setting_is_one_line(settings, message, capsys, tmp_path):
    assert message in command_error(capsys, "test-io", f"runs={tmp_path}/runs", *settings)
    assert not (tmp_path / "runs").exists()


@pytest.mark.slow
def test_command_prints_its_run_directory(cli):
    ended = cli("test-io", "io.seconds=0.1", "io.threads=[1,3]", "tracking=none", small=False)
    found = ended.run.read("test-io.json")
    assert ended.run.path.parent.name == "test-io"
    assert (found["image_size"], found["batch"], found["settings"]["threads"]) == (32, 32, [1, 3])
    assert [row["threads"] for row in found["rates"]] == [1, 3] * 2
