"""Sweeps: cells, their directory, the conclusion, and their runs in MLflow."""

import csv
import os
import re
import signal
import time
from contextlib import ExitStack
from dataclasses import asdict, replace

import pytest
from composed import composed
from hydra import compose, initialize_config_dir
from machine import until
from omegaconf import OmegaConf
from repository import ROOT

from mxscale.cli import main, multirun
from mxscale.cli.settings import RESUMABLE, configure
from mxscale.config.schema import Config, Launch, from_dict, to_dict
from mxscale.environment.container_limits import available_cores
from mxscale.launcher.context import Signals
from mxscale.rundir import directory, guards
from mxscale.rundir.directory import RunDir
from mxscale.rundir.status import FAILED, FINISHED, INTERRUPTED, KILLED, RUNNING, Status
from mxscale.rundir.sweep_directory import REFUSED_TRIAL, SweepDirectory, TrialRecord
from mxscale.sweep import conclusion, sweep, trials
from mxscale.sweep.conclusion import Row
from mxscale.sweep.sweep import Trial
from mxscale.tracking import tracker
from mxscale.util.errors import ConfigError


@pytest.mark.parametrize(
    "overrides, name",
    [
        (["optimizer.lr=0.1", "seed=2"], "lr-0.1_seed-2"),
        (["seed=2", "optimizer.lr=0.1"], "seed-2_lr-0.1"),
        (["comm=horovod", "launch.ranks=2"], "comm-horovod_ranks-2"),
        (["optimizer.name=sgd", "model.name=small"], "optimizer.name-sgd_model.name-small"),
        (["model.pretrained=mxscale:source"], "pretrained-mxscale-source"),
        (["data.root=/a/b", "+x.y='p q'"], "root--a-b_y--p-q"),
        (["schedule.milestones=[1,2]"], "milestones--1-2"),
        (["optimizer.lr=1e+30"], "lr-1e+30"),
        ([], "cell"),
    ],
)
def test_cell_name_lists_swept_values(overrides, name):
    assert trials.name(overrides) == name


def test_long_name_is_cut_and_unique():
    names = {trials.name([f"data.root=/{'x' * 200}/{number}"]) for number in range(2)}
    assert len(names) == 2 and all(len(name) <= trials.LONGEST_NAME for name in names)


def test_swept_keys_keep_command_line_order():
    overrides = ["seed=1", "epochs=3", "optimizer.lr=0.1"]
    assert trials.swept(overrides, {"optimizer.lr": "0.1,0.2", "seed": "1,2"}) == ["optimizer.lr=0.1", "seed=1"]


def test_sweep_identity_ignores_order_and_tracking():
    one = trials.identity(["seed=1,2", "optimizer.lr=0.1", "tracking=none", "sweep.resume=true", "runs=/x"])
    assert one == trials.identity(["optimizer.lr=0.1", "tracking.uri=sqlite:///x", "seed=1,2"])
    assert one != trials.identity(["optimizer.lr=0.1", "seed=1,2,3"])


def test_cell_identity_ignores_tracking():
    values = to_dict(Config())
    elsewhere = to_dict(from_dict({"runs": "/x", "tracking": {"uri": "sqlite:////x"}, "sweep": {"resume": True}}))
    assert trials.key(values) == trials.key(elsewhere)
    assert trials.key({**values, "budget": {"max_usd": 1}}) == trials.key(values)
    assert trials.key({**values, "seed": 2}) != trials.key(values)
    of_two = [{**values, "rerun": {"run": run, "strict": False}} for run in ("a", "b")]
    assert trials.key(of_two[0]) == trials.key(of_two[1])
    assert trials.key(of_two[0], ["rerun.run"]) != trials.key(of_two[1], ["rerun.run"])  # swept settings always count
    # Paths count here: digests are unknown before the preparation
    assert trials.key(to_dict(from_dict({"data": {"root": "/a"}}))) != trials.key(values)


