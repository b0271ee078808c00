"""Probes, timing, and a diagnosis end to end."""

import sys
from dataclasses import replace

import pytest
from composed import composed_values
from diagnosed import ALL, BASE, TWO, prepared, times
from refusals import error_of

from mxscale.config.schema import from_dict
from mxscale.config.validation import validate
from mxscale.config.verb_settings import Diagnose
from mxscale.diagnose import breakdown, diagnosis, probes, timing
from mxscale.diagnose.advice import advise
from mxscale.diagnose.breakdown import LEVELS, diagnose
from mxscale.environment.machine import multiplies_bf16
from mxscale.launcher.context import Signals
from mxscale.rundir.directory import RunDir
from mxscale.rundir.status import KILLED
from mxscale.util.errors import ConfigError

SCRIPT = """
import json, pathlib, signal, sys, time, yaml
signal.signal(signal.SIGTERM, lambda *_: sys.exit(75))
folder = pathlib.Path(yaml.safe_load(open(sys.argv[1]))["runs"]) / "train" / "now"
folder.mkdir(parents=True)
(folder / "config.yaml").write_text("")
{body}
"""
STEPS = """
for step in range(1, 1000):
    line = {"attempt": 1, "step": step, "time_ms": 0, "metrics": {"throughput/images_per_s": step}}
    with open(folder / "metrics.jsonl", "a") as file:
        file.write(json.dumps(line) + "\\n")
    time.sleep(0.02)
"""


@pytest.fixture
def scripted(tmp_path, monkeypatch):
    """Return a function that times runs whose command is a script."""
    start = timing.subprocess.Popen

    def use(body):
        script = tmp_path / "run.py"
        script.write_text(SCRIPT.replace("{body}", body))
        monkeypatch.setattr(
            timing.subprocess, "Popen", lambda argv, **how: start([sys.executable, script, argv[-1]], **how)
        )
        return lambda count=1, seconds=0.3, signals=None: timing.together(
            [from_dict({})] * count, tmp_path / "probes", seconds, 5, signals or Signals()
        )

    return use


def test_runs_are_timed_after_warm_up_and_stopped(scripted):
    for reading in scripted(STEPS)(count=2):
        assert reading.rates[0] > 5  # warm-up is not included
        assert reading.rates == list(range(int(reading.rates[0]), int(reading.rates[-1]) + 1))
        assert 1 <= len(reading.rates) < 100


def test_run_that_ends_is_a_failed_probe(scripted):
    with pytest.raises(timing.ProbeFailed, match="rank 0: no such thing"):
        scripted("print('error: rank 0: no such thing'); sys.exit(1)")()


def test_refused_run_is_distinct_from_a_failed_one(scripted):
    with pytest.raises(ConfigError, match="no images"):
        scripted("print('error: no images'); sys.exit(2)")()


def test_signal_stops_the_runs(scripted):
    signals = Signals()
    signals.reason = "SIGINT"
    with pytest.raises(timing.Stopped, match="SIGINT"):
        scripted(STEPS)(signals=signals)


def composed(*overrides):
    values, own = composed_values("diagnose", *overrides)
    return validate(from_dict(values)), own.diagnose


def test_command_takes_settings_of_a_run_and_its_own():
    config, own = composed("model=resnet18_v1b", "diagnose.seconds=3")
    assert config.model.name == "resnet18_v1b" and own == Diagnose(3.0, 5, 3)


def test_published_gaps_are_an_experiment():
    config, _ = composed("experiment=adaltas_input", "data.root=/x")
    assert config.claims == ["io-gap-1", "io-gap-32"]


@pytest.mark.parametrize(
    "override, message",
    [
        ("diagnose.seconds=0", "diagnose.seconds=0.0: expected above 0"),
        ("diagnose.seconds=-1", "diagnose.seconds=-1.0: expected above 0"),
        ("diagnose.seconds=nan", "diagnose.seconds=nan: expected above 0"),
        ("diagnose.repeats=1", "diagnose.repeats=1: expected at least 2"),
        ("diagnose.warmup_steps=0.5", "diagnose.warmup_steps=0.5: expected a whole number"),
        ("resume=auto", "resume=auto: a diagnosis starts its own runs"),
        ("claims=[io-gap]", "claims: no published figure is called io-gap"),
    ],
)
def test_invalid_setting_is_one_line(override, message, tmp_path):
    assert error_of(lambda: diagnosis.main(*composed(override, f"runs={tmp_path}"))).startswith(message)
    assert not list(tmp_path.iterdir())


FOUND = {
    "kind": "input",
    "verdict": "input-bound: 25 % slower than synthetic images (24 to 26); exchange 20 %",
    "advice": [one._asdict() for one in advise(diagnose(times(**ALL)), TWO, BASE)],
    "steps_s": {name: one._asdict() for name, one in diagnose(times(**ALL)).steps.items()},
    "images_per_s": {name: diagnosis.rate(one, 64)._asdict() for name, one in diagnose(times(**ALL)).steps.items()},
    "shares": {part: one._asdict() for part, one in diagnose(times(**ALL)).shares.items()},
    "data_wait": 0.2,
    "facts": {"ranks": 2, "cores": 2},
}


def test_table_fits_a_terminal():
    lines = breakdown.text(FOUND).splitlines()
    assert any(line.split()[:8] == ["compute", "alone,", "1", "rank", "x", "2", "640.0", "(631.6"] for line in lines)
    assert any(line.split()[:3] == ["input", "25.0", "%"] for line in lines)
    assert sum("at most" in line for line in lines) == 3
    assert max(map(len, lines)) <= 120


# ---------------------------------------------------------------- the command, with given rates in place of runs

