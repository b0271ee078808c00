"""Run directory -> MLflow, against real MLflow stores and servers.  No mocks; faults are real ones."""

import json
import math
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
import recorded_runs
from machine import free_port, until
from refusals import contains, error_of
from repository import ROOT
from tracked_runs import T0, Server, add_lines, add_sample, client_of, end, make_run, points_in, points_of, runs_in

from mxscale.cli import settings
from mxscale.config.schema import Tracking, from_dict
from mxscale.records import learning_curves
from mxscale.rundir import directory
from mxscale.tracking import experiment_view, history, payload, store, sync_state, tracker, uris


def cost(line):
    return {"cost/usd": line["step"] * 0.01}


def child(code, *arguments, **options):
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", code, *map(str, arguments)]
    return subprocess.Popen(command, env=environment, text=True, stdout=-1, stderr=-1, **options)


SYNC = "import sys; from mxscale.cli.main import main; sys.exit(main(['sync', sys.argv[1]]))"

# Syncs that are killed before a write of their state, one after another, and a last one that is not. MLflow, whose
# import takes seconds, is imported once.
DYING_SYNCS = """
import os, signal, sys
import mlflow
from mxscale.cli.main import main
from mxscale.tracking import sync_state

save, run = sync_state.save, sys.argv[1]

def dying_save(*arguments):
    global writes
    writes -= 1
    if writes < 0:
        os.kill(os.getpid(), signal.SIGKILL)
    save(*arguments)

sync_state.save = dying_save
for writes in map(int, sys.argv[2:]):
    process = os.fork()
    if process == 0:
        os._exit(main(["sync", run]))
    status = os.waitpid(process, 0)[1]
    assert os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL, status
sync_state.save = save
sys.exit(main(["sync", run]))
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    server = Server(tmp_path_factory.mktemp("server"))
    server.start()
    yield server
    server.kill()


def test_store_uri(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert uris.store_uri(Tracking(), "r") == f"sqlite:///{tmp_path}/r/mlflow.db"
    assert uris.store_uri(Tracking(uri="sqlite:///x.db"), "r") == f"sqlite:///{tmp_path}/x.db"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://host:5000")
    assert uris.store_uri(Tracking(), "r") == "http://host:5000"
    assert uris.store_uri(Tracking(uri="https://other"), "r") == "https://other"
    for wrong in ("mlruns", "file:///tmp/mlruns", "htp://x"):
        assert error_of(uris.store_uri, Tracking(uri=wrong), "r").startswith(f"tracking.uri={wrong}: expected ")


def test_view_hint(tmp_path):
    run = make_run(tmp_path)
    assert "not in MLflow" in sync_state.view_hint(run)
    sent = sync_state.Sent("id", f"sqlite:///{tmp_path}/mlflow.db", "mxscale", "1", "abc")
    sync_state.save(run, sent)
    page = "http://127.0.0.1:5000/#/experiments/1/runs/abc?workflowType=machine_learning"
    assert sync_state.view_hint(run) == f"mlflow ui --backend-store-uri {sent.uri}, then {page}"
    sync_state.save(run, sync_state.Sent("id", f"sqlite:///{sync_state.ROOT}/runs/mlflow.db", "mxscale", "1", "abc"))
    assert sync_state.view_hint(run) == f"make ui, then {page}"
    sync_state.save(run, sync_state.Sent("id", "http://host:5000", "mxscale", "2", "def"))
    assert sync_state.view_hint(run) == "http://host:5000/#/experiments/2/runs/def?workflowType=machine_learning"
    assert sync_state.load(run, sent.uri, "mxscale") == sync_state.Sent("id", sent.uri, "mxscale")


def test_a_run_is_named_by_what_differs_and_described_by_its_command_and_result(tmp_path):
    run = make_run(tmp_path, entry="finetune")
    assert payload.run_name(run, "3fa1c0de") == run.path.name and payload.description(run) is None  # not prepared
    end(run)
    assert payload.run_name(run, "3fa1c0de") == "finetune small digits 2 ranks 3fa1"
    run.write("cell.json", {"sweep": "s", "number": 0, "name": "optimizer.lr=0.2,seed=1"})
    assert payload.run_name(run, "3fa1c0de").startswith("optimizer.lr=0.2,seed=1 finetune small")
    (run.path / "overrides.yaml").write_text("1: [name=my run, optimizer.lr=0.2]\n")
    found = payload.tags(run, "abc")["mlflow.note.content"]
    result = "**97.50 % val top-1, cost unknown**"
    assert found.startswith(f"{result}\n\n```\nmxscale finetune 'name=my run' optimizer.lr=0.2\n```\n\n```\n")
    add_lines(run, 0, 3)
    assert learning_curves.save(run) is None
    figure = "\n\n![learning curves](get-artifact?path=learning-curves.png&run_uuid=abc)\n\n"
    assert figure in payload.description(run, "abc") and figure not in payload.description(run)


def test_a_name_that_the_user_gave_comes_first(tmp_path):
    run = make_run(tmp_path, name="wide")
    end(run)
    assert payload.run_name(run, "3fa1c0de") == "wide small digits 2 ranks 3fa1"


@pytest.mark.parametrize(
    "status, line",
    [
        (
            {"state": "KILLED", "reason": "signal SIGINT", "step": 8},
            "**Interrupted at step 8** (signal SIGINT); resume",
        ),
        ({"state": "KILLED"}, "**Interrupted** (killed); resume with `mxscale train resume={run}`\n"),
        ({"state": "FAILED", "step": 3, "error": "rank 1 ended"}, "**Failed at step 3**: rank 1 ended\n"),
        ({"state": "FINISHED"}, "**97.50 % val top-1"),
    ],
)
def test_the_description_says_how_an_unfinished_run_ended(tmp_path, status, line):
    run = make_run(tmp_path)
    end(run)
    run.write("status.json", {**run.read("status.json"), **status})
    assert payload.description(run).startswith(line.format(run=run))


@pytest.mark.slow
def test_a_figure_that_cannot_be_drawn_is_one_line(tmp_path, capsys):
    run = make_run(tmp_path)
    add_lines(run, 0, 3)
    end(run)
    (run.path / learning_curves.FILE / "in the way").mkdir(parents=True)
    assert tracker.sync(run) == 0
    (problem, sent) = capsys.readouterr().out.splitlines()
    assert problem.startswith("tracking: no learning curves: ") and "3 lines sent" in sent


@pytest.mark.slow
def test_an_experiment_has_a_view_that_users_may_change(tmp_path):
    uri = f"sqlite:///{tmp_path}/mlflow.db"
    client = client_of(uri)
    number = client.create_experiment("mxscale", str(tmp_path / "artifacts"))  # of an earlier version: without a view
    for expected in (experiment_view.tag()[experiment_view.TAG], "changed"):
        if expected == "changed":
            client.set_experiment_tag(number, experiment_view.TAG, expected)
        run = make_run(tmp_path)
        end(run)
        assert tracker.sync(run) == 0
        assert client.get_experiment(number).tags[experiment_view.TAG] == expected


def test_copied_run_directory_is_another_run(tmp_path):
    run = make_run(tmp_path)
    sync_state.save(run, sync_state.Sent("id", "http://host", "mxscale", "2", "def", lines_sent=3))
    copy = directory.RunDir(run.path.parent / "copy")
    subprocess.run(["cp", "-r", run.path, copy.path], check=True)
    assert sync_state.load(copy, "http://host", "mxscale").id != "id"
    subprocess.run(["rm", "-r", run.path], check=True)  # moved
    assert sync_state.load(copy, "http://host", "mxscale").lines_sent == 3


def test_torn_lines_are_not_sent(tmp_path):
    run = make_run(tmp_path)
    add_lines(run, 0, 3)
    complete = run.metrics_file.stat().st_size
    with open(run.metrics_file, "a") as file:
        file.write('{"attempt": 1, "step": 3, "time_ms": 5, "met')
    [(points, lines, offset)] = payload.batches(run, 0, payload.no_cost)
    assert (len(points), lines, offset) == (9, 3, complete)
    with open(run.metrics_file, "a") as file:
        file.write('rics": {"lr": 0.5, "unknown": null}}\n')
    rest = [([("lr", 0.5, 5, 3)], 1, run.metrics_file.stat().st_size)]
    assert list(payload.batches(run, offset, payload.no_cost)) == rest


def test_batches_stay_within_mlflows_limit(tmp_path):
    run = make_run(tmp_path)
    add_lines(run, 0, 700)
    parts = list(payload.batches(run, 0, payload.no_cost))
    assert [len(points) for points, _, _ in parts] == [999, 999, 102]
    assert list(payload.batches(run, parts[0][2], payload.no_cost)) == parts[1:]


def test_disabled_tracking_is_a_null_object(tmp_path):
    run = make_run(tmp_path)
    mirror = tracker.open_mirror(run, Tracking(enabled=False))
    mirror.start()
    assert mirror.finish(1) is None
    assert not (run.path / sync_state.STATE_FILE).exists()


@pytest.mark.slow
def test_sqlite_store_has_all_records_of_a_resumed_run(tmp_path, capsys):
    run = make_run(tmp_path)
    uri = f"sqlite:///{tmp_path}/mlflow.db"
    mirror = tracker.open_mirror(run, run.config().tracking, cost)
    add_lines(run, 0, 5)
    mirror.start()
    mirror.start()  # once is enough
    until(lambda: mirror._sender.sent().lines_sent == 5)
    assert runs_in(uri)[0].info.status == "RUNNING"
    add_lines(run, 5, 20)
    line = {"attempt": 1, "step": 19, "time_ms": T0 + 19_500, "metrics": {"val/loss": math.nan}}
    with open(run.metrics_file, "a") as file:
        file.write(json.dumps(line) + "\n")
    end(run, "KILLED")
    assert mirror.finish(60) is None

    [found] = runs_in(uri)
    data, run_id = found.data, found.info.run_id
    assert found.info.status == "KILLED" and found.info.run_name == run.path.name
    assert found.info.end_time == T0 + 60_000
    assert data.params["optimizer.lr"] == "0.1" and data.params["batch/global"] == "64"
    assert data.params["lr/effective"] == "0.025" and data.params["tracking.uri"] == "None"
    assert data.tags["git.commit"] == "abc" and data.tags["versions"] == '{"mxnet": "1.9.1"}'
    assert data.tags["mxscale.dir"] == str(run) and "image.id" not in data.tags
    assert data.metrics["best/val_top1"] == 97.5 and "cost/total_usd" not in data.metrics
    assert math.isnan(data.metrics["val/loss"])
    complete = [point for point in points_of(run, cost) if point[0] != "val/loss"]
    assert [point for point in points_in(uri, run_id) if point[0] != "val/loss"] == complete
    files = {file.path for file in client_of(uri).list_artifacts(run_id)}
    assert {"config.yaml", "metrics.jsonl", "status.json", "summary.json", "ranks"} <= files
    assert not any("checkpoint" in file for file in files)
    assert found.info.artifact_uri.startswith(str(tmp_path / "artifacts"))

    # A second call sends no lines
    noted = (run.path / sync_state.STATE_FILE).read_bytes()
    assert tracker.sync(run, cost_at=cost) == 0
    assert "0 lines sent, 21 in all; mlflow ui" in capsys.readouterr().out
    assert (run.path / sync_state.STATE_FILE).read_bytes() == noted

    # Resumed from step 15 with another setting: the same MLflow run, running again
    run.write_config(from_dict({**json.loads(json.dumps(directory.to_dict(run.config()))), "epochs": 40}))
    run.write("status.json", {"state": "RUNNING"})
    mirror = tracker.open_mirror(run, run.config().tracking, cost)
    mirror.start()
    add_lines(run, 15, 25, attempt=2)
    until(lambda: mirror._sender.sent().lines_sent == 31)
    assert client_of(uri).get_run(run_id).info.status == "RUNNING"
    end(run)
    assert mirror.finish(60) is None
    [found] = runs_in(uri)
    assert found.info.run_id == run_id and found.info.status == "FINISHED"
    assert found.data.params["epochs"] == "20" and found.data.tags["resumed.epochs"] == "40"
    loss = [m for m in client_of(uri).get_metric_history(run_id, "throughput/images_per_s") if m.step == 17]
    assert [m.value for m in sorted(loss, key=lambda m: m.timestamp)] == [101.0, 102.0]  # both attempts


@pytest.mark.slow
def test_another_store_is_sent_all_and_the_first_is_named(tmp_path, capsys):
    first, second = (f"sqlite:///{tmp_path}/{name}.db" for name in ("first", "second"))
    run = make_run(tmp_path / "runs", first)
    add_lines(run, 0, 3)
    end(run)
    for uri, other in ((first, None), (second, first), (first, second)):
        assert tracker.sync(run, uri) == 0
        out, error = capsys.readouterr()
        assert "3 lines sent, 3 in all" in out
        lines = [f"tracking: {run} was in {other}, which is not updated any more"] if other else []
        assert error.splitlines() == lines
    for uri in (first, second):
        [found] = runs_in(uri)  # of the repeated lines MLflow keeps one
        assert points_in(uri, found.info.run_id) == points_of(run)


@pytest.mark.slow
def test_sync_after_kill_sends_each_line_once(tmp_path):
    """kill -9 before each write of the sync state: the request has arrived, but is not recorded."""
    run = make_run(tmp_path)
    add_lines(run, 0, 700)  # three batches
    add_sample(run)
    end(run)
    # Writes before each kill: the id | the run | three batches | the samples | the status
    process = child(DYING_SYNCS, run, 0, 1, 2, 1, 1, 1, 1)
    out, err = process.communicate(timeout=180)
    assert process.returncode == 0, (out, err)
    uri = f"sqlite:///{tmp_path}/mlflow.db"
    [found] = runs_in(uri)
    assert found.info.status == "FINISHED"
    assert points_in(uri, found.info.run_id) == points_of(run)


@pytest.mark.slow
def test_concurrent_senders_send_each_line_once(tmp_path):
    """Two processes open a new SQLite store at once, and two more send the same run."""
    one, two = make_run(tmp_path, name="one"), make_run(tmp_path, name="two")
    for run in (one, two):
        add_lines(run, 0, 400)
        end(run)
    children = [child(SYNC, run) for run in (one, two, one)]
    for process in children:
        out, err = process.communicate(timeout=60)
        assert (process.returncode, err) == (0, ""), (out, err)
    uri = f"sqlite:///{tmp_path}/mlflow.db"
    found = {run.data.tags["mxscale.dir"]: run.info.run_id for run in runs_in(uri)}
    assert sorted(found) == sorted([str(one), str(two)]) and len(runs_in(uri)) == 2
    for run in (one, two):
        assert points_in(uri, found[str(run)]) == points_of(run)


@pytest.mark.slow
def test_sync_of_running_run_and_of_killed_parent(tmp_path, capsys):
    run = make_run(tmp_path)
    uri = f"sqlite:///{tmp_path}/mlflow.db"
    add_lines(run, 0, 3)
    run.write("status.json", {"state": "RUNNING"})
    run.alive_file.touch()
    assert tracker.sync(run) == 0
    assert "the run is still running: 3 lines sent" in capsys.readouterr().out
    [found] = runs_in(uri)
    assert found.info.status == "RUNNING"
    os.utime(run.alive_file, (1, 1))
    assert tracker.sync(run) == 0
    [found] = runs_in(uri)
    assert found.info.status == "KILLED"
    # A store that was wiped gets all of the run again
    (tmp_path / "mlflow.db").unlink()
    assert child(SYNC, run).wait(60) == 0
    uri = f"sqlite:///{tmp_path}/./mlflow.db"  # MLflow keeps stores open, by their address
    [found] = runs_in(uri)
    assert points_in(uri, found.info.run_id) == points_of(run)


@pytest.mark.slow
def test_server_and_password(tmp_path, server, capsys):
    secret = server.uri.replace("http://", "http://me:s3cret@")
    run = make_run(tmp_path, secret, timeout_s=20.0)
    add_lines(run, 0, 10)
    mirror = tracker.open_mirror(run, Tracking(uri=secret, timeout_s=20.0), cost)
    mirror.start()
    until(lambda: mirror._sender.sent().lines_sent == 10)
    add_lines(run, 10, 20)
    end(run)
    assert mirror.finish(60) is None
    run_id = run.read(sync_state.STATE_FILE)["run_id"]
    found = client_of(server.uri).get_run(run_id)
    assert found.info.status == "FINISHED" and found.data.metrics["best/val_top1"] == 97.5
    assert points_in(server.uri, run_id) == points_of(run, cost)
    stored = Path(client_of(server.uri).download_artifacts(run_id, "", str(tmp_path)))
    assert (stored / "ranks/0.log").read_text() == "hello\n"
    assert "me:***@127.0.0.1" in (stored / "config.yaml").read_text()
    assert tracker.sync(run, secret, cost_at=cost) == 0
    shown = [found.data.params["tracking.uri"], sync_state.view_hint(run), capsys.readouterr().out]
    assert not any("s3cret" in text for text in [*shown, (run.path / sync_state.STATE_FILE).read_text()])


@pytest.mark.slow
def test_server_dead_from_the_start(tmp_path, server, capsys):
    closed = f"http://127.0.0.1:{free_port()}"
    run = make_run(tmp_path, closed)
    mirror = tracker.open_mirror(run, run.config().tracking)
    mirror.start()
    add_lines(run, 0, 7)
    end(run)
    start = time.monotonic()
    unsent = mirror.finish(300)
    assert time.monotonic() - start < 150  # a try and a retry, not the limit of 300 s
    assert str(unsent) == f"tracking: 7 of 7 lines unsent ({closed}: connection refused); send with: mxscale sync {run}"
    assert tracker.sync(run) == 1
    assert capsys.readouterr().out.strip() == str(unsent)
    assert tracker.sync(run, server.uri) == 0
    assert tracker.sync(run, server.uri) == 0
    run_id = sync_state.load(run, server.uri, "mxscale").run_id
    assert points_in(server.uri, run_id) == points_of(run)


@pytest.mark.slow
def test_an_unreachable_store_is_reported_once_during_the_training(tmp_path, capsys):
    closed = f"http://127.0.0.1:{free_port()}"
    run, lines = make_run(tmp_path, closed), []
    mirror = tracker.open_mirror(run, run.config().tracking)
    mirror.start()
    until(lambda: lines.extend(capsys.readouterr().err.splitlines()) or lines, 60)
    assert lines == [f"tracking: {closed}: connection refused; training continues"]
    assert mirror.finish(60) and capsys.readouterr().err == ""


@pytest.mark.slow
@pytest.mark.parametrize("warm", [False, True])
def test_unresponsive_server_delays_nothing(tmp_path, warm):
    """`finish` returns in time, and the interpreter's exit waits for no thread; warm: MLflow is already imported."""
    with socket.socket() as deaf:
        deaf.bind(("127.0.0.1", 0))
        deaf.listen(50)
        run = make_run(tmp_path, f"http://127.0.0.1:{deaf.getsockname()[1]}", timeout_s=120.0)
        add_lines(run, 0, 7)
        end(run)
        code = """
import sys, time
from mxscale.tracking import tracker
run = tracker.RunDir(sys.argv[1])
mirror = tracker.open_mirror(run, run.config().tracking)
mirror.start()
time.sleep(float(sys.argv[2]))
start = time.time()
print(mirror.finish(float(sys.argv[3])))
print(time.time() - start, time.time(), flush=True)
"""
        process = child(code, run, 4 if warm else 0, 2 if warm else 0.5)
        out, err = process.communicate(timeout=110)
        ended = time.time()
    assert (process.returncode, err) == (0, "")
    line, took, printed = out.rsplit(maxsplit=2)
    assert "7 of 7 lines unsent" in line and "no answer yet" in line
    assert float(took) < 60 and ended - float(printed) < 60  # of the 120 s that a request may take