@pytest.mark.parametrize(
    "settings, at_a_time, cores, threads",
    [
        ({"launch": {"ranks": 2}}, 2, 16, 4),
        ({"launch": {"ranks": 2}}, 3, 16, 2),
        ({"launch": {"ranks": 1}, "data": {"shards": 4}}, 2, 16, 2),
        ({"launch": {"ranks": "auto"}}, 2, 16, 4),
        ({"launch": {"ranks": "auto"}, "comm": {"backend": "local"}}, 2, 16, 8),
        ({"launch": {"ranks": 4}}, 2, 2, 1),
        ({"launch": {"ranks": 2, "threads": 7}}, 2, 16, 7),
    ],
)
def test_concurrent_cells_share_cores(settings, at_a_time, cores, threads):
    assert trials.threads(from_dict(settings), at_a_time, cores) == threads


def need_optuna(*overrides):
    if "hydra/sweeper=optuna" in overrides:
        pytest.importorskip("hydra_plugins.hydra_optuna_sweeper", reason="make setup-optuna installs it")


def settings_of(*overrides):
    need_optuna(*overrides)
    with initialize_config_dir(str(ROOT / "conf"), version_base="1.3"):
        return compose("train", overrides=list(overrides), return_hydra_config=True)


@pytest.mark.parametrize(
    "launcher, typed, at_a_time",
    [
        (["hydra/launcher=basic"], ["seed=1,2"], 1),
        (["hydra/launcher=joblib", "hydra.launcher.n_jobs=4"], ["seed=1,2"], 2),
        (["hydra/launcher=joblib", "hydra.launcher.n_jobs=4"], ["seed=range(0,3)", "optimizer.lr=0.1,0.2"], 4),
        (["hydra/launcher=submitit_local"], ["seed=1,2,3", "epochs=2"], 3),
        (["hydra/launcher=submitit_local", "hydra.sweeper.max_batch_size=2"], ["seed=1,2,3"], 2),
        (["hydra/launcher=submitit_slurm"], ["seed=1,2,3"], 1),
        (["hydra/launcher=joblib", "hydra.launcher.n_jobs=4", "hydra/sweeper=optuna", "hydra.sweeper.n_jobs=3"],
         ["optimizer.lr=interval(0.1,1)"], 3),
    ],
)  # fmt: skip
def test_hydra_launcher_determines_concurrent_cells(launcher, typed, at_a_time):
    assert multirun.facts_of(settings_of(*launcher), typed)["at_a_time"] == at_a_time


@pytest.mark.parametrize(
    "given, typed, message",
    [
        ([], ["seed=range(1,1)"], r"seed=range\(1,1\): the list of values is empty"),
        ([], ["seed=1,2", "experiment=glob(no-such*)"], r"experiment=glob\(no-such\*\): the list of values is empty"),
        (["hydra.sweeper.max_batch_size=0"], ["seed=1,2"], "hydra.sweeper.max_batch_size=0: expected at least 1"),
        (["hydra/sweeper=optuna", "hydra.sweeper.n_jobs=0"], ["seed=1,2"], "hydra.sweeper.n_jobs=0: expected at"),
        (["hydra/sweeper=optuna", "hydra.sweeper.n_jobs=-1"], ["seed=1,2"], "hydra.sweeper.n_jobs=-1: expected at"),
        (["hydra/sweeper=optuna", "hydra.sweeper.n_trials=0"], ["seed=1,2"], "hydra.sweeper.n_trials=0: expected at"),
        (["hydra/launcher=joblib", "hydra.launcher.n_jobs=0"], ["seed=1,2"], "hydra.launcher.n_jobs=0: expected the"),
        (["hydra/sweeper=optuna"], ["seed=range(1,1)"], r"seed=range\(1,1\): the list of values is empty"),
    ],
)
def test_sweep_without_cells_is_refused(given, typed, message):
    config = settings_of(*given)
    with initialize_config_dir(str(ROOT / "conf"), version_base="1.3"), pytest.raises(ConfigError, match=message):
        multirun.facts_of(config, typed)


