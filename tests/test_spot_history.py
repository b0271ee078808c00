"""AWS's history of spot prices: three formats, means of a day, and the figure."""

import json

import pytest
from composed import composed
from refusals import error_of

from mxscale.cost import price_list, price_table, prices, spot_history

ENTRIES = [
    ("us-east-1a", "p3.16xlarge", "Linux/UNIX", "6.0", "2017-11-12T00:00:00Z"),
    ("us-east-1a", "p3.16xlarge", "Linux/UNIX", "30.0", "2017-11-12T18:00:00+00:00"),
    ("us-east-1b", "p3.16xlarge", "Linux/UNIX (Amazon VPC)", "20.0", "2017-11-13T12:00:00Z"),
    ("us-east-1a", "p3.16xlarge", "Windows", "99.0", "2017-11-12T00:00:00Z"),
]


def as_json(entries) -> str:
    return json.dumps({"SpotPriceHistory": [dict(zip(spot_history.COLUMNS, entry)) for entry in entries]}, indent=1)


def as_csv(entries) -> str:
    return "\n".join(",".join(cells) for cells in (spot_history.COLUMNS, *entries)) + "\n"


def as_text(entries) -> str:
    return "\n".join("\t".join(["SPOTPRICEHISTORY", *entry]) for entry in entries) + "\n"


@pytest.mark.parametrize("write", [as_json, as_csv, as_text])
def test_a_day_has_its_mean_price_in_the_cheapest_zone(write):
    text = write(ENTRIES)
    assert spot_history.is_history(text)
    rows = spot_history.rows(text, "update=h", "h@1")
    assert [(row["region"], row["as_of"], float(row["usd_per_hour"])) for row in rows] == [
        ("us-east-1", "2017-11-12", 12.0),  # 18 h at 6, 6 h at 30
        ("us-east-1", "2017-11-13", 20.0),  # zone b from noon
    ]
    assert {(row["market"], row["gpu"]) for row in rows} == {("spot", "V100-16GB")}


@pytest.mark.parametrize(
    "place, value, message",
    [
        (3, "-1", "entry 1: SpotPrice=-1: expected USD per hour, above 0"),
        (4, "yesterday", "entry 1: Timestamp=yesterday: expected a time such as 2017-11-12T09:30:00Z"),
        (0, "moon", "entry 1: AvailabilityZone=moon: expected a zone such as us-east-1a"),
        (1, "", "entry 1: InstanceType is empty"),
    ],
)
def test_an_invalid_entry_is_named(place, value, message):
    entry = list(ENTRIES[0])
    entry[place] = value
    assert message in error_of(spot_history.rows, as_json([entry]), "update=h", "h@1")


@pytest.mark.parametrize(
    "text", ['{"SpotPriceHistory": [3]}', '{"SpotPriceHistory": ', "SPOTPRICEHISTORY\tus-east-1a\n"]
)
def test_a_damaged_history_is_refused(text):
    error_of(spot_history.rows, text, "update=h", "h@1")


@pytest.fixture
def config(tmp_path):
    path = tmp_path / "history.json"
    path.write_text(as_json(ENTRIES))
    return composed("train", "machine=aws", f"runs={tmp_path}", "machine.instance=p3.16xlarge",
                    "machine.region=us-east-1", "machine.market=spot", "machine.as_of='2017-11-12'")  # fmt: skip


def imported(config) -> str:
    return price_list.update(config, f"{config.runs}/history.json", None, None, prices.parse_date("2026-01-01"))


def test_a_run_at_spot_is_billed_at_the_price_of_its_day(config):
    assert "added 2 prices of 2017-11-12 to 2017-11-13" in imported(config)
    assert "added 0 prices" in imported(config)
    own = price_table.path_of(config)
    price = prices.freeze_price(config.machine, 0, prices.parse_date("2026-01-01"), own)
    assert (price.usd_per_hour, price.market, price.as_of) == (12.0, "spot", "2017-11-12")


def test_prices_are_drawn_over_time(config):
    imported(config)
    figure = f"{config.runs}/spot.png"
    assert "prices of p3.16xlarge" in price_list.draw(config, figure)
    assert open(figure, "rb").read(4) == b"\x89PNG"
    assert "ends in .png" in error_of(price_list.draw, config, f"{config.runs}/spot.pdf")
    assert "figure=/nowhere/a.png" in error_of(price_list.draw, config, "/nowhere/a.png")
