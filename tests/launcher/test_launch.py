"""The commands that start ranks, as text."""

import os
import shlex
import signal
import sys

import pytest

from mxscale.config.schema import from_dict
from mxscale.environment.hosts import Host
from mxscale.environment.placement import Placement, threads_per_rank
from mxscale.launcher.commands import HOROVODRUN, ROOT, Gone, commands, gone_ranks
from mxscale.launcher.context import Signals
from mxscale.rundir.plan import Address

RANK = [sys.executable, "-m", "mxscale.train.rank", "/runs/a", "1"]
ENVIRON = {
    "PATH": "/usr/bin:/bin",
    "HOME": "/home/u",
    "OMP_NUM_THREADS": "64",
    "NCCL_DEBUG": "INFO",
    "HOROVOD_CYCLE_TIME": "0.5",
    "AWS_SECRET_ACCESS_KEY": "the-secret-1",
    "AWS_SESSION_TOKEN": "the-secret-2",
    "MLFLOW_TRACKING_PASSWORD": "the-secret-3",
    "MLFLOW_TRACKING_URI": "https://u:the-secret-4@server",
    "GITHUB_TOKEN": "the-secret-5",
    "PYTHONPATH": "/elsewhere",
}


SERVED = Placement(1, 8, scheduler=Address("127.0.0.1", 9000))


def only_command(comm, ranks=1, cores=8, environ=ENVIRON, hosts=(), **settings):
    config = from_dict({"comm": comm, **settings})
    (command,) = commands(config, "/runs/a", 1, Placement(ranks, cores, hosts), environ)
    return command


@pytest.mark.parametrize("comm", [{"backend": "local"}, {"transport": "gloo"}, {"transport": "mpi"}])
def test_one_rank_needs_no_launcher(comm):
    assert only_command(comm).argv == RANK
    if comm.get("transport"):
        away = only_command(comm, hosts=(HOSTS[1],))
        assert away.argv[0] == "ssh" and away.argv[-1].endswith(" ".join(RANK)) and "horovodrun" not in away.argv[-1]


def test_one_rank_with_servers_connects_by_horovod():
    ranks, *servers = commands(from_dict({"comm": {"backend": "parameter_server"}}), "/a", 1, SERVED, ENVIRON)
    assert ranks.argv[:3] == HOROVODRUN and [server.name for server in servers] == ["scheduler", "server 0"]


def test_gloo_ranks_are_started_by_horovodrun():
    argv = only_command({"backend": "horovod", "transport": "gloo"}, ranks=3).argv
    assert argv == [*HOROVODRUN, "--gloo", "--disable-cache", "-np", "3", "-H", "localhost:3", *RANK]


def test_mpirun_gets_names_of_variables_without_values():
    command = only_command({"backend": "horovod", "transport": "mpi"}, ranks=2)
    exported = [argument for name in sorted(command.env) for argument in ("-x", name)]
    options = ["--allow-run-as-root", "--oversubscribe", "-np", "2", "-bind-to", "none"]
    options += ["-mca", "rtc_hwloc_vmhole", "none", "-map-by", "slot"]
    assert command.argv == ["mpirun", *options, *exported, *RANK]


def test_ranks_inherit_only_listed_variables():
    env = only_command({"backend": "horovod"}, ranks=2, cores=8).env
    assert env == {
        "PATH": f"{os.path.dirname(sys.executable)}:/usr/bin:/bin",
        "HOME": "/home/u",
        "NCCL_DEBUG": "INFO",
        "HOROVOD_CYCLE_TIME": "0.5",
        "PYTHONPATH": str(ROOT),
        "PYTHONUNBUFFERED": "1",
        "OMP_NUM_THREADS": "4",
        "HOROVOD_FUSION_THRESHOLD": "0",
        "HOROVOD_GLOO_TIMEOUT_SECONDS": "15",  # launch.stall_s
    }


def test_a_fusion_threshold_of_the_environment_wins():
    command = only_command({"backend": "horovod"}, environ={"HOROVOD_FUSION_THRESHOLD": "1024"})
    assert command.env["HOROVOD_FUSION_THRESHOLD"] == "1024"


@pytest.mark.parametrize("transport, environ, yields", [
    ("mpi", {}, "1"), ("mpi", {"OMPI_MCA_mpi_yield_when_idle": "0"}, "0"), ("gloo", {}, None),
])  # fmt: skip
def test_ranks_that_wait_in_mpi_leave_their_core_to_others(transport, environ, yields):
    env = only_command({"backend": "horovod", "transport": transport}, ranks=2, environ=environ).env
    assert env.get("OMPI_MCA_mpi_yield_when_idle") == yields