def test_optuna_directions_follow_objective():
    hydra = settings_of("hydra/sweeper=optuna").hydra
    multirun.suit(hydra, ["accuracy", "cost"])
    assert list(hydra.sweeper.direction) == ["maximize", "minimize"]
    assert (hydra.sweeper.max_failure_rate, hydra.sweeper.sampler.seed) == (1.0, 1)
    given = ["hydra.sweeper.direction=minimize", "hydra.sweeper.sampler.seed=7"]
    hydra = settings_of("hydra/sweeper=optuna", *given).hydra
    multirun.suit(hydra, ["accuracy"])
    assert (str(hydra.sweeper.direction), hydra.sweeper.sampler.seed) == ("minimize", 7)


def test_optuna_storage_is_refused():
    hydra = settings_of("hydra/sweeper=optuna", "hydra.sweeper.storage='sqlite:///x.db'").hydra
    with pytest.raises(ConfigError, match="storage"):
        multirun.suit(hydra, ["accuracy"])


def row(number, state=FINISHED, how="run", error=None, status=0, **figures):
    names = {"top1": "best/val_top1", "usd": "cost/total_usd", "wall": "time/wall_s"}
    cell = TrialRecord(1, number, str(number), f"lr-{number}", [f"lr={number}"], how, "/run", state, status, error)
    return Row(cell, {names[key]: value for key, value in figures.items()})


ROWS = [
    row(0, top1=90.0, usd=2.0, wall=30.0),
    row(1, top1=80.0, usd=1.0, wall=40.0),
    row(2, top1=70.0, usd=1.5, wall=20.0, how="kept"),
    row(3, FAILED, top1=99.0, usd=0.1, wall=1.0, error="rank 0: the loss is nan", status=1),
    row(4, REFUSED_TRIAL, error="optimizer.lr=-1.0: expected at least 0", status=2),
]


def test_conclusion_names_best_cheapest_fastest():
    found = {title: row.trial.name for title, row in conclusion.chosen(ROWS).items()}
    assert found == {"best": "lr-0", "cheapest": "lr-1", "fastest": "lr-2"}


def test_unknown_figures_name_no_cell():
    assert list(conclusion.chosen([row(0, top1=90.0)])) == ["best"]
    assert ("cheapest", "unknown: no price") in list(conclusion.verdict([row(0, top1=90.0)]))


def test_table_lists_state_of_each_cell():
    lines = [line.split() for line in conclusion.table(ROWS).splitlines()]
    assert lines[1][:3] == ["0", "lr-0", "finished"] and lines[1][3:] == ["90.00", "%", "30.0", "s", "2.0000", "USD"]
    assert lines[3][:4] == ["2", "lr-2", "finished", "earlier"]
    assert lines[4][:3] == ["3", "lr-3", "failed"]
    assert ["failed", "lr-3:", "rank", "0:", "the", "loss", "is", "nan"] in lines
    assert ["refused", "lr-4:", "optimizer.lr=-1.0:", "expected", "at", "least", "0"] in lines
    assert ["finished", "3", "of", "5"] in lines


def test_the_parent_run_is_described_by_its_end_and_its_trials():
    command = ["mxscale", "train", "-m", "seed=1,2"]
    failed = conclusion.note_of(command, Status(FAILED, error="seed-1: no"), ROWS[0], "seed-1  failed")
    assert failed.splitlines()[0] == "**Failed: seed-1: no**; metrics of the best trial, lr-0"
    assert "mxscale train -m seed=1,2\n" in failed and "seed-1  failed\n" in failed
    stopped = conclusion.note_of(command, Status(KILLED, reason="signal SIGINT"), None, "")
    assert stopped.splitlines()[0] == "**Interrupted (signal SIGINT)**"


