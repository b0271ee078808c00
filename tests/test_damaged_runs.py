"""A damaged run directory does not affect commands that concern other runs."""

import pytest

from mxscale.config.schema import from_dict
from mxscale.records import earlier_runs
from mxscale.rundir import directory
from mxscale.rundir.plan import Plan
from mxscale.rundir.status import FINISHED, Status
from mxscale.tracking import sync_state
from mxscale.util.errors import ConfigError


@pytest.fixture
def runs(tmp_path):
    """Return a finished run and a damaged, newer one."""
    config = from_dict({"runs": str(tmp_path)})
    made = [directory.create(config), directory.create(config)]
    for run in made:
        run.write_status(Status(FINISHED))
        run.write("best.json", {"step": 1})
    made[1].path.joinpath("status.json").write_text("[torn")
    return made


def test_latest_skips_a_damaged_run(runs, tmp_path, capsys):
    assert directory.latest_trained(tmp_path).path == runs[0].path
    assert f"skipping a run directory: {runs[1].path}" in capsys.readouterr().err


def test_a_damaged_sibling_is_no_baseline(runs):
    for run in runs:
        run.write_plan(Plan(weak_signature="s"))
    runs[0].path.joinpath("environment.json").write_text("[torn")
    assert earlier_runs.comparable(runs[1], Plan(weak_signature="s"), "weak_signature") == []


def test_a_damaged_tracking_record_counts_as_none(runs):
    runs[0].path.joinpath(sync_state.STATE_FILE).write_text("[torn")
    assert "not in MLflow" in sync_state.view_hint(runs[0])


def test_the_damaged_run_itself_is_named(runs):
    with pytest.raises(ConfigError, match=r"status\.json is damaged"):
        runs[1].status()
