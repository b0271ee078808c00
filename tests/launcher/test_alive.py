"""The parent's heartbeat, touched by a child process."""

import shutil
import signal
import subprocess
import sys
import time

import psutil
import pytest
from machine import until

from mxscale.launcher.alive import kept_alive
from mxscale.rundir.directory import RunDir
from mxscale.rundir.status import INTERRUPTED

# A parent that holds the interpreter's lock: this search takes longer than any test
BUSY = """
import re, sys
from mxscale.launcher.alive import kept_alive
from mxscale.rundir.directory import RunDir
with kept_alive(RunDir(sys.argv[1]), every_s=0.1):
    re.match("(a+)+$", "a" * 60 + "b")
"""


@pytest.fixture
def run(tmp_path):
    return RunDir(tmp_path)


@pytest.fixture
def parent(run):
    process = subprocess.Popen([sys.executable, "-c", BUSY, str(run)])
    yield process
    process.kill()
    process.wait()


def touched(run):
    return run.alive_file.stat().st_mtime_ns if run.alive_file.exists() else 0


def pause_in_touches(run) -> bool:
    before = touched(run)
    time.sleep(1)
    return touched(run) == before


@pytest.mark.slow
def test_heartbeat_goes_on_while_the_parent_is_busy(run, parent):
    for _ in range(3):
        before = touched(run)
        until(lambda before=before: touched(run) > before)


@pytest.mark.slow
def test_heartbeat_ends_with_a_killed_parent(run, parent):
    until(lambda: touched(run))
    (child,) = psutil.Process(parent.pid).children()
    parent.kill()
    until(lambda: not child.is_running() or child.status() == psutil.STATUS_ZOMBIE)


def test_child_ends_with_the_block(run):
    with kept_alive(run, every_s=0.1):
        (child,) = (one for one in psutil.Process().children() if str(run.alive_file) in one.cmdline())
    assert not child.is_running()


@pytest.mark.slow
def test_stopped_parent_has_no_heartbeat(run, parent):
    until(lambda: touched(run))
    parent.send_signal(signal.SIGSTOP)
    until(lambda: pause_in_touches(run))
    before = touched(run)
    parent.send_signal(signal.SIGCONT)
    until(lambda: touched(run) > before)


RANK = """
import pathlib, sys, time
from mxscale.distributed import heartbeat
from mxscale.rundir.directory import RunDir
heartbeat.PARENT_TIMEOUT_S = 1
heartbeat.end_with_parent(RunDir(sys.argv[1]), 1)
pathlib.Path(sys.argv[1], "watched").touch()
time.sleep(60)
"""


@pytest.mark.slow
def test_rank_ends_when_its_run_directory_is_removed(run):
    run.ranks_lock.parent.mkdir()
    run.begin_alive(1)
    with subprocess.Popen([sys.executable, "-c", RANK, str(run)]) as rank:
        until((run.path / "watched").exists)
        shutil.rmtree(run.path)
        assert rank.wait(timeout=30) == INTERRUPTED