def test_sweep_status_is_worst_of_cells():
    def ends(*rows, stopped=None):
        status = conclusion.outcome(rows, stopped)
        return status.state, status.exit

    assert ends(ROWS[0], ROWS[1]) == (FINISHED, 0)
    assert ends(ROWS[0], ROWS[3]) == (FAILED, 1)
    assert ends(*ROWS) == (FAILED, 2)
    assert ends(ROWS[0], row(1, KILLED, status=INTERRUPTED)) == (KILLED, INTERRUPTED)
    assert ends(ROWS[0], row(1, RUNNING, status=None)) == (KILLED, INTERRUPTED)  # its process is gone
    assert ends(ROWS[0], stopped="signal SIGINT") == (KILLED, INTERRUPTED)


def test_csv_has_one_line_per_cell():
    lines = list(csv.DictReader(conclusion.as_csv(ROWS).splitlines()))
    assert [line["name"] for line in lines] == [f"lr-{number}" for number in range(5)]
    assert (lines[0]["best/val_top1"], lines[4]["best/val_top1"]) == ("90.0", "")


@pytest.mark.parametrize(
    "objective, metrics, values",
    [
        (["accuracy"], {"best/val_top1": 90.0}, 90.0),
        (["cost"], {"cost/total_usd": 2.0, "cost/total_eur": 3.0}, 2.0),
        (["cost"], {"cost/total_eur": 3.0}, 3.0),
        (["accuracy", "cost"], {"best/val_top1": 90.0, "cost/total_usd": 2.0}, [90.0, 2.0]),
        (["cost", "accuracy"], {"best/val_top1": 90.0, "cost/total_usd": 2.0}, [2.0, 90.0]),
        (["accuracy", "cost"], {"best/val_top1": 90.0}, None),
        (["accuracy"], {"best/val_top1": float("nan")}, None),
    ],
)
def test_objective_values_are_none_if_one_is_unknown(objective, metrics, values):
    assert sweep.objective_values(metrics, objective) == values


@pytest.mark.parametrize("objective", ["[]", "[speed]", "[cost,cost]"])
def test_unknown_objective_is_refused(objective):
    with pytest.raises(ConfigError, match="objective"):
        composed("train", f"sweep.objective={objective}")


FACTS = {"swept": {"seed": "1,2,3"}, "sweeper": "basic", "launcher": "basic", "at_a_time": 1}
TYPED = ["seed=1,2,3"]


def begun(tmp_path, **values) -> SweepDirectory:
    with ExitStack() as held:
        return sweep.begin(to_dict(from_dict({"runs": str(tmp_path), **values})), TYPED, FACTS, held)


def cell_of(found: SweepDirectory, seed: int, **values) -> Trial:
    return Trial(found, seed - 1, to_dict(from_dict({"runs": str(found.path.parents[1]), "seed": seed, **values})),
                [f"seed={seed}"], None)  # fmt: skip


def ran(cell: Trial, state=FINISHED, top1=50.0, recorded=True) -> RunDir:
    """Run a cell; recorded=False: its process was killed before it could record the end."""
    values, _ = cell.settings(())
    run = directory.create(from_dict(values))
    cell.on_created(run, Signals())
    run.write("status.json", {"state": state, "exit": 0, "attempts": [{"attempt": 1, "started_ms": 1, "ended_ms": 2}]})
    run.write("summary.json", {"metrics": {"best/val_top1": top1}})
    if recorded:
        cell.record_end(Status(state, exit={FINISHED: 0, FAILED: 1, KILLED: 75}[state]))
    return run


def test_resumed_sweep_runs_unfinished_cells(tmp_path):
    first = begun(tmp_path)
    done, failed, interrupted = (cell_of(first, seed) for seed in (1, 2, 3))
    runs = ran(done), ran(failed, FAILED), ran(interrupted, KILLED, recorded=False)
    again = begun(tmp_path, sweep={"resume": True})
    assert again.path == first.path and again.attempt == 2

    assert cell_of(again, 1).finished_before() and again.trials()[0].how == "kept"
    assert again.trials()[0].run == str(runs[0])

    cell = cell_of(again, 2)
    assert cell.finished_before() is False
    assert cell.settings(())[0]["resume"] is None and cell.record.how == "run"

    cell = cell_of(again, 3)
    assert cell.finished_before() is False
    values, overrides = cell.settings(("launch",))
    assert values["resume"] == str(runs[2]) and overrides == [] and cell.record.how == "resumed"


