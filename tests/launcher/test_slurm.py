"""Runs in a real Slurm of one node, with its own folder, munge and ports."""

import os
import re
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
from machine import free_port
from repository import ROOT
from run_files import wait_for_step
from verbs import SMALL

from mxscale.rundir.directory import RunDir
from mxscale.rundir.sweep_directory import REFUSED_TRIAL, SweepDirectory

SCRIPT = ROOT / "docs" / "slurm" / "train.sbatch"
DAEMONS = ("munged", "slurmctld", "slurmd")
STATES_AT_WORK = ("PENDING", "CONFIGURING", "RUNNING", "COMPLETING", "SIGNALING")

SLURM_CONF = """\
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller_port}
SlurmdPort={node_port}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
ProctrackType=proctrack/pgid
TaskPlugin=task/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
SchedulerParameters=batch_sched_delay=0,sched_interval=1
AccountingStorageType=accounting_storage/none
ReturnToService=2
GresTypes=gpu
NodeName={host} NodeAddr=127.0.0.1 CPUs=2 Gres=gpu:2 State=UNKNOWN
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


def run_script(tmp_path, nodes, tasks, *settings, stand_ins=None, **variables):
    """Return the end of the batch script, with stand-ins for the programs that it calls: name -> line of a script."""
    lines = {
        # Images lack it: it is called only if there are several nodes
        "scontrol": f"printf '%s\\n' {' '.join(nodes)}" if len(nodes) > 1 else "exit 1",
        "srun": f'echo "$@" >{tmp_path}/srun.words',
        "python": "printf '%s\\n' \"$@\"",
        "apptainer": "printf '%s\\n' apptainer \"$@\"",
        "timeout": "exit 0",  # an sshd answers
        **(stand_ins or {}),
    }
    for name, line in lines.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{line}\n")
        (tmp_path / name).chmod(0o755)
    env = {
        "PATH": f"{tmp_path}:/usr/bin:/bin", "PYTHON": "python", "SLURM_SUBMIT_DIR": str(ROOT), "HOME": str(tmp_path),
        "SLURM_JOB_NODELIST": ",".join(nodes), "SLURM_TASKS_PER_NODE": tasks, **variables,
    }  # fmt: skip
    return subprocess.run([SCRIPT, *settings], env=env, capture_output=True, text=True)


def command_of(tmp_path, *arguments, **variables):
    """Return the command that the batch script starts."""
    done = run_script(tmp_path, *arguments, **variables)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.parametrize(
    "nodes, tasks, where",
    [
        (["n1"], "2", "launch.ranks=2"),
        (["n1", "n2"], "4(x2)", "launch.hosts=[n1:4,n2:4]"),
        (["n1", "n2", "gpu-7.site"], "4(x2),3", "launch.hosts=[n1:4,n2:4,gpu-7.site:3]"),
        (["n1", "n2", "n3"], "1,2(x2)", "launch.hosts=[n1:1,n2:2,n3:2]"),
    ],
)
def test_allocation_becomes_ranks_or_hosts(tmp_path, nodes, tasks, where):
    assert command_of(tmp_path, nodes, tasks, "name=a b") == ["train.py", where, "resume=auto", "name=a b"]


def test_ranks_of_a_container_start_on_other_nodes_by_an_sshd_in_it(tmp_path):
    keys = tmp_path / ".mxscale-keys"
    binds = f"{keys}:/keys,{keys}/config:/etc/ssh/ssh_config.d/mxscale.conf"
    container = ["apptainer", "exec", "--nv", "--bind", binds, "a.sif"]
    command = command_of(tmp_path, ["n1"], "8", CONTAINER="a.sif", PYTHON="/no/python")
    assert command == [*container, "python", "train.py", "launch.ranks=8", "resume=auto"]
    assert not (tmp_path / "srun.words").exists()
    command = command_of(tmp_path, ["n1", "n2", "n3"], "8(x3)", CONTAINER="a.sif")
    assert command == [*container, "python", "train.py", "launch.hosts=[n1:8,n2:8,n3:8]", "resume=auto"]
    words = (tmp_path / "srun.words").read_text().split()
    assert {"--nodes=2", "--ntasks=2", "--relative=1"} <= set(words)
    assert words[-7:] == [*container, "/mxscale/docker/worker"]
    assert keys.stat().st_mode & 0o777 == 0o700


def test_a_node_whose_container_does_not_start_ends_the_job(tmp_path):
    failing = {"timeout": "exit 1", "srun": "echo 'srun: error: no such image' >&2; exit 1"}
    done = run_script(tmp_path, ["n1", "n2"], "8(x2)", stand_ins=failing, CONTAINER="a.sif")
    assert done.returncode == 2 and done.stdout == ""
    assert [line for line in done.stderr.splitlines() if line.startswith("error: ")] == [
        "error: n2: no sshd answers on port 2222; see the messages of srun and sshd above"
    ]


class Slurm:
    """The commands of a Slurm, and its jobs."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.env = {**os.environ, "SLURM_CONF": str(folder / "slurm.conf"), "PYTHON": sys.executable}

    def __call__(self, *argv) -> str:
        done = subprocess.run(argv, cwd=ROOT, env=self.env, capture_output=True, text=True, timeout=30)
        assert done.returncode == 0, f"{' '.join(map(str, argv))}\n{done.stdout}\n{done.stderr}\n{self.logs()}"
        return done.stdout

    def submit(self, cli, *settings, options=()) -> str:
        """Submit a run and return the number of the job."""
        output = f"--output={self.folder}/%j.out"
        words = [*cli.overrides, *SMALL, "launch.ranks=auto", "launch.threads=1", *settings]
        return self("sbatch", "--parsable", "--ntasks=2", output, *options, str(SCRIPT), *words).strip()

    def facts(self, job) -> dict:
        return dict(re.findall(r"(\w+)=(\S*)", self("scontrol", "show", "job", job)))

    def ended(self, job, timeout=150) -> dict:
        """Wait for the end of a job and return what Slurm reports."""
        deadline = time.monotonic() + timeout
        while (facts := self.facts(job))["JobState"] in STATES_AT_WORK:
            assert time.monotonic() < deadline, f"{facts}\n{self.output(job)}\n{self.logs()}"
            time.sleep(0.2)
        return facts

    def run_of(self, job, timeout=90) -> RunDir:
        deadline = time.monotonic() + timeout
        while not (found := re.search(r"^run +(\S+)$", self.output(job), re.MULTILINE)):
            assert time.monotonic() < deadline, f"{self.facts(job)}\n{self.output(job)}\n{self.logs()}"
            time.sleep(0.1)
        return RunDir(found[1])

    def output(self, job) -> str:
        file = self.folder / f"{job}.out"
        return file.read_text() if file.exists() else ""

    def logs(self) -> str:
        return "\n".join(f"{path.name}: {path.read_text()[-2000:]}" for path in self.folder.glob("*.log"))


