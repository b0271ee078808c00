"""Newer prices: published catalogs read into the user's price table."""

import csv
import datetime
import os
import re
import shutil
from pathlib import Path

import pytest
from refusals import command_error, error_of
from repository import ROOT

from mxscale.cli import main
from mxscale.config.price_sources import PRICE_SOURCES
from mxscale.config.schema import Machine, checked, from_dict
from mxscale.config.verb_settings import Prices
from mxscale.cost import price_table, prices
from mxscale.rundir import directory
from mxscale.rundir.price import Price
from mxscale.util.errors import ConfigError

HEADER = "InstanceType,AcceleratorName,AcceleratorCount,Region,Price,SpotPrice\n"
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


def catalog(cloud):
    """Return {(instance, region, market): (USD per hour, GPUs)} of a cloud's sample."""
    found = price_table.read_catalog(str(SAMPLES / "v8" / cloud / "vms.csv"), "2025-03-01")
    assert {row["provider"] for row in found} == {cloud}
    return {(row["instance"], row["region"], row["market"]): (row["usd_per_hour"], row["gpus"]) for row in found}


def test_a_catalog_of_azure_lambda_and_runpod_is_read():
    assert catalog("azure")["Standard_ND96asr_v4", "eastus", "on_demand"] == ("27.197", "8")
    assert catalog("azure")["Standard_NC24ads_A100_v4", "eastus2", "spot"] == ("0.47749", "1")
    found = catalog("lambda")
    assert found["gpu_8x_a100", "europe-central-1", "on_demand"] == ("15.92", "8")
    assert {market for _, _, market in found} == {"on_demand"}
    assert catalog("runpod")["8x_H100-SXM_SECURE", "NL", "on_demand"] == ("26.32", "8")
    assert catalog("runpod")["cpu3c-8-16", "US", "on_demand"] == ("0.24", "0")


def test_a_price_of_gcp_is_of_machine_and_gpus():
    found = catalog("gcp")
    assert found["a2-highgpu-1g", "us-central1", "on_demand"] == ("3.67339", "1")  # 0.73948 + 2.93391
    assert found["a2-highgpu-1g", "us-central1", "spot"] == ("1.80385", "1")  # 0.36975 + 1.4341
    assert found["g2-standard-48", "us-east1", "on_demand"] == ("4.00166", "4")  # 1.7615 + 2.24016
    assert found["a4-highgpu-8g", "us-central1", "on_demand"] == ("90.216", "8")  # 0 + 90.216
    # n1-standard-8 takes any GPUs: its price alone is not that of a GPU machine
    assert {instance for instance, _, _ in found} == {"a2-highgpu-1g", "a4-highgpu-8g", "g2-standard-48"}


def test_a_machine_of_gcp_without_the_price_of_its_gpus_is_left_out(tmp_path):
    text = (SAMPLES / "v8" / "gcp" / "vms.csv").read_text()
    (tmp_path / "vms.csv").write_text("".join(line for line in text.splitlines(True) if ",A100,1," not in line))
    found = price_table.read_catalog(str(tmp_path / "vms.csv"), "2025-03-01")
    assert {row["instance"] for row in found} == {"a4-highgpu-8g", "g2-standard-48"}


@pytest.mark.parametrize("cloud", price_table.CLOUDS)
def test_an_imported_price_is_billed(cloud, tmp_path, capsys):
    assert tool(tmp_path, f"machine={cloud}", f"update={sample(cloud)}", "as_of=2025-03-01") == 0
    newest = rows(tmp_path)[0]
    machine = Machine(provider=cloud, instance=newest["instance"], region=newest["region"], market=newest["market"])
    price = prices.freeze_price(machine, 0, TODAY, tmp_path / "prices.csv")
    assert price.usd_per_hour == float(newest["usd_per_hour"]) and price.minimum_s == PRICE_SOURCES[cloud].minimum_s


def sample(cloud):
    return SAMPLES / "vms.csv" if cloud == "aws" else SAMPLES / "v8" / cloud / "vms.csv"


@pytest.mark.parametrize("cloud", price_table.CLOUDS)
def test_a_catalog_of_another_cloud_is_refused(cloud, tmp_path, capsys):
    for other in price_table.CLOUDS:
        if other != cloud:
            error = refused(capsys, tmp_path, f"machine={other}", f"update={sample(cloud)}")
            assert re.search(rf"vms.csv, line \d+: .*: expected an instance and region of {other}$", error)


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """SkyPilot's cache in an empty home, written on 2025-03-02, beside an older version."""
    monkeypatch.setenv("HOME", str(tmp_path))
    for version in ("v8", "v10"):
        folder = shutil.copytree(SAMPLES / "v8", tmp_path / ".sky" / "catalogs" / version)
        for file in folder.glob("*/vms.csv"):
            os.utime(file, (0, datetime.datetime(2025, 3, 2, 12).timestamp()))
    return folder


def test_the_cache_of_skypilot_is_read(cache, tmp_path, capsys):
    assert tool(tmp_path, "update=skypilot") == 0
    lines = [line.partition(": added ")[2] for line in capsys.readouterr().out.splitlines()]
    assert [re.sub("@[0-9a-f]{8}", "", line) for line in lines] == [
        f"{count} {cloud} prices of 2025-03-02 from catalogs/v10/{cloud}/vms.csv, 0 already known"
        for cloud, count in {"azure": 6, "gcp": 12, "lambda": 4, "runpod": 10}.items()
    ]
    before = rows(tmp_path)
    assert tool(tmp_path, "update=skypilot", "machine=azure", "as_of=2025-04-01") == 0
    assert capsys.readouterr().out.endswith(
        "from catalogs/v10/azure/vms.csv@" + before[0]["source"][-8:] + ", 6 already known\n"
    )
    assert rows(tmp_path) == before


