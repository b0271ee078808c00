"""Images on a real engine: runs started from the host, users and folders, contents, PostgreSQL behind MLflow."""

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
from docker_engine import NEEDS_ENGINE, QUICK, Project, answers, copy_of_sources, sh
from machine import free_port, until
from repository import ROOT
from run_files import recorded_in

from mxscale import __version__

FILES = ["-f", "docker-compose.yml"]
ONE_STEP = ["python", "train.py", "tracking=none", "max_steps=1", *QUICK]
pytestmark = NEEDS_ENGINE


COMBINATIONS = [
    [*files, *(["--profile", profile] if profile else [])]
    for files in (FILES, [*FILES, "-f", "compose.gpu.yml"])
    for profile in (None, "cluster", "serve", "team", "job", "*")
]


@pytest.mark.parametrize("words", COMBINATIONS, ids=" ".join)
def test_each_combination_of_files_and_profiles_is_valid(words):
    sh("docker", "compose", *words, "config", "--quiet")


def test_mounted_folder_is_written_as_its_owner(images, tmp_path):
    os.chown(tmp_path, 4242, 4243)
    mounted = f"{tmp_path}:/mxscale/runs"
    sh("docker", "run", "--rm", "-v", mounted, "mxscale:cpu", *ONE_STEP)
    (made,) = (tmp_path / "train").iterdir()
    assert (made.stat().st_uid, made.stat().st_gid) == (4242, 4243)


def test_volumes_in_a_mounted_folder_get_its_owner(images, tmp_path):
    """As docker-compose.yml with `./runs` in place of the volume `runs`."""
    os.chown(tmp_path, 4242, 0)
    words = ["-v", f"{tmp_path}:/mxscale/runs", "-v", "/mxscale/runs/data", "-v", "/keys"]
    script = "stat -c %u:%g /mxscale/runs/data /keys; touch /mxscale/runs/data/x /keys/x; id -u; id -g"
    out, _ = sh("docker", "run", "--rm", *words, "mxscale:cpu", "sh", "-c", script)
    assert out.split() == ["4242:1000", "4242:1000", "4242", "1000"]


def test_user_without_a_name_or_rights_can_run(images, tmp_path):
    os.chown(tmp_path, 4242, 4242)
    rights = ["--read-only", "--tmpfs", "/tmp", "--cap-drop", "ALL"]
    words = ["--user", "4242:4242", *rights, "-v", f"{tmp_path}:/mxscale/runs", "mxscale:cpu"]
    out, _ = sh("docker", "run", "--rm", *words, *ONE_STEP, "launch.ranks=2")
    assert "step 1/" in out


def test_non_empty_folder_of_root_is_refused(images, tmp_path):
    (tmp_path / "kept").touch()
    _, err = sh("docker", "run", "--rm", "-v", f"{tmp_path}:/mxscale/runs", "mxscale:cpu", expect=2)
    assert re.fullmatch(r"error: /mxscale/runs belongs to root, .*: chown 1000 .*\n", err)


def test_unwritable_folder_is_refused(images, tmp_path):
    mounted = f"{tmp_path}:/mxscale/runs"
    _, err = sh("docker", "run", "--rm", "--user", "4242", "-v", mounted, "mxscale:cpu", expect=2)
    assert re.fullmatch(r"error: can't write to /mxscale/runs as user 4242; it belongs to 0: .*\n", err)


def failure(*argv, **env) -> list:
    """Run a command that must fail; return its lines on stderr."""
    done = subprocess.run(argv, cwd=ROOT, env={**os.environ, **env}, capture_output=True, text=True)
    assert done.returncode
    return done.stderr.splitlines()


def test_port_in_use_is_one_line(images):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        other = Project(f"mxscale-test-{os.getpid()}-port", ROOT)
        other.env["MLFLOW_PORT"] = str(taken.getsockname()[1])
        try:
            assert "address already in use" in failure("docker", "compose", "up", "-d", "mlflow", **other.env)[-1]
        finally:
            other.compose("down", "--volumes")


def test_build_without_buildkit_is_refused():
    assert "BuildKit" in "\n".join(failure("docker", "build", "-t", "mxscale:none", ".", DOCKER_BUILDKIT="0"))


def test_unknown_build_is_one_line():
    last = failure("docker", "compose", "build", "train", BUILD="gcn")[-1]
    assert re.search(r'target stage "?gcn"? could not be found', last)


def test_rank_image_has_no_server_and_no_compiler(images):
    script = (
        "import importlib.util as u, shutil, json; "
        "print(json.dumps([m for m in ('flask', 'sqlalchemy', 'pyarrow') if u.find_spec(m)]"
        "+ [c for c in ('gcc', 'g++', 'make', 'cmake', 'pytest') if shutil.which(c)]))"
    )
    assert json.loads(sh("docker", "run", "--rm", "--entrypoint", "python", "mxscale:cpu", "-c", script)[0]) == []


def test_image_records_its_identity(images):
    assert labels("cpu")["com.mxscale.build"] == "wheel"
    identity = json.loads(sh("docker", "run", "--rm", "--entrypoint", "cat", "mxscale:cpu", "/mxscale/build.json")[0])
    assert identity["build"] == "wheel" and re.fullmatch(r"sha256:[0-9a-f]{64}", identity["image.id"])


