"""Reruns: finding, refusing, comparing and judging recorded runs."""

import re
import shutil
import signal
import sqlite3
from dataclasses import replace

import numpy as np
import pytest
from composed import composed
from recorded_runs import PLAN, PRICE, asked, make_run, send, write_lines
from refusals import error_of
from run_files import wait_for_step
from verbs import SMALL

from mxscale.cli import main as command_line
from mxscale.config import signature as identity
from mxscale.config.schema import from_dict
from mxscale.environment import description
from mxscale.launcher import setup
from mxscale.records import recorded
from mxscale.rerun import comparison, rerun
from mxscale.rerun.comparison import DIFFERENT, IDENTICAL, WITHIN, Outcome, judge
from mxscale.rundir import directory
from mxscale.rundir.directory import RunDir
from mxscale.rundir.plan import Plan
from mxscale.rundir.price import Price
from mxscale.rundir.status import SPENT
from mxscale.tracking import history, payload
from mxscale.util.errors import ConfigError

LOSSES = {2: 1.5, 4: 1.25, 6: 1.0}
FIRST = Outcome("aaa", {"test/top1": 99.0, "best/val_top1": 98.0, "throughput/median": 100.0}, LOSSES)
SEEDS = [{"test/top1": 98.0, "best/val_top1": 98.0}, {"test/top1": 100.0, "best/val_top1": 98.0}]
IMAGES = {"test/top1": 200, "best/val_top1": 200}


def again(test=99.0, val=98.0, losses=LOSSES, sha="bbb"):
    return Outcome(sha, {"test/top1": test, "best/val_top1": val}, losses)


def test_same_weights_are_identical():
    judged = judge(FIRST, again(test=1.0, sha="aaa"), [], {})
    assert (judged.kind, judged.first_difference) == (IDENTICAL, None) and "aaa" in judged.why


def test_spread_is_the_prediction_interval_of_seeds():
    # 98, 99, 100: mean 99, s = 1, t(2) = 4.303, sqrt(1 + 1/3) = 1.1547: 99 +- 4.9687, and no more than 100 %
    low, high, text = comparison.spread([99.0, 98.0, 100.0], 0.5)
    assert (low, high) == (pytest.approx(94.0313, abs=1e-4), 100.0)
    assert "3 seeds recorded: median 99.00, 98.00 to 100.00" in text


@pytest.mark.parametrize("test, kind", [(94.5, WITHIN), (94.0, DIFFERENT), (100.0, WITHIN)])
def test_other_weights_are_judged_by_the_spread(test, kind):
    judged = judge(FIRST, again(test), SEEDS, IMAGES)
    assert judged.kind == kind and f"test/top1 99.00 -> {test:.2f} %" in judged.why


def test_every_figure_must_be_within_spread():
    assert judge(FIRST, again(val=90.0), SEEDS, IMAGES).kind == DIFFERENT


def test_other_seeds_of_an_earlier_version_count(tmp_path):
    run = make_run(tmp_path / "runs")
    old = {**payload.params(run), "seed": "7", "comm.update_on": "worker", "comm.timeline": "True"}
    figures = {"test/top1": 98.0}
    assert rerun._seeds(run, [(old, figures), ({**old, "comm.update_on": "server"}, figures)]) == [figures]


def test_equal_seeds_allow_one_image():
    seeds = [{"test/top1": 99.0}] * 3
    assert judge(FIRST, again(98.5), seeds, IMAGES).kind == WITHIN
    assert judge(FIRST, again(98.0), seeds, IMAGES).kind == DIFFERENT


@pytest.mark.parametrize("seeds", [[], SEEDS[:1], [{"other": 1.0}] * 3])
def test_spread_needs_two_other_seeds(seeds):
    judged = judge(FIRST, again(99.0), seeds, IMAGES)
    assert judged.kind == DIFFERENT and "the spread of the seeds is unknown" in judged.why


def test_interval_contains_95_percent_of_seeds():
    drawn = np.random.RandomState(0).normal(50, 1, (2000, 4))
    held = [low <= row[3] <= high for row in drawn for low, high, _ in [comparison.spread(list(row[:3]), 0)]]
    assert np.mean(held) == pytest.approx(0.95, abs=0.015)  # the range of three would hold half of them


def test_first_different_loss_is_reported():
    judged = judge(FIRST, again(losses={2: 1.5, 4: 1.2500001, 6: 0.5}), [], {})
    assert judged.first_difference == {"step": 4, "since": 3, "was": 1.25, "is": 1.2500001}
    assert "that of step 4 (the mean of steps 3 to 4), 1.25 -> 1.2500001" in judged.why
    assert "no recorded loss differs" in judge(FIRST, again(), [], {}).why
    nan = {2: float("nan")}
    assert comparison.first_difference(nan, nan) is None


