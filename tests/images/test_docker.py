"""Docker Compose as users run it, on a real engine. `make test-docker` takes half an hour if no image is built yet.

BUILD chooses the ranks' image, as for Compose: BUILD=source python -m pytest -m docker tests/images/test_docker.py
"""

import base64
import json
import os
import re
import time
import urllib.request

import numpy as np
import pytest
from docker_engine import NEEDS_ENGINE, QUICK, Project, run_of, sh, wait_for
from PIL import Image
from repository import ROOT

pytestmark = NEEDS_ENGINE
BUILD = os.environ.get("BUILD", "cpu")


def test_failed_tracking_server_ends_the_command(images):
    """Its database is missing; `docker compose run train` must not wait forever."""
    project = Project(f"mxscale-test-{os.getpid()}-down", ROOT / "data")
    project.env["POSTGRES_PASSWORD"] = "x"
    try:
        _, err = project.compose("run", "--rm", "-T", "train", expect=1, timeout=300)
        assert "mlflow" in err.splitlines()[-1], err
    finally:
        project.compose("down", "--volumes", "--timeout", "2")


@pytest.fixture(scope="module")
def flowers(tmp_path_factory):
    """Return a folder with two classes of images, dark and bright."""
    root = tmp_path_factory.mktemp("data")
    root.chmod(0o755)  # the container has another user
    for label, shade in (("daisy", 60), ("rose", 190)):
        (root / "flowers" / label).mkdir(parents=True)
        for n in range(30):
            pixels = np.random.RandomState(n).randint(shade - 50, shade + 50, (48, 64, 3)).astype("uint8")
            Image.fromarray(pixels).save(root / "flowers" / label / f"{n}.jpg")
    return root


@pytest.fixture(scope="module")
def project(images, flowers):
    made = Project(f"mxscale-test-{os.getpid()}", flowers)
    yield made
    made.compose("--profile", "*", "down", "--volumes", "--timeout", "2")


@pytest.fixture(scope="module")
def trained(project):
    """Return the output of a first run, which starts the tracking server."""
    return project.run("train", "seed=3")


def test_run_starts_mlflow_and_is_recorded(project, trained):
    assert float(re.search(r"test top-1 +([\d.]+) %", trained)[1]) >= 98
    assert f"http://127.0.0.1:{project.port}/#/experiments/1/runs/" in trained
    (recorded,) = project.mlflow("runs/search", {"experiment_ids": ["1"]})["runs"]
    assert recorded["info"]["status"] == "FINISHED"
    tags = {tag["key"]: tag["value"] for tag in recorded["data"]["tags"]}
    assert tags["build"] == {"cpu": "wheel"}.get(BUILD, BUILD)
    assert re.fullmatch(r"sha256:[0-9a-f]{64}", tags["image.id"])
    if (ROOT / ".git").is_dir():
        assert tags["git.commit"] == sh("git", "rev-parse", "HEAD")[0].strip()
    artifacts = project.mlflow(f"artifacts/list?run_id={recorded['info']['run_id']}")["files"]
    assert {"config.yaml", "metrics.jsonl", "environment.json"} <= {file["path"] for file in artifacts}


@pytest.mark.skipif(BUILD not in ("cpu", "source"), reason="another release, or a build for GPUs, rounds differently")
def test_weights_equal_those_outside_the_container(project, trained, cli):
    assert project.status(trained)["params_sha256"] == cli("train", "seed=3", small=False).sha


def test_run_files_do_not_belong_to_root(project, trained):
    assert project.inside("stat", "-c", "%u", run_of(trained)).strip() == "1000"


def test_finetune_uses_newest_network_and_host_folder(project, trained):
    out = project.run(
        "finetune", "data=imagefolder", "data.root=/data/flowers", "model.pretrained=latest", "epochs=2",
        "batch.per_device=8", "data.image_size=32",
    )  # fmt: skip
    assert "imagefolder: 48 training images, 2 classes" in out and "best val top-1" in out


def test_sweep_in_a_container(project, trained):
    out = project.run("train", "-m", "launch.ranks=1,2", "optimizer.lr=0.05", *QUICK)
    assert [int(n) for n in re.findall(r"^ranks +(\d)", out, re.MULTILINE)] == [1, 2]


def test_invalid_key_is_one_line_and_exit_2(project):
    _, err = project.compose("run", "--rm", "-T", "train", "optimizer.lrr=1", expect=2)
    (line,) = [line for line in err.splitlines() if line.startswith("error: ")]
    assert line.startswith("error: unknown key optimizer.lrr")


def test_public_set_is_downloaded_to_a_volume(project):
    """The folder is created before the mirror, which does not exist, is asked."""
    nowhere = ["data=mnist", "data.mirror=http://127.0.0.1:9", "tracking=none"]
    _, err = project.compose("run", "--rm", "-T", "--no-deps", "train", *nowhere, expect=2)
    assert "cannot be fetched (http://127.0.0.1:9/train-images-idx3-ubyte.gz" in err.splitlines()[-1], err
    assert project.inside("ls", "/mxscale/data") == "mnist\n"


def test_stopped_container_leaves_a_resumable_checkpoint(project, trained):
    process = project.start("train", "launch.ranks=2", "epochs=500", "name=stopped")
    run = wait_for(process, r"^run +(\S+)$")[1]
    wait_for(process, r"^epoch 2 ")
    named = sh("docker", "ps", "-q", "--filter", f"name={project.name}-train-run")[0].split()
    sh("docker", "stop", "--time", "60", *named)
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 75 and f"resume={run}" in out
    assert "best val top-1" in project.run("train", f"resume={run}", "max_steps=40")


