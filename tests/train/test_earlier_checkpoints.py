"""Checkpoints of earlier versions resume to the same bytes, and nothing in a checkpoint is executed.

tests/fixtures/checkpoints.tar.xz holds, written by those versions themselves:

current/NAME     runs of `small_training.Training` of width 8 after step 3, by the last version that pickled optimizers
early/NAME       the same by a version of 2026-11-20, whose state.json has six keys
whole            a run directory by that last version, stopped at step 11 of 64: a small symbol network, Adam
optimizers/NAME-DTYPE   the file `trainer` of each MXNet optimizer after three updates of random gradients
"""

import io
import json
import os
import pickle
import shutil
import tarfile

import mxnet as mx
import numpy as np
import pytest
import small_training
from in_process import trained
from refusals import error_of
from repository import ROOT
from small_training import Training

from mxscale.config.optimizers import optimizer_entry
from mxscale.config.schema import Optimizer, from_dict
from mxscale.models import weights
from mxscale.rundir import checkpoints
from mxscale.rundir.directory import RunDir
from mxscale.train import checkpointer, prepare
from mxscale.train.optim import pickled_states, states
from mxscale.train.optim.optimizer import make_trainer
from mxscale.util.atomic_files import digest_of

SETTINGS = {"sgd": {}, "adam": {"name": "adam", "momentum": None}, "average": {"ema_decay": 0.9}}
RUNS = ["current/sgd", "current/adam", "current/average", "early/sgd", "early/adam"]
WITH_MOMENTUM = ("ccsgd", "lars", "lbsgd", "nag", "rmsprop_warmup", "sgd", "signum")
OPTIMIZERS = sorted(set(mx.optimizer.Optimizer.opt_registry) - {"groupadagrad", "rmspropwarmup"})


@pytest.fixture(scope="module")
def fixtures(tmp_path_factory):
    folder = tmp_path_factory.mktemp("fixtures")
    with tarfile.open(ROOT / "tests" / "fixtures" / "checkpoints.tar.xz") as archive:
        archive.extractall(folder)  # Python before 3.11.4 has no `filter`; the archive is our own
    return folder


@pytest.fixture
def earlier(fixtures, tmp_path, monkeypatch):
    """earlier(name, seed) -> a training at step 0 in a copy of that run."""
    monkeypatch.setattr(small_training, "WIDTH", 8)

    def training(name, seed=99):
        shutil.copytree(fixtures / name, tmp_path / "run", dirs_exist_ok=True)
        return Training(tmp_path / "run", seed=seed, optimizer=SETTINGS[name.partition("/")[2]])

    return training


@pytest.mark.parametrize("name", RUNS)
def test_earlier_checkpoint_resumes_to_the_same_bytes(earlier, fixtures, name):
    resumed = earlier(name)
    assert resumed.checkpointer.restore() == 3
    saved = json.loads((resumed.run.checkpoint(3) / "state.json").read_text())
    values = {key: mx.nd.array(value).asnumpy() for key, value in resumed.evaluated().items()}
    assert weights.params_sha256(values) == saved["params_sha256"]
    as_before = earlier(name)
    as_before.checkpointer.restore()
    as_before.trainer.load_states(str(fixtures / name / "checkpoints/000000003/trainer"))  # as earlier versions did
    assert resumed.step(4).save(4).step(5, 6).digest() == as_before.step(4, 5, 6).digest()
    assert not (resumed.run.checkpoint(4) / "trainer").exists()
    again = earlier(name)
    assert again.checkpointer.restore() == 4
    assert again.step(5, 6).digest() == resumed.digest() and again.evaluated() == resumed.evaluated()


