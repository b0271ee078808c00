"""Restarts after a failure: on how many hosts, with how many ranks, and what can't restart."""

from mxscale.config.schema import from_dict
from mxscale.environment.hosts import Host
from mxscale.launcher.context import Resources, RunContext, Signals
from mxscale.launcher.failure import Failure
from mxscale.launcher.outcome import ranks_that_fit, restart_message
from mxscale.rundir.directory import RunDir

A, B = Host("10.0.0.1", 4, "a"), Host("10.0.0.2", 2, "b")


def message(nodes, left, number=1, error="server 0 ...", **launch):
    context = RunContext(RunDir("r"), from_dict({"launch": launch}), Resources(nodes, {}, 0.0), Signals())
    return restart_message(Failure(error, retryable=True), number, context, left)


def test_ranks_fit_the_remaining_hosts():
    cases = ((6, [A], 4), (6, [A, B], None), (3, [A], None), ("auto", [B], None), (6, [], None))
    for requested, nodes, expected in cases:
        assert ranks_that_fit(requested, nodes) == expected


def test_failure_and_restart_are_reported():
    assert message([A, B], [A], 2, "b (rank 4, 5) can't be reached any more", ranks=6, restarts=3).splitlines() == [
        "failed: b (rank 4, 5) can't be reached any more",
        "restart 2 of 3: resuming from the last good checkpoint",
        "without b: the ranks on a take over its data shards; the global batch stays",
    ]
    assert "without" not in message([], [], ranks=6, restarts=3)


def test_lost_host_without_ranks_keeps_all_ranks():
    assert message([A, B], [A], ranks=4, restarts=1).endswith("without b: all 4 ranks run on a")
