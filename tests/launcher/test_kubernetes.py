"""docs/kubernetes/mpijob.yaml as text; no test runs it on a cluster."""

import pytest
import yaml
from composed import composed
from repository import ROOT

from mxscale.environment import hosts
from mxscale.environment.placement import Placement
from mxscale.launcher import commands

ADDRESSES = ["flowers-launcher.flowers.default.svc", "flowers-worker-0.flowers.default.svc"]


@pytest.fixture(scope="module")
def job():
    return yaml.safe_load((ROOT / "docs" / "kubernetes" / "mpijob.yaml").read_text())


def container_of(job, role):
    (container,) = job["spec"]["mpiReplicaSpecs"][role]["template"]["spec"]["containers"]
    return container


def test_job_has_the_operators_fields(job):
    """Field names of kubeflow/mpi-operator, pkg/apis/kubeflow/v2beta1/types.go."""
    assert (job["apiVersion"], job["kind"]) == ("kubeflow.org/v2beta1", "MPIJob")
    spec = job["spec"]
    assert set(spec) == {
        "slotsPerWorker", "runLauncherAsWorker", "launcherCreationPolicy", "mpiImplementation", "runPolicy",
        "mpiReplicaSpecs",
    }  # fmt: skip
    assert (spec["mpiImplementation"], spec["runLauncherAsWorker"]) == ("OpenMPI", True)
    assert set(spec["mpiReplicaSpecs"]) == {"Launcher", "Worker"}
    for pods in spec["mpiReplicaSpecs"].values():
        assert set(pods) == {"replicas", "restartPolicy", "template"}


def test_launcher_command_starts_one_mpirun_over_the_hostfile(job, tmp_path):
    (tmp_path / "hostfile").write_text("".join(f"{address} slots=4\n" for address in ADDRESSES))  # as the operator's
    assert container_of(job, "Launcher")["command"] == ["/mxscale/docker/entrypoint"]
    python, script, *settings = container_of(job, "Launcher")["args"]
    assert (python, script) == ("python", "train.py")
    config = composed("train", *(each.replace("/etc/mpi", str(tmp_path)) for each in settings))
    placed = hosts.find(config)
    assert [(host.address, host.slots) for host in placed] == [(address, 4) for address in ADDRESSES]
    (command,) = commands.commands(config, "/mxscale/runs/a", 1, Placement(8, 8, placed), {})
    hosts_of_mpirun = command.argv[command.argv.index("-H") + 1]
    assert (command.argv[0], hosts_of_mpirun) == ("mpirun", ",".join(f"{address}:4" for address in ADDRESSES))


def test_pods_match_the_compose_cluster(job):
    compose = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]["worker"]
    worker, launcher = container_of(job, "Worker"), container_of(job, "Launcher")
    assert [*worker["command"], *worker["args"]] == compose["entrypoint"]
    mounted = {mount["mountPath"] for mount in worker["volumeMounts"]}
    # runs/data lies in runs/
    assert {volume.split(":")[1] for volume in compose["volumes"][:1]} | {"/keys", "/data", "/dev/shm"} == mounted
    for key in ("image", "resources", "volumeMounts"):
        assert launcher[key] == worker[key]
    assert worker["resources"]["limits"]["nvidia.com/gpu"] == job["spec"]["slotsPerWorker"]
    assert worker["readinessProbe"]["tcpSocket"]["port"] == 2222