@pytest.fixture(scope="module")
def slurm():
    missing = [name for name in (*DAEMONS, "sbatch") if not shutil.which(name, path=f"{os.environ['PATH']}:/usr/sbin")]
    if missing:
        pytest.skip(f"{', '.join(missing)} not installed (apt install slurm-wlm munge)")
    if os.getuid():
        pytest.skip("Slurm's daemons are started as root")
    folder = Path(tempfile.mkdtemp(prefix="slurm-"))  # short: munge's socket has a path of 108 bytes at most
    folder.chmod(0o755)
    host = socket.gethostname().partition(".")[0]
    ports = {"controller_port": free_port(), "node_port": free_port()}
    (folder / "slurm.conf").write_text(SLURM_CONF.format(host=host, folder=folder, **ports))
    (folder / "gres.conf").write_text("Name=gpu File=/dev/zero\nName=gpu File=/dev/full\n")  # devices in place of GPUs
    (folder / "munge.key").touch(0o600)
    (folder / "munge.key").write_bytes(secrets.token_bytes(128))
    for name in ("state", "spool"):
        (folder / name).mkdir()
    conf = f"{folder}/slurm.conf"
    munge = [f"--{name}-file={folder}/munge.{name}" for name in ("key", "pid", "seed")]
    argvs = {
        "munged": ["--foreground", "--force", f"--socket={folder}/munge.socket", *munge],
        "slurmctld": ["-D", "-c", "-f", conf],
        "slurmd": ["-D", "-c", "-f", conf, "-N", host],
    }
    started = []
    try:
        for name in DAEMONS:
            path = shutil.which(name, path=f"{os.environ['PATH']}:/usr/sbin")
            log = open(folder / f"{name}.log", "w")
            started.append(subprocess.Popen([path, *argvs[name]], stdout=log, stderr=log, stdin=subprocess.DEVNULL))
            time.sleep(0.5)
        cluster = Slurm(folder)
        until_idle(cluster, started)
        yield cluster
    finally:
        for process in reversed(started):
            process.terminate()
        for process in reversed(started):
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        shutil.rmtree(folder, ignore_errors=True)


