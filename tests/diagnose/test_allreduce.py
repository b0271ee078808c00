"""`mxscale test-allreduce`: times of all-reduces on real ranks, and their record."""

import os
import shutil
import signal
import sys

import psutil
import pytest
from machine import kill_session, until
from refusals import command_error
from run_files import recorded_in

from mxscale.cli import main
from mxscale.config.schema import from_dict
from mxscale.config.verb_settings import AllReduce
from mxscale.diagnose import all_reduce
from mxscale.rundir.directory import ALLREDUCE, RunDir

QUICK = ["launch.ranks=2", "allreduce.seconds=0.05", "allreduce.sizes=[4194304,4096,65536]"]
MPI = pytest.param("mpi", marks=pytest.mark.skipif(not shutil.which("mpirun"), reason="there is no mpirun"))


def row(size: int, seconds: float) -> dict:
    spread = {"median": seconds, "min": seconds / 2, "max": 2 * seconds, "runs": 5}
    return {"bytes": size, "seconds": spread, "time_ms": 1}


def ring(*sizes) -> list:
    """Return the rows of 4 ranks with 50 us per message and 1.25e8 bytes/s: 6 messages of a quarter of the bytes."""
    return [row(size, 6 * 50e-6 + 1.5 * size / 1.25e8) for size in sizes]


def result(rows, **comm):
    return all_reduce.result(from_dict({"comm": comm}), AllReduce(1, [4]), rows, 4)


def test_fit_recovers_latency_and_bandwidth_of_a_ring():
    fit = result(ring(2**10, 2**16, 2**24))["fit"]
    assert (fit["alpha_s"], fit["bytes_per_s"]) == pytest.approx((50e-6, 1.25e8))
    assert fit["residual"] < 1e-6


@pytest.mark.parametrize("rows, comm", [(ring(4096), {}), ([], {}), (ring(4, 8192), {"backend": "device"})])
def test_one_size_or_another_exchange_has_no_fit(rows, comm):
    assert result(rows, **comm)["fit"] is None


def test_summary_has_each_size_and_the_link():
    found = all_reduce.headline(result(ring(2**16, 2**24)))
    assert found["allreduce/ms/65536"] == pytest.approx(0.3 + 1.5e3 * 2**16 / 1.25e8)
    assert found["allreduce/ms_low/65536"] == pytest.approx(found["allreduce/ms/65536"] / 2)
    assert found["allreduce/gbit_per_s/16777216"] == pytest.approx(8 * 2**24 / 1e6 / found["allreduce/ms/16777216"])
    assert found["allreduce/gbit_per_s_high/16777216"] == 2 * found["allreduce/gbit_per_s/16777216"]
    assert (found["allreduce/alpha_us"], found["allreduce/link_gbit_per_s"]) == pytest.approx((50, 1))


@pytest.mark.slow
@pytest.mark.parametrize("transport", ["gloo", MPI])
def test_two_ranks_measure_each_size(transport, tmp_path, capsys):
    from mlflow import MlflowClient

    uri = f"sqlite:///{tmp_path}/mlflow.db"
    MlflowClient(uri).search_experiments()  # makes the tables, which on a busy machine takes longer than sending waits
    argv = [*QUICK, f"comm.transport={transport}", f"runs={tmp_path}/runs", f"tracking.uri={uri}"]
    assert main.main(["test-allreduce", *argv]) == 0
    (record,) = map(RunDir, (tmp_path / "runs" / "test-allreduce").iterdir())
    found = record.read(ALLREDUCE)
    assert (found["over"], found["ranks"], found["nodes"], record.state) == (transport, 2, 1, "FINISHED")
    assert [row["bytes"] for row in found["sizes"]] == [4096, 65536, 4194304]
    for each in found["sizes"]:
        seconds = each["seconds"]
        assert 0 < seconds["min"] <= seconds["median"] <= seconds["max"] and seconds["runs"] >= 5
    assert all_reduce.table(found) in capsys.readouterr().out
    client, run = recorded_in(uri)
    assert {"kind": "test-allreduce", "allreduce.over": transport, "ranks": "2"}.items() <= run.data.tags.items()
    assert "signature" not in run.data.tags  # a report on training runs leaves it out
    assert {"allreduce.seconds": "0.05", "comm.transport": transport}.items() <= run.data.params.items()
    points = {point.step: point.value for point in client.get_metric_history(run.info.run_id, "allreduce/ms")}
    assert points == {row["bytes"]: pytest.approx(1e3 * row["seconds"]["median"]) for row in found["sizes"]}
    assert run.data.metrics["allreduce/ms/65536"] == pytest.approx(points[65536])
    assert ALLREDUCE in {file.path for file in client.list_artifacts(run.info.run_id)}


