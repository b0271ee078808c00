"""Real images, a real engine, Compose as people use it.  `make test-docker`; half an hour with nothing built yet."""

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

ROOT = Path(__file__).resolve().parents[1]
FILES = ["-f", "docker-compose.yml"]
QUICK = ["data.train_per_class=24", "batch.per_device=12", "epochs=2", "log_every=1"]

pytestmark = [pytest.mark.docker, pytest.mark.slow]


def engine_answers() -> bool:
    if not shutil.which("docker"):
        return False
    return subprocess.run(["docker", "info"], capture_output=True).returncode == 0


if not engine_answers():
    pytest.skip("no Docker engine answers", allow_module_level=True)


def sh(*argv, expect=0, timeout=600, env=None, **options):
    """(stdout, stderr) of a command that ends with `expect`."""
    done = subprocess.run(
        argv, cwd=ROOT, capture_output=True, text=True, timeout=timeout, stdin=subprocess.DEVNULL,
        env={**os.environ, **(env or {})}, **options,
    )  # fmt: skip
    assert done.returncode == expect, f"{' '.join(argv)}\nexit {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout, done.stderr


def copy_of_the_sources(folder: Path) -> Path:
    """Without what the sources' .gitignore leaves out."""
    left_out = {".venv", "runs", "data"}
    shutil.copytree(ROOT, folder, ignore=lambda path, names: left_out & set(names) if Path(path) == ROOT else set())
    return folder


class Project:
    """A Compose project of its own, with a port of its own."""

    def __init__(self, name: str, data: Path):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.name, self.env = name, {"MLFLOW_PORT": str(self.port), "DATA": str(data), "COMPOSE_PROJECT_NAME": name}

    def compose(self, *words, **options):
        return sh("docker", "compose", *words, env=self.env, **options)

    def run(self, service, *words, **more):
        """`docker compose run --rm SERVICE WORDS`: its output."""
        out, err = self.compose("run", "--rm", "-T", service, *words, **more)
        return out + err

    def start(self, service, *words):
        argv = ["docker", "compose", "run", "--rm", "-T", service, *words]
        return subprocess.Popen(
            argv, cwd=ROOT, env={**os.environ, **self.env}, text=True, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip

    def read(self, path) -> str:
        """A file of the volume `runs`."""
        return self.inside("cat", str(path))

    def inside(self, *words) -> str:
        """What a command prints in a container that mounts the volumes."""
        command, *arguments = words
        return self.compose("run", "--rm", "-T", "--no-deps", "--entrypoint", command, "train", *arguments)[0]

    def status(self, output) -> dict:
        return json.loads(self.read(f"{run_of(output)}/status.json"))

    def mlflow(self, path, body=None):
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}/api/2.0/mlflow/{path}",
            json.dumps(body).encode() if body else None,
            {"Content-Type": "application/json"},
        )
        return json.load(urllib.request.urlopen(request, timeout=20))


def run_of(output) -> str:
    return re.search(r"^run +(\S+)$", output, re.MULTILINE)[1]


@pytest.fixture(scope="session")
def images():
    """The images of the checkout; BuildKit's cache makes the second time quick."""
    for target in ("cpu", "mlflow"):
        sh("docker", "build", "--target", target, "-t", f"mxscale:{target}", ".", timeout=1500)


def test_a_tracking_server_that_cannot_start_ends_the_command(images):
    """With a database that isn't there; `docker compose run train` must not wait for ever."""
    project = Project(f"mxscale-test-{os.getpid()}-down", ROOT / "data")
    project.env["POSTGRES_PASSWORD"] = "x"
    try:
        _, err = project.compose("run", "--rm", "-T", "train", expect=1, timeout=300)
        assert "mlflow" in err.splitlines()[-1], err
    finally:
        project.compose("down", "--volumes", "--timeout", "2")


@pytest.fixture(scope="module")
def flowers(tmp_path_factory):
    """Two classes of photographs, dark and bright."""
    root = tmp_path_factory.mktemp("data")
    root.chmod(0o755)  # the container's user is another one
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
    for profile in ("cluster", "team", "job"):
        made.compose("--profile", profile, "down", "--volumes", "--timeout", "2")


