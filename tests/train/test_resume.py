"""A run that is killed at any step and resumed ends with the bytes of an uninterrupted run."""

import functools
import os
import random
import re
import shutil
import signal
import statistics
import subprocess

import pytest
import yaml
from faults import SEED
from in_process import prepared, trained
from machine import kill_session, until
from run_files import rank_pids, wait_for_step
from verbs import with_script

from mxscale.environment.placement import Placement
from mxscale.launcher import commands
from mxscale.rundir.directory import RunDir
from mxscale.rundir.status import RankStatus

pytestmark = pytest.mark.slow

# 20 steps of 24 images
CASE = ["epochs=4", "checkpoint.every_steps=4", "data.shards=6", "batch.per_device=4"]


@pytest.fixture(scope="module")
def unbroken(shared_cli):
    """ranks -> params_sha256 of an uninterrupted run. Three ranks over six shards end with the bytes of one."""
    sha = functools.cache(lambda ranks: shared_cli("train", *CASE, f"launch.ranks={ranks}").sha)
    return lambda ranks: sha(2 if ranks == 2 else 1)


def interrupted_run(cli, ranks, at_step, how, *overrides):
    """Start a run and call `how(process, run)` once it has reached `at_step`; return both."""
    process = cli.start("train", *CASE, f"launch.ranks={ranks}", *overrides)
    run = cli.run_of(process)
    wait_for_step(run, at_step)
    how(process, run)
    return process, run


def stopped_run(cli, ranks, at_step, *overrides):
    """Return a run that SIGTERM interrupted once it had reached `at_step`."""
    terminate = lambda process, run: process.send_signal(signal.SIGTERM)  # noqa: E731
    process, run = interrupted_run(cli, ranks, at_step, terminate, *overrides)
    cli.ended(process, expect=75)
    return run


@pytest.mark.parametrize("ranks", [1, 3])
def test_killed_parent_resumes_to_same_bytes(cli, unbroken, ranks):
    step = random.Random(SEED + ranks).randrange(1, 12)
    print(f"FAULT_SEED={SEED} ranks={ranks} step={step}")
    _, run = interrupted_run(cli, ranks, step, lambda process, run: kill_session(process))
    resumed = cli("train", f"resume={run}", small=False)
    assert resumed.run.path == run.path
    assert yaml.safe_load((run.path / "overrides.yaml").read_text())[2][-1] == f"resume={run}"
    assert resumed.sha == unbroken(ranks)
    assert resumed.status["attempt"] == 2


@pytest.mark.parametrize("ranks, number", [(2, signal.SIGKILL), (3, signal.SIGSEGV)])
def test_killed_rank_ends_run_within_30_s(cli, unbroken, ranks, number):
    step = random.Random(SEED + 10 * ranks).randrange(1, 12)
    print(f"FAULT_SEED={SEED} ranks={ranks} step={step}")
    kill_rank = lambda process, run: os.kill(rank_pids(run)[ranks - 1], number)  # noqa: E731
    process, run = interrupted_run(cli, ranks, step, kill_rank)
    ended = cli.ended(process, expect=1, timeout=30)
    assert f"rank {ranks - 1} ended without a status by {number.name}" in ended.err.splitlines()[-1]
    assert f"mxscale train resume={run}" in ended.out
    assert not rank_pids(run)
    assert cli("train", f"resume={run}", small=False).sha == unbroken(ranks)


def test_fine_tuning_resumes_without_pretrained_weights(cli):
    source = cli("train", "epochs=1", "launch.ranks=1")
    case = ["checkpoint.every_steps=1", "launch.ranks=1", "epochs=1", "data.train_per_class=8", "batch.per_device=4"]
    process = cli.start("finetune", *case, f"model.pretrained={source.run}")
    run = cli.run_of(process)
    wait_for_step(run, 2)
    process.send_signal(signal.SIGTERM)
    cli.ended(process, expect=75)
    signature = run.read("environment.json")["tags"]["signature"]
    shutil.rmtree(source.run.path)
    resumed = cli("finetune", f"resume={run}", small=False)
    assert resumed.status["state"] == "FINISHED"
    assert run.read("environment.json")["tags"]["signature"] == signature


