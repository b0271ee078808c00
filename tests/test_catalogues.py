"""Newer prices: published catalogues read into a table of the user's own."""

import csv
import datetime
import shutil
from pathlib import Path

import pytest
from conftest import ROOT

from mxscale.cli import main
from mxscale.config.schema import Machine, from_dict
from mxscale.cost import catalogs, price_list, prices
from mxscale.rundir import directory
from mxscale.util.errors import ConfigError

SAMPLES = Path(__file__).parent / "catalogues"
TODAY = datetime.date(2025, 6, 1)


def tool(runs, *argv):
    return main.tool(["prices", f"runs={runs}", *argv])


def rows(runs):
    with open(runs / "prices.csv", newline="") as file:
        return list(csv.DictReader(file))


def price(runs, instance, region, **fields):
    machine = Machine(provider="aws", instance=instance, region=region, **fields)
    return prices.freeze_price(machine, 0, TODAY, runs / "prices.csv")


# ---------------------------------------------------------------- what is read


def test_skypilots_catalogue_gives_each_region_once_and_the_cheapest_zones_spot_price():
    offers, source = catalogs.read(str(SAMPLES / "vms.csv"))
    assert source.startswith("vms.csv@") and len(source) == len("vms.csv@") + 8
    assert [(o.instance, o.region, o.gpus, o.gpu, o.usd_per_hour) for o in offers] == [
        ("c5n.18xlarge", "us-east-1", "0", "", {"on_demand": 3.888, "spot": 1.4987}),
        ("p3.16xlarge", "eu-west-1", "8", "V100", {"on_demand": 26.44, "spot": 8.1015}),
        ("p4d.24xlarge", "us-east-1", "8", "A100", {"on_demand": 21.957642, "spot": None}),
    ]


def test_instances_json_gives_linux_alone_and_what_is_not_offered_is_left_out():
    offers, _ = catalogs.read(str(SAMPLES / "instances.json"))
    assert [(o.instance, o.region, o.gpus, o.network_gbps, o.usd_per_hour) for o in offers] == [
        ("p3.16xlarge", "us-east-1", "8", "25", {"on_demand": 24.48, "spot": 7.3441}),
        ("p3.16xlarge", "eu-west-1", "8", "25", {"on_demand": 26.44, "spot": None}),
        ("c5n.18xlarge", "us-east-1", "0", "100", {"on_demand": 3.888, "spot": 1.4987}),
        ("c5n.18xlarge", "ap-east-1", "0", "100", {"on_demand": None, "spot": 1.9}),
    ]


# ---------------------------------------------------------------- what is kept


def test_an_update_makes_new_prices_known_spot_among_them_and_the_old_ones_stay(tmp_path, capsys):
    assert tool(tmp_path, f"update={SAMPLES / 'vms.csv'}", "as_of=2025-03-01") == 0
    assert "5 prices of 2025-03-01 added from vms.csv@" in capsys.readouterr().out
    spot = price(tmp_path, "p3.16xlarge", "eu-west-1", market="spot")
    assert (spot["usd_per_hour"], spot["as_of"]) == (8.1015, "2025-03-01")
    assert spot["source"].startswith("vms.csv@")
    assert price(tmp_path, "p4d.24xlarge", "us-east-1")["as_of"] == "2025-03-01"  # before: only one without a date
    assert price(tmp_path, "p3.16xlarge", "eu-west-1", as_of="2017-12-01")["as_of"] == "2017-11-12"
    assert price(tmp_path, "p3.16xlarge", "eu-west-1", as_of="2025-03-01")["as_of"] == "2025-03-01"


def test_the_same_file_twice_adds_nothing_and_another_keeps_the_history(tmp_path, capsys):
    tool(tmp_path, f"update={SAMPLES / 'vms.csv'}", "as_of=2025-03-01")
    before = (tmp_path / "prices.csv").read_text()
    assert tool(tmp_path, f"update={SAMPLES / 'vms.csv'}", "as_of=2025-05-01") == 0
    assert "0 prices of 2025-05-01 added" in capsys.readouterr().out.splitlines()[-1]
    assert (tmp_path / "prices.csv").read_text() == before
    newer = (SAMPLES / "vms.csv").read_text().replace("26.44", "20.1")
    (tmp_path / "vms.csv").write_text(newer)
    tool(tmp_path, f"update={tmp_path / 'vms.csv'}", "as_of=2025-05-01", "source=mirror")
    assert (tmp_path / "prices.csv").read_text().startswith(before)
    assert {row["source"].partition("@")[0] for row in rows(tmp_path)} == {"vms.csv", "mirror"}
    assert price(tmp_path, "p3.16xlarge", "eu-west-1")["usd_per_hour"] == 20.1
    assert price(tmp_path, "p3.16xlarge", "eu-west-1", as_of="2025-04-30")["usd_per_hour"] == 26.44


