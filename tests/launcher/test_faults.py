"""Failures during a run: invalid numbers, lost ranks, full disks, missing tracking servers, signals."""

import os
import random
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import faults
import numpy as np
import psutil
import pytest
from composed import composed
from machine import mounted, until
from PIL import Image
from repository import ROOT
from run_files import rank_pids, recorded_in, wait_for_step
from verbs import SMALL, with_script

from mxscale.cost import run_cost
from mxscale.launcher import commands as launch
from mxscale.launcher import run as job
from mxscale.rundir import checkpoints
from mxscale.rundir.directory import RunDir
from mxscale.rundir.status import FAILED, FINISHED, KILLED
from mxscale.tracking import tracker

sys.path.append(str(ROOT / "bench"))
from bench import emulated_network as network
from bench.emulated_network import Network

pytestmark = pytest.mark.slow

CASE = ["launch.ranks=2", "epochs=4"]


@pytest.fixture(scope="module")
def unbroken(shared_cli):
    return shared_cli("train", *CASE)


def last_error(ended):
    """Return the last line on stderr, which must be the only error, without a traceback."""
    errors = [line for line in ended.err.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1 and ended.err.splitlines()[-1] == errors[0], ended.err
    assert "Traceback" not in ended.err
    return errors[0]


def test_infinite_loss_names_step_and_last_good_checkpoint(cli):
    constant = ["schedule=constant", "schedule.reference_batch=null"]
    settings = ["optimizer.lr=1e20", *constant, "checkpoint.every_steps=1", "launch.ranks=1"]
    ended = cli("train", *settings, expect=1)
    good = ended.run.checkpoints / "000000001"
    assert re.search(rf"the loss is (inf|nan) at step 2; the last good checkpoint is {good}$", last_error(ended))
    assert ended.status["state"] == FAILED
    assert checkpoints.steps(ended.run.checkpoints) == [1] and checkpoints.is_complete(good)


STRUCK = ("epochs=2", "checkpoint.every_steps=4", "batch.per_device=8", "data.shards=2", "launch.threads=1",
          "launch.ranks=2", "launch.stall_s=8")  # fmt: skip


@pytest.fixture(scope="module")
def undisturbed(shared_cli):
    """params_sha256 of an undisturbed run of STRUCK."""
    return shared_cli("train", *STRUCK).sha


def test_run_restarts_to_same_bytes_after_stopped_rank(cli, undisturbed):
    step = random.Random(faults.SEED).randrange(1, 12)
    print(f"FAULT_SEED={faults.SEED} step {step}")
    seen = faults.survive(cli, faults.Strike("a rank stopped", step), random.Random(faults.SEED), STRUCK)
    assert seen["sha"] == undisturbed
    assert [(each.ranks, each.continues) for each in seen["run"].attempts] == [(2, False), (2, True)]
    assert {line["attempt"] for line in seen["run"].lines()} == {1, 2}


def test_run_restarts_to_same_bytes_after_killed_scheduler(cli):
    name, step = "the scheduler killed", random.Random(faults.SEED).randrange(1, 12)
    print(f"FAULT_SEED={faults.SEED} step {step}")
    undisturbed = cli("train", *STRUCK, *faults.FAULTS[name].settings).sha
    seen = faults.survive(cli, faults.Strike(name, step), random.Random(faults.SEED), STRUCK)
    assert seen["sha"] == undisturbed and "scheduler was ended by signal 9" in seen["error"]


def test_cut_link_is_named_and_remaining_ranks_continue(cli, undisturbed, tmp_path):
    reason = network.possible()
    if reason:
        pytest.skip(reason)
    store = f"sqlite:///{tmp_path}/mlflow.db"
    with Network(2) as nodes:
        settings = (*STRUCK, f"launch.hosts={nodes.hosts}", "tracking=mlflow", f"tracking.uri={store}")
        seen = faults.survive(cli, faults.Strike("a link cut", 6), random.Random(faults.SEED), settings, nodes)
    assert seen["sha"] == undisturbed
    assert [attempt["ranks"] for attempt in seen["run"].read("status.json")["attempts"]] == [2, 1]
    assert f"without {nodes.addresses[1]}: the ranks on {nodes.addresses[0]} take over its data shards" in seen["out"]
    _, recorded = recorded_in(store)  # both attempts are one run
    assert (recorded.data.params["launch.ranks"], recorded.data.tags["ranks"]) == ("2", "1")  # requested, final
    losses = [line["step"] for line in seen["run"].lines() if "train/loss" in line["metrics"]]
    assert [step for step, _ in points(store, "train/loss")] == sorted(losses)


HUNG = """
import os, sys, time
from mxscale.train import rank, timing
from mxscale.train.checkpointer import Checkpointer

original, calls = PLACE, []

def hang(self, *arguments):
    calls.append(1)
    if os.environ["HOROVOD_RANK"] == "1" and len(calls) == STEP:
        print("hanging", flush=True)
        time.sleep(600)
    return original(self, *arguments)

PLACE = hang
sys.exit(rank.main(sys.argv[1], int(sys.argv[2])))
"""


@pytest.mark.parametrize(
    "case",  # place, step, log_every, error
    [
        ("Checkpointer.due", 6, 1, r"no rank has finished a step for \d+ s"),
        ("Checkpointer.due", 1, 1, r"no second step within 20 s of the first line \(launch.start_timeout_s\)"),
        # The others wait at a checkpoint, for the totals before it
        ("Checkpointer.due", 8, 1, r"no rank has finished a step for \d+ s"),
        # The others wait for its gradients, not for a line of metrics
        ("timing.ThroughputTimer.fetched", 6, 10, r"no rank has finished a step for \d+ s"),
    ],
)
def test_hanging_rank_is_named_with_last_log_lines(case, tmp_path, data_cache, monkeypatch, capfd):
    """The rank hangs as in a kernel that never ends, while its threads and Horovod's continue."""
    place, step, log_every, error = case
    script = tmp_path / "hung.py"
    script.write_text(HUNG.replace("PLACE", place).replace("STEP", str(step)))

    def commands(*arguments):
        (command,) = launched(*arguments)
        return [replace(command, argv=with_script(command.argv, script))]

    launched = launch.commands
    monkeypatch.setattr(launch, "commands", commands)
    where = [f"runs={tmp_path}/runs", f"data.cache={data_cache}", "launch.start_timeout_s=20",
             f"log_every={log_every}"]  # fmt: skip
    status = job.execute(composed("train", *SMALL, *STRUCK, *where))
    assert re.fullmatch(error + r"; the others wait: rank 1 in phase \w+", status.error)
    out = capfd.readouterr().out
    assert "last lines of ranks/1.log:\n  hanging\n" in out
    (run,) = (tmp_path / "runs" / "train").iterdir()
    assert faults.processes_of(RunDir(run), 1) == []


def test_sigterm_during_a_restart_stops_the_run(cli):
    process = cli.start("train", *STRUCK, "epochs=500", "launch.restarts=3")
    run = cli.run_of(process)
    wait_for_step(run, 5)
    os.kill(rank_pids(run)[1], signal.SIGKILL)
    until(lambda: (run.read("status.json") or {}).get("attempt") == 2, 30)
    process.send_signal(signal.SIGTERM)
    ended = cli.ended(process, expect=75, timeout=30)
    assert run.read("status.json")["state"] == KILLED
    assert f"mxscale train resume={run}" in ended.out
    assert {line["attempt"] for line in run.lines()} == {1}
    assert not rank_pids(run)


@pytest.fixture
def disk(tmp_path):
    """A tmpfs of 4 MB: two checkpoints of 1.4 MB fit, a third one does not."""
    with mounted(tmp_path / "disk", "size=4m") as folder:
        yield folder


def test_a_full_disk_keeps_the_last_good_checkpoint(cli, disk, unbroken):
    ended = cli("train", *CASE, f"runs={disk}", expect=1)
    assert "rank 0: OSError: checkpoint of step 15 not written" in last_error(ended)
    assert ended.status["state"] == FAILED
    steps = checkpoints.steps(ended.run.checkpoints)
    assert steps == [5, 10] and all(checkpoints.is_complete(ended.run.checkpoint(step)) for step in steps)
    subprocess.run(["mount", "-o", "remount,size=20m", disk], check=True)
    resumed = cli("train", f"resume={ended.run}", f"runs={disk}", small=False)
    assert resumed.sha == unbroken.sha


def test_full_disk_without_a_free_byte_is_one_line(cli, disk):
    process = cli.start("train", "launch.ranks=1", "epochs=500", f"runs={disk}")
    run = cli.run_of(process)
    wait_for_step(run, 11)  # the first checkpoint is there
    with pytest.raises(OSError), open(disk / "full", "wb", buffering=0) as file:
        while True:
            file.write(bytes(1024))
    ended = cli.ended(process, expect=1, timeout=60)
    assert re.search("No space left|not written", last_error(ended))
    assert f"mxscale train resume={run}" in ended.out + ended.err
    assert checkpoints.newest(run.checkpoints) is not None
    assert not rank_pids(run)


def test_missing_tracking_server_is_reported_at_the_end(cli):
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{unused.getsockname()[1]}"
        ended = cli("train", "launch.ranks=1", "max_steps=1", "tracking=mlflow", f"tracking.uri={address}")
    assert unsent(ended).startswith("tracking: ") and "connection refused" in unsent(ended)


def test_ctrl_c_skips_a_hanging_tracking_server(cli, hanging_server):
    process = cli.start("train", "launch.ranks=1", "max_steps=1", "tracking=mlflow", f"tracking.uri={hanging_server}")
    run = cli.run_of(process)
    until(lambda: (run.read("status.json") or {}).get("state") == FINISHED, 60)
    time.sleep(4)  # MLflow is imported and a request is under way
    process.send_signal(signal.SIGINT)
    asked = time.monotonic()
    ended = cli.ended(process)  # the run itself is done
    assert time.monotonic() - asked < 25  # of 30
    assert "unsent" in ended.out


def unsent(ended):
    (line,) = [line for line in ended.out.splitlines() if line.startswith("tracking:")]
    assert line.endswith(f"send with: mxscale sync {ended.run}")
    return line


@pytest.fixture
def hanging_server():
    """The address of a server that accepts requests and never answers."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(100)
        taken = []
        threading.Thread(target=accept_all, args=(listener, taken), daemon=True).start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        listener.shutdown(socket.SHUT_RDWR)
        assert taken, "nothing was sent"


def accept_all(listener, taken):
    try:
        while True:
            taken.append(listener.accept()[0])
    except OSError:
        pass


def test_hanging_tracking_server_delays_nothing(cli, hanging_server, unbroken, tmp_path, capfd):
    ended = cli("train", *CASE, "tracking=mlflow", f"tracking.uri={hanging_server}", "tracking.timeout_s=1")
    assert ended.sha == unbroken.sha
    assert "no answer in time" in unsent(ended)
    assert throughput(ended) > throughput(unbroken) / 10  # a step that waited for the server would take seconds

    store = f"sqlite:///{tmp_path}/later.db"
    for expected in (len(list(ended.run.lines())), 0):
        assert tracker.sync(ended.run, store, run_cost.cost_of(ended.run)) == 0
        assert f"tracking: {expected} lines sent" in capfd.readouterr().out
    losses = [(line["step"], line["metrics"].get("train/loss")) for line in ended.run.lines()]
    assert points(store, "train/loss") == [(step, loss) for step, loss in losses if loss is not None]


def throughput(ended):
    return ended.run.read("summary.json")["metrics"]["throughput/median"]


def points(store, name):
    client, recorded = recorded_in(store)
    assert recorded.info.status == FINISHED
    return sorted((m.step, m.value) for m in client.get_metric_history(recorded.info.run_id, name))


SECRETS = {"MLFLOW_TRACKING_PASSWORD": "hunter2", "AWS_SECRET_ACCESS_KEY": "hunter3"}


@pytest.fixture(scope="module")
def stopped_sweep(shared_cli):
    """A sweep whose first cell gets a second SIGTERM while its ranks are stopped."""
    process = shared_cli.start("train", "launch.ranks=2", "epochs=500", "seed=1,2", "-m", env=SECRETS)
    run = shared_cli.run_of(process)
    wait_for_step(run, 1)
    ranks = rank_pids(run)
    argv = [line for path in Path("/proc").glob("[0-9]*/cmdline") for line in [read(path)] if b"hunter" in line]
    environ = {rank: read(Path(f"/proc/{pid}/environ")) for rank, pid in ranks.items()}
    for pid in ranks.values():
        os.kill(pid, signal.SIGSTOP)
    process.send_signal(signal.SIGTERM)
    time.sleep(0.5)
    assert process.poll() is None
    process.send_signal(signal.SIGTERM)
    asked = time.monotonic()
    ended = shared_cli.ended(process, expect=75, timeout=60)
    return run, ended, {"argv": argv, "environ": environ, "seconds": time.monotonic() - asked}


def read(path):
    try:
        return path.read_bytes()
    except OSError:  # the process has ended
        return b""


def test_no_credential_in_command_lines_or_ranks(stopped_sweep):
    _, _, seen = stopped_sweep
    assert seen["argv"] == []
    assert len(seen["environ"]) == 2
    assert all(b"PATH=" in environ and b"hunter" not in environ for environ in seen["environ"].values())


def test_a_closed_stdout_does_not_end_the_run(cli, unbroken):
    process = cli.start("train", *CASE)
    run = cli.run_of(process)
    process.stdout.close()  # as of `mxscale train | head -1`
    process.stderr.close()
    assert process.wait(60) == 0
    status = run.read("status.json")
    assert (status["state"], status["params_sha256"]) == (FINISHED, unbroken.sha)


def test_ranks_that_never_start_are_ended(cli):
    """One rank is stopped during its start, as if ranks could not reach each other."""
    process = cli.start("train", "launch.ranks=2", "launch.start_timeout_s=8")
    run = cli.run_of(process)
    while 1 not in rank_pids(run):
        time.sleep(0.02)
    os.kill(rank_pids(run)[1], signal.SIGSTOP)
    ended = cli.ended(process, expect=1, timeout=40)
    assert "the ranks did not start within 8 s (launch.start_timeout_s)" in last_error(ended)
    assert not rank_pids(run)


def test_a_second_sigterm_ends_at_once(stopped_sweep):
    run, ended, seen = stopped_sweep
    assert seen["seconds"] < 60  # of 120 that ranks have to write their checkpoint
    assert run.read("status.json")["state"] == KILLED
    assert f"mxscale train resume={run}" in ended.out
    assert not rank_pids(run)


def test_a_stopped_sweep_starts_no_further_cell(stopped_sweep):
    run, _, _ = stopped_sweep
    assert 2 not in [RunDir(path).config().seed for path in run.path.parent.iterdir()]


def test_run_stopped_while_packing_resumes(cli, tmp_path):
    root = tmp_path / "photos"
    image = tmp_path / "large.png"
    pixels = np.random.RandomState(0).randint(0, 256, (900, 900, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(image, compress_level=1)
    for n in range(160):
        folder = root / ("cat" if n % 2 else "dog")
        folder.mkdir(parents=True, exist_ok=True)
        os.link(image, folder / f"{n}.png")
    case = ["data=imagefolder", f"data.root={root}", "data.image_size=16", "data.pack_short_side=16"]
    case += ["model=small", "batch.per_device=4", "data.allow_duplicates=true"]
    process = cli.start("train", *case, "tracking=none", "launch.ranks=1", "max_steps=1", small=False)
    children = until(lambda: packing(process), 30, 0.02)
    process.send_signal(signal.SIGTERM)
    ended = cli.ended(process, expect=75, timeout=20)
    _, children = psutil.wait_procs(children, timeout=20)  # a worker finishes its image first
    assert not [child for child in children if child.is_running() and child.status() != psutil.STATUS_ZOMBIE]
    (path,) = (cli.folder / "train").iterdir()
    run = RunDir(path)
    assert run.read("status.json")["state"] == KILLED
    assert f"mxscale train resume={run}" in ended.out
    assert cli("train", f"resume={run}", small=False).status["step"] == 1


def packing(process):
    """Return the child processes of an entry script; none before some of them pack."""
    children = psutil.Process(process.pid).children(recursive=True)
    try:
        return children if any("mxscale.data.workers" in child.cmdline() for child in children) else []
    except psutil.Error:
        return []
