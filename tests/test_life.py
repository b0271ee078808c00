"""Ranks that live, and ranks that only seem to: with real processes."""

import inspect
import json
import os
import signal
import subprocess
import sys
import threading
import time

import psutil
import pytest

from mxscale.config.schema import Launch
from mxscale.distributed.heartbeat import UNSEEN, Life
from mxscale.environment.hosts import Host
from mxscale.launcher import heartbeat_monitor
from mxscale.rundir.directory import RunDir

STALL_S = 5.0


@pytest.fixture
def run(tmp_path, monkeypatch):
    (tmp_path / "run" / "ranks").mkdir(parents=True)
    return RunDir(tmp_path / "run")


@pytest.fixture
def clock(monkeypatch):
    """The parent's clock, put forward by hand."""

    class Clock:
        now = 1000.0

        def monotonic(self):
            return self.now

        def passes(self, seconds, lives):
            """What is found meanwhile."""
            found = None
            for _ in range(round(seconds / heartbeat_monitor.LOOK_EVERY_S)):
                self.now += heartbeat_monitor.LOOK_EVERY_S
                found = found or lives.stalled()
            return found

    clock = Clock()
    monkeypatch.setattr(heartbeat_monitor, "time", clock)
    return clock


@pytest.fixture
def process(run):
    """A process that names the run directory in its command line, as a rank does."""
    started = []

    def start(*words):
        argv = [sys.executable, "-c", "import time; time.sleep(60)", *(words or [str(run)])]
        started.append(subprocess.Popen(argv))
        return started[-1]

    yield start
    for each in started:
        each.kill()
        each.wait()


def sign(run, rank, pid=1, doing="training", idle_s=0.0, longest_s=0.0, attempt=1, at="", moves=2):
    """What a rank's thread writes."""
    said = {"attempt": attempt, "pid": pid, "doing": doing, "moves": moves, "idle_s": idle_s, "longest_s": longest_s,
            "at": at}  # fmt: skip
    run.rank_alive(rank).write_text(json.dumps(said))


def watched(run, ranks=2, nodes=(), **launch):
    return heartbeat_monitor.Lives(run, Launch(stall_s=STALL_S, **launch), 1, ranks, nodes)


def stop(process):
    process.send_signal(signal.SIGSTOP)
    while psutil.Process(process.pid).status() != psutil.STATUS_STOPPED:
        time.sleep(0.01)


# ---------------------------------------------------------------- a rank that says nothing


def test_a_stopped_rank_is_named_once_it_was_silent_for_long(run, clock, process):
    lives, rank = watched(run), process()
    sign(run, 0, os.getpid())
    sign(run, 1, rank.pid)
    assert clock.passes(1, lives) is None
    stop(rank)
    assert clock.passes(STALL_S - 1, lives) is None
    sign(run, 0, os.getpid())  # goes on
    failure = clock.passes(1, lives)
    assert failure.error == "rank 1 says nothing for 5 s: its process is stopped (SIGSTOP, or a debugger?)"
    assert failure.of == ("1",) and failure.outside


def test_a_rank_that_is_too_busy_to_touch_is_left_alone(run, clock, process):
    """As one that holds Python's lock in a long call."""
    lives = watched(run, ranks=1)
    sign(run, 0, process().pid)
    assert clock.passes(10 * STALL_S, lives) is None


@pytest.mark.parametrize("whose", ["nobody's", "another's"])
def test_a_rank_whose_process_is_gone_is_named_though_its_number_was_given_away(run, clock, process, whose):
    gone = process("something else")
    if whose == "nobody's":
        gone.kill()
        gone.wait()
    lives = watched(run, ranks=1)
    sign(run, 0, gone.pid)
    assert clock.passes(STALL_S + 1, lives).error.startswith("rank 0 says nothing for 5 s: its process is gone")


def test_of_a_rank_in_a_container_silence_is_all_that_is_seen(run, clock, process):
    lives = watched(run, ranks=1, kind="docker", image="mxscale:cpu")
    sign(run, 0, process().pid)
    assert clock.passes(STALL_S + 1, lives).error == "rank 0 says nothing for 5 s"


def test_a_rank_that_has_ended_or_not_begun_is_not_silent(run, clock):
    lives = watched(run)
    sign(run, 0, attempt=2)  # of another attempt
    sign(run, 1)
    run.write(run.rank_status(1), {"attempt": 1, "exit": 0})
    assert clock.passes(10 * STALL_S, lives) is None