def test_of_two_prices_of_one_day_the_last_that_was_added_counts(tmp_path):
    for name, usd in (("a", "5.5"), ("b", "4.5")):
        (tmp_path / name).write_text(f"InstanceType,Region,Price,SpotPrice\np9.big,eu-west-1,{usd},\n")
        tool(tmp_path, f"update={tmp_path / name}", "as_of=2025-03-01")
    assert price(tmp_path, "p9.big", "eu-west-1")["usd_per_hour"] == 4.5


def test_one_instance_and_region_can_be_taken_out_of_a_catalogue(tmp_path):
    only = ("machine.instance=p3.16xlarge", "machine.region=us-east-1")
    assert tool(tmp_path, f"update={SAMPLES / 'instances.json'}", *only) == 0
    assert [(row["region"], row["market"], row["usd_per_hour"]) for row in rows(tmp_path)] == [
        ("us-east-1", "on_demand", "24.48"),
        ("us-east-1", "spot", "7.3441"),
    ]
    assert {row["as_of"] for row in rows(tmp_path)} == {datetime.date.today().isoformat()}


def test_a_run_keeps_the_price_of_its_start(tmp_path):
    config = from_dict({"runs": str(tmp_path), "machine": {"provider": "aws", "nodes": 3}})
    run = directory.create(config)
    run.write("price.json", {"known": True, "usd_per_hour": 26.44})
    before = {path: path.read_bytes() for path in run.path.rglob("*") if path.is_file()}
    tool(tmp_path, f"update={SAMPLES / 'vms.csv'}")
    assert {path: path.read_bytes() for path in run.path.rglob("*") if path.is_file()} == before
    from mxscale.launcher import setup

    assert setup.price_of(config, [], run) == {"known": True, "usd_per_hour": 26.44, "nodes": 3}


def test_the_package_is_never_written_to(tmp_path):
    table = ROOT / "mxscale" / "tables" / "prices.csv"
    before = table.read_bytes()
    tool(tmp_path, f"update={SAMPLES / 'vms.csv'}")
    assert table.read_bytes() == before


def test_a_table_elsewhere_is_named_and_has_to_be_there(tmp_path):
    named = tmp_path / "shared" / "aws.csv"
    with pytest.raises(ConfigError, match="no such file"):
        catalogs.own_table(str(named), "runs")
    assert tool(tmp_path, f"update={SAMPLES / 'vms.csv'}", f"machine.prices={named}") == 0
    assert catalogs.own_table(str(named), "runs") == named and len(catalogs.read_own(named)) == 5
    assert catalogs.own_table(None, "runs") == Path("runs/prices.csv")


# ---------------------------------------------------------------- what is shown


def test_every_price_of_a_machine_is_listed(tmp_path, capsys):
    tool(tmp_path, f"update={SAMPLES / 'vms.csv'}", "as_of=2025-03-01")
    capsys.readouterr()
    assert tool(tmp_path, "machine.instance=p3.16xlarge", "machine.region=eu-west-1") == 0
    listed = [line.split()[:4] for line in capsys.readouterr().out.splitlines()[2:]]
    assert listed == [
        ["eu-west-1", "on_demand", "26.44", "2017-11-12"],
        ["eu-west-1", "on_demand", "26.44", "2025-03-01"],
        ["eu-west-1", "spot", "8.1015", "2025-03-01"],
    ]


def test_the_bill_of_ten_minutes_and_ten_of_set_up_on_p2_8xlarge_in_both_regions(tmp_path, capsys):
    assert tool(tmp_path, "machine.instance=p2.8xlarge", "machine.as_of=2017-10-26", "minutes=[10,10]") == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()[2:]]
    euros = {(line[0], line[1]): float(line[3]) for line in lines}
    assert euros == {
        ("eu-west-1", "per_second"): 2.459,  # 7.776 USD/h x 20 min / 1.0541
        ("eu-west-1", "per_hour"): 7.3769,
        ("us-east-1", "per_second"): 2.2768,  # 7.2 USD/h
        ("us-east-1", "per_hour"): 6.8305,
    }
    assert all(bill < 2.5 for (_, billing), bill in euros.items() if billing == "per_second")
    assert all(bill > 2.5 for (_, billing), bill in euros.items() if billing == "per_hour")


def test_without_a_machine_each_is_listed_with_how_much_is_known_of_it(tmp_path, capsys):
    assert tool(tmp_path) == 0
    assert ["p2.8xlarge", "8", "K80", "2", "2", "2017-10-26"] in [
        line.split() for line in capsys.readouterr().out.splitlines()
    ]


# ---------------------------------------------------------------- bad input


def refused(capsys, runs, *argv):
    capsys.readouterr()
    assert tool(runs, *argv) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ") and error.count("\n") == 1, error
    assert not (runs / "prices.csv").exists()
    return error


HEADER = "InstanceType,Region,Price,SpotPrice\n"


