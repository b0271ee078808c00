"""One status out of those of the ranks."""

import signal
from contextlib import suppress

import psutil
import pytest
from machine import until

from mxscale.distributed.peer_loss import follows_from_lost_peer
from mxscale.environment.hosts import Host
from mxscale.launcher import setup
from mxscale.launcher.commands import Gone
from mxscale.launcher.failure import Failure, Logs
from mxscale.launcher.outcome import (
    host_failure,
    merge,
    with_communicator_reason,
    with_launcher_reason,
    with_signals,
)
from mxscale.rundir.status import RankStatus


def failed(rank, exit=1, consequence=True, time_ms=0):
    return RankStatus(rank, 1, exit, time_ms, error=f"error of {rank}", consequence=consequence)


def test_first_rank_without_status_is_named():
    failure = merge([None, failed(1), None], None, [Gone(1), Gone(2)])[1]
    assert failure.error.startswith("rank 2 ended without a status")
    assert failure.of == ("2",) and failure.retryable


@pytest.mark.parametrize("number, words", [(11, "by SIGSEGV (see"), (9, "by SIGKILL (killed, or out of memory? see")])
def test_signal_that_ended_a_rank_is_named(number, words):
    failure = merge([None, None], None, [Gone(1, number)])[1]
    assert failure.error == f"rank 1 ended without a status {words} ranks/launch.log)"


def test_all_ranks_without_status_are_named():
    for ended in ([], [Gone(1)]):
        failure = merge([None, failed(1), None], None, ended)[1]
        assert failure.error.startswith("rank 0, 2 ended without a status")
        assert failure.of == ("0", "2")


def test_own_failure_is_the_cause_and_not_retried():
    _, failure = merge([failed(0, consequence=False, time_ms=2), failed(1, time_ms=1), None], None, [Gone(2)])
    assert failure == Failure("rank 0: error of 0", ("0",), retryable=False)


def test_earliest_own_failure_is_the_cause():
    status, failure = merge([failed(0, 1, False, time_ms=2), failed(1, 3, False, time_ms=1)], None)
    assert (status.exit, failure.error) == (3, "rank 1: error of 1")


def test_lost_peers_are_retried():
    assert merge([failed(0, time_ms=2), failed(1, time_ms=1)], None)[1] == Failure("rank 1: error of 1", ("1",), True)


def test_the_name_of_a_run_is_no_sign_of_a_lost_peer():
    run = "/runs/train/2026-11-25_transport-gloo"
    assert not follows_from_lost_peer(f"OSError: {run}/checkpoints: No space left on device", run)
    assert follows_from_lost_peer("MXNetError: [/gloo/transport/tcp/pair.cc:598] Connection closed by peer", run)


def test_communicator_reason_of_lost_peer_is_reported(tmp_path):
    (tmp_path / "0.log").write_text("of an earlier attempt: background loop uncaught exception: another reason\n")
    logs = Logs(tmp_path)
    text = "Horovod background loop uncaught exception: [/x/gloo/pair.cc:598] Connection closed by peer [::1]:5\n"
    with open(tmp_path / "0.log", "a") as log:
        log.write(f"[0]: {text}")
    failure = Failure("rank 0: MXNetError: Horovod has been shut down.", ("0",), True)
    assert with_communicator_reason(failure, logs).error == "rank 0 lost its peers: Connection closed by peer [::1]:5"
    silent = Failure("rank 0 ended without a status", ("0",), True)
    assert with_communicator_reason(silent, logs) == silent


def test_lost_host_is_named_with_ranks():
    a, b = Host("10.0.0.1", 2, "a"), Host("10.0.0.2", 2, "b")
    failure = host_failure([b], [a, b], 4)
    assert failure.error == "b (rank 2, 3) can't be reached any more"
    assert failure.of == ("2", "3") and failure.retryable