@pytest.mark.slow
def test_earlier_run_directory_resumes_to_the_same_bytes_in_one_or_two_attempts(fixtures, tmp_path):
    shas = []
    for stops in (False, True):
        run = RunDir(tmp_path / str(stops))
        shutil.copytree(fixtures / "whole", run.path)
        (run.path / "plan.json").write_text((run.path / "plan.json").read_text().replace("@RUN@", str(run)))
        for attempt in (2, 3) if stops else (2,):
            run.begin_alive(attempt)
            if stops and attempt == 2:
                run.ask_to_stop("by the test")
            prepare.prepare(run, run.config())
            ended = trained(run, attempt)
            if ended["state"] == "interrupted":
                assert 11 < ended["step"] < 64
                assert (run.checkpoint(ended["step"]) / "optimizer").exists()
                run.stop_file.unlink()
        assert (ended["state"], ended["step"]) == ("done", 64)
        shas.append(ended["params_sha256"])
    assert shas[0] == shas[1]


class Updates:
    """An optimizer on three parameters, as the files `optimizers/` were made."""

    def __init__(self, name, dtype):
        shapes = {"weight": (4, 3), "bias": (4,), "gamma": (4,)}
        self.parameters = [mx.gluon.Parameter(f"net_{key}", shape=shape, dtype=dtype) for key, shape in shapes.items()]
        for parameter in self.parameters:
            parameter.initialize(mx.init.One())
        momentum = 0.9 if name in WITH_MOMENTUM else None
        self.trainer = make_trainer(self.parameters, Optimizer(name=name, momentum=momentum), dtype == "float16")

    def after(self, *steps):
        """Return the bytes of the parameters after some steps."""
        for step in steps:
            self.trainer.set_learning_rate(0.1 / (step + 1))
            self.trainer.optimizer.epoch = step / 2
            for number, parameter in enumerate(self.parameters):
                values = np.random.RandomState([step, number]).normal(size=parameter.shape)
                parameter.grad()[:] = mx.nd.array(values, dtype=parameter.dtype)
                parameter.list_data()[0]._fresh_grad = True
            self.trainer.update(2)
        return [parameter.data().asnumpy().tobytes() for parameter in self.parameters]


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_each_optimizer_continues_from_its_pickle_and_from_arrays(fixtures, tmp_path, name, dtype):
    path = fixtures / "optimizers" / f"{name}-{dtype}"
    as_before, resumed, again = (Updates(name, dtype) for _ in range(3))
    state = pickled_states.read(path)
    state.check(resumed.trainer.optimizer, path)
    state.restore(resumed.trainer)
    as_before.trainer.load_states(str(path))
    random = not optimizer_entry(name).repeatable
    for update, steps in ((as_before, (3, 4)), (resumed, (3,))):
        update.after(*steps)
    text, arrays = states.encoded(states.of_trainer(resumed.trainer))
    (tmp_path / "optimizer.json").write_text(text)
    if arrays:
        weights.save(tmp_path / "optimizer", arrays)
        arrays = weights.load(tmp_path / "optimizer")
    states.read(tmp_path / "optimizer.json", arrays).restore(again.trainer)
    for old, new in zip(resumed.parameters, again.parameters):
        new.set_data(old.data())
    final = resumed.after(4)
    assert random or final == as_before.after()
    assert random or again.after(4) == final


def test_every_optimizer_of_this_mxnet_has_a_fixture(fixtures):
    """MXNet 1.5 has fewer."""
    assert {f"{name}-{kind}" for name in OPTIMIZERS for kind in ("float32", "float16")} <= {
        path.name for path in (fixtures / "optimizers").iterdir()
    }


def test_an_optimizer_of_another_class_is_refused(earlier):
    training = earlier("current/adam")
    training.run.write_config(from_dict({}))
    message = error_of(prepare.prepare, training.run, training.run.config())
    assert message.endswith("checkpoints/000000003 holds the state of Adam, and the run's optimizer is NAG")


# ---------------------------------------------------------------- nothing is executed


class Harm:
    """An object whose unpickling makes a folder."""

    def __init__(self, made):
        self.made = made

    def __reduce__(self):
        return os.mkdir, (str(self.made),)


def replaced(run, name, content):
    """Replace a file of the newest checkpoint, and list its digest in MANIFEST."""
    folder = run.checkpoint(3)
    (folder / name).write_bytes(content)
    names = [line[66:] for line in (folder / "MANIFEST").read_text().splitlines()]
    (folder / "MANIFEST").write_text("".join(f"{digest_of(folder / each)}  {each}\n" for each in names))
    checkpoints.verify(folder)