def test_cell_with_edited_settings_replaces_its_earlier_record(tmp_path):
    ran(cell_of(begun(tmp_path), 1), FAILED)
    again = begun(tmp_path, sweep={"resume": True})
    edited = cell_of(again, 1, epochs=3)
    assert not edited.finished_before()
    ran(edited)
    assert [(cell.key, cell.state) for cell in again.trials()] == [(edited.record.key, FINISHED)]


def test_repeated_cell_runs_once(tmp_path):
    found = begun(tmp_path)
    ran(cell_of(found, 1))
    asked_again = Trial(found, 7, to_dict(from_dict({"runs": str(tmp_path), "seed": 1})), ["seed=1"], None)
    assert asked_again.finished_before()
    (cell,) = found.trial_records()
    assert (cell.number, cell.how) == (0, "run")


def test_interrupted_cell_is_resumed(tmp_path):
    run = ran(cell_of(begun(tmp_path), 3), KILLED)
    again = begun(tmp_path, sweep={"resume": True})
    values = to_dict(from_dict({"runs": str(tmp_path), "seed": 3, "tracking": {"experiment": "other"}}))
    cell = Trial(again, 2, values, ["experiment=digits", "seed=3", "tracking.experiment=other"], None)
    config, found, _ = configure(*cell.settings(RESUMABLE))
    assert found.path == run.path
    assert (config.name, config.seed, config.tracking.experiment) == ("seed-3", 3, "other")


def test_refused_resume_keeps_the_run(tmp_path):
    run = ran(cell_of(begun(tmp_path), 3), KILLED)
    cell = cell_of(begun(tmp_path, sweep={"resume": True}), 3)
    cell.settings(())
    cell.record_end(Status(REFUSED_TRIAL, exit=2, error="budget.max_usd=1: it is spent"))
    assert cell_of(begun(tmp_path, sweep={"resume": True}), 3).settings(())[0]["resume"] == str(run)


@pytest.mark.parametrize("state", [KILLED, FAILED, REFUSED_TRIAL])
def test_cell_whose_run_was_resumed_by_hand_has_finished(tmp_path, state):
    cell = cell_of(begun(tmp_path), 3)
    run = ran(cell, KILLED)
    cell.record_end(Status(state, exit=2, error="that run is finished"))
    run.save(replace(run.status(), state=FINISHED, exit=0))
    assert cell_of(begun(tmp_path, sweep={"resume": True}), 3).finished_before()


def test_resume_of_sweep_directory_is_refused(tmp_path):
    found = begun(tmp_path)
    with pytest.raises(ConfigError, match=f"resume={found.path} is a sweep, not one run"):
        configure(to_dict(from_dict({"resume": str(found.path)})), [f"resume={found.path}"])


def test_cell_without_run_directory_runs_again(tmp_path):
    run = ran(cell_of(begun(tmp_path), 1))
    (run.path / "summary.json").unlink()
    assert cell_of(begun(tmp_path, sweep={"resume": True}), 1).finished_before() is False


def test_other_settings_make_another_cell(tmp_path):
    ran(cell_of(begun(tmp_path), 1))
    assert cell_of(begun(tmp_path, sweep={"resume": True}), 1, epochs=3).finished_before() is False


def test_cell_state_comes_from_its_run(tmp_path):
    ran(cell_of(begun(tmp_path), 1), recorded=False)
    assert cell_of(begun(tmp_path, sweep={"resume": True}), 1).finished_before()


def test_concurrent_cells_get_a_share_of_cores(tmp_path, monkeypatch):
    monkeypatch.setattr(sweep, "available_cores", lambda: 8)
    found = begun(tmp_path)
    found.write("sweep.json", {**found.facts(), "at_a_time": 2})
    values, _ = cell_of(found, 1, launch=asdict(Launch(ranks=2))).settings(())
    assert (values["launch"]["threads"], values["name"]) == (2, "seed-1")


