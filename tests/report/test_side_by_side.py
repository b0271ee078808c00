"""Differences between two runs."""

from mxscale.report import side_by_side


def test_cost_to_the_target_is_compared():
    metrics = side_by_side.compared_metrics({"cost/usd_to_target": 0.25, "plan/hours": 1.0}, {})
    assert metrics == [("cost/usd_to_target", "0.25", "–")]