ENVIRONMENT = {"mxnet": {}, "image": {}, "versions": {}, "git": {"commit": None, "dirty": None},
               "machine": {"cpu": "a processor", "cores": 2}}  # fmt: skip


@pytest.fixture
def given(tmp_path, monkeypatch):
    """Return a function that diagnoses a run of two ranks whose probes reach 100, 110, 90, 80, 40 images/s.

    Its arguments are exceptions by probe. It returns the exit status and the RunDir of the record.
    """

    def use(**outcomes):
        def together(configs, folder, seconds, warmup, signals):
            probe = folder.name.rpartition("-")[0] or folder.name
            if folder.name in outcomes or probe in outcomes:
                raise outcomes.get(folder.name, outcomes.get(probe))
            run = RunDir(folder / "0" / "train" / "now")
            run.path.mkdir(parents=True)
            run.write_config(configs[0])
            run.save(replace(prepared().plan, data_digest="d"))
            run.write("environment.json", ENVIRONMENT)
            rate = dict(look=80, compute=50, other_precision=55, side_by_side=45, exchange=80, all=40)[probe]
            return [timing.Reading([rate] * 4, [0.1] * 4, run) for _ in configs]

        monkeypatch.setattr(timing, "together", together)
        monkeypatch.setattr(probes, "multiplies_bf16", lambda: True)
        config, own = composed(
            f"runs={tmp_path}", "tracking=none", "diagnose.repeats=2", "launch.ranks=2", "data.threads=2"
        )
        status = diagnosis.main(config, own)
        (record,) = (tmp_path / "diagnose").iterdir()
        return status, RunDir(record)

    return use


def test_complete_diagnosis_is_recorded(given, capsys):
    status, record = given()
    found = record.read("diagnosis.json")
    assert status == 0 and record.read("status.json")["state"] == "FINISHED"
    rates = {name: round(one["value"], 6) for name, one in found["images_per_s"].items()}
    assert rates == {"compute": 100, "side_by_side": 90, "exchange": 80, "all": 40}
    assert found["verdict"].startswith("input-bound: 50 % slower than synthetic images") and found["repeats"] == 2
    assert found["facts"]["other_precision_s"] == pytest.approx(0.9 * found["steps_s"]["compute"]["value"], rel=0.02)
    assert found["verdict"] in capsys.readouterr().out
    assert record.read("environment.json")["tags"]["kind"] == "diagnose"
    metrics = record.read("summary.json")["metrics"]
    assert metrics["diagnose/gap"] == metrics["diagnose/share/input"] == 0.5
    assert metrics["diagnose/share/input_low"] <= 0.5 <= metrics["diagnose/share/input_high"]
    assert metrics["diagnose/images_per_s/compute"] == pytest.approx(100)


def test_failed_probe_keeps_complete_repetitions(given, capsys):
    status, record = given(**{"exchange-2": timing.ProbeFailed("rank 1: no such thing")})
    assert status == 1 and record.read("status.json")["state"] == "FAILED"
    assert capsys.readouterr().err.splitlines()[-1] == "error: rank 1: no such thing"
    assert record.read("diagnosis.json")["repeats"] == 1


def test_ctrl_c_keeps_partial_results(given, capsys):
    status, record = given(**{"all-2": timing.Stopped("SIGINT")})
    assert status == 75 and record.read("status.json")["state"] == KILLED
    assert set(record.read("diagnosis.json")["times_s"]) == {*LEVELS, "other_precision"}
    assert "interrupted (SIGINT); partial result in" in capsys.readouterr().out


def test_ctrl_c_before_any_measurement(given, capsys):
    status, record = given(look=timing.Stopped("SIGINT"))
    assert status == 75 and record.read("diagnosis.json") is None
    assert "nothing was measured" in capsys.readouterr().out


def test_refusal_of_the_run_is_passed_on(given, tmp_path):
    with pytest.raises(ConfigError, match="no images here"):
        given(look=ConfigError("no images here"))
    assert not list((tmp_path / "diagnose").iterdir())


# as few starts of ranks as possible: no exchange, no batch of twice the size
TINY = ["diagnose.seconds=0.3", "diagnose.repeats=2", "diagnose.warmup_steps=1", "comm=local", "launch.threads=1",
        "data.train_per_class=24", "batch.per_device=64"]  # fmt: skip


@pytest.mark.slow
def test_diagnosis_end_to_end(cli, tmp_path):
    ended = cli("diagnose", *TINY, f"tracking.uri=sqlite:///{tmp_path}/mlflow.db", small=False, timeout=600)
    record, found = ended.run, ended.run.read("diagnosis.json")
    assert record.path.parent.name == "diagnose"
    assert set(found["times_s"]) - {"other_precision"} == {"compute", "all"}
    assert ("other_precision" in found["times_s"]) == multiplies_bf16()
    assert {len(one) for one in found["times_s"].values()} == {2}
    assert sum(share["value"] for share in found["shares"].values()) == pytest.approx(1)
    assert found["verdict"] in ended.out
    assert not list(record.path.glob("probes/**/checkpoints")), "probes' checkpoints are not kept"
    mlflow = pytest.importorskip("mlflow")
    client = mlflow.MlflowClient(f"sqlite:///{tmp_path}/mlflow.db")
    (run,) = client.search_runs([client.get_experiment_by_name("mxscale").experiment_id])  # probes are not recorded
    assert run.data.tags["kind"] == "diagnose" and run.info.status == "FINISHED"
    assert run.data.metrics["diagnose/share/compute"] == pytest.approx(found["shares"]["compute"]["value"])
    assert "diagnosis.json" in {file.path for file in client.list_artifacts(run.info.run_id)}
