"""Heartbeats of ranks and the stalls found from them, with real processes."""

import json
import os
import signal
import subprocess
import sys
import time

import psutil
import pytest
from machine import until

from mxscale.config.schema import Launch
from mxscale.distributed.heartbeat import Heartbeat, Phase
from mxscale.environment.hosts import Host
from mxscale.launcher import heartbeat_monitor
from mxscale.rundir.directory import RunDir
from mxscale.rundir.status import RankStatus

STALL_S = 5.0


@pytest.fixture
def run(tmp_path):
    (tmp_path / "run" / "ranks").mkdir(parents=True)
    return RunDir(tmp_path / "run")


@pytest.fixture
def clock(monkeypatch):
    """The parent's clock, advanced by the test."""

    class Clock:
        now = 1000.0

        def monotonic(self):
            return self.now

        def passes(self, seconds, monitor):
            """Advance by `seconds` and return the first failure found."""
            found = None
            for _ in range(round(seconds / heartbeat_monitor.CHECK_EVERY_S)):
                self.now += heartbeat_monitor.CHECK_EVERY_S
                found = found or monitor.stalled()
            return found

    clock = Clock()
    monkeypatch.setattr(heartbeat_monitor, "time", clock)
    return clock


@pytest.fixture
def process(run):
    """Start a process whose command line names the run directory, like a rank's."""
    started = []

    def start(*words):
        argv = [sys.executable, "-c", "import time; time.sleep(60)", *(words or [str(run)])]
        started.append(subprocess.Popen(argv))
        until(psutil.Process(started[-1].pid).cmdline)  # empty for a moment after the start
        return started[-1]

    yield start
    for each in started:
        each.kill()
        each.wait()


def beat(run, rank, pid=1, **fields):
    """Write a rank's heartbeat."""
    usual = {"attempt": 1, "phase": "compute", "progress": 2, "steps": 2, "idle_s": 0.0, "longest_s": 0.0}
    run.rank_alive(rank).write_text(json.dumps({"pid": pid, **usual, **fields}))


def watched(run, ranks=2, nodes=(), **launch):
    return heartbeat_monitor.HeartbeatMonitor(run, Launch(stall_s=STALL_S, **launch), 1, ranks, nodes)


def stop(process):
    process.send_signal(signal.SIGSTOP)
    while psutil.Process(process.pid).status() != psutil.STATUS_STOPPED:
        time.sleep(0.01)


def test_a_stopped_rank_is_named_after_the_stall_limit(run, clock, process):
    monitor, rank = watched(run), process()
    beat(run, 0, os.getpid())
    beat(run, 1, rank.pid)
    assert clock.passes(1, monitor) is None
    stop(rank)
    assert clock.passes(STALL_S - 1, monitor) is None
    beat(run, 0, os.getpid())  # continues
    failure = clock.passes(1, monitor)
    assert failure.error == "no heartbeat of rank 1 for 5 s: its process is stopped (SIGSTOP, or a debugger?)"
    assert failure.of == ("1",) and failure.retryable


def test_a_rank_too_busy_to_write_is_no_stall(run, clock, process):
    """Such as one that holds Python's lock in a long call."""
    monitor = watched(run, ranks=1)
    beat(run, 0, process().pid)
    assert clock.passes(10 * STALL_S, monitor) is None


@pytest.mark.parametrize("whose", ["unused", "reused"])
def test_rank_without_a_process_is_named(run, clock, process, whose):
    gone = process("something else")
    if whose == "unused":
        gone.kill()
        gone.wait()
    monitor = watched(run, ranks=1)
    beat(run, 0, gone.pid)
    assert clock.passes(STALL_S + 1, monitor).error.startswith("no heartbeat of rank 0 for 5 s: its process is gone")


def test_a_first_step_after_a_resumed_validation_may_compile(run, clock, process):
    monitor = watched(run, ranks=1, start_timeout_s=60)
    own = process()
    for steps, stalls in ((0, False), (2, True)):
        beat(run, 0, own.pid, progress=5, steps=steps, idle_s=50.0, phase="compute")
        assert bool(clock.passes(1.5, monitor)) == stalls


