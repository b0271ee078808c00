"""bench/gpu_smoke.py: its rows, results and table, and the bench itself on the CPU."""

import json
import subprocess
import sys
import time

import pytest
from composed import composed
from machine import until
from plans import make_sizes
from repository import ROOT

sys.path.append(str(ROOT / "bench"))
import gpu_smoke

from mxscale.cli import settings
from mxscale.rundir.directory import RunDir
from mxscale.rundir.plan import Plan

ROWS = {row.name: row for row in gpu_smoke.training_rows("gpu", quick=False, batch=64)}
MXNET = {"features": ["CUDA", "NCCL"], "horovod": {"version": "0.28.1"}, "gpus": 1}


@pytest.fixture
def smoke(tmp_path):
    return gpu_smoke.Smoke("gpu", str(tmp_path), limit_s=100, total_s=1000)


@pytest.fixture
def ends(monkeypatch):
    """Return a function that sets how every command ends."""

    def set_end(status, out="", err=""):
        done = subprocess.CompletedProcess([], status, out, err)
        monkeypatch.setattr(gpu_smoke, "finished", lambda argv, limit_s: done)

    return set_end


@pytest.fixture
def ended_run(tmp_path, ends):
    """Return a function that makes every command a finished run."""

    def make(ranks=1, **metrics):
        run = RunDir(tmp_path / "run")
        run.path.mkdir()
        run.save(Plan(sizes=make_sizes(ranks)))
        run.write("summary.json", {"metrics": {"throughput/median": 360.4, **metrics}})
        ends(0, f"run       {run}\n")

    return make


@pytest.mark.parametrize("name", ROWS)
def test_the_settings_of_a_row_are_valid(name):
    config = settings.resolve(composed("train", "launch.device=gpu", *ROWS[name].settings))
    assert (config.comm.backend, config.precision) == (ROWS[name].backend, ROWS[name].precision)


@pytest.mark.parametrize(
    "name, device, facts, reason",
    [
        ("digits", "cpu", MXNET, ""),
        ("ResNet-50 224 px amp", "cpu", MXNET, "needs a GPU"),
        ("ResNet-50 224 px amp", "gpu", MXNET, ""),
        ("nccl", "cpu", MXNET, "needs a GPU"),
        ("nccl", "gpu", {**MXNET, "features": ["CUDA"]}, "this MXNet was built without NCCL"),
        ("nccl", "gpu", {}, ""),  # the doctor failed
        ("double buffering", "gpu", {**MXNET, "horovod": {}}, "Horovod is not installed"),
        ("double buffering", "cpu", MXNET, ""),
    ],
)
def test_a_row_that_cannot_run_states_why(name, device, facts, reason):
    assert gpu_smoke.reason_to_skip(ROWS[name], device, facts) == reason


def test_a_failed_command_is_one_line(smoke, ends):
    ends(1, err="warning: slow\nerror: rank 0 failed: out of memory\n")
    assert smoke.train(ROWS["nccl"], 1) == {"result": "failed", "note": "rank 0 failed: out of memory"}
    ends(-9)
    assert smoke.train(ROWS["nccl"], 1)["note"] == "exit status -9"


def test_a_finished_run_has_its_figures(smoke, ended_run):
    ended_run(**{"test/top1": 98.9})
    found = smoke.train(ROWS["digits"], 1)
    assert found == {"result": "ok", "note": "", "ranks": 1, "images_per_s": 360.4, "test_top1": 98.9}


def test_digits_below_the_least_accuracy_fail(smoke, ended_run):
    ended_run(**{"test/top1": 20.0})
    found = smoke.train(ROWS["digits"], 1)
    assert (found["result"], found["note"]) == ("failed", "test top-1 below 95 %")


@pytest.mark.parametrize("ranks, note", [(1, "1 rank: nothing to sum"), (2, "")])
def test_an_exchange_of_one_rank_is_noted(smoke, ended_run, ranks, note):
    ended_run(ranks)
    assert smoke.train(ROWS["double buffering"], 1)["note"] == note


def doctor_output(gpus, *states):
    findings = [{"name": name, "state": state, "cause": f"of {name}", "fix": ""} for name, state in states]
    return json.dumps({"findings": findings, "environment": {"mxnet": {**MXNET, "gpus": gpus}}})


def test_the_doctor_names_failures_and_warnings(smoke, ends):
    ends(1, doctor_output(1, ("gpu", "ok"), ("kernels", "fail"), ("disk", "warn")))
    assert smoke.doctor(1) == {"result": "failed", "note": "kernels: of kernels; warnings: disk"}
    assert smoke.facts == MXNET and smoke.gpu == "of gpu"


def test_a_doctor_without_json_fails(smoke, ends):
    ends(2, err="error: launch.device=x\n")
    assert smoke.doctor(1) == {"result": "failed", "note": "launch.device=x"} and smoke.facts == {}


