"""Start, watch and stop real commands."""

import os
import signal
import sys
import time

import psutil
import pytest
from machine import until

from mxscale.launcher.commands import Command
from mxscale.launcher.context import Signals
from mxscale.launcher.processes import Processes, run_to_end


@pytest.fixture
def start(tmp_path):
    """Start shell scripts and kill their remaining processes after the test."""
    started = []

    def starter(*scripts):
        """Start the first script as the ranks and the others as server 0, server 1, ..."""
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


def pid_in(path) -> int:
    """Return the process id that a script writes to a file."""
    return int(until(lambda: path.exists() and path.read_text().strip()))


def runs(pid) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_processes_end_with_the_first_commands_status(start, tmp_path):
    processes = start("until [ -e $DIR/go ]; do sleep 0.02; done; exit 3", "sleep 60")
    assert processes.ended() is None
    (tmp_path / "go").touch()
    until(lambda: processes.ended() is not None)
    assert processes.ended() == 3
    assert processes.lost() is None
    processes.stop()
    assert [process.returncode for process in processes.running] == [3, -signal.SIGTERM]


@pytest.mark.parametrize(
    "script, message", [("kill -9 $$", "server 1 was ended by signal 9"), ("exit 3", "server 1 ended with status 3")]
)
def test_a_server_that_ends_before_the_ranks_is_named(start, script, message):
    processes = start("sleep 60", "sleep 60", script)
    failure = until(processes.lost)
    assert (failure.error, failure.of) == (f"{message} while ranks needed it", ("server_1",)) and failure.retryable
    assert processes.ended() is None


def test_finished_server_is_lost_if_ranks_continue(start, monkeypatch):
    processes = start("sleep 60", "true")
    until(lambda: processes.running[1].poll() is not None)
    assert processes.lost() is None  # the ranks may have finished too
    monkeypatch.setattr("mxscale.launcher.processes.SERVER_END_S", 0.1)
    assert until(processes.lost).error == "server 0 ended with status 0 while ranks needed it"


def test_servers_may_end_by_themselves_after_the_ranks(start, tmp_path, monkeypatch):
    processes = start("true", "until [ -e $DIR/go ]; do sleep 0.02; done", "sleep 60")
    until(lambda: processes.ended() is not None)
    (tmp_path / "go").touch()
    monkeypatch.setattr("mxscale.launcher.processes.SERVER_END_S", 1.0)
    processes.stop()
    assert [process.returncode for process in processes.running] == [0, 0, -signal.SIGTERM]


def test_a_missing_command_leaves_no_other_running(tmp_path):
    env = {"PATH": os.environ["PATH"], "DIR": str(tmp_path)}
    here = Command(["bash", "-c", "echo $$ > $DIR/here.pid; exec sleep 60"], env)
    with open(tmp_path / "log", "ab") as log, pytest.raises(FileNotFoundError):
        Processes([here, Command([str(tmp_path / "none")], env, "server 0")], log)
    left = [p for p in psutil.process_iter(["environ"]) if (p.info["environ"] or {}).get("DIR") == str(tmp_path)]
    assert [p for p in left if runs(p.pid)] == []


def test_a_command_may_clean_up_within_the_patience(start, tmp_path):
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
    began = time.monotonic()
    processes.stop(patience_s=600)
    assert time.monotonic() - began < 300
    assert processes.running[0].returncode == -signal.SIGTERM


GRANDCHILD = "setsid bash -c 'trap \"\" TERM; echo $$ > $DIR/grand.pid; while :; do sleep 0.05; done' & "


def test_grandchild_that_ignores_sigterm_is_killed(start, tmp_path):
    processes = start(GRANDCHILD + "wait")
    grandchild = pid_in(tmp_path / "grand.pid")
    assert os.getsid(grandchild) != processes.running[0].pid
    processes.stop(patience_s=0.3)
    until(lambda: not runs(grandchild))


def test_a_grandchild_is_killed_after_its_parent_died(start, tmp_path):
    processes = start(GRANDCHILD + "sleep 60")
    grandchild = pid_in(tmp_path / "grand.pid")
    assert processes.ended() is None  # descendants are recorded
    processes.running[0].kill()
    assert until(processes.ended) == -9
    assert runs(grandchild)
    processes.stop(patience_s=0.3)
    until(lambda: not runs(grandchild))


def test_a_process_started_during_the_stop_is_stopped(start, tmp_path):
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


def test_ranks_and_servers_write_to_separate_logs(start, tmp_path):
    processes = start("echo out; echo err >&2", "echo served")
    until(lambda: None not in [process.poll() for process in processes.running])
    assert sorted((tmp_path / "log").read_text().split()) == ["err", "out"]
    assert (tmp_path / "server_0.log").read_text() == "served\n"


SLEEP = "import time; time.sleep(60)"


def python(code):
    return [Command([sys.executable, "-c", code], {"PATH": "/usr/bin:/bin"})]


def test_slow_commands_are_ended_and_reported(tmp_path):
    assert run_to_end(python(SLEEP), tmp_path / "log", 0.5, Signals()) == "not finished in 0.5 s"


def test_failed_commands_are_reported_with_status_and_log(tmp_path):
    log = tmp_path / "log"
    failing = python("import sys; sys.exit('no such thing')")
    assert run_to_end(failing, log, 20, Signals()) == f"ended with status 1; see {log}"
    assert "no such thing" in log.read_text()
    assert run_to_end(python("pass"), log, 20, Signals()) is None


def test_a_signal_ends_commands(tmp_path):
    signals = Signals()
    signals.reason = "SIGTERM"
    assert run_to_end(python(SLEEP), tmp_path / "log", 60, signals) is None
