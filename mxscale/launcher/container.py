"""Run ranks in a container: `python -m mxscale.launcher.container RUN_DIR COMMAND...`, started by the launcher.

The command runs in the image `launch.image` with this checkout's code, so that two images are compared on the same
code. The run directory and the data have the same paths as outside. This process runs as long as the container:
stopping it stops the container, and its exit status is the container's.
"""

import contextlib
import os
import signal
import sys
from pathlib import Path
from typing import Dict

from mxscale.config.datasets import DATASETS
from mxscale.config.schema import Config, origin_of
from mxscale.environment.description import ROOT
from mxscale.rundir.directory import FAILURE, RunDir
from mxscale.rundir.plan import Image
from mxscale.util.errors import ConfigError

# As in docker-compose.yml and compose.gpu.yml, and for the same reasons
SHARED_MEMORY = "1g"
LIMITS = {"nofile": 65536, "stack": -1, "memlock": -1}
PASSED = ("PYTHONPATH", "PYTHONUNBUFFERED", "CUDA_", "OMP_", "KMP_", "MXNET_", "HOROVOD_", "NCCL_",
          "OMPI_MCA_")  # fmt: skip
STOP_S = 2  # shorter than the parent's wait for this process
END_S = 3  # to stop and remove the container


def connect():
    """Return a client of the Docker engine. Raises ConfigError if no engine answers."""
    try:
        from docker import errors, from_env  # `import docker` would find this repository's folder docker/
    except ImportError:
        raise ConfigError("launch=docker needs the Docker SDK for Python, which make setup installs") from None
    try:
        client = from_env()
        client.ping()
    except errors.DockerException as error:
        reason = str(error).splitlines()[0][:200]
        raise ConfigError(f"launch=docker: no Docker engine answers ({reason}); start it, or set DOCKER_HOST") from None
    return client


def identify(name: str) -> Image:
    """Return the identity of an image; pull it if it is not here. Raises ConfigError."""
    import docker

    client = connect()
    try:
        image = client.images.get(name)
    except docker.errors.APIError:
        try:
            image = client.images.pull(name)
        except docker.errors.APIError as error:
            reason = (error.explanation or str(error)).splitlines()[0][:200]
            raise ConfigError(
                f"launch.image={name}: not on this machine, and can't be pulled ({reason}); build it with: "
                f"{build_command(name)}"
            ) from None
    return Image(name, image.id, next(iter(image.attrs.get("RepoDigests") or []), ""))


def build_command(name: str) -> str:
    """Return the command that builds mxscale:TARGET, or mxscale:mxnet-VERSION, the target `cpu` with that release."""
    tag = name.rpartition(":")[2]
    release = tag.removeprefix("mxnet-")
    target = f"--target {tag}" if release == tag else f"--target cpu --build-arg MXNET=mxnet=={release}"
    return f"docker build {target} -t {name} . (options: docs/containers.md)"


def answer(config: Config, *command: str) -> str:
    """Return the output of a short command of this checkout's code in the run's image.

    Raises:
        ConfigError: If the engine or the image is missing.
        docker.errors.DockerException: If the command fails.
    """
    client, image = connect(), identify(config.launch.image).id
    volumes = {str(ROOT): {"bind": str(ROOT), "mode": "ro"}}
    environment = {**passed(dict(os.environ)), "PYTHONPATH": str(ROOT)}
    return client.containers.run(
        image, list(command), entrypoint=[], environment=environment, volumes=volumes, working_dir=str(ROOT),
        remove=True, **machine(wants_gpus(config, client)),
    ).decode()  # fmt: skip


def mounts(config: Config, run: RunDir) -> Dict[str, str]:
    """Return path -> "rw" or "ro" of this machine's folders that the container mounts at the same paths.

    Paths in `config` are absolute.
    """
    data, seen = config.data, {str(ROOT): "ro"}
    weights = origin_of(config.model.pretrained or "")[1]
    weights = weights if os.path.exists(weights) else os.path.dirname(weights)  # symbol: a prefix
    for source in (data.root, data.train, data.val, data.test, data.classes, weights):
        if isinstance(source, str) and os.path.exists(source):
            seen[source if os.path.isdir(source) else os.path.dirname(source)] = "ro"
    if DATASETS[data.kind].published:  # the preparation in the container may download it
        with contextlib.suppress(OSError):  # the preparation then reports what is missing
            os.makedirs(data.root, exist_ok=True)
            seen[data.root] = "rw"
    runs, cache = run.path.parents[1], Path(data.cache)
    for path in (runs, cache):
        path.mkdir(parents=True, exist_ok=True)  # otherwise the engine creates it as root
        seen[str(path)] = "rw"
    return seen


def passed(environ: Dict[str, str]) -> Dict[str, str]:
    """Return this process's variables that the container gets; the image has its own PATH."""
    own = {name: value for name, value in environ.items() if name.startswith(PASSED)}
    return {**own, "HOME": "/tmp", "USER": "mxscale"}  # horovodrun and mpirun need a user name


def settings(config: Config, run: RunDir, gpus: bool) -> dict:
    """Return the arguments of the SDK's `containers.create` besides image and command."""
    return {
        "entrypoint": [],
        "environment": passed(dict(os.environ)),
        "volumes": {path: {"bind": path, "mode": mode} for path, mode in mounts(config, run).items()},
        "working_dir": str(ROOT),
        "user": f"{os.getuid()}:{os.getgid()}",
        "init": True,
        "labels": {"mxscale.run": str(run)},
        **machine(gpus),
    }


def wants_gpus(config: Config, client) -> bool:
    return config.launch.device != "cpu" and "nvidia" in client.info().get("Runtimes", {})


def machine(gpus: bool) -> dict:
    """Return the container's shared memory, limits and GPUs."""
    import docker.types

    ulimits = [docker.types.Ulimit(name=name, soft=limit, hard=limit) for name, limit in LIMITS.items()]
    return {
        "shm_size": SHARED_MEMORY,
        "ulimits": ulimits if gpus else None,
        "device_requests": [docker.types.DeviceRequest(count=-1, capabilities=[["gpu"]])] if gpus else None,
    }


def main(run_path: str, *command: str) -> int:
    """Run `command` to its end and return its exit status. Raises ConfigError and errors of the engine's client."""
    run, container = RunDir(run_path), None
    config, client = run.config(), connect()
    image = run.plan().image.id  # as recorded: the name may refer to another image by now
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _exit)
    try:
        container = client.containers.create(image, list(command), **settings(config, run, wants_gpus(config, client)))
        container.start()
        for piece in container.logs(stream=True, follow=True):
            sys.stdout.buffer.write(piece)
            sys.stdout.buffer.flush()
        return container.wait()["StatusCode"]
    finally:
        if container is not None:
            _remove(container)


def _exit(*_) -> None:
    for number in (signal.SIGTERM, signal.SIGINT):  # ignore further signals
        signal.signal(number, signal.SIG_IGN)
    raise SystemExit(128 + signal.SIGTERM)


def _remove(container) -> None:
    import docker
    import requests

    with contextlib.suppress(docker.errors.DockerException, requests.exceptions.RequestException):
        container.stop(timeout=STOP_S)
        container.remove(force=True)


if __name__ == "__main__":
    import docker.errors
    import requests

    try:
        sys.exit(main(*sys.argv[1:]))
    except (ConfigError, docker.errors.DockerException, requests.exceptions.RequestException) as problem:
        print(f"launch=docker: {str(problem).splitlines()[0]}", file=sys.stderr)
        sys.exit(FAILURE)