def test_resume_of_running_sweep_is_refused(tmp_path):
    found = begun(tmp_path)
    with guards.locked(found), pytest.raises(ConfigError, match="in use"):
        begun(tmp_path, sweep={"resume": True})


def test_sweep_directory_is_locked_while_it_is_written(tmp_path, monkeypatch):
    begun(tmp_path)
    write, written = SweepDirectory.write, []

    def refused_to_others(found, name, values):
        with pytest.raises(ConfigError, match="in use"), guards.locked(found):
            pass
        written.append(name)
        write(found, name, values)

    monkeypatch.setattr(SweepDirectory, "write", refused_to_others)
    begun(tmp_path, sweep={"resume": True})
    assert "sweep.json" in written


@pytest.mark.slow
def test_resume_in_another_order_keeps_the_numbers_of_cells(tmp_path, data_cache):
    swept = ["schedule.kind=x,y", "seed=1,2"]  # refused cells, which take no time
    usual = [f"runs={tmp_path}", f"data.cache={data_cache}", "tracking=none", "-m"]
    assert main.main(["train", *swept, *usual]) == 2
    assert main.main(["train", *reversed(swept), "sweep.resume=true", *usual]) == 2
    (found,) = map(SweepDirectory, (tmp_path / "sweeps").iterdir())
    by_attempt = {1: {}, 2: {}}
    for cell in found.trial_records():
        by_attempt[cell.attempt][cell.number] = sorted(cell.overrides)
    assert by_attempt[1] == by_attempt[2] and len(by_attempt[1]) == 4


def test_cost_objective_needs_price(tmp_path):
    found = begun(tmp_path, sweep={"objective": ["cost"]})
    with pytest.raises(ConfigError, match=r"sweep.objective has cost.*machine.usd_per_hour"):
        cell_of(found, 1).settings(())
    cell_of(found, 1, machine={"provider": "custom", "usd_per_hour": 1.0}).settings(())


def test_each_stop_request_reaches_other_processes_once(tmp_path):
    found = begun(tmp_path)
    found.write("sweep.json", {**found.facts(), "process": ["elsewhere", 1]})
    received, before = [], {n: signal.getsignal(n) for n in (signal.SIGTERM, signal.SIGUSR2, *multirun.TERMINAL)}
    try:
        with cell_of(found, 1).following_stop_requests():
            os.kill(os.getpid(), signal.SIGTERM)  # before the run listens, it ends nothing
            signal.signal(signal.SIGTERM, lambda *_: received.append(time.monotonic()))  # as a run does
            assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN  # the sweep's own process handles Ctrl-C
            for count in (1, 2):
                found.ask_to_stop("\n".join(["signal SIGINT"] * count))
                until(lambda: len(received) >= count)  # noqa: B023
                time.sleep(2 * sweep.POLL_S)
                assert len(received) == count
            os.kill(os.getpid(), signal.SIGUSR2)  # submitit's, before a time limit
            assert len(received) == 3
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@pytest.mark.slow
def test_cells_are_children_of_sweep_run(tmp_path):
    from mlflow import MlflowClient

    client = MlflowClient(f"sqlite:///{tmp_path}/mlflow.db")
    found = begun(tmp_path)
    runs = [ran(cell_of(found, seed), top1=10.0 * seed) for seed in (1, 2)]
    assert [tracker.sync(run) for run in runs] == [0, 0]
    assert conclusion.end(found, found.config().tracking, None) == 0

    def runs_in():
        [experiment] = [e for e in client.search_experiments() if e.name == "mxscale"]
        everything = client.search_runs([experiment.experiment_id])
        parents = [run for run in everything if "mlflow.parentRunId" not in run.data.tags]
        return parents, [run for run in everything if run not in parents]

    [parent], children = runs_in()
    assert parent.info.status == "FINISHED"
    assert {run.data.tags["sweep.name"] for run in children} == {"seed-1", "seed-2"}
    assert parent.data.params["seed"] == "1,2,3"
    assert parent.data.metrics["best/val_top1"] == 20  # of the best trial
    note = parent.data.tags["mlflow.note.content"]
    assert note.startswith("**Finished**; metrics of the best trial, seed-2") and "20.00 %" in note
    assert {"table.csv", "sweep.json"} <= {file.path for file in client.list_artifacts(parent.info.run_id)}

    client.delete_run(parent.info.run_id)
    again = begun(tmp_path, sweep={"resume": True})
    assert [cell_of(again, seed).finished_before() for seed in (1, 2)] == [True, True]
    assert tracker.sync(ran(cell_of(again, 3), top1=30.0)) == 0
    [new], children = runs_in()
    assert new.info.run_id != parent.info.run_id and len(children) == 3
    assert {run.data.tags["mlflow.parentRunId"] for run in children} == {parent.info.run_id, new.info.run_id}
    assert tracker.sync(again) == 0  # as `mxscale sync`, of a sweep whose process was killed
    assert client.get_run(new.info.run_id).info.status == "KILLED"