def test_a_parent_that_was_held_up_itself_does_not_blame_the_ranks(run, clock):
    lives = watched(run, ranks=1)
    sign(run, 0, pid=2**22)  # there is no such process
    assert clock.passes(1, lives) is None
    clock.now += 100 * STALL_S  # this process was stopped, with the machine
    assert clock.passes(STALL_S - 1, lives) is None
    assert clock.passes(2, lives) is not None


# ---------------------------------------------------------------- on other hosts


@pytest.fixture
def ssh(tmp_path, monkeypatch):
    """An ssh that runs the command here, but on hosts whose name begins with `gone`."""
    (tmp_path / "ssh").write_text(
        '#!/bin/bash\nwhile [ "$1" = -o ]; do shift 2; done\n'
        'case $1 in gone*) exit 255;; esac\nshift; exec sh -c "$*"\n'
    )
    (tmp_path / "ssh").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")


def test_a_silent_rank_elsewhere_is_looked_at_where_it_runs_and_killed_if_it_is_stopped(run, clock, process, ssh):
    nodes = [Host("a", 1, "a"), Host("b", 1, "b"), Host("gone", 1, "c")]
    lives, ranks, bystander = watched(run, 3, nodes), [process(), process()], process("something else")
    pids = [ranks[0].pid, ranks[1].pid, bystander.pid]
    for rank, pid in enumerate(pids):
        sign(run, rank, pid)
    assert clock.passes(STALL_S - 1, lives) is None
    sign(run, 2, pids[2])
    assert clock.passes(STALL_S - 1, lives) is None  # two were silent for long, but they are there
    stop(ranks[1])
    sign(run, 2, pids[2])
    assert clock.passes(STALL_S, lives).error.endswith("its process is stopped (SIGSTOP, or a debugger?) (on b)")

    run.write(run.rank_status(0), {"attempt": 1, "exit": 1})
    assert lives.end_elsewhere() == [nodes[2]]  # which can't be reached
    assert ranks[1].wait(10) == -signal.SIGKILL
    assert ranks[0].poll() is None and bystander.poll() is None


def test_a_host_that_is_out_of_reach_is_why_its_rank_is_silent(run, clock, ssh):
    lives = watched(run, 1, [Host("gone", 1, "b")])
    sign(run, 0)
    assert clock.passes(STALL_S + 1, lives).error == "rank 0 says nothing for 5 s: b can't be reached any more"


def test_hosts_of_ranks_that_lost_touch_are_asked_whether_they_are_there_those_of_ranks_that_are_done_not(run, ssh):
    lives = watched(run, 3, [Host(name, 1, name) for name in ("gone1", "gone2", "b")])
    for rank, status in enumerate((1, 0, 1)):
        run.write(run.rank_status(rank), {"attempt": 1, "exit": status})
    assert [host.name for host in lives.end_elsewhere()] == ["gone1"]


def test_a_host_that_has_servers_alone_is_asked_too(run, ssh):
    lives = watched(run, 1, [Host("a", 1, "a"), Host("gone", 1, "c")])
    assert [host.name for host in lives.end_elsewhere()] == ["c"]


def test_a_stopped_server_on_another_host_is_killed_that_of_another_run_is_not(run, process, ssh, tmp_path):
    ours, other = (
        process("mxscale.distributed.parameter_server", str(where), "1", "server.0")
        for where in (run, tmp_path / "other")
    )
    stop(ours)
    assert watched(run, 1, [Host("a", 1, "a"), Host("b", 1, "b")]).end_elsewhere() == []
    assert ours.wait(10) == -signal.SIGKILL
    assert other.poll() is None


# ---------------------------------------------------------------- a rank that crashes as it starts


def test_a_rank_crashed_at_its_start_where_none_has_made_a_step(run):
    sign(run, 0, moves=0)
    assert watched(run).crashed_at_start()
    run.write(run.rank_status(0), {"attempt": 1, "exit": 1})
    run.write(run.rank_status(1), {"attempt": 1, "exit": 1})
    assert not watched(run).crashed_at_start()  # each had a last word


def test_a_rank_that_had_made_a_step_did_not_crash_at_its_start_though_no_line_was_due_yet(run):
    sign(run, 0, moves=0)
    sign(run, 1, moves=1)
    assert not watched(run).crashed_at_start()