def test_ended_or_unstarted_rank_is_no_stall(run, clock):
    monitor = watched(run)
    beat(run, 0, attempt=2)  # of another attempt
    beat(run, 1)
    run.save(RankStatus(1, attempt=1, exit=0, time_ms=0))
    assert clock.passes(10 * STALL_S, monitor) is None


def test_suspended_parent_blames_no_rank(run, clock):
    monitor = watched(run, ranks=1)
    beat(run, 0, pid=2**22)  # there is no such process
    assert clock.passes(1, monitor) is None
    clock.now += 100 * STALL_S  # this process was stopped, with the machine
    assert clock.passes(STALL_S - 1, monitor) is None
    assert clock.passes(2, monitor) is not None


def test_stopped_rank_on_another_host_is_killed(run, clock, process, fake_ssh):
    nodes = [Host("a", 1, "a"), Host("b", 1, "b"), Host("gone", 1, "c")]
    monitor, ranks, bystander = watched(run, 3, nodes), [process(), process()], process("something else")
    pids = [ranks[0].pid, ranks[1].pid, bystander.pid]
    for rank, pid in enumerate(pids):
        beat(run, rank, pid)
    assert clock.passes(STALL_S - 1, monitor) is None
    beat(run, 2, pids[2])
    assert clock.passes(STALL_S - 1, monitor) is None  # ranks 0 and 1 are silent but run
    stop(ranks[1])
    beat(run, 2, pids[2])
    assert clock.passes(STALL_S, monitor).error.endswith("its process is stopped (SIGSTOP, or a debugger?) (on b)")

    run.save(RankStatus(0, attempt=1, exit=1, time_ms=0))
    assert monitor.end_elsewhere() == [nodes[2]]  # unreachable
    assert ranks[1].wait(10) == -signal.SIGKILL
    assert ranks[0].poll() is None and bystander.poll() is None


def test_silent_rank_on_unreachable_host_names_the_host(run, clock, fake_ssh):
    monitor = watched(run, 1, [Host("gone", 1, "b")])
    beat(run, 0)
    assert clock.passes(STALL_S + 1, monitor).error == "no heartbeat of rank 0 for 5 s: b can't be reached any more"


def test_a_greeting_of_another_host_is_no_state(run, clock, process, fake_ssh):
    ssh = fake_ssh / "ssh"
    ssh.write_text(ssh.read_text().replace("exec sh", "echo 'Welcome :) to b'; exec sh"))
    monitor, rank = watched(run, 1, [Host("b", 1, "b")]), process()
    beat(run, 0, rank.pid)
    assert clock.passes(2 * STALL_S, monitor) is None
    rank.kill()
    rank.wait()
    assert "its process is gone" in clock.passes(STALL_S, monitor).error


def test_only_hosts_of_failed_ranks_are_checked(run, fake_ssh):
    monitor = watched(run, 3, [Host(name, 1, name) for name in ("gone1", "gone2", "b")])
    for rank, status in enumerate((1, 0, 1)):
        run.save(RankStatus(rank, attempt=1, exit=status, time_ms=0))
    assert [host.name for host in monitor.end_elsewhere()] == ["gone1"]


def test_a_host_with_servers_alone_is_checked(run, fake_ssh):
    monitor = watched(run, 1, [Host("a", 1, "a"), Host("gone", 1, "c")])
    assert [host.name for host in monitor.end_elsewhere()] == ["c"]


def test_stopped_server_of_this_run_is_killed(run, process, fake_ssh, tmp_path):
    ours, other = (
        process("mxscale.distributed.parameter_server", str(where), "1", "server.0")
        for where in (run, tmp_path / "other")
    )
    stop(ours)
    assert watched(run, 1, [Host("a", 1, "a"), Host("b", 1, "b")]).end_elsewhere() == []
    assert ours.wait(10) == -signal.SIGKILL
    assert other.poll() is None