@pytest.mark.parametrize("times", [1, 2])
def test_rank_crash_at_start_is_retried_once(cli, unbroken, times):
    process = cli.start("train", *CASE, "launch.ranks=2")
    run = cli.run_of(process)
    crashed_before = set()
    for _ in range(times):
        crashed = wait_for_rank(run, 1, crashed_before)
        os.kill(crashed, signal.SIGSEGV)
        crashed_before.add(crashed)
    if times == 1:
        ended = cli.ended(process)
        assert "starting the ranks once more" in ended.out
        assert run.read("status.json")["params_sha256"] == unbroken(2)
    else:
        ended = cli.ended(process, expect=1)
        assert "ended without a status" in ended.err.splitlines()[-1]


def wait_for_rank(run, rank, but, timeout=30):
    """Return the pid of a rank that has just started and is not in `but`."""
    return until(lambda: {rank_pids(run).get(rank)} - {None, *but}, timeout).pop()


def test_rank_status_of_other_attempt_is_ignored(tmp_path):
    run = RunDir(tmp_path)
    run.path.joinpath("ranks").mkdir()
    run.save(RankStatus(0, attempt=1, exit=1, time_ms=0))
    assert run.rank_status(0, 1) and run.rank_status(0, 2) is None and run.rank_status(1, 1) is None


def ctrl_c(process, run):
    """Signal all processes of a terminal; the ranks must leave it to their parent."""
    os.killpg(process.pid, signal.SIGINT)


@pytest.mark.parametrize("how", [lambda process, run: process.terminate(), ctrl_c], ids=["SIGTERM", "Ctrl-C"])
def test_signal_writes_checkpoint_and_exits_75(cli, how):
    process, run = interrupted_run(cli, 2, 3, how)
    ended = cli.ended(process, expect=75, timeout=30)
    assert all(run.rank_status(rank, 1).exit == 75 for rank in (0, 1))
    assert f"mxscale train resume={run}" in ended.out
    status = run.read("status.json")
    assert status["state"] == "KILLED"
    last = max(line["step"] for line in run.lines())
    assert run.checkpoint(last).is_dir()


def test_fewer_ranks_keep_global_batch_and_shards(cli):
    run = stopped_run(cli, 2, 3)
    before = run.plan().sizes
    resumed = cli("train", f"resume={run}", "launch.ranks=1", small=False)
    after = run.plan().sizes
    assert (after.ranks, after.shards, after.global_batch) == (1, 6, before.global_batch)
    assert [attempt["ranks"] for attempt in resumed.status["attempts"]] == [2, 1]
    rates = [line["metrics"].get("throughput/images_per_s") for line in run.lines() if line["attempt"] == 2]
    median = statistics.median([rate for rate in rates if rate])
    assert run.read("summary.json")["metrics"]["throughput/median"] == median  # of one rank, not mixed
    assert resumed.status["step"] == after.total_steps


def test_run_is_shortened_to_its_checkpoint_and_validated_and_not_further(cli):
    run = stopped_run(cli, 1, 5, "validate_every=3")
    ended = cli("train", f"resume={run}", "max_steps=2", small=False, expect=2)
    reason = rf"error: resume={run}: it is at step \d+, and these settings end at 2; raise epochs or max_steps\n"
    assert re.search(reason, ended.err)
    step = max(int(path.name) for path in run.checkpoints.glob("[0-9]*"))
    resumed = cli("train", f"resume={run}", f"max_steps={step}", small=False)
    assert resumed.status["state"] == "FINISHED" and run.read("best.json")["step"] == step


def test_resume_auto_finds_unfinished_run_of_config(cli):
    run = stopped_run(cli, 1, 2, "experiment=digits")
    command = [*CASE, "launch.ranks=1", "experiment=digits", "resume=auto"]
    again = cli("train", *command)
    assert again.run.path == run.path
    other = cli("train", *command)
    assert other.run.path != run.path, "a finished run is not resumed"


def test_damaged_checkpoint_and_lost_price_do_not_prevent_a_resume(cli, unbroken):
    run = stopped_run(cli, 1, 9)
    (run.path / "price.json").unlink()
    newest = max(run.checkpoints.glob("[0-9]*"))
    (newest / "params").write_bytes((newest / "params").read_bytes()[:-100])
    assert cli("train", f"resume={run}", small=False).sha == unbroken(1)
    assert run.price() is not None


JITTER = """
import random, sys, time
from mxscale.distributed import exchange
from mxscale.train import rank

pack = exchange.Wire.pack
random.seed()
exchange.Wire.pack = lambda wire: (time.sleep(random.random() / 50), pack(wire))[1]
sys.exit(rank.main(sys.argv[1], int(sys.argv[2])))
"""


