"""Newer prices: published catalogs read into the user's price table."""

import csv
import datetime
import re
from pathlib import Path

import pytest
from refusals import command_error, error_of
from repository import ROOT

from mxscale.cli import main
from mxscale.config.schema import Machine, checked, from_dict
from mxscale.config.verb_settings import Prices
from mxscale.cost import price_table, prices
from mxscale.rundir import directory
from mxscale.rundir.price import Price
from mxscale.util.errors import ConfigError

SAMPLES = ROOT / "tests" / "fixtures" / "catalogues"
TODAY = datetime.date(2025, 6, 1)


def tool(runs, *argv):
    return main.main(["prices", f"runs={runs}", *argv])


def rows(runs):
    with open(runs / "prices.csv", newline="") as file:
        return list(csv.DictReader(file))


def cells(row, *names):
    return tuple(row[name] for name in ("instance", "region", "market", "usd_per_hour", *names))


def price(runs, instance, region, **fields):
    machine = Machine(provider="aws", instance=instance, region=region, **fields)
    return prices.freeze_price(machine, 0, TODAY, runs / "prices.csv")


def test_skypilot_spot_price_is_of_the_cheapest_zone():
    rows = price_table.read_catalog(str(SAMPLES / "vms.csv"), "2025-03-01")
    (source,) = {row["source"] for row in rows}
    assert source.startswith("vms.csv@") and len(source) == len("vms.csv@") + 8
    assert [cells(row, "gpus", "gpu") for row in rows] == [
        ("c5n.18xlarge", "us-east-1", "on_demand", "3.888", "0", ""),
        ("c5n.18xlarge", "us-east-1", "spot", "1.4987", "0", ""),
        ("p3.16xlarge", "eu-west-1", "on_demand", "26.44", "8", "V100"),
        ("p3.16xlarge", "eu-west-1", "spot", "8.1015", "8", "V100"),
        ("p4d.24xlarge", "us-east-1", "on_demand", "21.957642", "8", "A100"),
    ]


def test_an_update_adds_prices_and_keeps_old_ones(tmp_path, capsys):
    assert tool(tmp_path, f"update={SAMPLES / 'vms.csv'}", "as_of=2025-03-01") == 0
    assert "added 5 prices of 2025-03-01 from vms.csv@" in capsys.readouterr().out
    spot = price(tmp_path, "p3.16xlarge", "eu-west-1", market="spot")
    assert (spot.usd_per_hour, spot.as_of) == (8.1015, "2025-03-01")
    assert spot.source.startswith("vms.csv@")
    assert price(tmp_path, "p4d.24xlarge", "us-east-1").as_of == "2025-03-01"  # before: only one without a date
    assert price(tmp_path, "p3.16xlarge", "eu-west-1", as_of="2017-12-01").as_of == "2017-11-12"
    assert price(tmp_path, "p3.16xlarge", "eu-west-1", as_of="2025-03-01").as_of == "2025-03-01"


def test_an_update_with_the_same_file_adds_nothing(tmp_path, capsys):
    tool(tmp_path, f"update={SAMPLES / 'vms.csv'}", "as_of=2025-03-01")
    before = (tmp_path / "prices.csv").read_text()
    assert tool(tmp_path, f"update={SAMPLES / 'vms.csv'}", "as_of=2025-05-01") == 0
    assert "added 0 prices of 2025-05-01" in capsys.readouterr().out.splitlines()[-1]
    assert (tmp_path / "prices.csv").read_text() == before
    newer = (SAMPLES / "vms.csv").read_text().replace("26.44", "20.1")
    (tmp_path / "vms.csv").write_text(newer)
    tool(tmp_path, f"update={tmp_path / 'vms.csv'}", "as_of=2025-05-01", "source=mirror")
    assert (tmp_path / "prices.csv").read_text().startswith(before)
    assert {row["source"].partition("@")[0] for row in rows(tmp_path)} == {"vms.csv", "mirror"}
    assert price(tmp_path, "p3.16xlarge", "eu-west-1").usd_per_hour == 20.1
    assert price(tmp_path, "p3.16xlarge", "eu-west-1", as_of="2025-04-30").usd_per_hour == 26.44


def test_last_added_price_of_a_day_applies(tmp_path):
    for name, usd in (("a", "5.5"), ("b", "4.5")):
        (tmp_path / name).write_text(f"InstanceType,Region,Price,SpotPrice\np9.big,eu-west-1,{usd},\n")
        tool(tmp_path, f"update={tmp_path / name}", "as_of=2025-03-01")
    assert price(tmp_path, "p9.big", "eu-west-1").usd_per_hour == 4.5