def test_missing_status_before_any_step_is_a_start_crash(run):
    beat(run, 0, progress=0)
    assert watched(run).crashed_at_start()
    run.save(RankStatus(0, attempt=1, exit=1, time_ms=0, consequence=True))
    assert watched(run).crashed_at_start()
    run.save(RankStatus(0, attempt=1, exit=1, time_ms=0))
    assert not watched(run).crashed_at_start()  # it reported why
    run.save(RankStatus(1, attempt=1, exit=1, time_ms=0))
    assert not watched(run).crashed_at_start()  # each rank wrote its status


def test_no_start_crash_after_a_first_step(run):
    beat(run, 0, progress=0)
    beat(run, 1, progress=1)
    assert not watched(run).crashed_at_start()


def test_the_first_step_is_written_at_once(run):
    (run.path / "ranks").mkdir(exist_ok=True)
    heartbeat = Heartbeat(run, 0, 1)
    heartbeat.progress()
    assert json.loads(run.rank_alive(0).read_text())["progress"] == 1


def test_process_with_a_reused_pid_is_not_killed(run, process, fake_ssh):
    bystander = process("something else")
    monitor = watched(run, 1, [Host("a", 1, "a")])
    beat(run, 0, bystander.pid)
    assert monitor.end_elsewhere() == []
    time.sleep(0.1)
    assert bystander.poll() is None


def test_rank_outside_the_exchange_caused_the_stall(run, clock):
    monitor = watched(run)
    beat(run, 0, idle_s=STALL_S - 0.1, phase="exchange")
    beat(run, 1, idle_s=60, phase="input")
    assert clock.passes(1, monitor) is None  # rank 0 makes progress
    beat(run, 0, idle_s=STALL_S, phase="exchange")
    failure = clock.passes(1, monitor)
    assert failure.error == "no rank has finished a step for 5 s; the others wait: rank 1 in phase input"
    assert failure.of == ("1",) and failure.retryable


@pytest.mark.parametrize("phase", ["exchange", "input"])
def test_no_rank_is_blamed_in_a_common_phase(run, clock, phase):
    monitor = watched(run)
    for rank in (0, 1):
        beat(run, rank, idle_s=6, phase=phase)
    failure = clock.passes(1, monitor)
    assert failure.error == f"no rank has finished a step for 6 s; rank 0 in phase {phase}, rank 1 in phase {phase}"
    assert failure.of == ()


@pytest.mark.parametrize(
    "one", [{"longest_s": 2.0}, {"phase": "checkpoint"}, {"progress": 1}], ids=["slow steps", "checkpoint", "start"]
)
def test_slow_steps_checkpoint_and_start_are_no_stall(run, clock, one):
    monitor = watched(run)
    beat(run, 0, idle_s=3 * STALL_S)
    beat(run, 1, **{"idle_s": 3 * STALL_S, **one})
    assert clock.passes(1, monitor) is None


def next_beat(run):
    """Return the next heartbeat that rank 0's thread writes."""
    before = run.rank_alive(0).stat().st_mtime_ns
    until(lambda: run.rank_alive(0).stat().st_mtime_ns != before)
    return json.loads(run.rank_alive(0).read_text())


def test_a_heartbeat_carries_the_phase_and_the_longest_step(run, monkeypatch):
    monkeypatch.setattr("mxscale.distributed.heartbeat.WRITE_EVERY_S", 0.02)
    heartbeat = Heartbeat(run, 0, attempt=1)
    first = next_beat(run)
    assert (first["phase"], first["pid"], first["progress"]) == ("starting", os.getpid(), 0)
    heartbeat.phase = Phase.INPUT
    time.sleep(0.3)
    heartbeat.progress()
    assert next_beat(run)["longest_s"] == 0  # the first step may compile
    time.sleep(0.3)
    heartbeat.progress()
    second = next_beat(run)
    assert second["phase"] == "input" and second["longest_s"] >= 0.29
    began = time.monotonic()
    with heartbeat.checkpointing():
        time.sleep(0.5)
        assert next_beat(run)["phase"] == "checkpoint"
    heartbeat.progress()
    third = next_beat(run)
    without_checkpoint = time.monotonic() - began - 0.49
    assert third["phase"] == "input" and third["longest_s"] <= second["longest_s"] + without_checkpoint
