"""The forecast of a run, and its error."""

import json
import re
from dataclasses import replace

import pytest
from plans import make_sizes
from verbs import SMALL

from mxscale.config.schema import from_dict
from mxscale.perfmodel import forecast, layers, scenarios
from mxscale.perfmodel.scenarios import Grid, Machine
from mxscale.perfmodel.step_time import Link
from mxscale.records import earlier_runs, summary
from mxscale.rundir import directory
from mxscale.rundir.directory import FINISHED
from mxscale.rundir.plan import Host, Plan
from mxscale.rundir.price import Price
from mxscale.tracking import payload

PRICE = Price(known=True, usd_per_hour=36.0, eur_per_hour=18.0, billing="per_second")


def made(runs, ranks, rate=None, wall_s=0, host="here", device="cpu", **settings):
    """Create a run directory up to its first step, or up to its end if it has a rate."""
    config = from_dict({"runs": str(runs), "model": {"name": "resnet18_v1b"}, **settings})
    run = directory.create(config)
    sizes = make_sizes(ranks, total_steps=100, train_images=3200)
    run.write_plan(Plan(sizes=sizes, speed_signature="same", threads=1, device=device, classes=5))
    run.write("environment.json", {"tags": {"machine": host, "build": "wheel", "versions": {}}})
    run.write_price(PRICE)
    if rate:
        run.write("status.json", {"state": FINISHED, "step": 100, "attempts": [{"attempt": 1, "started_ms": 0}]})
        run.write("summary.json", {"metrics": {"throughput/median": rate, "time/wall_s": wall_s}})
    return run


def predicted(run):
    return forecast.predict(run, run.config(), run.plan())


def test_forecast_without_sources_is_unknown(tmp_path):
    run = made(tmp_path, 2)
    result = predicted(run)
    assert result["known"] is False and not any(key.startswith("plan/") for key in result)
    assert forecast.record(run, run.config()).startswith("plan      unknown: no earlier run of this configuration")


def test_forecast_is_the_median_of_earlier_runs(tmp_path):
    for rate in (80.0, 100.0, 120.0):
        made(tmp_path, 2, rate)
    result = predicted(made(tmp_path, 2))
    assert result["plan/images_per_s"] == 100 and "3 earlier runs" in result["source"]
    assert result["plan/hours"] == pytest.approx(6400 / 100 / 3600)


@pytest.mark.parametrize("every, validations", [(10, 1), (1, 10), (3, 4)])
def test_forecast_scales_validations_but_not_start_and_end(tmp_path, every, validations):
    earlier = made(tmp_path, 2, rate=100.0, wall_s=64 + 30 + 5)  # 64 s of steps, 30 s of start and end
    with open(earlier.metrics_file, "w") as file:
        for time_ms, metrics in ((1000, {"train/loss": 1.0}), (6000, {"val/top1": 50.0})):
            line = {"attempt": 1, "step": 100, "time_ms": time_ms, "metrics": metrics}
            file.write(json.dumps(line) + "\n")
    run = made(tmp_path, 2, validate_every=every)
    assert predicted(run)["plan/hours"] == pytest.approx((64 + 30 + 5 * validations) / 3600)


def test_speed_signature_ignores_settings_without_influence(tmp_path):
    config = from_dict({})
    for change in ({"seed": 7}, {"epochs": 3}, {"optimizer": {"lr": 0.3}}, {"machine": {"usd_per_hour": 9.0}}):
        assert earlier_runs.for_speed(from_dict(change)) == earlier_runs.for_speed(config), change
    for change in ({"precision": "amp"}, {"batch": {"per_device": 7}}, {"optimizer": {"name": "adam"}}):
        assert earlier_runs.for_speed(from_dict(change)) != earlier_runs.for_speed(config), change


def test_forecast_includes_start_and_validation(tmp_path):
    made(tmp_path, 2, 100.0, wall_s=94.0)  # 64 s of steps, 30 s of start and validation
    run = made(tmp_path, 2)
    result = predicted(run)
    assert result["plan/hours"] == pytest.approx(94 / 3600)
    assert result["plan/usd"] == pytest.approx(0.94) and result["plan/eur"] == pytest.approx(0.47)


def test_run_on_one_rank_gives_an_upper_bound(tmp_path):
    base = made(tmp_path, 1, 40.0)
    result = predicted(made(tmp_path, 4))
    assert result["plan/images_per_s"] == 160
    assert result["source"].startswith("at most") and base.path.name in result["source"]


def test_two_numbers_of_ranks_fit_the_exchange(tmp_path):
    made(tmp_path, 1, 40.0)
    made(tmp_path, 2, 60.0)
    result = predicted(made(tmp_path, 4))
    assert 60 < result["plan/images_per_s"] < 120 and "fitted" in result["source"]


@pytest.mark.parametrize("comm", [{}, {"double_buffering": True}])
def test_accumulation_is_forecast_as_planned(tmp_path, comm):
    """From the planned rates of one and two ranks, the forecast of eight is the planned one."""
    settings = {"batch": {"accumulation": 4}, "comm": comm}
    config = from_dict({"model": {"name": "resnet18_v1b"}, **settings})
    task = scenarios.task_of(config, layers.network("resnet18_v1b", 32, 5), 3200, {("m", 32, "float32"): 300.0})
    link = Link(0.0, 5e7)

    def planned(ranks):
        grid = Grid([Machine("m", ranks, link, link, link, link)], [1], batch=[32],
                    double_buffering=[config.comm.double_buffering])  # fmt: skip
        return float(scenarios.evaluate(grid, task)[0]["images_per_s"][0])

    for ranks in (1, 2):
        made(tmp_path, ranks, planned(ranks), **settings)
    result = predicted(made(tmp_path, 8, **settings))
    assert planned(2) < 500 and result["plan/images_per_s"] == pytest.approx(planned(8), rel=0.01)