@pytest.mark.parametrize("double, environ, cycle", [
    (True, {}, "5"), (False, {}, None), (True, {"HOROVOD_CYCLE_TIME": "1"}, "1"),
])  # fmt: skip
def test_double_buffering_lengthens_horovods_cycle(double, environ, cycle):
    command = only_command({"backend": "horovod", "double_buffering": double}, environ=environ)
    assert command.env.get("HOROVOD_CYCLE_TIME") == cycle


@pytest.mark.parametrize(
    "cores, ranks, threads, expected",
    [(8, 1, None, 8), (8, 2, None, 4), (8, 3, None, 2), (2, 4, None, 1), (8, 2, 3, 3)],
)
def test_cores_are_divided_among_ranks_unless_threads_are_given(cores, ranks, threads, expected):
    assert threads_per_rank(from_dict({"launch": {"threads": threads}}), Placement(ranks, cores)) == expected


HOSTS = (Host("10.0.0.2", 2, "a"), Host("10.0.0.3", 1, "b"))


@pytest.mark.parametrize("ranks, occupied", [(2, "a:2"), (3, "a:2,b:1")])
def test_horovodrun_gets_only_occupied_slots(ranks, occupied):
    """horovodrun starts a rank in each slot."""
    hosts = (Host("a", 2, "a", here=True), Host("b", 2, "b"), Host("c", 1, "c"))
    argv = only_command({"transport": "gloo"}, ranks=ranks, hosts=hosts).argv
    assert argv[argv.index("-H") + 1] == occupied


def test_hosts_are_given_with_their_slots():
    argv = only_command({"transport": "gloo"}, ranks=3, hosts=HOSTS).argv
    patient = ["--disable-cache", "--start-timeout", "600"]
    assert argv == [*HOROVODRUN, "--gloo", *patient, "-np", "3", "-H", "10.0.0.2:2,10.0.0.3:1", *RANK]
    argv = only_command({"transport": "mpi"}, ranks=3, hosts=HOSTS).argv
    assert argv[argv.index("-H") + 1] == "10.0.0.2:2,10.0.0.3:1"


def test_slots_without_a_rank_take_no_threads():
    hosts = [Host("a", 2, "a"), Host("b", 8, "b")]
    assert threads_per_rank(from_dict({}), Placement(4, 8, hosts)) == 4  # two ranks on each


def test_a_single_remote_host_runs_the_launcher_through_ssh():
    command = only_command({"transport": "gloo"}, ranks=2, hosts=(HOSTS[0],))
    *ssh, address, remote = command.argv
    assert ssh[0] == "ssh" and address == "10.0.0.2"
    assert remote.startswith("env ") and remote.endswith(shlex.join(["-np", "2", "-H", "localhost:2", *RANK]))
    assert "the-secret" not in remote and set(command.env) <= {"HOME", "PATH", "SSH_AUTH_SOCK"}


def test_this_machine_as_a_host_needs_no_ssh():
    here = Host("localhost", 2, "a", here=True)
    assert only_command({"transport": "gloo"}, ranks=2, hosts=(here,)).argv[:3] == HOROVODRUN
    assert only_command({"transport": "gloo"}, ranks=1, hosts=(here, HOSTS[0])).argv == RANK


@pytest.mark.parametrize(
    "lines, gone",
    [
        (["Process 2 exit with status code 139."], [Gone(2, 11)]),
        (["Process 2 exit with status code 1."], [Gone(2)]),
        (["Process 2 exit with status code 255."], [Gone(2)]),
        (["Process 1 exit with status code 1.", "Process 2 exit with status code 137."], [Gone(1), Gone(2, 9)]),
        (["mpirun noticed that process rank 1 with PID 4711 on node a exited on signal 9 (Killed)."], [Gone(1, 9)]),
        ([], []),
    ],
)
def test_ranks_that_ended_by_themselves_are_read_from_the_log(lines, gone):
    log = ["[2]<stderr>: other output", *lines, "Process 0 exit with status code 143."]
    assert gone_ranks("\n".join(log)) == gone


def test_a_second_signal_is_urgent_except_that_of_a_closed_terminal():
    """The shell and the kernel each send SIGHUP."""
    signals = Signals()
    for number, urgent in ((signal.SIGHUP, False), (signal.SIGHUP, False), (signal.SIGTERM, True)):
        signals._handle(number, None)
        assert (signals.reason, signals.urgent) == ("SIGHUP", urgent)