def test_registered_champion_is_served(project, flowers):
    project.run("train", *QUICK)
    verb = ("--entrypoint", "/mxscale/docker/entrypoint mxscale", "train", "register", "latest", "digits")
    project.compose("run", "--rm", "-T", *verb)
    project.env["MODEL"] = "digits"
    project.compose("--profile", "serve", "up", "-d", "--wait", "--wait-timeout", "240")
    image = base64.b64encode((flowers / "flowers" / "rose" / "0.jpg").read_bytes()).decode()
    answer = urllib.request.urlopen(
        urllib.request.Request(
            f"http://127.0.0.1:{project.serve_port}/invocations",
            json.dumps({"dataframe_records": [{"image": image}], "params": {"top": 2}}).encode(),
            {"Content-Type": "application/json"},
        ),
        timeout=30,
    )
    (found,) = json.load(answer)["predictions"]
    assert found["class"] in "01234" and len(found["top"]) == 2
    assert project.compose("--profile", "serve", "exec", "-T", "serve", "id", "-u")[0].strip() == "1000"


@pytest.mark.parametrize("model, reason", [("", "set it to the name"), ("none", "no version with the alias champion")])
def test_missing_model_is_one_line(project, trained, model, reason):
    _, err = project.compose("run", "--rm", "-T", "-e", f"MODEL={model}", "serve", expect=2)
    (line,) = [line for line in err.splitlines() if line.startswith("error: ")]
    assert line.startswith(f"error: MODEL={model}: ") and reason in line


def test_doctor_reports_no_failure(project, trained):
    found = json.loads(project.compose("run", "--rm", "-T", "doctor", "json=true")[0])
    assert not [finding for finding in found["findings"] if finding["state"] == "fail"]


def test_suite_passes_in_the_image(project):
    project.compose("build", "test", timeout=1500)
    out = project.run(
        "test",
        "tests/config/test_config.py",
        "tests/distributed/test_exchange.py",
        "tests/cost/test_prices.py",
        timeout=900,
    )
    assert re.search(r"\d+ passed", out) and "failed" not in out


@pytest.fixture(scope="module")
def workers(project, trained):
    project.compose("--profile", "cluster", "up", "-d", "--scale", "worker=2", "--wait", "worker", timeout=120)
    return [f"{project.name}-worker-{n}" for n in (1, 2)]


CLUSTER = ["launch.threads=1", "launch.ranks=2", "epochs=3", "checkpoint.every_steps=4"]


@pytest.fixture(scope="module")
def on_one_host(project, trained):
    return project.status(project.run("train", *CLUSTER))["params_sha256"]


@pytest.mark.parametrize("transport", ["gloo", "mpi"])
def test_two_workers_match_weights_of_one_host(project, workers, on_one_host, transport):
    out = project.run("train", *CLUSTER, f"launch.hosts=[{','.join(workers)}]", f"comm.transport={transport}")
    assert f"on {', '.join(workers)}" in out
    assert project.status(out)["params_sha256"] == on_one_host


def test_killed_worker_is_named_and_run_resumes_without_it(project, workers):
    case = ["launch.threads=1", "epochs=40", "checkpoint.every_steps=4"]
    process = project.start("train", *case, f"launch.hosts=[{','.join(workers)}]")
    run = wait_for(process, r"^run +(\S+)$")[1]
    wait_for(process, r"^epoch 2 ")
    sh("docker", "kill", workers[1])
    killed = time.monotonic()
    out, _ = process.communicate(timeout=60)
    assert time.monotonic() - killed < 30
    assert process.returncode == 1
    assert re.search(rf"^error: {workers[1]} \(rank 1\) can't be reached any more$", out, re.MULTILINE), out
    out = project.run("train", *case, f"launch.hosts=[{workers[0]}]", "resume=auto", "max_steps=40")
    assert run_of(out) == run
    assert f"ranks     1 on {workers[0]}" in out and "2 data shards" in out
    project.compose("--profile", "cluster", "up", "-d", "--scale", "worker=2", "--wait", "worker", timeout=120)


def test_unreachable_host_is_named(project, workers):
    _, err = project.compose("run", "--rm", "-T", "train", "launch.hosts=[nowhere:1]", expect=2)
    assert "error: launch.hosts: nowhere can't be reached by ssh (" in err


def test_host_without_shared_runs_is_named(project, workers):
    words = ["-v", "/mxscale/runs", "train", f"launch.hosts=[{workers[0]}:1]"]
    _, err = project.compose("run", "--rm", "-T", *words, expect=2)
    assert "does not see /mxscale/runs/train/" in err and "storage that all hosts share" in err


def test_host_without_the_packed_set_is_named(project, workers):
    """The set is packed into a volume of the first container alone."""
    words = ["-v", "/mxscale/runs/data", "train", f"launch.hosts=[{workers[0]}:1]", "data.split_seed=7"]
    _, err = project.compose("run", "--rm", "-T", *words, expect=2)
    assert f"{workers[0]} can't read /mxscale/runs/data/digits-" in err and "storage that all hosts share" in err


def test_doctor_checks_the_hosts(project, workers):
    hosts = f"launch.hosts=[{','.join(workers)}]"
    found = json.loads(project.compose("run", "--rm", "-T", "doctor", "json=true", hosts)[0])
    assert [f["state"] for f in found["findings"] if "worker" in json.dumps(f)] == ["ok", "ok"]
