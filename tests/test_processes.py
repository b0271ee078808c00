"""Starting, watching and stopping commands, with real ones."""

import os
import signal
import time

import psutil
import pytest

from mxscale.launcher.commands import Command
from mxscale.launcher.processes import Processes


@pytest.fixture
def start(tmp_path):
    """Start shell scripts; whatever they leave is killed after the test."""
    started = []

    def starter(*scripts):
        """The first stands for the ranks; the others serve it: server 0, server 1, ..."""
        names = ["ranks", *(f"server {n}" for n in range(len(scripts) - 1))]
        with open(tmp_path / "log", "ab") as log:
            env = {"PATH": os.environ["PATH"], "DIR": str(tmp_path)}
            commands = [Command(["bash", "-c", script], env, name) for script, name in zip(scripts, names)]
            processes = Processes(commands, log)
        started.append(processes)
        return processes

    yield starter
    for file in tmp_path.glob("*.pid"):
        if psutil.pid_exists(int(file.read_text())):
            os.kill(int(file.read_text()), signal.SIGKILL)
    for processes in started:
        processes.stop(patience_s=0)


def until(condition, timeout=10):
    """The first true value of `condition()`."""
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        value = condition()
        if value:
            return value
        time.sleep(0.01)
    raise AssertionError("it did not happen in time")


def pid_in(path) -> int:
    """The number that a script writes into a file."""
    return int(until(lambda: path.exists() and path.read_text().strip()))


def runs(pid) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_the_watch_ends_with_the_first_command_and_its_status(start, tmp_path):
    processes = start("until [ -e $DIR/go ]; do sleep 0.02; done; exit 3", "sleep 60")
    assert processes.ended() is None
    (tmp_path / "go").touch()
    until(lambda: processes.ended() is not None)
    assert processes.ended() == 3
    assert processes.lost() is None
    processes.stop()
    assert [process.returncode for process in processes.running] == [3, -signal.SIGTERM]


@pytest.mark.parametrize(
    "script, told",
    [("kill -9 $$", "server 1 was ended by signal 9"), ("exit 3", "server 1 ended with status 3")],
)
def test_a_command_that_ends_before_those_that_it_serves_is_named(start, script, told):
    processes = start("sleep 60", "sleep 60", script)
    assert str(until(processes.lost)) == f"{told} while ranks needed it"
    assert processes.ended() is None


def test_a_command_that_ends_well_is_lost_only_where_the_ranks_go_on(start, monkeypatch):
    processes = start("sleep 60", "true")
    until(lambda: processes.running[1].poll() is not None)
    assert processes.lost() is None  # the ranks may be through as well
    monkeypatch.setattr("mxscale.launcher.processes.LEAVE_S", 0.1)
    assert until(processes.lost).status == 0


def test_what_served_the_ranks_may_end_by_itself_before_it_is_stopped(start, tmp_path, monkeypatch):
    processes = start("true", "until [ -e $DIR/go ]; do sleep 0.02; done", "sleep 60")
    until(lambda: processes.ended() is not None)
    (tmp_path / "go").touch()
    monkeypatch.setattr("mxscale.launcher.processes.LEAVE_S", 1.0)
    processes.stop()
    assert [process.returncode for process in processes.running] == [0, 0, -signal.SIGTERM]


def test_a_command_that_is_not_there_leaves_none_of_the_others(tmp_path):
    env = {"PATH": os.environ["PATH"], "DIR": str(tmp_path)}
    here = Command(["bash", "-c", "echo $$ > $DIR/here.pid; exec sleep 60"], env)
    with open(tmp_path / "log", "ab") as log, pytest.raises(FileNotFoundError):
        Processes([here, Command([str(tmp_path / "none")], env, "server 0")], log)
    left = [p for p in psutil.process_iter(["environ"]) if (p.info["environ"] or {}).get("DIR") == str(tmp_path)]
    assert [p for p in left if runs(p.pid)] == []


def test_a_killed_command_ends_the_watch_with_its_signal(start):
    processes = start("kill -9 $$")
    assert until(processes.ended) == -9


def test_stopping_is_quick_where_commands_listen(start):
    processes = start("sleep 60")
    began = time.monotonic()
    processes.stop(patience_s=30)
    assert time.monotonic() - began < 5
    assert processes.running[0].returncode == -signal.SIGTERM


def test_a_command_may_use_its_patience_to_end_in_order(start, tmp_path):
    processes = start(
        "trap 'sleep 0.3; echo done > $DIR/done; exit 0' TERM; touch $DIR/up; while :; do sleep 0.02; done"
    )
    until((tmp_path / "up").exists)
    processes.stop(patience_s=10)
    assert (tmp_path / "done").read_text() == "done\n"
    assert processes.running[0].returncode == 0


def test_a_command_that_ignores_sigterm_is_killed(start, tmp_path):
    processes = start("trap '' TERM; touch $DIR/up; while :; do sleep 0.05; done")
    until((tmp_path / "up").exists)
    processes.stop(patience_s=0.3)
    assert processes.running[0].returncode == -signal.SIGKILL


def test_a_stopped_command_ends_by_sigterm_too(start):
    processes = start("sleep 60")
    processes.running[0].send_signal(signal.SIGSTOP)
    processes.stop(patience_s=30)
    assert processes.running[0].returncode == -signal.SIGTERM


GRANDCHILD = "setsid bash -c 'trap \"\" TERM; echo $$ > $DIR/grand.pid; while :; do sleep 0.05; done' & "


def test_a_grandchild_in_another_session_that_ignores_sigterm_is_killed(start, tmp_path):
    processes = start(GRANDCHILD + "wait")
    grandchild = pid_in(tmp_path / "grand.pid")
    assert os.getsid(grandchild) != processes.running[0].pid
    processes.stop(patience_s=0.3)
    until(lambda: not runs(grandchild))


def test_a_grandchild_is_killed_when_its_parent_has_died_first(start, tmp_path):
    processes = start(GRANDCHILD + "sleep 60")
    grandchild = pid_in(tmp_path / "grand.pid")
    assert processes.ended() is None  # the watch has looked once
    processes.running[0].kill()
    assert until(processes.ended) == -9
    assert runs(grandchild)
    processes.stop(patience_s=0.3)
    until(lambda: not runs(grandchild))


def test_what_a_command_starts_on_its_way_out_is_stopped_too(start, tmp_path):
    script = "trap 'setsid bash -c \"echo \\$\\$ > $DIR/late.pid; exec sleep 60\" & wait' TERM; touch $DIR/up; "
    processes = start(script + "while :; do sleep 0.02; done")
    until((tmp_path / "up").exists)
    processes.stop(patience_s=1)
    late = pid_in(tmp_path / "late.pid")
    until(lambda: not runs(late))


def test_ctrl_c_reaches_the_parent_alone(start):
    processes = start("sleep 60", "sleep 60")
    for process in processes.running:
        until(lambda pid=process.pid: os.getsid(pid) == pid)
        assert os.getpgid(process.pid) != os.getpgid(0)


def test_stopping_twice_or_after_the_end_is_harmless(start):
    processes = start("true")
    assert until(lambda: processes.ended() is not None)
    processes.stop()
    processes.stop()
    assert processes.ended() == 0


def test_output_goes_to_the_log_and_that_of_what_serves_to_one_of_its_own(start, tmp_path):
    processes = start("echo out; echo err >&2", "echo served")
    until(lambda: None not in [process.poll() for process in processes.running])
    assert sorted((tmp_path / "log").read_text().split()) == ["err", "out"]
    assert (tmp_path / "server_0.log").read_text() == "served\n"