@pytest.fixture(scope="module")
def trained(project):
    """The first thing that a new user does: no server is up yet."""
    return project.run("train", "seed=3")


# ---------------------------------------------------------------- the same run in a container


def test_a_run_starts_mlflow_trains_and_is_recorded(project, trained):
    assert float(re.search(r"test top-1 +([\d.]+) %", trained)[1]) >= 98
    assert f"http://127.0.0.1:{project.port}/#/experiments/1/runs/" in trained
    (recorded,) = project.mlflow("runs/search", {"experiment_ids": ["1"]})["runs"]
    assert recorded["info"]["status"] == "FINISHED"
    tags = {tag["key"]: tag["value"] for tag in recorded["data"]["tags"]}
    assert tags["build"] == "wheel" and re.fullmatch(r"sha256:[0-9a-f]{64}", tags["image.id"])
    if (ROOT / ".git").is_dir():
        assert tags["git.commit"] == sh("git", "rev-parse", "HEAD")[0].strip()
    artifacts = project.mlflow(f"artifacts/list?run_id={recorded['info']['run_id']}")["files"]
    assert {"config.yaml", "metrics.jsonl", "environment.json"} <= {file["path"] for file in artifacts}


def test_the_weights_are_those_of_the_same_run_outside(project, trained, cli):
    assert project.status(trained)["params_sha256"] == cli("train", "seed=3", small=False).sha


def test_what_a_run_writes_does_not_belong_to_root(project, trained):
    assert project.inside("stat", "-c", "%u", run_of(trained)).strip() == "1000"


def test_fine_tuning_takes_the_newest_network_and_a_folder_of_the_host(project, trained):
    out = project.run(
        "finetune", "data=imagefolder", "data.root=/data/flowers", "model.pretrained=latest", "epochs=2",
        "batch.per_device=8", "data.image_size=32",
    )  # fmt: skip
    assert "imagefolder: 36 training images, 2 classes" in out and "best val top-1" in out


def test_a_sweep_is_as_outside(project, trained):
    out = project.run("train", "-m", "launch.ranks=1,2", "optimizer.lr=0.05", *QUICK)
    assert [int(n) for n in re.findall(r"^ranks +(\d)", out, re.MULTILINE)] == [1, 2]


def test_bad_input_is_one_line_and_exit_2(project):
    _, err = project.compose("run", "--rm", "-T", "train", "optimizer.lrr=1", expect=2)
    (line,) = [line for line in err.splitlines() if line.startswith("error: ")]
    assert line.startswith("error: unknown key optimizer.lrr")


def test_a_public_set_is_fetched_to_a_volume(project):
    """Nobody is there to fetch from; before that, the folder is made."""
    nowhere = ["data=mnist", "data.mirror=http://127.0.0.1:9", "tracking=none"]
    _, err = project.compose("run", "--rm", "-T", "--no-deps", "train", *nowhere, expect=2)
    assert "cannot be fetched (http://127.0.0.1:9/train-images-idx3-ubyte.gz" in err.splitlines()[-1], err
    assert project.inside("ls", "/mxscale/data") == "mnist\n"


def test_stopping_the_container_leaves_a_checkpoint_to_go_on_from(project, trained):
    process = project.start("train", "launch.ranks=2", "epochs=500", "name=stopped")
    run = wait_for(process, r"^run +(\S+)$")[1]
    wait_for(process, r"^epoch 2 ")
    named = sh("docker", "ps", "-q", "--filter", f"name={project.name}-train-run")[0].split()
    sh("docker", "stop", "--time", "60", *named)
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 75 and f"resume={run}" in out
    assert "best val top-1" in project.run("train", f"resume={run}", "max_steps=40")


def wait_for(process, pattern, timeout=120):
    """The match of the first line that a process prints and that fits.  One that hangs is killed."""
    watchdog = threading.Timer(timeout, process.kill)
    watchdog.start()
    try:
        for line in iter(process.stdout.readline, ""):
            found = re.search(pattern, line)
            if found:
                return found
    finally:
        watchdog.cancel()
    raise AssertionError(f"no line fits {pattern}, and it ended with {process.wait()}")


