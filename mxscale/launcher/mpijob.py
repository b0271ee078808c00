"""A run on Kubernetes: `python -m mxscale.launcher.mpijob --image IMAGE --nodes 2 --slots 4 -- SETTINGS > job.yaml`.

Prints a MPIJob of Kubeflow's MPI operator (v2beta1, from 0.5 on).  Its launcher, which is the first node as
well, runs the command that a person would type on the first of several hosts; the other nodes are the workers
of docker-compose.yml's cluster profile: the same image, sshd and keys.
"""

import argparse
import re
import sys
from typing import List, Optional

import yaml

from mxscale.environment import hosts
from mxscale.environment.hosts import Host
from mxscale.rundir.directory import DONE, REFUSED
from mxscale.util.errors import ConfigError

ENTRYPOINT = "/mxscale/docker/entrypoint"
WORKER = "/mxscale/docker/worker"
SSH_PORT = 2222  # of that worker's sshd
# Where the image wants them -> folder of the claim
FOLDERS = {"/mxscale/runs": "runs", "/keys": "keys", "/data": "data"}
SHARED_MEMORY = "1Gi"  # as in docker-compose.yml, and for the same reason
STOP_S = 150


def nodes(name: str, namespace: str, count: int, slots: int) -> List[Host]:
    """By the names that the operator gives to its pods: those of its own hostfile."""
    pods = [f"{name}-launcher", *(f"{name}-worker-{number}" for number in range(count - 1))]
    return [Host(f"{pod}.{name}.{namespace}.svc", slots, pod) for pod in pods]


def command(entry: str, placed: List[Host], settings: List[str]) -> List[str]:
    """What the launcher runs.  A launcher that is started again goes on with the run."""
    return ["python", f"{entry}.py", hosts.setting(placed), "comm.transport=mpi", "resume=auto", *settings]


def manifest(asked: argparse.Namespace) -> dict:
    """Raises ConfigError where a name is none."""
    placed = nodes(asked.name, asked.namespace, asked.nodes, asked.slots)
    for value in (asked.name, asked.namespace):
        if not re.fullmatch(r"[a-z]([a-z0-9-]{0,40}[a-z0-9])?", value):
            raise ConfigError(f"{value}: expected small letters, digits and hyphens, as Kubernetes names things")
    launched = command(asked.entry, placed, asked.settings)
    ready = {"readinessProbe": {"tcpSocket": {"port": SSH_PORT}, "periodSeconds": 2}}
    return {
        "apiVersion": "kubeflow.org/v2beta1",
        "kind": "MPIJob",
        "metadata": {"name": asked.name, "namespace": asked.namespace},
        "spec": {
            "slotsPerWorker": asked.slots,
            # The launcher prepares the data and looks for GPUs, so it has what every node has
            "runLauncherAsWorker": True,
            "launcherCreationPolicy": "WaitForWorkersReady",
            "mpiImplementation": "OpenMPI",
            "runPolicy": {"cleanPodPolicy": "Running", "backoffLimit": 3},
            "mpiReplicaSpecs": {
                "Launcher": _replicas(1, asked, {"args": launched}),
                "Worker": _replicas(asked.nodes - 1, asked, {"args": [WORKER], **ready}),
            },
        },
    }


def _replicas(count: int, asked: argparse.Namespace, own: dict) -> dict:
    mounts = [{"name": "claim", "mountPath": path, "subPath": folder} for path, folder in FOLDERS.items()]
    container = {
        "name": "mxscale",
        "image": asked.image,
        "command": [ENTRYPOINT],
        **own,
        "env": [{"name": "MXSCALE_KEYS", "value": "/keys"}],
        "volumeMounts": [*mounts, {"name": "shared-memory", "mountPath": "/dev/shm"}],
    }
    if asked.gpu:
        container["resources"] = {"limits": {"nvidia.com/gpu": asked.slots}}
    volumes = [
        {"name": "claim", "persistentVolumeClaim": {"claimName": asked.claim}},
        {"name": "shared-memory", "emptyDir": {"medium": "Memory", "sizeLimit": SHARED_MEMORY}},
    ]
    pod = {"terminationGracePeriodSeconds": STOP_S, "containers": [container], "volumes": volumes}
    return {"replicas": count, "restartPolicy": "Never", "template": {"spec": pod}}


# ---------------------------------------------------------------- the command


class _OneLine(argparse.ArgumentParser):
    def error(self, message):
        print(f"error: {message}; python -m mxscale.launcher.mpijob --help says how", file=sys.stderr)
        sys.exit(REFUSED)


def _count(text: str, least: int = 1) -> int:
    if not text.isdecimal() or int(text) < least:
        raise argparse.ArgumentTypeError(f"{text}: expected a whole number of at least {least}")
    return int(text)


def _nodes(text: str) -> int:
    return _count(text, least=2)  # one needs no MPIJob


def main(argv: Optional[List[str]] = None) -> int:
    """Print the manifest; exit status 2 where it can't be made."""
    parser = _OneLine(prog="python -m mxscale.launcher.mpijob", description=__doc__.splitlines()[0])
    parser.add_argument("--image", required=True, help="one of this repository's, where the cluster can pull it")
    parser.add_argument("--nodes", type=_nodes, default=2, help="pods, the launcher among them (default 2)")
    parser.add_argument("--slots", type=_count, default=1, help="ranks in each (default 1)")
    parser.add_argument("--gpu", action="store_true", help="a GPU for every rank")
    parser.add_argument("--claim", default="mxscale", help="persistent volume claim with runs/, keys/ and data/")
    parser.add_argument("--name", default="mxscale")
    parser.add_argument("--namespace", default="default")
    parser.add_argument("--entry", choices=["train", "finetune"], default="train")
    parser.add_argument("settings", nargs="*", metavar="SETTING", help="of the run, after --: data.root=/data/flowers")
    try:
        made = manifest(parser.parse_args(argv))
    except ConfigError as error:
        print(f"error: {error}", file=sys.stderr)
        return REFUSED
    sys.stdout.write(yaml.safe_dump(made, sort_keys=False, width=1000))
    return DONE


if __name__ == "__main__":
    sys.exit(main())