@pytest.mark.parametrize(
    "text, said",
    [
        ("InstanceType,Region,Price\nx,eu-west-1,1\n", "no column SpotPrice"),
        ("", "no column InstanceType, Region, Price, SpotPrice"),
        (HEADER, "no price in it"),
        (HEADER + "x,eu-west-1,,\n", "no price in it"),
        (HEADER + ",eu-west-1,1,\n", "line 2: InstanceType is empty"),
        (HEADER + "x,,1,\n", "line 2: Region is empty"),
        (HEADER + "x,eu-west-1,NaN,\n", "line 2: Price=NaN: expected USD per hour"),
        (HEADER + "x,eu-west-1,1,inf\n", "line 2: SpotPrice=inf"),
        (HEADER + "x,eu-west-1,1,0.5\nx,eu-west-2,-1,\n", "line 3: Price=-1"),
        (HEADER + "x,eu-west-1,0,\n", "Price=0"),
        (HEADER + "x,eu-west-1,cheap,\n", "Price=cheap"),
        (HEADER + "x,eu-west-1,1,1,1\n", "more cells than columns"),
        (HEADER + "n1-highmem-8,us-central1,0.47,0.1\n", "us-central1 is no region of AWS"),
        ("[{]", "no JSON"),
        ("{}", "has no instance_type and pricing"),
        ('[{"instance_type": "x"}]', "entry 1 has no instance_type and pricing"),
        ('[{"instance_type": "x", "pricing": {"eastus": {}}}]', "eastus is no region of AWS"),
        ('[{"instance_type": "x", "pricing": {"eu-west-1": {"linux": {"ondemand": NaN}}}}]', "ondemand=nan"),
        ('[{"instance_type": "x", "pricing": {"eu-west-1": {"mswin": {"ondemand": "1"}}}}]', "no price in it"),
    ],
)
def test_a_catalogue_that_is_none_is_one_line(tmp_path, text, said):
    (tmp_path / "file").write_text(text)
    with pytest.raises(ConfigError) as caught:
        catalogs.read(str(tmp_path / "file"))
    assert said in str(caught.value) and "\n" not in str(caught.value)


def test_a_file_that_is_missing_or_no_text_is_one_line(tmp_path, capsys):
    assert "can't be read (No such file" in refused(capsys, tmp_path, f"update={tmp_path / 'no'}")
    (tmp_path / "file").write_text(HEADER + "x,eu-west-1,1,0.5\nx,eu-west-2,NaN,\n")
    assert "line 3: Price=NaN" in refused(capsys, tmp_path, f"update={tmp_path / 'file'}")
    (tmp_path / "file").write_bytes(b"\xff\xfe\x00")
    assert "it is no text" in refused(capsys, tmp_path, f"update={tmp_path / 'file'}")


def test_wrong_words_are_one_line(tmp_path, capsys):
    update = f"update={SAMPLES / 'vms.csv'}"
    assert "did you mean p3.16xlarge?" in refused(capsys, tmp_path, update, "machine.instance=p3.16xlrge")
    assert "machine.region=eu-west-9: not in" in refused(capsys, tmp_path, update, "machine.region=eu-west-9")
    assert "as_of=2071-01-01: expected a date" in refused(capsys, tmp_path, update, "as_of=2071-01-01")
    assert "as_of=May: expected a date" in refused(capsys, tmp_path, update, "as_of=May")
    assert "did you mean machine.instance=p2.8xlarge?" in refused(capsys, tmp_path, "machine.instance=p2.8xlrge")
    assert "expected [SET-UP,RUN]" in refused(capsys, tmp_path, "machine.instance=p2.8xlarge", "minutes=[10,-1]")
    assert "machine.instance is missing" in refused(capsys, tmp_path, "minutes=[1,1]")


@pytest.mark.parametrize("minutes", [10, [10], [10, -1], ["a", "b"], [1, True], [1, float("nan")], "10"])
def test_minutes_are_two_numbers(minutes):
    with pytest.raises(ConfigError, match=r"expected .SET-UP,RUN"):
        price_list.bill(from_dict({"machine": {"instance": "p2.8xlarge"}}), minutes, TODAY)


@pytest.mark.parametrize(
    "line, said",
    [
        ("aws,x,eu-west-1,on_demand,,,,nan,2025-01-01,s", "line 2: usd_per_hour=nan"),
        ("aws,x,eu-west-1,on_demand,,,,,2025-01-01,s", "line 2: usd_per_hour=: expected"),
        ("aws,,eu-west-1,on_demand,,,,1,2025-01-01,s", "line 2: instance is empty"),
        ("aws,x,eu-west-1,on_demand,,,,1,2025-01-01", "line 2: source is empty"),
    ],
)
def test_a_table_of_ones_own_that_is_damaged_is_one_line(tmp_path, line, said):
    (tmp_path / "prices.csv").write_text(",".join(catalogs.COLUMNS) + f"\n{line}\n")
    with pytest.raises(ConfigError, match=said):
        price(tmp_path, "x", "eu-west-1")


def test_a_table_with_other_columns_is_one_line(tmp_path):
    shutil.copy(SAMPLES / "vms.csv", tmp_path / "prices.csv")
    with pytest.raises(ConfigError, match="no column provider, instance"):
        price(tmp_path, "p3.16xlarge", "eu-west-1")