@pytest.mark.slow
def test_server_that_hangs_and_dies_loses_nothing(tmp_path, server):
    run = make_run(tmp_path, server.uri, timeout_s=3.0)
    add_lines(run, 0, 10)
    mirror = tracker.open_mirror(run, run.config().tracking)
    mirror.start()
    until(lambda: mirror._sender.sent().lines_sent == 10)
    server.signal(signal.SIGSTOP)  # takes connections and answers none
    add_lines(run, 10, 20)
    time.sleep(5)
    server.signal(signal.SIGCONT)  # it now processes a request that timed out
    until(lambda: mirror._sender.sent().lines_sent == 20)
    server.kill()
    add_lines(run, 20, 30)
    end(run)
    unsent = mirror.finish(60)
    assert "10 of 30 lines unsent" in str(unsent) and "connection refused" in str(unsent)
    server.start()
    assert tracker.sync(run) == 0
    run_id = run.read(sync_state.STATE_FILE)["run_id"]
    assert points_in(server.uri, run_id) == points_of(run)
    assert tracker.sync(run) == 0
    assert points_in(server.uri, run_id) == points_of(run)
    assert client_of(server.uri).get_run(run_id).info.status == "FINISHED"
    assert [r.info.run_name for r in runs_in(server.uri)].count(run.path.name) == 1


