"""Differences between two runs."""

from mxscale.report import side_by_side


def test_cost_of_a_point_is_compared():
    metrics = side_by_side.compared_metrics({"cost/usd_per_point": 0.25, "plan/hours": 1.0}, {})
    assert metrics == [("cost/usd_per_point", "0.25", "–")]
