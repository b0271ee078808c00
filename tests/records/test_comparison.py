"""Differences between two runs."""

from mxscale.records import comparison


def test_cost_of_a_point_is_compared():
    found = comparison.metrics({"cost/usd_per_point": 0.25, "plan/hours": 1.0}, {})
    assert [(each.key, each.a) for each in found] == [("cost/usd_per_point", "0.25")]
