"""Measurements by ranks outside a training."""

import sys

from mxscale.launcher import commands, trial
from mxscale.launcher.context import Signals
from mxscale.rundir.directory import RunDir


def command(code):
    return [commands.Command([sys.executable, "-c", code], {"PATH": "/usr/bin:/bin"})]


def test_a_slow_trial_is_ended_and_reported(tmp_path):
    found = trial.measured(RunDir(tmp_path), "slow", command("import time; time.sleep(60)"), 0.5, Signals(), "its time")
    assert found == {"no": "not finished in 0.5 s (its time)"}


def test_a_failed_trial_is_reported_with_status_and_log(tmp_path):
    failing = command("import sys; sys.exit('no such thing')")
    found = trial.measured(RunDir(tmp_path), "bad", failing, 20, Signals(), "its time")
    assert "status 1" in found["no"] and str(tmp_path / "probe" / "bad.log") in found["no"]
    assert "no such thing" in (tmp_path / "probe" / "bad.log").read_text()


def test_a_signal_ends_a_trial(tmp_path):
    signals = Signals()
    signals.reason = "SIGTERM"
    found = trial.measured(RunDir(tmp_path), "slow", command("import time; time.sleep(60)"), 60, signals, "its time")
    assert found == {"no": "SIGTERM"}