SHORT = ["data.train_per_class=24", "batch.per_device=12", "epochs=1", "max_steps=2", "log_every=1", "launch.ranks=1",
         "machine=custom", "machine.usd_per_hour=3.6"]  # fmt: skip


def of(cli) -> SweepDirectory:
    [found] = (cli.folder / sweep.FOLDER).iterdir()
    return SweepDirectory(found)


@pytest.fixture(scope="module")
def resumed(shared_cli):
    """A sweep with two concurrent cells and two diverging ones, stopped during the first two, then resumed."""
    grid = [*SHORT, "optimizer.lr=0.1,1e30", "seed=1,2"]
    side_by_side = ["hydra/launcher=joblib", "hydra.launcher.n_jobs=2"]
    process = shared_cli.start("train", *grid, *side_by_side, "-m", small=False)
    shared_cli.run_of(process)
    shared_cli.run_of(process)  # of the second cell; its ranks start now
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does, to joblib's processes too
    stopped = shared_cli.ended(process, expect=INTERRUPTED)
    states = [cell.state for cell in of(shared_cli).trials()]
    second = shared_cli("train", *grid, "sweep.resume=true", "-m", small=False, expect=1)
    return of(shared_cli), stopped, states, second


@pytest.mark.slow
def test_stopped_sweep_starts_no_further_cell(resumed):
    _, stopped, states, _ = resumed
    assert states == [KILLED, KILLED]
    assert re.search(r"^  finished +0 of 4$", stopped.out, re.MULTILINE)


@pytest.mark.slow
def test_resumed_sweep_continues_after_failed_cell(resumed):
    found, _, _, second = resumed
    assert [(cell.name, cell.how, cell.state) for cell in found.trials()] == [
        ("lr-0.1_seed-1", "resumed", FINISHED),
        ("lr-0.1_seed-2", "resumed", FINISHED),
        ("lr-1e+30_seed-1", "run", FAILED),
        ("lr-1e+30_seed-2", "run", FAILED),
    ]
    assert len(list(found.path.parents[1].glob("train/*"))) == 4  # none was run twice
    assert re.search(r"^  0\*? +lr-0.1_seed-1 +finished, resumed +\d", second.out, re.MULTILINE)
    assert re.search(r"^  failed +lr-1e\+30_seed-2: rank 0: the loss is (nan|inf) at step", second.out, re.MULTILINE)
    assert found.read("status.json")["state"] == FAILED


@pytest.mark.slow
def test_later_cell_is_billed_from_its_start(resumed):
    found, _, _, _ = resumed
    status = [RunDir(cell.run).read("status.json") for cell in found.trials()]
    assert status[3]["attempts"][0]["started_ms"] >= status[2]["attempts"][-1]["ended_ms"]


