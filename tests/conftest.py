"""Fixtures that start runs as users do: verbs in their own processes, with a temporary folder of runs."""

import os
import signal
import subprocess
import sys
from functools import partial
from importlib import metadata

import cpu_limit
import numpy as np
import pytest
import shared_conf
from PIL import Image
from publisher import Publisher
from repository import ROOT
from verbs import Cli

if "PYTEST_XDIST_WORKER" in os.environ:  # one test process per core; more threads would slow all of them
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    # Ranks have a thread for each core; by default, those of one test spin while those of another compute
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ["MLFLOW_DISABLE_TELEMETRY"] = "true"
shared_conf.share()

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # a background job of a shell ignores it; tests send it
    signal.signal(signal.SIGINT, signal.default_int_handler)


# test or file -> why it can't pass with MXNet 1.5, whose API mxnet-cu90 has
NOT_WITH_1_5 = {
    "test_optimizer.py::test_mxnet_optimizer_is_created[lamb]": "MXNet 1.5 has no LAMB",
    **dict.fromkeys(
        (
            "test_optimizer.py::test_mxnet_optimizer_is_created[lars]",
            "test_lars_scales_weights_alone",
        ),
        "MXNet 1.5 has no LARS",
    ),
    "test_amp_with_a_graph_is_refused": "MXNet 1.5's AMP is refused for every network",
    **dict.fromkeys(
        (
            "test_names_of_classes_survive",
            "test_finished_run_evaluates_predicts_and_exports",
            "test_export.py::",
            "test_predict.py::",
            "test_evaluate.py::",
            "test_register.py::",
        ),
        "MXNet 1.5 cannot export to ONNX",
    ),
}


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item):
    """Fail unmarked tests that take far more CPU time than cpu_limit.LIMIT_S, unless they import a library first."""
    before, loaded = cpu_limit.spent(), len(sys.modules)
    result = yield
    exempt = any(item.get_closest_marker(name) for name in ("slow", "docker", "user")) or len(sys.modules) > loaded + 20
    if not exempt and (message := cpu_limit.excess(cpu_limit.spent() - before)):
        pytest.fail(message, pytrace=False)
    return result


def pytest_collection_modifyitems(items):
    if metadata.version("mxnet").startswith("1.5."):
        for item in items:
            for test, reason in NOT_WITH_1_5.items():
                if test in item.nodeid:
                    item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(autouse=True)
def no_outer_store(monkeypatch):
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)


@pytest.fixture(scope="session")
def data_cache(tmp_path_factory):
    """Return a folder for packed sets, shared by all tests that do not test packing."""
    return tmp_path_factory.mktemp("data")


@pytest.fixture
def cli(tmp_path, data_cache):
    return Cli(tmp_path / "runs", data_cache)


@pytest.fixture(scope="module")
def shared_cli(tmp_path_factory, data_cache):
    return Cli(tmp_path_factory.mktemp("shared") / "runs", data_cache)


@pytest.fixture
def publisher():
    with Publisher().serving() as one:
        yield one


@pytest.fixture
def fake_ssh(tmp_path, monkeypatch):
    """An ssh that runs the command here; hosts whose name begins with `gone` are unreachable. Return its folder."""
    (tmp_path / "ssh").write_text(
        '#!/bin/bash\nwhile [ "$1" = -o ]; do shift 2; done\n'
        'case $1 in gone*) exit 255;; esac\nshift; exec sh -c "$*"\n'
    )
    (tmp_path / "ssh").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    return tmp_path


@pytest.fixture
def photo():
    """Smooth colours with some grain, 40 wide and 30 high."""
    y, x = np.mgrid[0:30, 0:40]
    grain = np.random.RandomState(0).randint(0, 20, (30, 40))
    return Image.fromarray(np.stack([x * 6, y * 7, (x + y) * 3 + grain], -1).astype("uint8"))


@pytest.fixture(scope="session")
def images():
    """Build the images of the checkout: that of BUILD, by default `cpu`, and `mlflow`."""
    argv = ["docker", "compose", "build", "train", "mlflow"]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=1500)
    assert done.returncode == 0, done.stderr


@pytest.fixture
def refused(cli):
    """Return a function that runs a verb with invalid input and returns its one line of error."""
    from refusals import refusal

    return partial(refusal, cli)


@pytest.fixture
def refused_here(cli, capsys):
    """Return a function like `refused` that runs the verb in this process, for what is refused before a preparation."""
    from refusals import command_error, run_directories

    def refusal(*overrides, entry="train"):
        before = run_directories(cli.folder)
        line = command_error(capsys, entry, *cli.overrides, "tracking=none", *overrides)
        assert run_directories(cli.folder) == before
        return line

    return refusal


@pytest.fixture
def unprepared(tmp_path, data_cache):
    """Return a function like `refused` that runs only the preparation, in this process, which is two seconds faster."""
    from composed import composed
    from refusals import error_of

    from mxscale.launcher import setup
    from mxscale.rundir import directory
    from mxscale.rundir.plan import Plan
    from mxscale.train import prepare

    def prepared(*overrides, entry="train"):
        config = composed(entry, f"runs={tmp_path}/runs", f"data.cache={data_cache}", *overrides)
        run = directory.create(config)
        run.save(Plan(pretrained=setup.pretrained_file(config)))
        return error_of(prepare.prepare, run, config)

    return prepared
