"""Histories of spot prices: import, price of a run, plan, claim, figure."""

import datetime
import json

import pytest
from composed import composed_values
from refusals import command_error, error_of
from spot_histories import FORMS, ROWS, as_json, as_text, imported

from mxscale.cli import main, verbs
from mxscale.config.schema import Machine
from mxscale.cost import prices, spot
from mxscale.report import modelled_claims

TODAY = datetime.date(2017, 11, 13)


def price(folder, region="us-east-1", instance="p3.16xlarge", **fields):
    machine = Machine(provider="aws", instance=instance, region=region, market="spot", **fields)
    return prices.freeze_price(machine, 0, TODAY, folder / "prices.csv")


@pytest.mark.parametrize("name", FORMS)
def test_every_form_gives_the_same_prices(tmp_path, name, capsys):
    imported(tmp_path, name)
    assert "added 4 spot prices of 2017-11-10 to 2017-11-12 from given-spot." in capsys.readouterr().out
    assert [(one.zone, one.usd) for one in spot.read(tmp_path / "spot.csv")] == [
        ("us-east-1a", 8.0), ("us-east-1a", 12.0), ("us-east-1c", 9.0), ("us-east-1c", 30.0)]  # fmt: skip


def test_known_changes_are_added_once(tmp_path, capsys):
    imported(tmp_path)
    before = (tmp_path / "spot.csv").read_bytes()
    imported(tmp_path, "spot.txt")
    assert "added 0 spot prices" in capsys.readouterr().out
    assert (tmp_path / "spot.csv").read_bytes() == before


def test_a_run_without_a_region_has_no_spot_price(tmp_path):
    imported(tmp_path)
    assert "machine.region is missing" in error_of(price, tmp_path, region=None)


def test_a_bill_uses_imported_spot_prices(tmp_path, capsys):
    imported(tmp_path)
    words = ["machine.instance=p3.16xlarge", "machine.market=spot", "machine.as_of=2017-11-12", "minutes=[10,60]"]
    assert main.main(["prices", f"runs={tmp_path}", *words]) == 0
    assert "us-east-1  per_second" in capsys.readouterr().out


def test_the_source_of_a_day_is_that_of_its_prices(tmp_path):
    imported(tmp_path, "spot.json", ROWS[3:])
    imported(tmp_path, "spot.txt", ROWS[:2])
    assert "given-spot.json@" in (found := price(tmp_path, as_of="2017-11-12").source) and "given-spot.txt@" in found
    assert "given-spot.txt@" not in price(tmp_path, as_of="2017-11-10").source


def test_price_of_a_date_is_the_cheapest_zones_mean_by_time(tmp_path):
    """2017-11-12: a 6 h at 8 and 18 h at 12 = 11 USD/h; c 18 h at 9 and 6 h at 30 = 14.25."""
    imported(tmp_path)
    found = price(tmp_path, as_of="2017-11-12")
    assert found.usd_per_hour == pytest.approx(11) and found.market == "spot"
    assert "us-east-1a, mean of the day" in found.source and found.source.startswith("given-spot.json@")
    assert price(tmp_path, as_of="2017-11-11").usd_per_hour == pytest.approx(8)


def test_run_without_a_date_is_billed_at_the_price_of_its_start(tmp_path):
    imported(tmp_path)
    found = price(tmp_path)  # on 2017-11-13
    assert found.usd_per_hour == 12 and "us-east-1a since 2017-11-12 06:00 UTC" in found.source
    assert prices.cost(found, 1800)["usd"] == pytest.approx(6)


@pytest.mark.parametrize("fields", [{"as_of": "2017-11-09"}, {"region": "eu-west-1"}, {"instance": "p3.8xlarge"}])
def test_unknown_spot_price_names_the_command(tmp_path, fields):
    imported(tmp_path)
    text = error_of(price, tmp_path, kind=prices.UnknownSpotPrice, **fields)
    assert (
        "machine.market=spot: no price of" in text
        and "describe-spot-price-history" in text
        and "mxscale prices update=" in text
    )


def test_old_history_is_no_price_of_today(tmp_path):
    imported(tmp_path)
    machine = Machine(provider="aws", instance="p3.16xlarge", region="us-east-1", market="spot")
    later = datetime.date(2017, 11, 20)
    error_of(prices.freeze_price, machine, 0, later, tmp_path / "prices.csv", kind=prices.UnknownSpotPrice)