def test_rows_after_the_total_time_are_skipped(tmp_path):
    smoke = gpu_smoke.Smoke("gpu", str(tmp_path), limit_s=100, total_s=0)
    assert smoke.record("digits", pytest.fail) == {"result": "skipped", "note": "no time left"}


def test_a_row_that_the_total_time_ends_is_skipped(tmp_path):
    smoke = gpu_smoke.Smoke("gpu", str(tmp_path), limit_s=100, total_s=0.2)
    result = smoke.record("digits", lambda limit: gpu_smoke.finished(["-c", "import time; time.sleep(99)"], limit))
    assert (result["result"], result["note"]) == ("skipped", "not finished after 0 s")


def test_ctrl_c_skips_the_remaining_rows(smoke):
    def interrupt(limit_s):
        raise KeyboardInterrupt

    assert smoke.record("digits", interrupt)["note"] == "interrupted"
    assert smoke.record("nccl", pytest.fail) == {"result": "skipped", "note": "interrupted"}


def test_an_unexpected_error_fails_its_row_only(smoke):
    assert smoke.record("digits", lambda limit_s: {}["missing"])["note"] == "KeyError: 'missing'"
    assert smoke.record("nccl", lambda limit_s: {"result": "ok", "note": ""})["result"] == "ok"


@pytest.mark.parametrize("prelude", ["", "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); "])
def test_a_command_ends_with_its_time(smoke, monkeypatch, prelude):
    monkeypatch.setattr(gpu_smoke, "GRACE_S", 0.5)
    smoke.limit_s, began = 1, time.monotonic()
    result = smoke.record(
        "digits", lambda limit: gpu_smoke.finished(["-c", f"{prelude}import time; time.sleep(99)"], limit)
    )
    assert (result["result"], result["note"]) == ("failed", "not finished after 1 s")
    assert time.monotonic() - began < 90


def test_gpu_memory_is_the_largest_sample(tmp_path, monkeypatch):
    tool = tmp_path / "nvidia-smi"
    tool.write_text(
        f"#!/bin/sh\necho x >> {tmp_path}/calls\n[ $(wc -l < {tmp_path}/calls) = 1 ] && echo 900 || echo 500\n"
    )
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    calls = tmp_path / "calls"
    with gpu_smoke.gpu_memory("gpu") as memory:
        until(lambda: calls.exists() and len(calls.read_text().split()) >= 2)
    assert memory == {"gpu_memory_mib": 900}


def test_gpu_memory_without_the_tool_is_unknown(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with gpu_smoke.gpu_memory("gpu") as memory:
        time.sleep(0.7)
    assert memory == {}


def test_a_line_shows_unknown_figures_as_dashes():
    result = {"result": "ok", "note": "", "seconds": 41.2, "images_per_s": 1360.4}
    assert gpu_smoke.line("nccl", result).split() == ["nccl", "ok", "41", "s", "1,360", "-", "-"]


@pytest.fixture
def main(monkeypatch, capsys, tmp_path):
    """Return a function that runs the bench and returns its exit status, its lines and the JSON of the last one."""

    def run(*options):
        monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
        monkeypatch.setattr("signal.signal", lambda *_: None)
        monkeypatch.setattr(sys, "argv", ["gpu_smoke.py", *options])
        status, lines = gpu_smoke.main(), capsys.readouterr().out.splitlines()
        return status, lines, json.loads(lines[-1])

    return run


def test_without_a_gpu_nothing_is_measured(main, ends):
    ends(1, doctor_output(0, ("gpu", "fail")))
    status, lines, figures = main()
    assert status == 0 and lines[0] == "not measured: no GPU (doctor: of gpu)" and "rows" not in figures


def test_a_failed_row_gives_status_1(main, ends):
    ends(1, doctor_output(1, ("kernels", "fail")), "error: no kernel image is available\n")
    status, lines, figures = main()
    assert status == 1 and set(figures["rows"]) == {"doctor", *ROWS} and figures["device"] == "gpu"
    assert all(row["result"] == "failed" for row in figures["rows"].values())
    assert sum("no kernel image is available" in line for line in lines[:-1]) == len(ROWS)


@pytest.mark.slow
def test_the_bench_runs_on_a_cpu():
    argv = ["bench/gpu_smoke.py", "--device", "cpu", "--quick", "--limit", "400", "--minutes", "20"]
    done = subprocess.run([sys.executable, *argv], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = json.loads(done.stdout.splitlines()[-1])["rows"]
    skipped = {name for name, row in rows.items() if row["result"] == "skipped"}
    assert skipped == {"ResNet-50 64 px float16", "ResNet-50 64 px amp", "nccl"}
    assert all(row["images_per_s"] > 0 for name, row in rows.items() if name != "doctor" and name not in skipped)
