"""Plans for machines that a provider refuses: `plan.unavailable`."""

import json

import pytest
from composed import composed_values
from refusals import error_of
from spot_histories import imported

from mxscale.cli import verbs
from mxscale.perfmodel import hardware
from mxscale.planner import planning


@pytest.fixture(autouse=True)
def no_figure(monkeypatch):
    monkeypatch.setattr(planning.figure, "draw", lambda *_: None)


@pytest.fixture
def plan(tmp_path, capsys):
    def run(*overrides):
        verbs.plan(*composed_values("plan", f"runs={tmp_path}", "machine.instance=p3.16xlarge", "plan.nodes=1",
                                    "machine.as_of=2017-11-12", *overrides))  # fmt: skip
        return capsys.readouterr().out

    return run


def instances(out):
    return {row["instance"] for row in json.loads(out.splitlines()[-1])["plans"]}


def test_refused_instance_is_replaced_by_others(plan):
    found = instances(plan("plan.unavailable=[p3.16xlarge]", "json=true"))
    assert "p3.8xlarge:on_demand" in found and not any(name.startswith("p3.16xlarge") for name in found)


def test_refused_market_is_replaced_by_the_other_one(plan, tmp_path):
    imported(tmp_path)
    found = instances(plan("plan.unavailable=p3.16xlarge:on_demand", "json=true"))
    assert "p3.16xlarge:spot" in found and "p3.16xlarge" not in found


def test_difference_to_the_refused_plan_is_shown(plan):
    """1 x p3.16xlarge: 78.06 USD, 3.19 h; 1 x p2.16xlarge is dearer."""
    out = plan("plan.unavailable=p3.16xlarge", "plan.instance=[p3.16xlarge,p2.16xlarge]", "plan.deadline_hours=12")
    line = next(line for line in out.splitlines() if line.startswith("  instead of 1 x p3.16xlarge"))
    assert "(unavailable): -" in line or "(unavailable): +" in line
    assert " USD (" in line and line.endswith(" h")


def test_machine_that_was_not_requested_changes_nothing(plan):
    assert plan("plan.unavailable=p2.8xlarge", "json=true") == plan("json=true")


def test_markets_can_be_compared(plan, tmp_path):
    imported(tmp_path)
    both = json.loads(plan("plan.instance=[p3.16xlarge,p3.16xlarge:spot]", "json=true").splitlines()[-1])["plans"]
    usd = {row["instance"]: row["usd"] / row["hours"] for row in both}
    assert usd == pytest.approx({"p3.16xlarge": 24.48, "p3.16xlarge:spot": 11})


def test_unknown_market_is_refused(plan):
    assert "expected INSTANCE or INSTANCE:on_demand or INSTANCE:spot" in error_of(
        plan, "plan.unavailable=p3.16xlarge:cheap"
    )


def test_nothing_left_is_refused(plan):
    every = list(hardware.instances())
    assert "no other instance or market" in error_of(plan, f"plan.unavailable=[{','.join(every)}]")