def test_a_rank_says_at_once_that_it_has_made_a_step(run):
    (run.path / "ranks").mkdir(exist_ok=True)
    life = Life(run, 0, 1)
    life.moved()
    assert json.loads(run.rank_alive(0).read_text())["moves"] == 1


def test_a_number_that_went_to_another_process_is_not_killed(run, process, ssh):
    bystander = process("something else")
    lives = watched(run, 1, [Host("a", 1, "a")])
    sign(run, 0, bystander.pid)
    assert lives.end_elsewhere() == []
    time.sleep(0.1)
    assert bystander.poll() is None


# ---------------------------------------------------------------- ranks that do not get on

COMM, ELSEWHERE = "communicators.py:100 (total)", "loader.py:20 (step)"


def test_ranks_that_live_but_finish_no_step_are_ended_and_those_are_named_that_the_others_wait_for(run, clock):
    lives = watched(run)
    sign(run, 0, idle_s=STALL_S - 0.1, at=COMM)
    sign(run, 1, idle_s=60, at=ELSEWHERE)
    assert clock.passes(1, lives) is None  # one gets on
    sign(run, 0, idle_s=STALL_S, at=COMM)
    failure = clock.passes(1, lives)
    assert failure.error == f"no rank has finished a step for 5 s; the others wait: rank 1 is at {ELSEWHERE}"
    assert failure.of == ("1",) and failure.outside


@pytest.mark.parametrize("at", [COMM, ELSEWHERE])
def test_where_all_ranks_are_stuck_alike_nobody_is_blamed(run, clock, at):
    lives = watched(run)
    for rank in (0, 1):
        sign(run, rank, idle_s=6, at=at)
    failure = clock.passes(1, lives)
    assert failure.error == f"no rank has finished a step for 6 s; rank 0 is at {at}, rank 1 is at {at}"
    assert failure.of == ()


@pytest.mark.parametrize(
    "one", [{"longest_s": 2.0}, {"doing": "saving"}, {"doing": "starting"}], ids=["slow steps", "saving", "starting"]
)
def test_slow_steps_a_checkpoint_and_the_start_are_given_time(run, clock, one):
    lives = watched(run)
    sign(run, 0, idle_s=3 * STALL_S)
    sign(run, 1, **{"idle_s": 3 * STALL_S, **one})
    assert clock.passes(1, lives) is None


# ---------------------------------------------------------------- what a rank shows


def said_by(run, attempt=1, timeout=10):
    """What the thread of rank 0 writes next."""
    before, deadline = run.rank_alive(0).stat().st_mtime_ns, time.monotonic() + timeout
    while run.rank_alive(0).stat().st_mtime_ns == before:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return json.loads(run.rank_alive(0).read_text())


def test_a_rank_shows_what_it_does_and_the_longest_of_its_steps(run, monkeypatch):
    monkeypatch.setattr("mxscale.distributed.heartbeat.TOUCH_EVERY_S", 0.02)
    shown = Life(run, 0, attempt=1)
    assert said_by(run)["doing"] == "starting" and said_by(run)["pid"] == os.getpid()
    shown.moved()
    assert said_by(run)["doing"] == "starting"  # the first step is still under way
    time.sleep(0.3)
    shown.moved()
    said = said_by(run)
    assert said["doing"] == "training" and 0.3 <= said["longest_s"] < 2
    with shown.saving():
        time.sleep(0.5)
        assert said_by(run)["doing"] == "saving"
    shown.moved()
    said = said_by(run)
    assert said["doing"] == "training" and said["longest_s"] < 0.5 and said["idle_s"] < 0.5


def test_a_rank_shows_where_it_is_in_our_code_not_in_what_that_calls(run, monkeypatch):
    monkeypatch.setattr("mxscale.distributed.heartbeat.TOUCH_EVERY_S", 0.02)
    Life(run, 0, attempt=1)
    said = []
    threading.Thread(target=lambda: said.extend(said_by(run) for _ in range(3))).start()
    subprocess.run(["sleep", "0.5"])
    line = inspect.currentframe().f_lineno - 1
    assert said[-1]["at"] == f"test_life.py:{line} (test_a_rank_shows_where_it_is_in_our_code_not_in_what_that_calls)"


def test_nobody_has_to_watch():
    UNSEEN.moved()
    with UNSEEN.saving():
        pass