def test_one_damaged_catalog_of_the_cache_adds_nothing(cache, tmp_path, capsys):
    last = cache / "runpod" / "vms.csv"
    last.write_text(last.read_text()[:-12])
    assert "runpod/vms.csv, line 7: the file is truncated" in refused(capsys, tmp_path, "update=skypilot")


def test_a_missing_cache_is_one_line(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    for machine, clouds in (("local", "aws or azure or gcp or lambda or runpod"), ("gcp", "gcp")):
        error = refused(capsys, tmp_path, "update=skypilot", f"machine={machine}")
        assert f"update=skypilot: no ~/.sky/catalogs/*/*/vms.csv of {clouds}: run `sky gpus list`" in error


def test_a_damaged_catalog_keeps_the_old_prices(tmp_path, capsys):
    tool(tmp_path, f"update={sample('azure')}")
    before = (tmp_path / "prices.csv").read_bytes()
    capsys.readouterr()
    for damage in (",27.197,", ",-27.197,"), (",Price,", ",Cost,"), (",V2\n", ""), ("eastus", "us-east-1"):
        (tmp_path / "vms.csv").write_text(sample("azure").read_text().replace(*damage))
        command_error(capsys, "prices", f"runs={tmp_path}", f"update={tmp_path / 'vms.csv'}")
        assert (tmp_path / "prices.csv").read_bytes() == before


def test_an_update_adds_prices_and_keeps_old_ones(tmp_path, capsys):
    assert tool(tmp_path, f"update={SAMPLES / 'vms.csv'}", "as_of=2025-03-01") == 0
    assert "added 5 aws prices of 2025-03-01 from vms.csv@" in capsys.readouterr().out
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
    assert "added 0 aws prices of 2025-05-01" in capsys.readouterr().out.splitlines()[-1]
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
        (tmp_path / name).write_text(f"{HEADER}p9.big,,,eu-west-1,{usd},\n")
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
    run.save(Price(known=True, usd_per_hour=26.44))
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
        ["eu-west-1", "spot", "3.9745", "undated snapshot"],
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
    assert ["aws", "p2.8xlarge", "8", "K80", "2", "2", "2017-10-26,", "over", "a", "year", "old"] in rows
    assert ["aws", "g6.xlarge", "1", "L4", "2", "4", "no", "date"] in rows
    assert {row[0] for row in rows[1:-1]} == set(price_table.CLOUDS)


def test_a_cloud_limits_the_list(tmp_path, capsys):
    assert tool(tmp_path, "machine=lambda") == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert {row[0] for row in rows[1:-1]} == {"lambda"}


def refused(capsys, runs, *argv):
    error = command_error(capsys, "prices", f"runs={runs}", *argv)
    assert not (runs / "prices.csv").exists()
    return error


ROW = "x.y,,,eu-west-1,1,\n"


@pytest.mark.parametrize(
    "text, message",
    [
        (HEADER.replace(",SpotPrice", "") + "x.y,,,eu-west-1,1\n", "no column SpotPrice"),
        ("", "no column InstanceType, AcceleratorCount, AcceleratorName, Region, Price, SpotPrice"),
        (HEADER, "the file has no price"),
        (HEADER + "x.y,,,eu-west-1,,\n", "the file has no price"),
        (HEADER + "n1-standard-8,,,us-central1,1,\n", "no price of a machine in tables/instances.csv"),
        (HEADER + ",,,eu-west-1,1,\n", "line 2:  eu-west-1: expected an instance and region of aws or azure or gcp"),
        (HEADER + "x.y,,,,1,\n", "line 2: x.y : expected an instance and region of aws"),
        (
            HEADER + ROW + "Standard_NC6,,,eastus,1,\n",
            "line 3: Standard_NC6 eastus: expected an instance and region of aws",
        ),
        (HEADER + ROW + "x.y,,,us-central1,1,\n", "line 3: x.y us-central1: expected"),
        (HEADER + "x.y,,,eu-west-1,NaN,\n", "line 2: Price=NaN: expected USD per hour"),
        (HEADER + "x.y,,,eu-west-1,1,inf\n", "line 2: SpotPrice=inf"),
        (HEADER + "x.y,,,eu-west-1,1,0.5\nx.y,,,eu-west-2,-1,\n", "line 3: Price=-1"),
        (HEADER + "n1-standard-8,,,us-central1,-1,\n", "line 2: Price=-1"),
        (HEADER + ",A100,1.0,us-central1,0,\n", "line 2: Price=0"),
        (HEADER + "x.y,,,eu-west-1,0,\n", "Price=0"),
        (HEADER + "x.y,,,eu-west-1,cheap,\n", "Price=cheap"),
        (HEADER + "x.y,,,eu-west-1,1,1,1\n", "more cells than columns"),
        (HEADER + ROW + "x.y,,,eu-west-2,1.2", "line 3: the file is truncated"),
        (HEADER + ROW + "x.y,,,eu-we\n", "line 3: x.y eu-we: expected an instance and region of aws"),
        ('[{"instance_type": "x"}]', "expected SkyPilot's vms.csv of aws, azure, gcp, lambda, runpod"),
        ('{"SpotPriceHistory": []}', "histories of spot prices into machine.prices"),
        ("AvailabilityZone,InstanceType,ProductDescription,SpotPrice,Timestamp\n", "no column AcceleratorCount, "),
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
    (tmp_path / "file").write_text(HEADER + ROW, "utf-8-sig")
    [row] = price_table.read_catalog(str(tmp_path / "file"), "2025-03-01")
    assert (row["instance"], row["usd_per_hour"], row["gpus"]) == ("x.y", "1", "0")


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
