"""Checkpoints: restored bit by bit, ignored if damaged, written completely or not at all."""

import os
import re
import resource
import shutil
import subprocess
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import mxnet as mx
import numpy as np
import pytest
from machine import mounted
from small_training import WIDTH, Training

from mxscale.config.schema import from_dict
from mxscale.distributed.communicators import Local
from mxscale.models import weights
from mxscale.rundir import checkpoints
from mxscale.rundir.checkpoints import FILES
from mxscale.train import checkpointer, prepare
from mxscale.train.checkpointer import Checkpointer, NotFinite, resumable
from mxscale.util.atomic_files import digest_of
from mxscale.util.errors import ConfigError


@pytest.fixture
def saved(tmp_path):
    """Return a run with checkpoints of steps 1, 2 and 3."""
    training = Training(tmp_path / "run", checkpoint={"keep": 9})
    for step in (1, 2, 3):
        training.step(step).save(step)
    return training


def newest_step(training):
    found = resumable(training.run)
    return found and found.state["step"]


# ---------------------------------------------------------------- round trip


@pytest.mark.parametrize("optimizer", [{}, {"name": "adam", "momentum": None}, {"ema_decay": 0.9}])
def test_resumed_run_is_bit_identical(tmp_path, optimizer):
    unbroken = Training(tmp_path / "run", optimizer=optimizer).step(1, 2, 3).save(3).step(4, 5)
    resumed = Training(tmp_path / "run", seed=99, optimizer=optimizer)
    assert resumed.checkpointer.restore() == 3
    resumed.step(4, 5)
    assert resumed.digest() == unbroken.digest()
    assert resumed.evaluated() == unbroken.evaluated()
    tables = [training.statistics.gather(Local()) for training in (resumed, unbroken)]
    assert np.array_equal(*tables) and not np.array_equal(tables[0][0], tables[0][1])


def test_saving_does_not_disturb_training(tmp_path):
    quiet = Training(tmp_path / "a").step(1, 2, 3, 4)
    saving = Training(tmp_path / "b")
    for step in (1, 2, 3, 4):
        saving.step(step).save(step)
    assert quiet.digest() == saving.digest()


@pytest.fixture
def slow_disk(monkeypatch):
    """Let each checkpoint wait for the returned event before it is written."""
    ready, write = threading.Event(), checkpointer.write
    monkeypatch.setattr(checkpointer, "write", lambda *arguments: ready.wait(30) and write(*arguments))
    return ready


def test_training_continues_while_a_checkpoint_is_written(tmp_path, slow_disk):
    training = Training(tmp_path / "run").step(1)
    digest, log = training.digest(), training.metrics_log
    training.checkpointer.save(training.checkpointer.snapshot(1), log)
    training.step(2, 3)
    assert checkpoints.paths(training.run.checkpoints) == [] and training.digest() != digest
    slow_disk.set()
    training.checkpointer.finish()
    assert resumable(training.run).state["params_sha256"] == training.checkpointer.params_sha256
    resumed = Training(tmp_path / "run", seed=99)
    assert resumed.checkpointer.restore() == 1
    assert resumed.step(2, 3).digest() == training.digest()


def test_a_failed_checkpoint_ends_training_at_the_next_one(tmp_path):
    training = Training(tmp_path / "run").step(1)
    with files_of_at_most(0):
        training.checkpointer.save(training.checkpointer.snapshot(1), training.metrics_log)
        training.checkpointer.wait()
    snapshot = training.step(2).checkpointer.snapshot(2)
    with pytest.raises(OSError, match=r"^checkpoint of step 1 not written: .* File too large$"):
        training.checkpointer.save(snapshot, training.metrics_log)
    training.save(2)
    assert newest_step(training) == 2


def test_checkpoint_is_read_as_written(saved):
    found = resumable(saved.run)
    arrays = {name: array.asnumpy() for name, array in found.params.items()}
    assert weights.params_sha256(arrays) == found.state["params_sha256"] == saved.checkpointer.params_sha256
    assert found.path.name == "000000003"
    assert (found.state["step"], found.state["shards"], found.state["global_batch"]) == (3, 2, 8)
    assert found.statistics.shape == (2, 2 * WIDTH)
    assert np.array_equal(found.statistics, saved.statistics.gather(Local()))