def test_an_update_can_select_instance_and_region(tmp_path):
    only = ("machine.instance=p3.16xlarge", "machine.region=eu-west-1")
    assert tool(tmp_path, f"update={SAMPLES / 'vms.csv'}", *only) == 0
    assert [(row["region"], row["market"], row["usd_per_hour"]) for row in rows(tmp_path)] == [
        ("eu-west-1", "on_demand", "26.44"),
        ("eu-west-1", "spot", "8.1015"),
    ]
    assert {row["as_of"] for row in rows(tmp_path)} == {datetime.date.today().isoformat()}


def test_a_run_keeps_the_price_of_its_start(tmp_path):
    config = from_dict({"runs": str(tmp_path), "machine": {"provider": "aws", "nodes": 3}})
    run = directory.create(config)
    run.write_price(Price(known=True, usd_per_hour=26.44))
    before = {path: path.read_bytes() for path in run.path.rglob("*") if path.is_file()}
    tool(tmp_path, f"update={SAMPLES / 'vms.csv'}")
    assert {path: path.read_bytes() for path in run.path.rglob("*") if path.is_file()} == before
    from mxscale.launcher import setup

    assert setup.price_of(config, [], run) == Price(known=True, usd_per_hour=26.44, nodes=3)


def test_the_package_is_never_written_to(tmp_path):
    table = ROOT / "mxscale" / "tables" / "prices.csv"
    before = table.read_bytes()
    tool(tmp_path, f"update={SAMPLES / 'vms.csv'}")
    assert table.read_bytes() == before


def test_machine_prices_names_an_existing_table(tmp_path):
    named = tmp_path / "shared" / "aws.csv"
    with pytest.raises(ConfigError, match="no such file"):
        price_table.path_of(from_dict({"machine": {"prices": str(named)}}))
    assert tool(tmp_path, f"update={SAMPLES / 'vms.csv'}", f"machine.prices={named}") == 0
    assert price_table.path_of(from_dict({"machine": {"prices": str(named)}})) == named
    assert len(price_table.read(named)) == 5
    assert price_table.path_of(from_dict({})) == Path("runs/prices.csv")


def test_all_prices_of_an_instance_are_listed(tmp_path, capsys):
    tool(tmp_path, f"update={SAMPLES / 'vms.csv'}", "as_of=2025-03-01")
    capsys.readouterr()
    assert tool(tmp_path, "machine.instance=p3.16xlarge", "machine.region=eu-west-1") == 0
    listed = [re.split(r"\s{2,}", line.strip())[:4] for line in capsys.readouterr().out.splitlines()[2:]]
    assert listed == [
        ["eu-west-1", "on_demand", "26.44", "2017-11-12, over a year old"],
        ["eu-west-1", "on_demand", "26.44", "2025-03-01, over a year old"],
        ["eu-west-1", "spot", "8.1015", "2025-03-01, over a year old"],
    ]


def test_bill_of_p2_8xlarge_in_each_region(tmp_path, capsys):
    assert tool(tmp_path, "machine.instance=p2.8xlarge", "machine.as_of=2017-10-26", "minutes=[10,10]") == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()[2:]]
    euros = {(line[0], line[1]): float(line[3]) for line in lines}
    assert euros == {
        ("eu-west-1", "per_second"): 2.2054,  # 7.776 USD/h x 20 min / 1.1753
        ("eu-west-1", "per_hour"): 6.6162,
        ("us-east-1", "per_second"): 2.042,  # 7.2 USD/h
        ("us-east-1", "per_hour"): 6.1261,
    }


def test_without_an_instance_all_are_listed(tmp_path, capsys):
    assert tool(tmp_path) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["p2.8xlarge", "8", "K80", "2", "2", "2017-10-26,", "over", "a", "year", "old"] in rows
    assert ["g6.xlarge", "1", "L4", "2", "2", "no", "date"] in rows


def refused(capsys, runs, *argv):
    error = command_error(capsys, "prices", f"runs={runs}", *argv)
    assert not (runs / "prices.csv").exists()
    return error


HEADER = "InstanceType,Region,Price,SpotPrice\n"