def recorded(root, uri=None):
    """Return (run, MLflow's id) of a run that was sent."""
    run = make_run(root, uri)
    end(run)
    assert tracker.sync(run) == 0
    return run, json.loads((run.path / "tracking.json").read_text())["run_id"]


def not_found(run_id, *words, **values):
    message = error_of(history.find_run, from_dict(values), run_id, "model.pretrained=run:ID")
    assert message.startswith("model.pretrained=run:ID: ")
    contains(message, *words)


@pytest.mark.slow
def test_run_is_found_by_id_in_sqlite_store(tmp_path):
    run, run_id = recorded(tmp_path / "runs")
    config = from_dict({"runs": str(tmp_path / "runs"), "model": {"pretrained": f"run:{run_id}", "name": "small"}})
    assert history.find_run(config, run_id, "x").path == run.path
    assert settings.resolve(config).model.pretrained == str(run)  # what is recorded, and needs MLflow no more
    (tmp_path / "runs").rename(tmp_path / "moved")  # as a container's volume is, outside
    moved = from_dict({"runs": str(tmp_path / "moved")})
    assert history.find_run(moved, run_id, "x").path == tmp_path / "moved" / "train" / run.path.name
    (tmp_path / "moved" / "train").rename(tmp_path / "moved" / "gone")
    not_found(run_id, f"its directory {run} is not here", "no checkpoints", "params file", runs=str(tmp_path / "moved"))