def test_exchange_with_local_servers_is_not_modelled(tmp_path):
    served = {"backend": "parameter_server"}
    made(tmp_path, 1, 40.0, comm=served)
    made(tmp_path, 2, 60.0, comm=served)
    result = predicted(made(tmp_path, 4, comm=served))
    assert result["plan/images_per_s"] == 160 and "at most" in result["source"]


@pytest.mark.parametrize(
    "other", [{"host": "elsewhere"}, {"device": "gpu"}, {"ranks": 4}, {"comm": {"compression": "fp16"}}]
)
def test_runs_with_other_hardware_or_exchange_do_not_count(tmp_path, other):
    made(tmp_path, **{"ranks": 2, "rate": 100.0, **other})
    assert predicted(made(tmp_path, 2))["known"] is False


def on_hosts(run, **slots):
    run.write_plan(replace(run.plan(), hosts=tuple(Host(name, count, name) for name, count in slots.items())))
    return run


def test_runs_on_other_hosts_do_not_count(tmp_path):
    made(tmp_path, 2, 100.0)
    assert predicted(on_hosts(made(tmp_path, 2), a=2))["plan/images_per_s"] == 100  # one machine, too
    assert predicted(on_hosts(made(tmp_path, 2), a=1, b=1))["known"] is False
    on_hosts(made(tmp_path, 2, 70.0), c=1, d=1)
    assert predicted(on_hosts(made(tmp_path, 2), a=1, b=1))["plan/images_per_s"] == 70


def test_tables_forecast_servers_on_machines_of_their_own(tmp_path):
    rented = {"machine": {"provider": "aws", "instance": "p3.16xlarge", "region": "us-east-1"}}
    settings = dict(
        device="gpu", data={"image_size": 224}, comm={"backend": "parameter_server", "servers": 2}, **rented
    )
    beside, apart = made(tmp_path, 16, **settings), made(tmp_path, 16, **settings)
    rates = [predicted(on_hosts(beside, a=8, b=8)), predicted(on_hosts(apart, a=8, b=8, c=1, d=1))]
    assert rates[0]["plan/images_per_s"] > rates[1]["plan/images_per_s"]  # a NIC carries half as many bytes


def test_tables_forecast_an_instance(tmp_path):
    rented = {"machine": {"provider": "aws", "instance": "p3.16xlarge", "region": "us-east-1"}}
    result = predicted(made(tmp_path, 8, device="gpu", data={"image_size": 224}, **rented))
    assert result["known"] and result["plan/images_per_s"] > 0 and "V100" in result["source"]
    assert predicted(made(tmp_path, 8, device="cpu", **rented))["known"] is False


def test_tables_forecast_no_machines_with_unequal_numbers_of_ranks(tmp_path):
    rented = {"machine": {"provider": "aws", "instance": "p3.8xlarge", "region": "us-east-1"}}
    run = made(tmp_path, 4, device="gpu", data={"image_size": 224}, **rented)
    assert "unequal numbers of ranks" in predicted(on_hosts(run, a=3, b=1))["why"]


def test_forecast_and_error_are_recorded(tmp_path):
    made(tmp_path, 2, 100.0)
    run = made(tmp_path, 2)
    forecast.record(run, run.config())
    assert payload.params(run)["plan/images_per_s"] == "100.0"
    assert run.path / directory.FORECAST in [path for path, _ in payload.artifacts(run)]
    run.write("status.json", {"attempts": [{"attempt": 1, "started_ms": 0, "ended_ms": 1000, "ranks": 2}]})
    line = '{"attempt": 1, "step": 1, "time_ms": 1, "metrics": {"throughput/images_per_s": 80.0}}\n'
    run.metrics_file.write_text(line)
    metrics = summary.summarise(run, 1).metrics
    assert metrics["plan/images_per_s"] == 100 and metrics["plan/error"] == pytest.approx(0.25)
    run.write("summary.json", {"metrics": metrics})
    assert re.search("planned +100 images/s, 25.0% too high", summary.table(run, ""))


def test_unknown_forecast_has_no_error(tmp_path):
    run = made(tmp_path, 2, 100.0)
    run.write(directory.FORECAST, {"known": False, "why": "x"})
    run.write("status.json", {"attempts": [{"attempt": 1, "started_ms": 0, "ended_ms": 1000, "ranks": 2}]})
    assert not [key for key in summary.summarise(run, 1).metrics if key.startswith("plan/")]


@pytest.mark.slow
def test_second_run_forecasts_the_first(cli):
    first = cli("train", "launch.ranks=1", *SMALL[:-1], "tracking.enabled=false")
    assert "plan      unknown: no earlier run" in first.out
    assert not [name for name in first.run.read("summary.json")["metrics"] if name.startswith("cost")]  # no price
    second = cli("train", "launch.ranks=1", *SMALL[:-1], "tracking.enabled=false")
    rate = first.run.read("summary.json")["metrics"]["throughput/median"]
    assert second.run.read("forecast.json")["plan/images_per_s"] == pytest.approx(rate)
    assert "an earlier run of this configuration" in second.out and "  planned  " in second.out
    metrics = second.run.read("summary.json")["metrics"]
    assert metrics["plan/error"] == pytest.approx(rate / metrics["throughput/median"] - 1)
