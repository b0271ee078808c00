"""The MPIJob's manifest, as text: no cluster runs it here."""

import shlex
import subprocess
import sys

import pytest
import yaml
from composed import composed
from conftest import ROOT

from mxscale.environment import hosts
from mxscale.launcher import commands, mpijob

FLOWERS = ["data=imagefolder", "data.root=/data/flowers", "name=a b"]
ADDRESSES = ["flowers-launcher.flowers.lab.svc", "flowers-worker-0.flowers.lab.svc", "flowers-worker-1.flowers.lab.svc"]


@pytest.fixture(scope="module")
def manifest():
    words = "--image registry.lab/mxscale:source --nodes 3 --slots 4 --gpu --name flowers --namespace lab --claim disk"
    argv = [sys.executable, "-m", "mxscale.launcher.mpijob", *shlex.split(words), "--", *FLOWERS]
    return yaml.safe_load(subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=True).stdout)


def container_of(manifest, role):
    (container,) = manifest["spec"]["mpiReplicaSpecs"][role]["template"]["spec"]["containers"]
    return container


def test_it_is_a_job_of_the_operators(manifest):
    """Field names of kubeflow/mpi-operator, pkg/apis/kubeflow/v2beta1/types.go."""
    assert (manifest["apiVersion"], manifest["kind"]) == ("kubeflow.org/v2beta1", "MPIJob")
    assert manifest["metadata"] == {"name": "flowers", "namespace": "lab"}
    spec = manifest["spec"]
    assert (spec["slotsPerWorker"], spec["mpiImplementation"], spec["runLauncherAsWorker"]) == (4, "OpenMPI", True)
    assert spec["launcherCreationPolicy"] == "WaitForWorkersReady"
    roles = spec["mpiReplicaSpecs"]
    assert {role: roles[role]["replicas"] for role in roles} == {"Launcher": 1, "Worker": 2}


def test_the_launcher_runs_what_a_person_would_type_and_that_is_one_mpirun_over_the_pods(manifest):
    assert container_of(manifest, "Launcher")["command"] == ["/mxscale/docker/entrypoint"]
    python, script, *settings = container_of(manifest, "Launcher")["args"]
    assert (python, script) == ("python", "train.py")
    where = ",".join(f"{address}:4" for address in ADDRESSES)
    assert settings == [f"launch.hosts=[{where}]", "comm.transport=mpi", "resume=auto", *FLOWERS]
    config = composed("train", *settings[:2], *FLOWERS[:2])
    placed = hosts.find(config)
    assert [(host.address, host.slots) for host in placed] == [(address, 4) for address in ADDRESSES]
    (command,) = commands.commands(config, "/mxscale/runs/a", 1, commands.Placement(12, 8, placed), {})
    assert command.argv[0] == "mpirun" and command.argv[command.argv.index("-H") + 1] == where


def test_every_pod_is_one_of_the_compose_clusters(manifest):
    compose = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]["worker"]
    worker, launcher = container_of(manifest, "Worker"), container_of(manifest, "Launcher")
    assert [*worker["command"], *worker["args"]] == compose["entrypoint"]
    mounted = {mount["mountPath"] for mount in worker["volumeMounts"]}
    # runs/data lies in runs/
    assert {volume.split(":")[1] for volume in compose["volumes"][:1]} | {"/keys", "/data", "/dev/shm"} == mounted
    for key in ("image", "resources", "volumeMounts", "env"):
        assert launcher[key] == worker[key]
    assert worker["resources"] == {"limits": {"nvidia.com/gpu": 4}}
    assert worker["readinessProbe"]["tcpSocket"]["port"] == 2222
    volumes = manifest["spec"]["mpiReplicaSpecs"]["Worker"]["template"]["spec"]["volumes"]
    assert volumes[0]["persistentVolumeClaim"] == {"claimName": "disk"}


@pytest.mark.parametrize(
    "words, said",
    [
        (["--nodes", "1"], "argument --nodes: 1: expected a whole number of at least 2"),
        (["--slots", "0"], "argument --slots: 0: expected a whole number of at least 1"),
        (["--name", "a b"], "a b: expected small letters, digits and hyphens"),
        (["--bogus"], "unrecognized arguments: --bogus"),
    ],
)
def test_what_makes_no_job_is_one_line(capsys, words, said):
    try:
        status = mpijob.main(["--image", "x", *words])
    except SystemExit as ended:
        status = ended.code
    out, err = capsys.readouterr()
    assert status == 2 and out == "" and len(err.splitlines()) == 1 and said in err
