"""Environment variables of the user's shell, of other launchers, and a home directory that is not writable."""

import os

import pytest
from machine import namespace

from mxscale.cli import main
from mxscale.environment.variables import clean, inherited, recorded
from mxscale.rundir.directory import RunDir


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
    clean(environ)
    assert environ == own


@pytest.mark.slow
def test_one_host_whose_name_has_no_address_trains(cli):
    ended = cli("train", "launch.ranks=2", "max_steps=1", within=namespace("--uts", "hostname without-address"))
    assert ended.run.status().state == "FINISHED"


def test_no_address_of_localhost_is_refused(cli):
    no_names = namespace("--mount", "mount --bind /dev/null /etc/hosts && mount --bind /dev/null /etc/resolv.conf")
    ended = cli("train", "launch.ranks=2", within=no_names, expect=2)
    assert "localhost does not resolve" in ended.err and len(ended.err.splitlines()) == 1


@pytest.mark.slow
def test_a_run_with_an_empty_path_trains(cli):
    assert cli("train", "launch.ranks=2", "max_steps=1", env={"PATH": ""}).run.status().state == "FINISHED"


def test_a_working_directory_that_files_can_not_name_is_refused(tmp_path, monkeypatch, capsys):
    folder = os.fsdecode(os.fsencode(tmp_path) + b"/\xff")
    os.mkdir(folder)
    monkeypatch.chdir(folder)
    assert main.main(["train", "max_steps=1"]) == 2
    os.rmdir(folder)
    assert main.main(["train", "max_steps=1"]) == 2
    first, second = capsys.readouterr().err.splitlines()
    assert "not UTF-8" in first and "no such file or directory" in second


def test_shared_memory_that_is_not_writable_is_refused(cli):
    read_only = namespace("--mount", "mount -t tmpfs -o ro tmpfs /dev/shm")
    ended = cli("train", "launch.ranks=2", "max_steps=1", within=read_only, expect=2)
    assert "/dev/shm is not writable" in ended.err and "launch.ranks=1" in ended.err


def test_unknown_engine_of_mxnet_is_refused(capsys, monkeypatch):
    monkeypatch.setenv("MXNET_ENGINE_TYPE", "Bogus")
    assert main.main(["train"]) == 2
    assert capsys.readouterr().err.startswith("error: MXNET_ENGINE_TYPE=Bogus: MXNet has ThreadedEnginePerDevice, ")


@pytest.mark.slow
def test_run_without_standard_streams_and_with_optimized_python_trains(cli):
    """As a daemon starts it: `0<&- 1>&- 2>&-`."""
    closed = ["sh", "-c", 'exec "$@" 0<&- 1>&- 2>&-', "sh"]
    cli("train", "max_steps=1", "launch.ranks=1", within=closed, env={"PYTHONOPTIMIZE": "2"})
    (run,) = (cli.folder / "train").iterdir()
    assert RunDir(run).status().state == "FINISHED"


def test_ranks_count_gpus_in_the_order_of_their_parent():
    environ = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": "1"}
    assert inherited(environ) == recorded(environ) == environ


def test_ranks_and_records_get_no_address_with_a_password():
    environ = {"MXNET_GLUON_REPO": "http://bob:secret@a", "MXNET_ENGINE_TYPE": "NaiveEngine", "AWS_SECRET_KEY": "x"}
    assert inherited(environ) == recorded(environ) == {"MXNET_ENGINE_TYPE": "NaiveEngine"}


@pytest.mark.slow
def test_run_without_writable_home_trains(cli):
    assert cli("train", "launch.ranks=2", "max_steps=1", env={"HOME": "/proc"}).run.status().state == "FINISHED"


def test_an_mxnet_that_does_not_load_here_is_refused(cli, tmp_path):
    library = tmp_path / "libmxnet.so"
    library.write_text("no library")
    ended = cli("train", env={"MXNET_LIBRARY_PATH": str(library)}, expect=2)
    (line,) = ended.err.splitlines()
    assert line.startswith("error: MXNet can't be loaded: ") and "libmxnet.so" in line and "mxscale doctor" in line
    assert not list((cli.folder / "train").glob("*"))