def test_doctor_finds_nothing_wrong_here(project, trained):
    found = json.loads(project.compose("run", "--rm", "-T", "doctor", "json=true")[0])
    assert not [finding for finding in found["findings"] if finding["state"] == "fail"]


def test_the_suite_runs_inside(project):
    project.compose("build", "test", timeout=1500)
    out = project.run("test", "tests/test_config.py", "tests/test_exchange.py", "tests/test_prices.py", timeout=900)
    assert re.search(r"\d+ passed", out) and "failed" not in out


# ---------------------------------------------------------------- several hosts


@pytest.fixture(scope="module")
def workers(project, trained):
    project.compose("--profile", "cluster", "up", "-d", "--scale", "worker=2", "--wait", "worker", timeout=120)
    return [f"{project.name}-worker-{n}" for n in (1, 2)]


CLUSTER = ["launch.threads=1", "launch.ranks=2", "epochs=3", "checkpoint.every_steps=4"]


@pytest.fixture(scope="module")
def on_one_host(project, trained):
    return project.status(project.run("train", *CLUSTER))["params_sha256"]


@pytest.mark.parametrize("transport", ["gloo", "mpi"])
def test_two_workers_end_with_the_weights_of_one_host(project, workers, on_one_host, transport):
    out = project.run("train", *CLUSTER, "launch.hosts=compose", f"comm.transport={transport}")
    assert f"on {', '.join(workers)}" in out
    assert project.status(out)["params_sha256"] == on_one_host


def test_a_killed_worker_ends_the_job_in_30_s_by_name_and_the_other_one_goes_on(project, workers):
    case = ["launch.hosts=compose", "launch.threads=1", "epochs=40", "checkpoint.every_steps=4"]
    process = project.start("train", *case)
    run = wait_for(process, r"^run +(\S+)$")[1]
    wait_for(process, r"^epoch 2 ")
    sh("docker", "kill", workers[1])
    killed = time.monotonic()
    out, _ = process.communicate(timeout=60)
    assert time.monotonic() - killed < 30
    assert process.returncode == 1
    assert re.search(rf"^error: {workers[1]} \(rank 1\) can't be reached any more$", out, re.MULTILINE), out
    out = project.run("train", *case, "resume=auto", "max_steps=40")
    assert run_of(out) == run
    assert f"ranks     1 on {workers[0]}" in out and "2 data shards" in out
    project.compose("--profile", "cluster", "up", "-d", "--scale", "worker=2", "--wait", "worker", timeout=120)


def test_a_host_that_cannot_be_reached_is_refused_by_name(project, workers):
    _, err = project.compose("run", "--rm", "-T", "train", "launch.hosts=[nowhere:1]", expect=2)
    assert "error: launch.hosts: nowhere can't be reached by ssh (" in err


def test_a_host_that_does_not_share_the_runs_is_refused_by_name(project, workers):
    _, err = project.compose(
        "run", "--rm", "-T", "-v", "/mxscale/runs", "train", f"launch.hosts=[{workers[0]}:1]", expect=2
    )
    assert "does not see /mxscale/runs/train/" in err and "storage that all hosts share" in err


def test_doctor_asks_the_hosts(project, workers):
    found = json.loads(project.compose("run", "--rm", "-T", "doctor", "json=true", "launch.hosts=compose")[0])
    assert [f["state"] for f in found["findings"] if "worker" in json.dumps(f)] == ["ok", "ok"]


# ---------------------------------------------------------------- from the host, in images


def test_builds_are_compared_by_a_sweep_from_the_host(images, cli):
    older = ["--target", "cpu", "--build-arg", "MXNET=mxnet==1.5.0", "-t", "mxscale:mxnet-1.5.0"]
    sh("docker", "build", *older, ".", timeout=1500)
    ended = cli(
        "train", "launch=docker", "launch.image=mxscale:cpu,mxscale:mxnet-1.5.0", "launch.ranks=2", "-m", timeout=300
    )
    runs = [Path(path) for path in re.findall(r"^run +(\S+)$", ended.out, re.MULTILINE)]
    assert len(runs) == 2
    told = [json.loads((run / "environment.json").read_text())["tags"] for run in runs]
    assert all(tags["image.id"].startswith("sha256:") and tags["build"] == "wheel" for tags in told)
    assert ["mxnet=1.9.1" in tags["versions"] for tags in told] == [True, False]
    assert ["mxnet=1.5.0" in tags["versions"] for tags in told] == [False, True]
    assert len({tags["image.id"] for tags in told}) == 2
    assert all((run / "metrics.jsonl").stat().st_uid == os.getuid() for run in runs)
    assert not sh("docker", "ps", "-aq", "--filter", "label=mxscale.run")[0]