def test_first_loss_after_resume_is_not_compared(tmp_path):
    run = RunDir(tmp_path)
    write_lines(run, [(1, 2, 1.5), (1, 4, 1.25), (1, 6, 9.0), (2, 6, 0.75), (2, 8, 0.5)])
    run.write("status.json", {"params_sha256": "a"})
    run.write("summary.json", {"metrics": {}})
    assert rerun._outcome(run).losses == {2: 1.5, 4: 1.25, 8: 0.5}


def refused(given, *overrides, **more) -> str:
    return error_of(asked, given, *overrides, **more)


def test_rerun_takes_config_ranks_and_threads_from_record(tmp_path):
    run = make_run(tmp_path, seed=7, epochs=3, optimizer={"lr": 0.25, "params": {"wd_lh": 1}}, name="first")
    config, resumed, first = asked(run, f"runs={tmp_path}/new", "tracking=none")
    assert resumed is None and (config.rerun.run, first.id, first.parent) == (str(run), str(run), None)
    assert (config.seed, config.epochs, config.optimizer) == (7, 3, run.config().optimizer)
    assert (config.launch.ranks, config.launch.threads, config.launch.device) == (2, 3, "cpu")
    assert (config.runs, config.tracking.enabled, config.data.shards) == (f"{tmp_path}/new", False, None)


def test_rerun_ends_where_the_recorded_clock_ended_the_run(tmp_path):
    run = make_run(tmp_path, max_steps=9)
    assert asked(run, "tracking=none")[0].max_steps == 9
    run.save(replace(run.status(), reason=SPENT, step=7))
    assert asked(run, "tracking=none")[0].max_steps == 7


def test_recorded_price_applies_to_current_nodes(tmp_path):
    first = asked(make_run(tmp_path), "tracking=none")[2]
    config, hook = from_dict({"launch": {"setup_minutes": 1.0}, "machine": {"nodes": 4}}), rerun.Rerun(first)
    assert setup.price_of(config, [], None, [hook]) == replace(PRICE, nodes=4, setup_minutes=1.0)
    first.files.save(Price(known=False, why="no price"))
    assert not setup.price_of(config, [], None, [hook]).known  # today's price is not used


def test_other_number_of_ranks_keeps_shards(tmp_path):
    config = asked(make_run(tmp_path), "launch.ranks=1", "launch.stall_s=30", "tracking=none")[0]
    assert (config.launch.ranks, config.data.shards, config.launch.stall_s) == (1, 2, 30.0)
    assert config.launch.threads == 3


@pytest.mark.parametrize(
    "override", ["seed=2", "epochs=3", "optimizer.lr=1", "data=synthetic", "experiment=digits", "model.name=small",
                 "machine.usd_per_hour=1", "comm=local", "data.root=/x", "checkpoint.keep=1"],
)  # fmt: skip
def test_other_overrides_are_refused(tmp_path, override):
    run = make_run(tmp_path)
    assert f"{override} with rerun={run}" in refused(run, override, "tracking=none")


def test_rerun_has_signature_of_recorded_run(tmp_path):
    run = make_run(tmp_path, seed=7)
    config, _, first = asked(run, f"runs={tmp_path}/new", "tracking=none")
    new = directory.create(config)
    rerun.Rerun(first).on_created(new, None)
    signed = [identity.signature(c, "d", None) for c in (run.config(), setup.as_signed(new, config))]
    assert signed[0] == signed[1] != identity.signature(config, "d", None)
    assert setup.as_signed(run, config) is not None and setup.as_signed(run, config) == config  # not a rerun


def test_rerun_id_becomes_a_key_of_the_group():
    digits = "12345678901234567890123456789012"
    assert command_line.canonical(f"rerun={digits}") == f"rerun.run='{digits}'"
    assert composed("train", command_line.canonical(f"rerun={digits}")).rerun.run == digits
    assert command_line.canonical("rerun=runs/train/x") == "rerun.run=runs/train/x"
    for word in ("rerun.strict=true", "rerunning=1", "--help", "-m", "epochs=3"):
        assert command_line.canonical(word) == word


@pytest.mark.parametrize("words", [["rerun="], ["rerun.strict=true"]])
def test_rerun_without_id_is_refused(words):
    with pytest.raises(ConfigError, match=r"rerun\.run is missing: set rerun=ID"):
        composed("train", *map(command_line.canonical, words))


def test_resume_with_rerun_is_refused(tmp_path):
    assert "resume an interrupted rerun with resume=DIR only" in refused(make_run(tmp_path), "resume=/x")


def test_invalid_recorded_setting_names_the_run(tmp_path):
    run = make_run(tmp_path, sweep={"objective": []})
    assert refused(run, "tracking=none").startswith(f"rerun={run}: sweep.objective=[]: ")