@pytest.mark.parametrize(
    "text, message",
    [
        ("InstanceType,Region,Price\nx,eu-west-1,1\n", "no column SpotPrice"),
        ("", "no column InstanceType, Region, Price, SpotPrice"),
        (HEADER, "the file has no price"),
        (HEADER + "x,eu-west-1,,\n", "the file has no price"),
        (HEADER + ",eu-west-1,1,\n", "line 2:  eu-west-1: expected an instance in an AWS region"),
        (HEADER + "x,,1,\n", "line 2: x : expected an instance in an AWS region"),
        (HEADER + "x,eu-west-1,NaN,\n", "line 2: Price=NaN: expected USD per hour"),
        (HEADER + "x,eu-west-1,1,inf\n", "line 2: SpotPrice=inf"),
        (HEADER + "x,eu-west-1,1,0.5\nx,eu-west-2,-1,\n", "line 3: Price=-1"),
        (HEADER + "x,eu-west-1,0,\n", "Price=0"),
        (HEADER + "x,eu-west-1,cheap,\n", "Price=cheap"),
        (HEADER + "x,eu-west-1,1,1,1\n", "more cells than columns"),
        (
            HEADER + "n1-highmem-8,us-central1,0.47,0.1\n",
            "us-central1: expected an instance in an AWS region",
        ),
        ('[{"instance_type": "x"}]', "expected SkyPilot's aws/vms.csv"),
        ('{"SpotPriceHistory": []}', "histories of spot prices are not read"),
        ("AvailabilityZone,InstanceType,ProductDescription,SpotPrice,Timestamp\n", "no column Region, Price"),
    ],
)
def test_an_invalid_catalog_is_one_line(tmp_path, text, message):
    (tmp_path / "file").write_text(text)
    assert message in error_of(price_table.read_catalog, str(tmp_path / "file"), "2025-03-01")


def test_an_unreadable_catalog_is_one_line(tmp_path, capsys):
    assert "cannot be read (No such file" in refused(capsys, tmp_path, f"update={tmp_path / 'no'}")
    (tmp_path / "file").write_bytes(b"\xff\xfe\x00")
    assert "not a text file" in refused(capsys, tmp_path, f"update={tmp_path / 'file'}")


def test_a_byte_order_mark_is_no_part_of_the_first_column(tmp_path):
    (tmp_path / "file").write_text(HEADER + "x,eu-west-1,1,\n", "utf-8-sig")
    [row] = price_table.read_catalog(str(tmp_path / "file"), "2025-03-01")
    assert (row["instance"], row["usd_per_hour"], row["gpus"]) == ("x", "1", "0")


def test_invalid_arguments_are_one_line(tmp_path, capsys):
    update = f"update={SAMPLES / 'vms.csv'}"
    for message, *argv in (
        ("did you mean machine.instance=p3.16xlarge?", update, "machine.instance=p3.16xlrge"),
        ("machine.region=eu-west-9: did you mean machine.region=eu-west-1?", update, "machine.region=eu-west-9"),
        ("as_of=2071-01-01: expected a date", update, "as_of=2071-01-01"),
        ("as_of=May: expected a date", update, "as_of=May"),
        ("did you mean machine.instance=p2.8xlarge?", "machine.instance=p2.8xlrge"),
        ("machine.instance is missing", "minutes=[1,1]"),
    ):
        assert message in refused(capsys, tmp_path, *argv)


@pytest.mark.parametrize("minutes", [10, [10], [10, -1], [1, 1e8], ["a", "b"], [1, True], [1, float("nan")], "10"])
def test_minutes_are_two_numbers(minutes):
    with pytest.raises(ConfigError, match=r"minutes=.*: expected "):
        checked({"minutes": minutes}, Prices)


COLUMNS = ",".join(price_table.COLUMNS) + "\n"


@pytest.mark.parametrize(
    "text, message",
    [
        (COLUMNS + "aws,x,eu-west-1,on_demand,,,,nan,2025-01-01,s", "line 2: usd_per_hour=nan"),
        (COLUMNS + "aws,x,eu-west-1,on_demand,,,,,2025-01-01,s", "line 2: usd_per_hour=: expected"),
        (COLUMNS + "aws,,eu-west-1,on_demand,,,,1,2025-01-01,s", "line 2: instance is empty"),
        (COLUMNS + "aws,x,eu-west-1,on_demand,,,,1,2025-01-01", "line 2: source is empty"),
        (HEADER, "no column provider, instance"),
    ],
)
def test_a_damaged_table_is_one_line(tmp_path, text, message):
    (tmp_path / "prices.csv").write_text(text)
    with pytest.raises(ConfigError, match=message):
        price(tmp_path, "x", "eu-west-1")
