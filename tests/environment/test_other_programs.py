"""What other programs use of the cores."""

import os
import subprocess
import sys
import time

from mxscale.environment import other_programs
from mxscale.environment.other_programs import OtherPrograms, remark

COMPUTE = "import time\nend = time.monotonic() + 1.0\nwhile time.monotonic() < end: pass"


def test_own_processes_are_not_other_programs(monkeypatch):
    """The machine's use is replaced by that of one core, so that programs beside the test do not matter."""
    foreign = 0.0

    def cores(percpu):
        return [(sum(os.times()[:4]) + foreign, 0.0, 0.0)]

    monkeypatch.setattr(other_programs.psutil, "cpu_times", cores)
    monkeypatch.setattr(other_programs.os, "sched_getaffinity", lambda pid: {0})
    programs = OtherPrograms()
    subprocess.run([sys.executable, "-c", COMPUTE])
    assert programs.share() < 5.0
    foreign = 1.0
    time.sleep(0.5)
    assert programs.share() > 90.0


def test_a_remark_is_made_of_a_busy_machine_only():
    assert remark(10.0) == ""
    assert remark(63.4, "used") == "other programs used 63 % of the cores"