def test_rerun_of_unfinished_run_is_refused(tmp_path):
    assert "has not finished (KILLED)" in refused(make_run(tmp_path, "KILLED"), "tracking=none")


def test_run_of_other_script_names_that_script(tmp_path):
    run = make_run(tmp_path)
    error = refused(run, "tracking=none", entry="finetune")
    assert f"that run is one of train: mxscale train rerun={run}" in error


def test_record_of_other_version_is_refused(tmp_path):
    run = make_run(tmp_path)
    text = (run.path / "config.yaml").read_text()
    (run.path / "config.yaml").write_text(text + "gravity: 9.81\n")
    assert f"{run}/config.yaml: unknown key gravity" in refused(run, "tracking=none")
    (run.path / "config.yaml").write_text(text)
    run.save(Plan(sizes=PLAN.sizes))
    assert "another version of mxscale" in refused(run, "tracking=none")


def test_unknown_run_is_refused(tmp_path):
    assert "no such run directory" in refused(f"{tmp_path}/none")
    assert "lacks config.yaml" in refused(tmp_path, "tracking=none")
    assert "no such file" in refused("0" * 32, f"runs={tmp_path}/none")


@pytest.mark.slow
def test_sqlite_store_provides_record_and_seeds(tmp_path):
    runs = tmp_path / "runs"
    run = make_run(runs, seed=1)
    run_id = send(run)
    make_run(runs, seed=1, top1=50.0)  # the same seed does not count
    for seed, top1 in ((2, 98.0), (3, 100.0)):
        send(make_run(runs, seed=seed, top1=top1))
    send(make_run(runs, seed=4, top1=1.0, epochs=2))  # another config
    other = make_run(runs, seed=6, top1=3.0)
    other.save(replace(PLAN, data_digest="e" * 64))  # other data
    killed = send(make_run(runs, "KILLED", seed=5, top1=2.0))
    assert "has not finished (KILLED)" in refused(killed, f"runs={runs}")
    here = asked(run_id, f"runs={runs}")[2]
    by_directory = asked(run, f"runs={runs}")[2]
    shutil.rmtree(runs / "train")
    assert "has not finished (KILLED)" in refused(killed, f"runs={runs}")
    config, _, there = asked(run_id, f"runs={runs}")
    assert here.files.path == run.path != there.files.path
    assert here.config == there.config and config.rerun.run == run_id
    assert here.parent == there.parent == by_directory.parent == run_id
    for first in (here, there, by_directory):
        assert sorted(seed["test/top1"] for seed in first.seeds) == [98.0, 100.0]
    assert [line["step"] for line in there.files.lines()] == [1, 2]
    assert asked(run_id, f"runs={runs}", "tracking.experiment=other")[0].tracking.experiment == "other"
    assert "has no run" in refused("0" * 32, f"runs={runs}")
    (tmp_path / "old").mkdir()
    shutil.copy(runs / "mlflow.db", tmp_path / "old")
    with sqlite3.connect(tmp_path / "old" / "mlflow.db") as store:
        store.execute("UPDATE alembic_version SET version_num = '451aebb31d03'")
    assert "written by another version of MLflow" in refused(run_id, f"runs={tmp_path}/old")
    shutil.rmtree(runs / "artifacts")
    assert "its record lacks config.yaml" in refused(run_id, f"runs={runs}")


def facts(folder, **changes):
    """Return a prepared run directory; changes: plan=..., tags=..., environment=..."""
    folder.mkdir(parents=True, exist_ok=True)
    run = RunDir(folder)
    tags = {"versions": "mxnet=1.9.1 numpy=1.23", "image.id": "sha256:1", "build": "wheel", **changes.get("tags", {})}
    found = {
        "git": {"commit": "abc", "dirty": False},
        "code": "c" * 64,
        "variables": {"OMP_PROC_BIND": "true"},
        "python": "3.11.1",
        "machine": {"cpu": "CPU 1", "cores": 2},
        "mxnet": {"features": ["BLAS_OPEN"], "gpus": 0},
    }
    run.write("environment.json", {**found, "tags": tags, **changes.get("environment", {})})
    run.save(replace(PLAN, **changes.get("plan", {})))
    return run