def test_doctor_looks_into_the_image(images):
    older = ["--target", "cpu", "--build-arg", "MXNET=mxnet==1.5.0", "-t", "mxscale:mxnet-1.5.0"]
    sh("docker", "build", *older, ".", timeout=1500)
    doctor = [sys.executable, "-m", "mxscale", "doctor", "launch=docker", "tracking=none"]
    said = sh(*doctor, "launch.image=mxscale:mxnet-1.5.0")[0]
    assert re.search(r"^ok +mxnet +1\.5\.0 with numpy", said, re.MULTILINE)
    assert re.search(r"^ok +code +wheel, ", said, re.MULTILINE)


def test_doctor_names_an_image_that_is_nowhere():
    said = sh(sys.executable, "-m", "mxscale", "doctor", "launch=docker", "launch.image=mxscale:nothing", expect=1)[0]
    assert re.search(r"^fail +mxnet +launch\.image=mxscale:nothing: not here.*; build it with", said, re.MULTILINE)


def test_an_image_that_is_nowhere_is_one_line(cli):
    ended = cli("train", "launch=docker", "launch.image=mxscale:nothing", expect=2)
    assert re.match(
        r"^error: launch\.image=mxscale:nothing: not here, and can't be pulled \(.*\); build it with", ended.err
    )


def test_a_run_in_an_image_is_stopped_like_any_other(images, cli):
    process = cli.start("train", "launch=docker", "launch.ranks=2", "epochs=500")
    cli.run_of(process)
    time.sleep(8)
    process.terminate()
    cli.ended(process, expect=75, timeout=60)
    assert not sh("docker", "ps", "-aq", "--filter", "label=mxscale.run")[0]


# ---------------------------------------------------------------- what can go wrong


COMBINATIONS = [
    [*files, *profiles]
    for files in (FILES, [*FILES, "-f", "compose.gpu.yml"])
    for profiles in ([], ["--profile", "cluster"], ["--profile", "team"], ["--profile", "job"], ["--profile", "*"])
]


@pytest.mark.parametrize("words", COMBINATIONS, ids=" ".join)
def test_every_combination_of_files_and_profiles_is_valid(words):
    sh("docker", "compose", *words, "config", "--quiet")


def test_a_folder_of_another_user_is_written_as_that_user(images, tmp_path):
    os.chown(tmp_path, 4242, 4243)
    mounted = f"{tmp_path}:/mxscale/runs"
    sh(
        "docker",
        "run",
        "--rm",
        "-v",
        mounted,
        "mxscale:cpu",
        "python",
        "train.py",
        "tracking=none",
        "max_steps=1",
        *QUICK,
    )
    (made,) = (tmp_path / "train").iterdir()
    assert (made.stat().st_uid, made.stat().st_gid) == (4242, 4243)


def test_new_volumes_inside_it_are_that_users_too(images, tmp_path):
    """As in docker-compose.yml with `./runs` in place of the volume `runs`."""
    os.chown(tmp_path, 4242, 0)
    words = ["-v", f"{tmp_path}:/mxscale/runs", "-v", "/mxscale/runs/data", "-v", "/keys"]
    told = "stat -c %u:%g /mxscale/runs/data /keys; touch /mxscale/runs/data/x /keys/x; id -u; id -g"
    out, _ = sh("docker", "run", "--rm", *words, "mxscale:cpu", "sh", "-c", told)
    assert out.split() == ["4242:1000", "4242:1000", "4242", "1000"]


def test_another_user_without_a_name_runs_too(images, tmp_path):
    os.chown(tmp_path, 4242, 4242)
    words = ["--user", "4242:4242", "-v", f"{tmp_path}:/mxscale/runs", "mxscale:cpu"]
    out, _ = sh("docker", "run", "--rm", *words, "python", "train.py", "tracking=none", "max_steps=1", *QUICK)
    assert "step 1/" in out