def test_lost_host_without_ranks_is_named_with_servers():
    a, b = Host("10.0.0.1", 2, "a"), Host("10.0.0.2", 2, "b")
    assert host_failure([b], [a, b], 2).error == "b (servers) can't be reached any more"


def test_last_lines_are_of_this_attempt_without_noise(tmp_path):
    (tmp_path / "1.log").write_text("of an earlier attempt\n")
    logs = Logs(tmp_path)
    assert logs.last_lines("1") == [] == logs.last_lines("2")
    text = 'Traceback (most recent call last):\n  File "engine.py", line 1, in main\n    train()\n    ^^^^^^^\n\n'
    with open(tmp_path / "1.log", "a") as log:
        log.write("".join(f"line {n}\n" for n in range(30)) + text + "MXNetError: out of memory\n")
    assert logs.last_lines("1") == [*(f"line {n}" for n in range(22, 30)), "    train()", "MXNetError: out of memory"]


def test_fatal_signal_is_of_faulthandlers_report(tmp_path):
    logs = Logs(tmp_path)
    report = 'Fatal Python error: Floating point exception\n\nThread 0x1 (most recent call first):\n  File "a.py"\n'
    (tmp_path / "0.log").write_text(report)
    assert (logs.fatal_signal("0"), logs.fatal_signal("1")) == (signal.SIGFPE, None)
    assert logs.last_lines("0") == ["Fatal Python error: Floating point exception"]


def test_crashed_rank_is_known_by_its_log_alone(tmp_path):
    logs = Logs(tmp_path)
    (tmp_path / "2.log").write_text("Fatal Python error: Segmentation fault\n")
    assert with_signals([Gone(1)], logs, ranks=3) == [Gone(1), Gone(2, signal.SIGSEGV)]
    assert with_signals([Gone(2)], logs, ranks=3)[0] == Gone(2, signal.SIGSEGV)


def test_ranks_that_the_launcher_did_not_start_are_reported_with_its_error(tmp_path):
    logs = Logs(tmp_path)
    (tmp_path / "launch.log").write_text("Traceback (most recent call last):\nRuntimeError: could not connect to a\n")
    failure = merge([None, None], None)[1]
    error = "the ranks did not start: RuntimeError: could not connect to a (ranks/launch.log)"
    assert with_launcher_reason(failure, logs) == failure._replace(error=error)
    (tmp_path / "0.log").write_text("begun\n")
    assert with_launcher_reason(failure, logs) == failure


@pytest.mark.parametrize("of", ["0", "server_0", "scheduler"])
def test_an_end_that_the_launcher_reports_of_started_ranks_keeps_its_cause(of, tmp_path):
    logs = Logs(tmp_path)
    ended = "Horovod detected that one or more processes exited with non-zero status, thus causing the job to be"
    (tmp_path / "launch.log").write_text(f"RuntimeError: {ended} terminated. The first process to do so was:\n")
    failure = Failure(f"{of} ended", (of,), retryable=True)
    assert with_launcher_reason(failure, logs) == failure


@pytest.mark.parametrize("status, words", [(-9, "was ended by SIGKILL (out of memory?)"), (-11, "was ended by SIGSEGV"),
                                           (-40, "was ended by signal 40"),
                                           (1, "ended with status 1; its messages are above")])  # fmt: skip
def test_end_of_a_preparation_is_named(status, words):
    assert setup.ended(status) == words


def preparation_of(process):
    """Return the preparation among the children of a run's process, None before it starts."""
    for child in psutil.Process(process.pid).children():
        with suppress(psutil.Error):  # it has ended
            if "mxscale.train.preparation" in child.cmdline():
                return child
    return None


@pytest.mark.slow
def test_killed_preparation_is_a_failure_that_leaves_no_run(cli):
    process = cli.start("train", "data=digits")
    until(lambda: preparation_of(process), 60).kill()
    ended = cli.ended(process, expect=1)
    assert ended.err == "error: the preparation was ended by SIGKILL (out of memory?)\n"
    assert not list(cli.folder.glob("train/*"))