@pytest.mark.parametrize(
    "changes, text",
    [
        ({}, []),
        ({"environment": {"git": {"commit": "def", "dirty": True}}}, ["commit: abc -> def"]),
        ({"environment": {"code": "d" * 64}}, [f"code: {'c' * 16} -> {'d' * 16}"]),
        ({"tags": {"image.id": None}}, ["image: sha256:1 -> unknown"]),
        ({"tags": {"versions": "mxnet=1.9.1 numpy=1.24"}}, ["numpy: 1.23 -> 1.24"]),
        ({"tags": {"versions": "mxnet=1.9.1"}}, ["numpy: 1.23 -> unknown"]),
        ({"environment": {"machine": {"cpu": "CPU 2", "cores": 4}}}, ["CPU: CPU 1 -> CPU 2", "cores: 2 -> 4"]),
        ({"environment": {"variables": {}}}, ["variables: OMP_PROC_BIND=true -> none"]),
        ({"plan": {"threads": 1}}, ["threads: 3 -> 1"]),
        ({"plan": {"data_digest": "e" * 64}}, [f"data: {'d' * 16} -> {'e' * 16}"]),
        ({"plan": {"pretrained_sha256": "f" * 64}}, [f"pretrained weights: unknown -> {'f' * 16}"]),
    ],
)
def test_differences_are_listed(tmp_path, changes, text):
    assert comparison.between(facts(tmp_path / "then"), facts(tmp_path / "now", **changes)) == text


def test_record_without_variables_compares_none(tmp_path):
    then = facts(tmp_path / "then", environment={"variables": None})
    assert comparison.between(then, facts(tmp_path / "now")) == []


def test_record_without_code_digest_compares_commits(tmp_path):
    def found(dirty):
        then = facts(tmp_path / "then", environment={"code": None, "git": {"commit": "abc", "dirty": dirty}})
        return comparison.between(then, facts(tmp_path / "now"))

    assert found(False) == [] and found(True) == [f"code: unknown -> {'c' * 16}"]


def test_changed_ranks_of_attempts_are_listed(tmp_path):
    then = facts(tmp_path / "then")
    attempts = [{"attempt": n, "ranks": ranks, "started_ms": n} for n, ranks in ((1, 4), (2, None), (3, 2))]
    then.write("status.json", {"attempts": attempts})
    assert comparison.between(then, facts(tmp_path / "now")) == ["ranks of its attempts: 4, then 2 -> 2"]


def test_code_digest_covers_source_files(tmp_path, monkeypatch):
    (tmp_path / "mxscale").mkdir()
    (tmp_path / "mxscale" / "a.py").write_text("1")
    monkeypatch.setattr(description, "ROOT", tmp_path)
    before = description.code()
    (tmp_path / "mxscale" / "notes.txt").write_text("of no import")
    assert description.code() == before
    (tmp_path / "mxscale" / "a.py").write_text("2")
    assert description.code() != before


@pytest.mark.parametrize(
    "comm, text",
    [
        ("backend: dist_device_sync", "not repeatable to the last bit with three machines"),
    ],
)
def test_unrepeatable_exchange_is_announced(comm, text):
    values = dict(word.split(": ") for word in comm.split(", "))
    expected = rerun._expected(from_dict({"comm": values}), PLAN, [])
    assert expected.startswith(f"at best within the spread of the seeds ({text}")


@pytest.mark.slow
def test_resumed_rerun_from_mlflow_is_identical(cli):
    small = [word for word in SMALL if word != "tracking=none"]
    how = ["launch.ranks=2", "comm.double_buffering=true", "machine.usd_per_hour=3.6", "seed=3"]
    first = cli("train", *small, *how, "launch.threads=1", small=False).run
    price, run_id = first.read("price.json"), first.read("tracking.json")["run_id"]
    signature = first.read("environment.json")["tags"]["signature"]

    refusal = cli("train", f"rerun={run_id}", "rerun.strict=true", "launch.threads=2", small=False, expect=2)
    [text] = refusal.err.splitlines()
    assert text.startswith("error: rerun.strict=true: ") and text.endswith("1 -> 2")
    assert [run.path for run in directory.runs_of(cli.folder, "train")] == [first.path]  # nothing is left

    shutil.rmtree(first.path)
    started = cli.start("train", f"rerun={run_id}", "rerun.strict=true", small=False)
    run = cli.run_of(started)
    wait_for_step(run, 3)
    started.send_signal(signal.SIGTERM)
    out = cli.ended(started, expect=75).out
    assert f"rerun     of {run_id}\nexpected  the same weights: nothing differs from the record" in out
    ended = cli("train", f"resume={run}", small=False)
    assert re.search("^  verdict +identical: the same weights to the last bit", ended.out, re.MULTILINE)
    assert ended.run.path == run.path
    judged = run.read("rerun.json")
    assert (judged["verdict"], judged["of"], judged["first_difference"]) == ("identical", run_id, None)
    assert run.read("price.json") == price
    assert run.read("environment.json")["tags"]["signature"] == signature

    import mlflow

    child = mlflow.MlflowClient(f"sqlite:///{cli.folder}/mlflow.db").get_run(run.read("tracking.json")["run_id"])
    tags = child.data.tags
    assert (tags["mlflow.parentRunId"], tags["rerun.of"], tags["rerun.verdict"]) == (run_id, run_id, "identical")
    kept = history.Store(from_dict({"runs": str(cli.folder)})).runs()
    assert len(kept) == 2 and len(recorded.rows(kept)) == 1  # of a report
