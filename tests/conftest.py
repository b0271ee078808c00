"""Fixtures that start runs as users do: verbs in their own processes, with a temporary folder of runs."""

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from contextlib import contextmanager
from functools import partial
from importlib import metadata
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from publisher import Publisher

if "PYTEST_XDIST_WORKER" in os.environ:  # one test process per core; more threads would slow all of them
    os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ["MLFLOW_DISABLE_TELEMETRY"] = "true"

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # a background job of a shell ignores it; tests send it
    signal.signal(signal.SIGINT, signal.default_int_handler)

from mxscale.rundir.directory import RunDir

ROOT = Path(__file__).resolve().parents[1]

# Small enough to end in seconds: 120 training images, 5 steps of 24 in an epoch.
SMALL = ["data.train_per_class=24", "batch.per_device=12", "epochs=2", "log_every=1", "tracking=none"]


# test or file -> why it can't pass with MXNet 1.5, whose API mxnet-cu90 has
NOT_WITH_1_5 = {
    "test_optimizer.py::test_mxnet_optimizer_is_created[lamb]": "MXNet 1.5 has no LAMB",
    **dict.fromkeys(
        (
            "test_optimizer.py::test_mxnet_optimizer_is_created[lars]",
            "test_lars_scales_weights_alone",
            "test_server_updates_like_a_rank[lars]",
        ),
        "MXNet 1.5 has no LARS",
    ),
    "test_amp_with_a_graph_is_refused": "MXNet 1.5's AMP is refused for every network",
    **dict.fromkeys(
        (
            "test_names_of_classes_survive",
            "test_export.py::",
            "test_predict.py::",
            "test_evaluate.py::",
            "test_register.py::",
        ),
        "MXNet 1.5 cannot export to ONNX",
    ),
}


def pytest_collection_modifyitems(items):
    if metadata.version("mxnet").startswith("1.5."):
        for item in items:
            for test, reason in NOT_WITH_1_5.items():
                if test in item.nodeid:
                    item.add_marker(pytest.mark.skip(reason=reason))


class Cli:
    """Starts verbs with their runs in one folder."""

    def __init__(self, folder: Path, cache: Path):
        self.folder, self.cache = folder, cache
        self.overrides = [f"runs={folder}", f"data.cache={cache}"]

    def start(self, entry, *overrides, small=True, env=None, within=()):
        script = [f"{entry}.py"] if entry in ("train", "finetune") else ["-m", "mxscale", entry]
        argv = [*within, sys.executable, *script, *self.overrides, *(SMALL if small else []), *overrides]
        environment = {k: v for k, v in os.environ.items() if not k.startswith("MLFLOW_")}
        return subprocess.Popen(
            argv, cwd=ROOT, env={**environment, **(env or {})}, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, text=True, start_new_session=True,
        )  # fmt: skip

    def __call__(self, entry, *overrides, expect=0, timeout=180, **options):
        """Run to the end and assert the exit status."""
        return self.ended(self.start(entry, *overrides, **options), expect, timeout)

    def ended(self, process, expect=0, timeout=180):
        out, err = process.communicate(timeout=timeout)
        assert process.returncode == expect, f"exit {process.returncode}, expected {expect}\n{out}\n{err}"
        found = re.search(r"^run +(\S+)$", out, re.MULTILINE)
        run = RunDir(found[1]) if found else None
        return Ended(run, out, err)

    def run_of(self, process, timeout=60) -> RunDir:
        """Return the run directory that a process prints at its start."""
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline:
            line = process.stdout.readline()
            if line.startswith("run "):
                return RunDir(line.split(None, 1)[1].strip())
        raise AssertionError("no run directory was printed")


def namespace(kind: str, change: str) -> list:
    """Return the start of a command that runs in a Linux namespace of its own, after a change to it."""
    words = ["unshare", kind, "sh", "-c", f'{change} && exec "$@"', "sh"]
    if subprocess.run([*words, "true"], capture_output=True).returncode:
        pytest.skip(f"not allowed here: {change}")
    return words


class Ended:
    def __init__(self, run, out, err):
        self.run, self.out, self.err = run, out, err

    @property
    def status(self):
        return self.run.read("status.json")

    @property
    def sha(self):
        return self.status["params_sha256"]


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


def last(run: RunDir, name: str) -> float:
    """Return the last value of a metric."""
    return [line["metrics"][name] for line in run.history() if name in line["metrics"]][-1]


def free_port() -> int:
    """Return a port of this machine on which no server listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def until(condition, timeout_s=10.0, interval_s=0.01):
    """Return the first true value of `condition()`. Raises AssertionError after `timeout_s`."""
    deadline = time.monotonic() + timeout_s
    while not (value := condition()):
        assert time.monotonic() < deadline, f"not within {timeout_s:.0f} s"
        time.sleep(interval_s)
    return value


def wait_for_step(run: RunDir, step: int, timeout=60) -> None:
    """Wait until metrics.jsonl has a line of `step` or later."""
    until(lambda: any(line["step"] >= step for line in run.lines()), timeout, 0.005)


@contextmanager
def mounted(folder, options):
    """Mount a tmpfs at a new folder within the `with` block; skip the test if mounting is not allowed."""
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", options, "none", folder]
    if shutil.which("mount") is None or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("mounting is not allowed here")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True)  # files may still be open there


def kill_session(process) -> None:
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def rank_pids(run: RunDir):
    """Return the pid of each rank of a run, from the process table."""
    found = {}
    for path in Path("/proc").glob("[0-9]*"):
        try:
            argv = (path / "cmdline").read_bytes().decode().split("\0")
            if argv[1:4] == ["-m", "mxscale.train.rank", str(run)]:
                env = dict(e.split("=", 1) for e in (path / "environ").read_bytes().decode().split("\0") if "=" in e)
                found[int(env.get("HOROVOD_RANK", env.get("OMPI_COMM_WORLD_RANK", 0)))] = int(path.name)
        except (OSError, ValueError):
            continue
    return found


def params(run: RunDir, step=None):
    """Return the parameters of a checkpoint (default: the newest) as numpy arrays by structural name."""
    from mxscale.models import weights

    path = max(run.checkpoints.glob("[0-9]*")) if step is None else run.checkpoint(step)
    return {k: v.asnumpy() for k, v in weights.load(path / "params").items()}


def recorded_in(uri: str):
    """Return a client of an MLflow store, and the only run in it."""
    from mlflow import MlflowClient

    client = MlflowClient(uri)
    (run,) = client.search_runs([client.get_experiment_by_name("mxscale").experiment_id])
    return client, run


def name_of(path: Path) -> str:
    """Return a path relative to the repository, for ids of tests."""
    return str(path.relative_to(ROOT))


def read_json(path):
    return json.loads(Path(path).read_text())


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
        run.write_plan(Plan(pretrained=setup.pretrained_file(config)))
        return error_of(prepare.prepare, run, config)

    return prepared