@pytest.mark.slow
def test_unknown_id_and_missing_store_are_refused(tmp_path):
    recorded(tmp_path)
    for unknown in ("0" * 32, "no/id", "x"):
        not_found(unknown, "has no run", f"sqlite:///{tmp_path}/mlflow.db", runs=str(tmp_path))
    not_found("0" * 32, "no such file", "tracking.uri", runs=str(tmp_path / "other"))
    assert not (tmp_path / "other").exists()


@pytest.mark.slow
def test_run_of_another_program_is_refused(tmp_path):
    recorded(tmp_path)
    uri = f"sqlite:///{tmp_path}/mlflow.db"
    other = client_of(uri).create_run("0").info.run_id
    not_found(other, "not one of train or finetune", runs=str(tmp_path))


@pytest.mark.slow
def test_server_finds_a_run_and_has_all_files_of_a_rerun(server, tmp_path, capsys, monkeypatch):
    monkeypatch.delenv("MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR", raising=False)
    secret = server.uri.replace("http://", "http://me:s3cret@")
    run = recorded_runs.make_run(tmp_path, tracking={"uri": secret, "timeout_s": 20.0})
    monkeypatch.setenv("MLFLOW_TRACKING_URI", secret)  # config.yaml lacks the password
    run_id = recorded_runs.send(run)
    monkeypatch.delenv("MLFLOW_TRACKING_URI")
    there = {"runs": str(tmp_path), "tracking": {"uri": server.uri, "timeout_s": 10.0}}
    assert history.find_run(from_dict(there), run_id, "x").path == run.path
    not_found("0" * 32, "has no run", server.uri, **there)
    shutil.rmtree(run.path)
    capsys.readouterr()
    config, _, first = recorded_runs.asked(run_id, f"runs={tmp_path}", f"tracking.uri={server.uri}")
    assert capsys.readouterr().err == ""  # no progress bars
    assert config.tracking.uri == server.uri and first.parent == run_id
    assert [line["step"] for line in first.files.lines()] == [1, 2]