def test_saved_running_statistics_are_the_average_of_shards(saved):
    found = resumable(saved.run)
    mean = found.statistics.astype("float64").mean(axis=0)[:WIDTH]
    assert found.params["1.running_mean"].asnumpy() == pytest.approx(mean, rel=1e-6)


def test_manifest_passes_sha256sum(saved):
    path = saved.run.checkpoints / "000000003"
    done = subprocess.run(["sha256sum", "-c", "--strict", "MANIFEST"], cwd=path, capture_output=True, text=True)
    assert done.returncode == 0
    assert done.stdout.splitlines() == [
        f"{name}: OK" for name in ("params", "optimizer", "statistics", "optimizer.json", "state.json")
    ]
    assert {p.name for p in path.iterdir()} == {*FILES, "optimizer", "MANIFEST"}


# ---------------------------------------------------------------- damage


def truncate(path):
    os.truncate(path, path.stat().st_size // 2)


def empty(path):
    os.truncate(path, 0)


def flip_first(path, at=0):
    content = bytearray(path.read_bytes())
    content[at] ^= 1
    path.write_bytes(content)


def flip_middle(path):
    flip_first(path, path.stat().st_size // 2)


def add_a_byte(path):
    with open(path, "ab") as file:
        file.write(b"\0")


@pytest.mark.parametrize("name", [*FILES, "optimizer", "MANIFEST"])
@pytest.mark.parametrize("damage", [truncate, empty, flip_first, flip_middle, Path.unlink, add_a_byte])
def test_damaged_checkpoint_is_ignored(saved, name, damage):
    damage(saved.run.checkpoints / "000000003" / name)
    assert newest_step(saved) == 2
    assert saved.checkpointer.last_valid().endswith("/000000002")


def test_resume_is_refused_if_all_checkpoints_are_damaged(saved):
    for step in (1, 2, 3):
        empty(saved.run.checkpoint(step) / "optimizer")
    message = f"^resume={saved.run.path}: every checkpoint there is damaged; start a new run$"
    with pytest.raises(ConfigError, match=message):
        resumable(saved.run)


def test_run_without_checkpoints_starts_at_0(tmp_path):
    training = Training(tmp_path / "run")
    assert resumable(training.run) is None and training.checkpointer.restore() == 0
    assert training.checkpointer.last_valid() == "there is no checkpoint yet"


def test_damaged_checkpoint_is_replaced(saved):
    flip_middle(saved.run.checkpoints / "000000003" / "params")
    resumed = Training(saved.run.path, seed=99)
    assert resumed.checkpointer.restore() == 2
    resumed.step(3).save(3)
    assert newest_step(saved) == 3
    assert resumed.digest() == saved.digest()


# ---------------------------------------------------------------- failing writes


def leftovers(training):
    return sorted(p.name for p in training.run.checkpoints.iterdir() if not p.name.isdigit())


@contextmanager
def files_of_at_most(size):
    """Make writes beyond `size` bytes of a file fail with OSError."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def write_fails(training, limit, message=""):
    """Check that a write with files of at most `limit` bytes fails and leaves checkpoint 1 alone."""
    message = f"^checkpoint of step 2 not written: {message}"
    with pytest.raises(OSError, match=message), files_of_at_most(limit):
        training.save(2)
    assert newest_step(training) == 1 and leftovers(training) == []


def sizes_of(training):
    return {p.name: p.stat().st_size for p in training.run.checkpoint(1).iterdir()}


def test_failed_write_keeps_older_checkpoints(tmp_path):
    training = Training(tmp_path / "run", optimizer={"name": "adam", "momentum": None}).step(1).save(1).step(2)
    written = sizes_of(training)
    assert written["params"] + 100 < written["optimizer"]
    for limit in (0, written["params"] // 2, written["params"] + 100):  # params, params, optimizer
        write_fails(training, limit)
    training.save(2)
    assert newest_step(training) == 2


def test_the_last_bytes_that_do_not_fit_are_detected(tmp_path):
    training = Training(tmp_path / "run", optimizer={"name": "sgd", "momentum": None}).step(1).save(1).step(2)
    written = sizes_of(training)
    assert all(size < written["params"] - 100 for name, size in written.items() if name != "params")
    write_fails(training, written["params"] - 100)


@pytest.mark.parametrize("kb", [40, 70, 79.9])
def test_full_disk_in_exchange_file_keeps_older_checkpoint(tmp_path, kb):
    training = Training(tmp_path / "run").step(1).save(1).step(2)
    training.checkpointer.state.exchange = InFlight(20_000)  # 80 kB, more than any other file
    write_fails(training, int(kb * 1000), ".*/exchange could not be written: File too large$")


@pytest.fixture
def small_disk(tmp_path):
    with mounted(tmp_path / "disk", "size=200k") as folder:
        yield folder


def fill(disk, kb_left):
    """Fill a file system except for this many kB."""
    (disk / "filler").unlink(missing_ok=True)
    found = os.statvfs(disk)
    (disk / "filler").write_bytes(bytes(found.f_bavail * found.f_frsize - kb_left * 1024))


def test_full_disk_keeps_older_checkpoints(small_disk):
    training = Training(small_disk / "run").step(1).save(1).step(2)
    assert 32_000 < sum(sizes_of(training).values()) < 48_000
    for kb_left in (4, 12, 20, 28, 36):  # full in different files
        fill(small_disk, kb_left)
        with pytest.raises(OSError, match=r"^checkpoint of step 2 not written: "):
            training.save(2)
        assert newest_step(training) == 1 and leftovers(training) == []
    fill(small_disk, 80)
    training.save(2)
    assert newest_step(training) == 2


def test_files_of_a_killed_writer_are_removed(saved):
    shutil.copytree(saved.run.checkpoints / "000000003", saved.run.checkpoints / ".000000004.1234")
    assert newest_step(saved) == 3
    saved.step(5).save(5)
    assert leftovers(saved) == []


def test_parameters_not_finite_are_not_saved(saved):
    saved.net[0].bias.data()[:] = np.inf
    message = r"^0.bias is not finite after step 4; the last good checkpoint is .*/000000003$"
    with pytest.raises(NotFinite, match=message):
        saved.save(4)
    assert newest_step(saved) == 3 and leftovers(saved) == []


class InFlight:
    """An exchange with sums in flight."""

    def __init__(self, size):
        self.size = size

    def state(self):
        return {"0": mx.nd.ones((self.size,))}

    def residuals(self):
        return {}


def test_resume_without_double_buffering_is_refused(tmp_path):
    training = Training(tmp_path / "run")
    training.checkpointer.state.exchange = InFlight(10)
    training.step(1).save(1)
    training.run.write_config(from_dict({"comm": {"double_buffering": False}}))
    with pytest.raises(ConfigError, match=r"comm\.double_buffering=false: its checkpoint holds gradients"):
        prepare.prepare(training.run, training.run.config())


@pytest.mark.parametrize("key", ["validation_pending", "owes_validation"])  # as earlier versions called it
def test_interrupted_validation_is_pending_after_restore(tmp_path, key):
    training = Training(tmp_path / "run")
    training.checkpointer.record_validation(1, None)
    training.step(1).save(1)
    state, manifest = (training.run.checkpoint(1) / name for name in ("state.json", "MANIFEST"))
    digest = digest_of(state)
    state.write_text(state.read_text().replace("validation_pending", key))
    manifest.write_text(manifest.read_text().replace(digest, digest_of(state)))
    resumed = Training(tmp_path / "run")
    assert resumed.checkpointer.restore() == 1 and resumed.checkpointer.validation_pending


# ---------------------------------------------------------------- retention


def test_last_and_best_checkpoints_are_retained(tmp_path):
    training = Training(tmp_path / "run", checkpoint={"keep": 2})
    for step, top1 in enumerate([10.0, 50.0, 50.0, 40.0, 30.0, 20.0], start=1):
        training.checkpointer.record_validation(step, {"val/top1": top1})
        assert training.checkpointer.best_step == min(step, 2)
        training.step(step).save(step)
    assert checkpoints.steps(training.run.checkpoints) == [2, 5, 6]
    best = training.run.read("best.json")
    assert (best["step"], best["val/top1"], best["checkpoint"]) == (2, 50.0, "checkpoints/000000002")


def test_resumed_run_restores_the_best(tmp_path):
    training = Training(tmp_path / "run")
    training.step(1).checkpointer.record_validation(1, {"val/top1": 50.0})
    best = training.save(1).checkpointer.params_sha256
    training.step(2).save(2)
    resumed = Training(tmp_path / "run", seed=99)
    assert resumed.checkpointer.restore() == 2
    resumed.checkpointer.record_validation(3, {"val/top1": 49.0})
    assert resumed.checkpointer.best_step == 1
    assert resumed.checkpointer.params_sha256 != best
    found = {name: array.asnumpy() for name, array in resumed.checkpointer.best_params().items()}
    assert weights.params_sha256(found) == best


class OneOfTwo(Local):
    """A rank that meets another one, of another thread, in each sum."""

    size = 2

    def __init__(self, rank, barrier, given):
        self.rank, self.barrier, self.given = rank, barrier, given

    def total_later(self, values, name):
        self.given[self.rank] = values
        self.barrier.wait()
        total = self.given[0] + self.given[1]
        self.barrier.wait()
        return lambda: total


def on_two_ranks(trainings, act):
    """Return for each training the error that `act(checkpointer)` raises, or its result."""
    barrier, given = threading.Barrier(2, timeout=60), [None, None]

    def outcome(rank):
        trainings[rank].checkpointer.comm = OneOfTwo(rank, barrier, given)
        try:
            return act(trainings[rank].checkpointer)
        except RuntimeError as error:
            return str(error)

    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(outcome, range(2)))


@pytest.mark.parametrize("steps", [(500_000, 500_001), (10_000_000, 10_000_010), (3, None), (7, 7)])
def test_ranks_that_read_different_checkpoints_fail(tmp_path, steps):
    trainings = [Training(tmp_path / str(rank)) for rank in range(2)]
    for training, step in zip(trainings, steps):
        if step:
            training.step(1).save(step)
    if steps[0] == steps[1]:
        assert on_two_ranks(trainings, Checkpointer.restore) == list(steps)
        return
    for error, step in zip(on_two_ranks(trainings, Checkpointer.restore), steps):
        assert re.match(rf"ranks read different checkpoints, here .*{step or 'none'}: check the storage$", error)


def test_ranks_that_restore_different_weights_of_a_step_fail(tmp_path):
    trainings = [Training(tmp_path / str(rank), seed=rank).step(1).save(5) for rank in range(2)]
    assert all("different checkpoints" in error for error in on_two_ranks(trainings, Checkpointer.restore))


def test_ranks_test_the_same_network(tmp_path):
    trainings = [Training(tmp_path / str(rank)) for rank in range(2)]
    for training in trainings:
        training.step(1).checkpointer.record_validation(1, {"val/top1": 50.0})
        training.save(1).step(2).save(2)
    first, second = on_two_ranks(trainings, Checkpointer.best_params)
    assert first.keys() == second.keys()
    (trainings[1].run.checkpoint(1) / "params").write_bytes(b"damaged")  # rank 1 would take step 2
    errors = on_two_ranks(trainings, Checkpointer.best_params)
    assert ["000000001: check" in errors[0], "000000002: check" in errors[1]] == [True, True]


def test_checkpoint_is_due_after_epochs_and_steps(tmp_path):
    training = Training(tmp_path / "run", checkpoint={"every_epochs": 2, "every_steps": 7})  # 10 steps an epoch
    assert [step for step in range(1, 41) if training.checkpointer.due(step)] == [7, 14, 20, 21, 28, 35, 40]


def test_same_step_is_saved_once(saved):
    before = (saved.run.checkpoints / "000000003").stat().st_ino
    saved.save(3)
    assert (saved.run.checkpoints / "000000003").stat().st_ino == before