def test_a_folder_of_roots_with_something_in_it_is_refused(images, tmp_path):
    (tmp_path / "kept").touch()
    _, err = sh("docker", "run", "--rm", "-v", f"{tmp_path}:/mxscale/runs", "mxscale:cpu", expect=2)
    assert re.fullmatch(r"error: /mxscale/runs belongs to root, .*: chown 1000 .*\n", err)


def test_a_folder_that_the_user_cannot_write_is_refused(images, tmp_path):
    mounted = f"{tmp_path}:/mxscale/runs"
    _, err = sh("docker", "run", "--rm", "--user", "4242", "-v", mounted, "mxscale:cpu", expect=2)
    assert re.fullmatch(r"error: can't write to /mxscale/runs as user 4242; it belongs to 0: .*\n", err)


def test_a_port_in_use_is_one_line(project):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        other = Project(f"{project.name}-port", ROOT)
        other.env["MLFLOW_PORT"] = str(taken.getsockname()[1])
        try:
            done = subprocess.run(
                ["docker", "compose", "up", "-d", "mlflow"], cwd=ROOT, env={**os.environ, **other.env},
                capture_output=True, text=True,
            )  # fmt: skip
            assert done.returncode and "address already in use" in done.stderr.splitlines()[-1]
        finally:
            other.compose("down", "--volumes")


