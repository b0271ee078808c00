"""The script of a SkyPilot task, as SkyPilot runs it: in a container of each machine, with its variables."""

import os
import re
import subprocess

import pytest
import yaml
from docker_engine import NEEDS_ENGINE, sh, wait_for

pytestmark = NEEDS_ENGINE


class Rented:
    """Machines of a task with its storage, until they are given back."""

    def __init__(self, task: dict, volume: str):
        self.task, self.names = task, [f"{volume}-{number}" for number in range(task["num_nodes"])]
        folder = task["envs"]["MXSCALE_FOLDER"]
        for name in self.names:
            image = task["resources"]["image_id"].removeprefix("docker:")
            sh("docker", "run", "-d", "--name", name, "-v", f"{volume}:{folder}", "--entrypoint", "sleep", image, "600")
        self.addresses = [self.address(name) for name in self.names]

    @staticmethod
    def address(name: str) -> str:
        return sh("docker", "inspect", "-f", "{{.NetworkSettings.IPAddress}}", name)[0].strip()

    def start(self) -> list:
        """Start the task on each machine, and return the processes."""
        processes = []
        for rank, name in enumerate(self.names):
            of_sky = {
                "NODE_RANK": rank,
                "NUM_NODES": len(self.names),
                "NODE_IPS": "\n".join(self.addresses),
                "TASK_ID": 1,
            }
            variables = {**self.task["envs"], **{f"SKYPILOT_{key}": value for key, value in of_sky.items()}}
            words = [word for pair in variables.items() for word in ("-e", "{}={}".format(*pair))]
            argv = ["docker", "exec", *words, name, "bash", "-c", self.task["run"]]
            pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
            processes.append(subprocess.Popen(argv, text=True, **pipes))
        return processes

    def give_back(self) -> None:
        sh("docker", "rm", "-f", *self.names)


@pytest.fixture
def volume():
    name = f"mxscale-test-{os.getpid()}-task"
    sh("docker", "volume", "create", name)
    yield name
    sh("docker", "volume", "rm", "-f", name)


def test_task_trains_on_two_machines_and_resumes_on_others_after_a_preemption(images, cli, tmp_path, volume):
    path = tmp_path / "sky.yaml"
    cli("plan", "data=digits", "model=small", "machine.instance=c5.18xlarge", "plan.nodes=2", "plan.images=600",
        "plan.epochs=12", f"plan.task={path}", "plan.image=mxscale:cpu", "plan.storage=10.0.0.1:/share",
        "checkpoint.every_steps=4", "launch.threads=1", small=False)  # fmt: skip
    task = yaml.safe_load(path.read_text())
    first = Rented(task, volume)
    try:
        head, worker = first.start()
        run = wait_for(head, r"^run +(\S+)$")[1]
        wait_for(head, r"^epoch 2 ")
    finally:
        first.give_back()
    second = Rented(task, volume)
    try:
        head, worker = second.start()
        out, _ = head.communicate(timeout=120)
        assert head.returncode == 0, out
        assert re.search(r"^run +(\S+)", out, re.MULTILINE)[1] == run and "\nepoch 1 " not in out
        assert re.search(r"^ranks +2 on ", out, re.MULTILINE) and worker.wait(timeout=20) == 0
    finally:
        second.give_back()