def until_idle(cluster, started, timeout=40):
    deadline = time.monotonic() + timeout
    while True:
        asked = subprocess.run(["sinfo", "-h", "-o", "%T"], env=cluster.env, capture_output=True, text=True)
        if asked.stdout.strip() == "idle":
            return
        died = any(process.poll() is not None for process in started)
        assert not died and time.monotonic() < deadline, f"{asked}\n{cluster.logs()}"
        time.sleep(0.2)


@pytest.mark.slow
def test_job_matches_weights_of_a_run_outside(slurm, cli):
    job = slurm.submit(cli, "name=job")
    facts = slurm.ended(job)
    assert (facts["JobState"], facts["ExitCode"]) == ("COMPLETED", "0:0"), slurm.output(job)
    run = slurm.run_of(job)
    assert run.plan().sizes.ranks == 2
    outside = cli("train", "launch.ranks=2", "launch.threads=1")
    assert run.read("status.json")["params_sha256"] == outside.sha


@pytest.mark.slow
def test_job_with_gpus_does_not_train_on_the_cpu_by_mistake(slurm, cli):
    gpus = ["--gpus-per-node=2"]
    refused = slurm.submit(cli, options=gpus)
    assert slurm.ended(refused)["ExitCode"] == "2:0", slurm.output(refused)
    errors = re.findall("^error: .*", slurm.output(refused), re.MULTILINE)
    assert len(errors) == 1 and "(SLURM_GPUS_ON_NODE=2), and MXNet sees none" in errors[0]
    chosen = slurm.submit(cli, "launch.device=cpu", options=gpus)
    assert slurm.ended(chosen)["JobState"] == "COMPLETED", slurm.output(chosen)


@pytest.mark.slow
def test_signalled_job_writes_a_checkpoint_and_resumes(slurm, cli):
    settings = ["epochs=2000", "schedule=constant"]
    job = slurm.submit(cli, *settings)
    run = slurm.run_of(job)
    wait_for_step(run, 3)
    slurm("scancel", "--signal=TERM", "--batch", job)
    facts = slurm.ended(job)
    assert (facts["JobState"], facts["ExitCode"]) == ("FAILED", "75:0"), slurm.output(job)
    status = run.read("status.json")
    assert (status["state"], status["exit"], status["reason"]) == ("KILLED", 75, "SIGTERM")
    (kept,) = [path.name for path in run.checkpoints.glob("[0-9]*")][-1:]
    assert int(kept) >= 3
    again = slurm.submit(cli, *settings, f"max_steps={int(kept) + 5}")
    assert slurm.ended(again)["JobState"] == "COMPLETED", slurm.output(again)
    assert slurm.run_of(again).path == run.path
    status = run.read("status.json")
    assert (status["state"], len(status["attempts"])) == ("FINISHED", 2)


@pytest.mark.slow
def test_job_is_signalled_before_its_time_limit(slurm, cli):
    # Slurm checks every 30 s and signals early: after 20 s at the earliest
    job = slurm.submit(cli, "epochs=2000", options=["--ntasks=1", "--time=1", "--signal=B:TERM@10"])
    facts = slurm.ended(job)
    assert (facts["JobState"], facts["ExitCode"]) == ("FAILED", "75:0"), slurm.output(job)  # not TIMEOUT
    assert slurm.run_of(job).read("status.json")["state"] == "KILLED"


@pytest.mark.slow
def test_sweep_submits_a_job_per_cell(slurm, cli):
    jobs = ["hydra/launcher=submitit_slurm", "hydra.launcher.cpus_per_task=1", "hydra.launcher.timeout_min=5"]
    cells = ["launch.ranks=1", "max_steps=2", "optimizer.lr=0.1,-1"]
    cli("train", *cells, *jobs, "-m", env={"SLURM_CONF": slurm.env["SLURM_CONF"]}, expect=2)
    [found] = [SweepDirectory(path) for path in (cli.folder / "sweeps").iterdir()]
    assert [cell.state for cell in found.trials()] == ["FINISHED", REFUSED_TRIAL]
    assert found.facts()["at_a_time"] == 1
    assert "submitit" in (found.path / "multirun.yaml").read_text()