def test_unreachable_server_is_refused_in_seconds(tmp_path):
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        uri = f"http://127.0.0.1:{silent.getsockname()[1]}"
        began = time.monotonic()
        not_found("0" * 32, uri, "no answer in time", tracking={"uri": uri, "timeout_s": 1.0})
        assert time.monotonic() - began < 60  # of minutes that MLflow's client would try
    not_found("0" * 32, uri, "connection refused", "set tracking.uri", tracking={"uri": uri, "timeout_s": 1.0})


def old_store(file: Path) -> None:
    """Create a store of MLflow 1.x: its first tables and some of the later migrations."""
    import mlflow.store.db.utils as migrations
    import sqlalchemy
    from alembic import command
    from mlflow.store.tracking.dbmodels.initial_models import Base

    engine = sqlalchemy.create_engine(f"sqlite:///{file}")
    Base.metadata.create_all(engine)
    settings = migrations._get_alembic_config(f"sqlite:///{file}")
    with engine.begin() as connection:
        settings.attributes["connection"] = connection
        command.upgrade(settings, "0584bdc529eb")
    engine.dispose()


def test_older_store_is_not_migrated(tmp_path, capsys):
    file = tmp_path / "old.db"
    old_store(file)
    before, uri = file.read_bytes(), f"sqlite:///{file}"
    run = make_run(tmp_path / "runs", uri)
    add_lines(run, 0, 3)
    end(run)
    assert tracker.sync(run, uri) == 1
    assert "written by another version of MLflow" in "".join(capsys.readouterr())
    with pytest.raises(Exception, match=r"another version of MLflow .*mlflow db upgrade"):
        store.open_store(uri, 5)
    assert file.read_bytes() == before