def test_the_old_builder_is_refused_with_the_reason():
    done = subprocess.run(
        ["docker", "build", "-t", "mxscale:none", "."], cwd=ROOT, env={**os.environ, "DOCKER_BUILDKIT": "0"},
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode and "BuildKit" in done.stderr


def test_an_unknown_build_is_one_line():
    done = subprocess.run(
        ["docker", "compose", "build", "train"],
        cwd=ROOT,
        env={**os.environ, "BUILD": "gcn"},
        capture_output=True,
        text=True,
    )
    assert done.returncode and re.search(r'target stage "?gcn"? could not be found', done.stderr.splitlines()[-1])


# ---------------------------------------------------------------- what is in an image


def test_a_ranks_image_has_no_server_and_no_compiler(images):
    script = (
        "import importlib.util as u, shutil, json; "
        "print(json.dumps([m for m in ('flask', 'sqlalchemy', 'pandas', 'pyarrow') if u.find_spec(m)]"
        "+ [c for c in ('gcc', 'g++', 'make', 'cmake', 'pytest') if shutil.which(c)]))"
    )
    assert json.loads(sh("docker", "run", "--rm", "--entrypoint", "python", "mxscale:cpu", "-c", script)[0]) == []


def test_an_image_says_what_it_is(images):
    labels = json.loads(sh("docker", "inspect", "-f", "{{json .Config.Labels}}", "mxscale:cpu")[0])
    assert labels["com.mxscale.build"] == "wheel" and labels["org.opencontainers.image.version"] == "0.1.0"
    identity = json.loads(sh("docker", "run", "--rm", "--entrypoint", "cat", "mxscale:cpu", "/mxscale/build.json")[0])
    assert identity["build"] == "wheel" and re.fullmatch(r"sha256:[0-9a-f]{64}", identity["image.id"])


def test_a_changed_line_of_code_rebuilds_none_of_the_packages(images, tmp_path):
    copy = copy_of_the_sources(tmp_path / "copy")
    with open(copy / "mxscale" / "config.py", "a") as file:
        file.write(f"# {time.time()}\n")
    began = time.monotonic()
    done = subprocess.run(
        ["docker", "build", "--progress=plain", "--target", "cpu", "."],
        cwd=copy,
        capture_output=True,
        text=True,
        check=True,
    )
    print(f"warm build after a code change: {time.monotonic() - began:.1f} s")
    assert re.search(r"install-packages.*\n#\d+ CACHED", done.stderr)


def test_no_secret_stays_in_a_layer(images, tmp_path):
    """A certificate that is given to a build is used there, and is in no layer."""
    certificate = tmp_path / "ca.pem"
    certificate.write_text("-----BEGIN CERTIFICATE-----\nqzxjkvwq\n-----END CERTIFICATE-----\n")
    script = tmp_path / "Dockerfile"
    script.write_text(
        "FROM debian:bookworm-slim\nCOPY docker/with-ca /usr/local/bin/\n"
        "RUN --mount=type=secret,id=ca with-ca sh -c 'grep -c qzxjk[v]wq $PIP_CERT >/seen; echo $PIP_CERT >/where'\n"
        "RUN test $(cat /seen) = 1 && test ! -e $(cat /where)\n"
    )
    sh(
        "docker",
        "build",
        "--no-cache",
        "-f",
        str(script),
        "-t",
        "mxscale:secret",
        "--secret",
        f"id=ca,src={certificate}",
        ".",
    )
    saved = subprocess.run(["docker", "save", "mxscale:secret"], capture_output=True, check=True).stdout
    assert b"qzxjkvwq" not in saved


# ---------------------------------------------------------------- PostgreSQL behind MLflow


@pytest.fixture
def postgres():
    """Debian's PostgreSQL, on a port of its own: (port, password)."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    if not found:
        pytest.skip("PostgreSQL is not installed (apt install postgresql)")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    folder = Path(tempfile.mkdtemp(prefix="mxscale-pg-"))  # pytest's own are closed to other users
    secret = folder / "password"
    secret.write_text("it's a p@ss:word/?\n")
    for path in (folder, secret):
        shutil.chown(path, "postgres")
    tools, data = found[-1].parent, folder / "data"

    def as_postgres(*argv):
        sh("setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups", *map(str, argv))

    as_postgres(tools / "initdb", "-D", data, "-U", "mlflow", "-A", "scram-sha-256", f"--pwfile={secret}")
    options = f"-p {port} -c listen_addresses=127.0.0.1 -k {folder}"
    as_postgres(tools / "pg_ctl", "-D", data, "-w", "-o", options, "-l", folder / "log", "start")
    environment = {"PGPASSWORD": secret.read_text().strip()}
    sh(str(tools / "createdb"), "-h", "127.0.0.1", "-p", str(port), "-U", "mlflow", "mlflow", env=environment)
    yield port, environment["PGPASSWORD"]
    as_postgres(tools / "pg_ctl", "-D", data, "-m", "immediate", "stop")
    shutil.rmtree(folder)


def test_runs_are_recorded_in_postgresql_exactly_once(images, postgres, cli):
    port, password = postgres
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        own = free.getsockname()[1]
    settings = {
        "POSTGRES_HOST": "127.0.0.1", "POSTGRES_PORT": port, "POSTGRES_PASSWORD": password, "MLFLOW_PORT": own,
        "MLFLOW_HOSTS": f"127.0.0.1:{own}",
    }  # fmt: skip
    words = [word for key, value in settings.items() for word in ("-e", f"{key}={value}")]
    container = sh("docker", "run", "-d", "--network", "host", *words, "mxscale:mlflow")[0].strip()
    try:
        wait_for_http(f"http://127.0.0.1:{own}/health")
        said = sh("docker", "logs", container)[0]
        assert "records in postgresql+psycopg2://mlflow@127.0.0.1" in said and password not in said
        uri = f"http://127.0.0.1:{own}"
        ended = cli("train", *QUICK, "launch.ranks=1", "tracking=mlflow", f"tracking.uri={uri}")
        sync = [sys.executable, "-m", "mxscale", "sync", str(ended.run), f"tracking.uri={uri}"]
        assert "0 lines sent" in sh(*sync)[0]
        from mlflow import MlflowClient

        (recorded,) = MlflowClient(uri).search_runs([MlflowClient(uri).get_experiment_by_name("mxscale").experiment_id])
        losses = MlflowClient(uri).get_metric_history(recorded.info.run_id, "train/loss")
        assert len(losses) == sum("train/loss" in line["metrics"] for line in ended.run.lines())
    finally:
        sh("docker", "rm", "-f", container)


def wait_for_http(url, timeout=60):
    deadline = time.monotonic() + timeout
    while True:
        try:
            return urllib.request.urlopen(url, timeout=3)
        except OSError:
            assert time.monotonic() < deadline, url
            time.sleep(0.5)
