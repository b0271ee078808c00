"""`mxscale runs`: which runs it lists, and what it shows of them."""

import json
import os

import pytest
from recorded_runs import make_run

from mxscale.cli import main
from mxscale.config.verb_settings import Runs
from mxscale.records import listing
from mxscale.util.errors import ConfigError


def names(root, *words, limit=20):
    return [row["run"].rpartition("_")[2] for row in listing.select(str(root), Runs(words=list(words), limit=limit))]


@pytest.fixture
def runs(tmp_path):
    """Three runs, the last one newest; the second one failed."""
    for number, (name, state) in enumerate((("first", "FINISHED"), ("second", "FAILED"), ("third", "FINISHED"))):
        run = make_run(tmp_path, state, name=name)
        os.utime(run.path, (number, number))
    return tmp_path


def test_the_newest_run_comes_first(runs):
    assert names(runs) == ["third", "second", "first"]
    assert names(runs, limit=2) == ["third", "second"]


def test_words_select_by_state_network_data_and_name(runs):
    assert names(runs, "failed") == ["second"]
    assert names(runs, "SMALL", "digits", "finished") == ["third", "first"]
    assert names(runs, "_first") == ["first"]


def test_no_matching_run_is_refused(runs):
    with pytest.raises(ConfigError, match=r"no run with xyz below .*train or .*finetune"):
        names(runs, "xyz")


def test_a_run_whose_parent_was_killed_is_interrupted(tmp_path):
    run = make_run(tmp_path, "RUNNING")
    (row,) = listing.select(str(tmp_path), Runs())
    assert row["state"] == "interrupted"
    run.begin_alive(1)
    (row,) = listing.select(str(tmp_path), Runs())
    assert row["state"] == "running"


def test_a_damaged_run_is_listed_with_its_cause(tmp_path):
    (make_run(tmp_path).path / "plan.json").write_text("{")
    (row,) = listing.select(str(tmp_path), Runs())
    assert row["state"] == "damaged" and "plan.json" in row["error"]


def test_the_table_has_the_recorded_figures_and_dashes(runs, capsys):
    assert main.main(["runs", "third", f"runs={runs}"]) == 0
    head, line = capsys.readouterr().out.splitlines()
    assert head.split("  ")[0] == "state"
    assert line.split()[:7] == ["finished", "small", "digits", "2", "-", "99.00", "%"]
    assert main.main(["runs", f"runs={runs}", "json=true"]) == 0
    assert [row["metrics"] for row in json.loads(capsys.readouterr().out)] == [{"test/top1": 99.0}] * 3
