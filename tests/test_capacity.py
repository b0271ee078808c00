"""What a plan considers when the provider refuses instances."""

import pytest
from refusals import error_of

from mxscale.config.schema import Machine
from mxscale.planner import capacity
from mxscale.planner.capacity import Offer
from mxscale.rundir.price import Price
from mxscale.util.errors import ConfigError

MACHINE = Machine(provider="aws", instance="p3.16xlarge", region="us-east-1", market="spot")


def price_of(machine) -> Price:
    """Prices of three offers."""
    if (machine.instance, machine.market) in {
        ("p3.16xlarge", "on_demand"),
        ("p3.16xlarge", "spot"),
        ("p3.8xlarge", "spot"),
    }:
        return Price(known=True)
    raise ConfigError("no price")


def offered(*unavailable, names=("p3.16xlarge",)):
    machines, text = capacity.available(names, MACHINE, capacity.refused(unavailable), price_of)
    return [(each.instance, each.market) for each in machines], text


def test_nothing_changes_without_a_refusal():
    assert offered() == ([("p3.16xlarge", "spot")], "")
    assert offered("p3.2xlarge") == ([("p3.16xlarge", "spot")], "")


def test_a_refused_market_is_replaced_by_the_other_and_by_other_instances():
    found, text = offered("p3.16xlarge:spot")
    assert found == [("p3.16xlarge", "on_demand"), ("p3.8xlarge", "spot")]
    assert text == "p3.16xlarge:spot refused; in its place p3.16xlarge:on_demand, p3.8xlarge:spot"


def test_a_refused_instance_is_refused_in_all_markets():
    assert offered("p3.16xlarge")[0] == [("p3.8xlarge", "spot")]


def test_without_another_price_the_plan_is_refused():
    message = error_of(offered, "p3.16xlarge", "p3.8xlarge")
    assert "mxscale prices update=FILE" in message


@pytest.mark.parametrize("text, message", [("p3.17xlarge", "p3.17xlarge"), ("p3.16xlarge:sport", "on_demand or spot")])
def test_unknown_offers_are_named(text, message):
    assert message in error_of(capacity.refused, [text])


def test_offers_are_written_as_they_are_typed():
    assert str(Offer("p3.16xlarge", "spot")) == "p3.16xlarge:spot"