def labels(target) -> dict:
    return json.loads(sh("docker", "inspect", "-f", "{{json .Config.Labels}}", f"mxscale:{target}")[0])


@pytest.mark.parametrize("target", ["cpu", "mlflow"])
def test_image_has_the_labels_of_oci(images, target):
    found = {name.removeprefix("org.opencontainers.image."): value for name, value in labels(target).items()}
    assert found["version"] == __version__ and found["title"].startswith("mxscale")
    assert found["description"] and found["base.name"] == "debian:bookworm-slim"
    sh("docker", "build", "--target", target, "--build-arg", "COMMIT=abc", "-t", "mxscale:labelled", ".")
    assert labels("labelled")["org.opencontainers.image.revision"] == "abc"


PACKAGES = {"cpu": {"mxnet", "horovod", "openmpi-bin"}, "mlflow": {"mlflow", "onnxruntime", "libpython3.11-stdlib"}}


@pytest.mark.parametrize("target", PACKAGES)
def test_bill_of_materials_has_debian_and_python_packages(images, target):
    out, _ = sh("make", "sbom", f"TARGETS={target}", timeout=1200)
    document = json.loads(Path(ROOT, "sbom", f"{target}.spdx.json").read_text())
    names = {package["name"] for package in document["packages"]}
    assert document["spdxVersion"].startswith("SPDX-") and PACKAGES[target] <= names
    count = int(re.search(rf"(\d+) packages of mxscale:{target}", out)[1])
    assert len(names) <= count <= len(document["packages"])


def test_bill_of_materials_of_a_missing_image_is_refused():
    _, err = sh("make", "sbom", "TARGETS=none", expect=2)
    assert "make sbom: no image mxscale:none: docker build --target none" in err


def test_code_change_rebuilds_no_packages(images, tmp_path):
    copy = copy_of_sources(tmp_path / "copy")
    with open(copy / "mxscale" / "cli" / "main.py", "a") as file:
        file.write(f"# {time.time()}\n")
    began = time.monotonic()
    argv = ["docker", "build", "--progress=plain", "--target", "cpu", "."]
    done = subprocess.run(argv, cwd=copy, capture_output=True, text=True, check=True)
    print(f"warm build after a code change: {time.monotonic() - began:.1f} s")
    assert re.search(r"install-packages.*\n#\d+ CACHED", done.stderr)


def test_build_secret_is_in_no_layer(images, tmp_path):
    """The certificate given to a build is used and removed."""
    certificate = tmp_path / "ca.pem"
    certificate.write_text("-----BEGIN CERTIFICATE-----\nqzxjkvwq\n-----END CERTIFICATE-----\n")
    script = tmp_path / "Dockerfile"
    script.write_text(
        "FROM debian:bookworm-slim\nCOPY docker/with-ca /usr/local/bin/\n"
        "RUN --mount=type=secret,id=ca with-ca sh -c 'grep -c qzxjk[v]wq $PIP_CERT >/seen; echo $PIP_CERT >/where'\n"
        "RUN test $(cat /seen) = 1 && test ! -e $(cat /where)\n"
    )
    secret = ["--secret", f"id=ca,src={certificate}"]
    sh("docker", "build", "--no-cache", "-f", str(script), "-t", "mxscale:secret", *secret, ".")
    saved = subprocess.run(["docker", "save", "mxscale:secret"], capture_output=True, check=True).stdout
    assert b"qzxjkvwq" not in saved


@pytest.fixture
def postgres():
    """Start Debian's PostgreSQL on a free port and return (port, password)."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    if not found:
        pytest.skip("PostgreSQL is not installed (apt install postgresql)")
    port = free_port()
    folder = Path(tempfile.mkdtemp(prefix="mxscale-pg-"))  # other users can't read pytest's folders
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


def test_run_is_recorded_in_postgresql_exactly_once(images, postgres, cli):
    port, password = postgres
    own = free_port()
    settings = {
        "POSTGRES_HOST": "127.0.0.1", "POSTGRES_PORT": port, "POSTGRES_PASSWORD": password, "MLFLOW_PORT": own,
        "MLFLOW_HOSTS": f"127.0.0.1:{own}",
    }  # fmt: skip
    words = [word for key, value in settings.items() for word in ("-e", f"{key}={value}")]
    container = sh("docker", "run", "-d", "--network", "host", *words, "mxscale:mlflow")[0].strip()
    try:
        until(lambda: answers(f"http://127.0.0.1:{own}/health"), 60, 0.5)
        printed = sh("docker", "logs", container)[0]
        assert "records in postgresql+psycopg2://mlflow@127.0.0.1" in printed and password not in printed
        uri = f"http://127.0.0.1:{own}"
        ended = cli("train", *QUICK, "launch.ranks=1", "tracking=mlflow", f"tracking.uri={uri}")
        sync = [sys.executable, "-m", "mxscale", "sync", str(ended.run), f"tracking.uri={uri}"]
        assert "0 lines sent" in sh(*sync)[0]
        client, recorded = recorded_in(uri)
        losses = client.get_metric_history(recorded.info.run_id, "train/loss")
        assert len(losses) == sum("train/loss" in line["metrics"] for line in ended.run.lines())
    finally:
        sh("docker", "rm", "-f", container)
