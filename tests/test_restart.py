"""Going on by itself: on how many hosts, with how many ranks, and what never does."""

import pytest

from mxscale.config.schema import from_dict
from mxscale.config.validation import validate
from mxscale.environment.hosts import Host
from mxscale.launcher import restart
from mxscale.launcher.failure import Failure
from mxscale.util.errors import ConfigError

A, B = Host("10.0.0.1", 4, "a"), Host("10.0.0.2", 2, "b")


def test_a_run_has_no_more_ranks_than_the_hosts_that_are_left_take():
    for asked, nodes, expected in ((6, [A], 4), (6, [A, B], None), (3, [A], None), ("auto", [B], None), (6, [], None)):
        assert restart.fitting(asked, nodes) == expected


def test_what_happened_and_how_it_goes_on_is_said():
    failure = Failure("b (rank 4, 5) can't be reached any more", outside=True)
    config = from_dict({"launch": {"ranks": 6, "restarts": 3}})
    assert restart.announcement(failure, 2, config, [A, B], [A]).splitlines() == [
        "failed: b (rank 4, 5) can't be reached any more",
        "restart 2 of 3: going on from the last good checkpoint",
        "without b: the ranks on a take over its data shards, in turn; the global batch stays",
    ]
    assert "without" not in restart.announcement(failure, 1, config, [], [])


def test_a_lost_host_that_had_no_ranks_leaves_the_shards_where_they_are():
    config = from_dict({"launch": {"ranks": 4, "restarts": 1}})
    said = restart.announcement(Failure("server 0 ...", outside=True), 1, config, [A, B], [A])
    assert said.endswith("without b: there is room for all 4 ranks on a")


@pytest.mark.parametrize(
    "comm, reason",
    [
        ({"backend": "parameter_server", "update_on": "server"}, "the optimizer's state is on the servers"),
        ({"backend": "dist_async", "update_on": "server"}, "the optimizer's state is on the servers"),
        ({"backend": "parameter_server", "compression": "2bit"}, "each rank has a residual of its gradients"),
    ],
)
def test_a_run_whose_state_no_checkpoint_holds_is_not_restarted_and_told_why(comm, reason):
    validate(from_dict({"comm": comm}))
    with pytest.raises(
        ConfigError, match=rf"^launch\.restarts=2: .*{reason}.*MXNet can't save.*; use launch.restarts=0$"
    ):
        validate(from_dict({"comm": comm, "launch": {"restarts": 2}}))


@pytest.mark.parametrize("key, value", [("stall_s", 4.9), ("restarts", -1)])
def test_limits_of_the_settings(key, value):
    with pytest.raises(ConfigError, match=f"launch.{key}={value}: expected at least"):
        validate(from_dict({"launch": {key: value}}))