BAD = {
    "SpotPrice=free": ("us-east-1a", "p3.16xlarge", "Linux/UNIX", "free", "2017-11-12T06:00:00Z"),
    "Timestamp=noon": ("us-east-1a", "p3.16xlarge", "Linux/UNIX", "3", "noon"),
    "AvailabilityZone=here": ("here", "p3.16xlarge", "Linux/UNIX", "3", "2017-11-12T06:00:00Z"),
    "InstanceType is empty": ("us-east-1a", "", "Linux/UNIX", "3", "2017-11-12T06:00:00Z"),
}


@pytest.mark.parametrize("name, line", [("spot.json", 10), ("spot.txt", 2), ("spot.csv", 3)])
@pytest.mark.parametrize("why", BAD)
def test_bad_row_is_named_with_its_line(tmp_path, capsys, name, line, why):
    (tmp_path / name).write_text(FORMS[name]([ROWS[0], BAD[why], *ROWS[1:]]))
    error = command_error(capsys, "prices", f"runs={tmp_path}/runs", f"update={tmp_path / name}")
    assert f"line {line}: {why}" in error
    assert not (tmp_path / "runs").exists()


def test_cut_file_is_refused(tmp_path, capsys):
    (tmp_path / "spot.json").write_text(as_json(ROWS)[:400])
    assert "invalid JSON" in command_error(capsys, "prices", f"update={tmp_path}/spot.json", f"runs={tmp_path}")
    (tmp_path / "spot.txt").write_text(as_text(ROWS)[:100])
    assert "line 2: expected SPOTPRICEHISTORY" in command_error(capsys, "prices", f"update={tmp_path}/spot.txt")


def test_history_without_linux_is_refused(tmp_path, capsys):
    (tmp_path / "spot.txt").write_text(as_text([ROWS[2]]))
    assert "no price of Linux" in command_error(capsys, "prices", f"update={tmp_path}/spot.txt", f"runs={tmp_path}")


def planned(folder, capsys, *overrides):
    verbs.plan(*composed_values("plan", f"runs={folder}", "machine.instance=p3.16xlarge", "machine.market=spot",
                                "plan.nodes=1", "json=true", *overrides))  # fmt: skip
    return json.loads(capsys.readouterr().out.splitlines()[-1])


def test_plan_uses_the_spot_price(tmp_path, capsys):
    imported(tmp_path)
    found = planned(tmp_path, capsys, "machine.as_of=2017-11-12")
    (row,) = found["plans"]
    assert row["usd"] == pytest.approx(11 * row["hours"]) and "spot" in found["known"]["price"]


def test_plan_without_a_spot_price_has_an_unknown_cost(tmp_path, capsys):
    found = planned(tmp_path, capsys)
    assert found["plans"][0]["usd"] is None and "mxscale prices update=" in found["known"]["price"]


def test_claim_is_decided_by_an_imported_history(tmp_path):
    own = tmp_path / "prices.csv"
    assert modelled_claims.spot_prices(own) is None
    imported(tmp_path)
    found = modelled_claims.spot_prices(own)
    assert "9 to 30 USD/h in us-east-1c" in found.text and "the claim holds" in found.text
    (tmp_path / "spot.csv").unlink()
    imported(tmp_path, rows=ROWS[1:])
    assert "the claim does not hold" in modelled_claims.spot_prices(own).text


def test_figure_shows_spot_beside_on_demand(tmp_path, capsys):
    imported(tmp_path)
    where = ["machine.instance=p3.16xlarge", "machine.region=us-east-1", f"runs={tmp_path}"]
    assert main.main(["prices", *where, f"figure={tmp_path}/spot.svg"]) == 0
    out = capsys.readouterr().out
    assert "on demand 24.48 USD/h (2017-11-12)" in out and "us-east-1c" in out
    assert "<svg" in (tmp_path / "spot.svg").read_text()
    assert "no history of p2.xlarge" in command_error(capsys, "prices", f"runs={tmp_path}", "figure=a.png",
                                                       "machine.instance=p2.xlarge", where[1])  # fmt: skip