@pytest.mark.slow
def test_one_process_measures_its_devices(tmp_path):
    config = from_dict({"runs": str(tmp_path), "comm": {"backend": "device"}, "launch": {"ranks": 2, "device": "cpu"},
                        "tracking": {"enabled": False}})  # fmt: skip
    assert all_reduce.main(config, AllReduce(0.05, [4096, 65536])) == 0
    [folder] = (tmp_path / "test-allreduce").iterdir()
    found = RunDir(folder).read(ALLREDUCE)
    assert (found["over"], found["ranks"], found["fit"]) == ("device", 2, None)


@pytest.fixture
def under_way(cli):
    """Start a measurement; yield its process and record once the first of two sizes, 1024, is measured."""
    sizes = f"allreduce.sizes=[1024,{2**30}]"
    process = cli.start(
        "test-allreduce", "launch.ranks=2", "tracking=none", "allreduce.seconds=0.1", sizes, small=False
    )
    record = cli.run_of(process)
    until((record.path / "probe" / "allreduce.json").exists, 60)
    yield process, record
    if process.poll() is None:
        kill_session(process)


@pytest.mark.slow
def test_ctrl_c_keeps_the_sizes_measured_so_far(under_way, cli):
    process, record = under_way
    os.kill(process.pid, signal.SIGINT)
    ended = cli.ended(process, expect=75, timeout=60)
    assert record.state == "KILLED" and "interrupted (SIGINT); partial result in" in ended.out
    assert [row["bytes"] for row in record.read(ALLREDUCE)["sizes"]] == [1024]


@pytest.mark.slow
def test_killed_rank_ends_the_measurement(under_way, cli):
    process, record = under_way
    rank = [sys.executable, "-m", "mxscale.distributed.allreduce_probe", str(record)]
    pids = [found.pid for found in psutil.Process(process.pid).children(recursive=True) if found.cmdline()[:4] == rank]
    os.kill(pids[1], signal.SIGKILL)
    ended = cli.ended(process, expect=1, timeout=60)
    assert record.state == "FAILED" and [row["bytes"] for row in record.read(ALLREDUCE)["sizes"]] == [1024]
    assert ended.err.splitlines()[-1] == f"error: ended with status 1; see {record.path}/probe/allreduce.log"


@pytest.mark.parametrize(
    "settings, message",
    [
        (["allreduce.seconds=0"], "allreduce.seconds=0.0: expected above 0"),
        (["allreduce.sizes=[]"], "allreduce.sizes is missing: allreduce.sizes=[65536,67108864]"),
        (["allreduce.sizes=[6]"], "allreduce.sizes=6: expected multiples of 4 bytes"),
        (["allreduce.sizes=4096"], "allreduce.sizes=4096: expected a list"),
        (["allreduce.size=[4]"], "allreduce.size"),
        (["launch.ranks=1"], "launch.ranks=1: one rank exchanges nothing"),
        (
            ["comm=local", "launch.ranks=1"],
            "comm=local: has no all-reduce of its own; use one of horovod, device, nccl",
        ),
        (["comm=dist_async"], "use comm=parameter_server"),
        (["comm=nccl", "launch.ranks=2"], "built without NCCL"),
        (["comm.compression=fp16"], "comm.compression=fp16: the arrays are float32"),
        (
            ["launch.hosts=[unknown.invalid:2]", "launch.ranks=2"],
            "launch.hosts: unknown.invalid can't be reached by ssh",
        ),
        (["budget.max_usd=1"], "budget.*: a measurement of all-reduces is limited by allreduce.seconds"),
        (["resume=auto"], "resume=auto: a measurement of all-reduces starts its own runs"),
        (["tracking.uri=x://y"], "tracking.uri=x://y: expected"),
    ],
)
def test_invalid_setting_is_one_line(settings, message, capsys, tmp_path):
    assert message in command_error(capsys, "test-allreduce", f"runs={tmp_path}/runs", *settings)
    assert not list(tmp_path.glob("runs/*/*"))
