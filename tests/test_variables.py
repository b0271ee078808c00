"""Environment variables of the user's shell, of other launchers, and a home directory that is not writable."""

import subprocess
import sys

import pytest
from conftest import ROOT

from mxscale.cli import main
from mxscale.environment.variables import inherited, leave_other_job, recorded


@pytest.mark.parametrize(
    "name, value, launcher",
    [
        ("HOROVOD_SIZE", "2", "horovodrun"),
        ("OMPI_COMM_WORLD_SIZE", "4", "mpirun"),
        ("PMI_SIZE", "2", "srun"),
        ("DMLC_ROLE", "server", "parameter servers"),
    ],
)
def test_a_start_by_another_launcher_is_refused(capsys, monkeypatch, name, value, launcher):
    monkeypatch.setenv(name, value)
    assert main.main(["train", "max_steps=1"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"error: {name}={value}: ") and launcher in line and f"unset {name}" in line


def test_variables_of_another_job_are_removed():
    environ = {"HOROVOD_RANK": "0", "HOROVOD_SIZE": "1", "DMLC_PS_ROOT_URI": "a", "PMI_RANK": "0", "PMIX_ID": "1",
               "HOROVOD_LOCAL_RANK": "0", "HOROVOD_GLOO_RENDEZVOUS_ADDR": "a"}  # fmt: skip
    own = {"HOROVOD_CYCLE_TIME": "1", "OMPI_MCA_btl": "tcp", "PATH": "/bin"}
    environ.update(own)
    leave_other_job(environ)
    assert environ == own


def test_host_name_without_address_is_refused(tmp_path):
    renamed = ["unshare", "--uts", "sh", "-c", 'hostname without-address && exec "$@"', "sh"]
    if subprocess.run([*renamed, "true"], capture_output=True).returncode:
        pytest.skip("no right to set the host name of a namespace")
    command = [sys.executable, "train.py", f"runs={tmp_path}", "launch.ranks=2", "tracking=none"]
    ended = subprocess.run([*renamed, *command], cwd=ROOT, capture_output=True, text=True)
    assert ended.returncode == 2 and list(tmp_path.rglob("plan.json")) == []
    (line,) = ended.stderr.splitlines()
    assert "host name without-address does not resolve" in line and "/etc/hosts" in line


def test_ranks_and_records_get_no_address_with_a_password():
    environ = {"MXNET_GLUON_REPO": "http://bob:secret@a", "MXNET_ENGINE_TYPE": "NaiveEngine", "AWS_SECRET_KEY": "x"}
    assert inherited(environ) == recorded(environ) == {"MXNET_ENGINE_TYPE": "NaiveEngine"}


@pytest.mark.slow
def test_run_without_writable_home_trains(cli):
    ended = cli("train", "launch.ranks=2", "max_steps=1", env={"HOME": "/proc"})
    assert (ended.run.path / "home/.horovod").is_dir()