def test_jittered_enqueues_keep_the_same_bytes(cli, tmp_path, data_cache):
    """Ranks that reach each bucket in another order each time, as on a busy network."""
    script = tmp_path / "jitter.py"
    script.write_text(JITTER)
    ended = cli("train", "launch.ranks=3", "batch.per_device=8", "comm.bucket_mb=0.05", "epochs=1")
    shas = {ended.sha}
    for attempt in (2, 3):
        run = RunDir(tmp_path / f"again{attempt}")
        (run.path / "ranks").mkdir(parents=True)
        config = ended.run.config()
        run.write_config(config)
        run.save(ended.run.plan())
        run.begin_alive(1)
        command = commands.commands(config, str(run), 1, Placement(3, 2), os.environ)[0]
        subprocess.run(with_script(command.argv, script), env=command.env, check=True, timeout=120, capture_output=True)
        shas.add(run.read("ranks/0.json")["params_sha256"])
    assert len(shas) == 1


def test_dropout_and_buffers_of_two_ranks_resume_to_same_bytes(cli):
    case = ["epochs=1", "checkpoint.every_steps=1", "launch.ranks=2", "model.name=squeezenet1.1", "data.image_size=32",
            "optimizer.lr=0.01", "comm.double_buffering=true", "comm.compression=fp16"]  # fmt: skip
    uninterrupted = cli("train", *case)
    process = cli.start("train", *case)
    run = cli.run_of(process)
    wait_for_step(run, 2)
    kill_session(process)
    assert cli("train", f"resume={run}", small=False).sha == uninterrupted.sha


RANDOM = {
    "mixed, balanced, averaged": [
        "data.augment.mixup=0.4", "data.augment.cutmix=1", "batch.accumulation=2", "class_weights=[1,2,3,4,5]",
        "data.sampling=balanced", "optimizer.ema_decay=0.9", "optimizer.clip_norm=0.1",
    ],
    "last epoch plain": ["data.augment.mixup=0.4", "data.augment.erase=1", "data.augment.off_epochs=1"],
    "target": ["target_top1=1", "stop_at_target=true", "epochs=3"],
}  # fmt: skip


@pytest.mark.parametrize("what", RANDOM.values(), ids=RANDOM)
def test_random_state_resumes_to_same_bytes(tmp_path, data_cache, what):
    case = ["data.train_per_class=24", "batch.per_device=4", "data.shards=2", "data.image_size=16", "epochs=2",
            "launch.ranks=1", f"data.cache={data_cache}", *what]  # fmt: skip
    uninterrupted = trained(prepared(tmp_path / "uninterrupted", *case))
    run = prepared(tmp_path / "interrupted", *case)
    run.stop_file.write_text("a test")
    assert trained(run)["state"] == "interrupted"
    run.stop_file.unlink()
    assert trained(run, attempt=2)["params_sha256"] == uninterrupted["params_sha256"]


def test_second_parent_of_a_run_is_refused(cli):
    process = cli.start("train", *CASE, "launch.ranks=1", "epochs=30")
    run = cli.run_of(process)
    wait_for_step(run, 1)
    refused = cli("train", f"resume={run}", small=False, expect=2)
    assert "is in use by another process" in refused.err
    process.send_signal(signal.SIGTERM)
    cli.ended(process, expect=75)


def test_ranks_end_without_parent(cli):
    process = cli.start("train", "launch.ranks=2", "epochs=500")
    run = cli.run_of(process)
    wait_for_step(run, 1)
    assert len(rank_pids(run)) == 2
    kill_session(process)
    until(lambda: not rank_pids(run), 30, 0.5)


@pytest.mark.parametrize("ranks", [1, 2])
def test_removed_run_directory_ends_the_run_and_is_not_made_anew(cli, ranks):
    process = cli.start("train", "epochs=500", "checkpoint.every_steps=1", f"launch.ranks={ranks}")
    run = cli.run_of(process)
    wait_for_step(run, 3)
    run.path.rename(cli.folder / "moved")
    ended = cli.ended(process, expect=1, timeout=30)
    assert ended.err.splitlines()[-1:] == [
        f"error: {run} was moved or removed while the run wrote to it: the run has ended"
    ]
    assert not rank_pids(run)
    assert not run.path.exists()