@pytest.mark.slow
def test_mlflow_nests_cells_below_sweep(resumed):
    from mlflow import MlflowClient

    found, _, _, _ = resumed
    client = MlflowClient(f"sqlite:///{found.path.parents[1]}/mlflow.db")
    [experiment] = [each for each in client.search_experiments() if each.name == "mxscale"]
    runs = client.search_runs([experiment.experiment_id])
    [parent] = [run for run in runs if run.info.run_name == found.path.name]
    assert {run.data.tags.get("mlflow.parentRunId") for run in runs if run is not parent} == {parent.info.run_id}
    assert len(runs) == 5
    assert parent.info.status == "FAILED"
    finished = [run for run in runs if run.info.status == "FINISHED"]
    assert parent.data.metrics["best/val_top1"] == max(run.data.metrics["best/val_top1"] for run in finished)
    assert parent.data.tags["mlflow.note.content"].startswith("**Failed: lr-1e+30_seed-1: ")
    assert {"table.csv", "report.html"} <= {file.path for file in client.list_artifacts(parent.info.run_id)}
    assert "2 runs, 2 finished, in 1 row" in (found.path / "report.html").read_text()


@pytest.mark.slow
def test_optuna_gets_objectives_of_concurrent_cells(cli):
    command = [*SHORT, "tracking=none", "hydra/sweeper=optuna", "hydra.sweeper.n_trials=3", "hydra.sweeper.n_jobs=2",
               "hydra/launcher=joblib", "hydra.launcher.n_jobs=2", "optimizer.lr=tag(log,interval(0.01,1))",
               "sweep.objective=[accuracy,cost]"]  # fmt: skip
    need_optuna(*command)
    cli("train", *command, "-m", small=False)
    found = of(cli)
    first = found.trials()
    assert [cell.state for cell in first] == [FINISHED] * 3
    runs = [RunDir(cell.run) for cell in first]
    figures = [run.read("summary.json")["metrics"] for run in runs]
    objectives = [[each["best/val_top1"], each["cost/total_usd"]] for each in figures]
    solutions = OmegaConf.load(found.path / "optimization_results.yaml").solutions
    assert solutions and all(list(each["values"]) in objectives for each in solutions)
    # Two at a time, by two processes, each with half of the cores
    spans = [run.read("status.json")["attempts"][0] for run in runs]
    assert spans[1]["started_ms"] < spans[0]["ended_ms"] and spans[0]["started_ms"] < spans[1]["ended_ms"]
    assert runs[0].config().launch.threads == max(1, available_cores() // 2)
    # Equal results lead to equal trials
    cli("train", *command, "sweep.resume=true", "-m", small=False)
    assert [(cell.key, cell.how) for cell in found.trials()] == [(cell.key, "kept") for cell in first]


@pytest.mark.slow
def test_submitit_sweep_exits_with_worst_status(cli):
    cells = ["optimizer.lr=${optimizer.l},0.1,-1", "hydra/launcher=submitit_local", "tracking=none", "-m"]
    ended = cli("train", *SHORT, *cells, small=False, expect=2)
    assert [cell.state for cell in of(cli).trials()] == [REFUSED_TRIAL, FINISHED, REFUSED_TRIAL]
    assert re.search(r"lr--1: optimizer.lr=-1.0: expected at least 0$", ended.out, re.MULTILINE)
    refusal = "optimizer.lr: Interpolation key 'optimizer.l' not found$"
    assert re.search(refusal, ended.out, re.MULTILINE)


@pytest.mark.parametrize(
    "words, message",
    [
        (["seed=range(1,1)", "-m"], "seed=range(1,1): "),
        (["seed=1,2", "hydra/launcher=joblb", "-m"], "hydra/launcher=joblb: did you mean joblib?"),
        (["seed=1,2", "sweep.resume=true", "-m"], "sweep.resume=true: no sweep of this command line"),
        (["sweep.resume=true"], "sweep.resume=true without -m"),
    ],
)
def test_refused_command_line_leaves_no_sweep(refused, words, message):
    assert refused(*words).startswith(f"error: {message}")