def harmful_array(made) -> bytes:
    content = io.BytesIO()
    np.save(content, np.array([[Harm(made)]], dtype=object), allow_pickle=True)
    return content.getvalue()


@pytest.mark.parametrize("name, write, reason", [
    ("trainer", lambda made: pickle.dumps(Harm(made)), "/trainer refers to posix.mkdir, which is not part of an"),
    ("trainer", lambda made: pickle.dumps(({0: Harm(made)}, None), 2), "/trainer refers to posix.mkdir, which is not"),
    ("statistics", harmful_array, "/statistics is no file of statistics: Object arrays cannot be loaded"),
])  # fmt: skip
def test_a_checkpoint_with_code_is_refused_before_the_ranks_and_executes_nothing(
    earlier, tmp_path, name, write, reason
):
    training = earlier("current/sgd")
    training.run.write_config(training.config)
    replaced(training.run, name, write(tmp_path / "made"))
    message = error_of(prepare.prepare, training.run, training.run.config())
    assert reason in message
    assert error_of(training.checkpointer.restore) == message
    assert not (tmp_path / "made").exists()


@pytest.mark.parametrize("content", [
    b"",
    b"\x80\x04N.",
    b"\x80\x04}N\x86.",  # no optimizer
    b"\x80\x04\x8c\x01x)\x81.",  # an object of a text
    b"\x80\x04}\x8c\x02io\x8c\x03SGD\x93)\x81}b\x86.",  # a class of that name elsewhere, without counts
    b"\x80\x04\x8c\x08builtins\x8c\tbytearray\x93J\xff\xff\xff\x7f\x85R.",  # 2 GB of zeros
    b"\x80\x04\x8c\x15mxnet.ndarray.ndarray\x8c\x07NDArray\x93N\x85R}\x8c\x06handleC\x04abcdsb.",
    b"\x80\x04" + b"]" + b"]q\x00h\x00h\x00h\x00\x87" * 3 + b".",
    b"\x80\x04" + b"(" * 100_000 + b".",
])  # fmt: skip
def test_other_pickles_are_refused_in_one_line(tmp_path, content):
    (tmp_path / "trainer").write_bytes(content)
    assert error_of(pickled_states.read, tmp_path / "trainer").startswith(f"{tmp_path}/trainer ")


def test_a_list_that_contains_itself_many_times_is_refused(monkeypatch):
    monkeypatch.setattr(states, "MAX_NODES", 1000)
    nested = []
    for _ in range(100):
        nested = [nested, nested]
    assert error_of(states.mapped, nested, id, kind=ValueError) == "it has too many values"


@pytest.mark.parametrize("text", [
    "[]", "{", "{}", "[" * 100_000,
    '{"class": "NAG", "attributes": {"dict": []}, "states": {"dict": []}}',
    '{"class": "NAG", "attributes": {"array": "7"}, "states": {"dict": []}}',
    '{"class": "NAG", "attributes": {"dict": [["_all_index_update_counts", {"set": []}]]}, "states": {"dict": []}}',
])  # fmt: skip
def test_a_damaged_optimizer_file_is_refused_in_one_line(tmp_path, text):
    path = tmp_path / "optimizer.json"
    path.write_text(text)
    assert error_of(states.read, path, {}).startswith(f"{path} is damaged: ")


def test_files_that_manifest_does_not_list_are_not_read(earlier):
    run = earlier("current/sgd").run
    (run.checkpoint(3) / "optimizer.json").write_text("{")
    (run.checkpoint(3) / "trained").write_text("?")
    assert checkpointer.resumable(run).trained == {}


def test_an_attribute_that_no_checkpoint_can_hold_is_named():
    state = states.OptimizerState("SGD", {"schedule": object()}, {})
    assert error_of(states.encoded, state) == "the optimizer's state has a object, which a checkpoint cannot hold"
