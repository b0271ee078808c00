"""What a run says beforehand of itself, and how far off it was."""

import pytest
from conftest import SMALL
from plans import make_sizes

from mxscale.config.schema import from_dict
from mxscale.perfmodel import forecast, layers, scenarios
from mxscale.perfmodel.scenarios import Grid, Machine
from mxscale.perfmodel.step_time import Link
from mxscale.planner import planning
from mxscale.records import earlier_runs, summary
from mxscale.rundir import directory
from mxscale.rundir.directory import FINISHED
from mxscale.rundir.plan import Plan
from mxscale.tracking import payload

PRICE = {"known": True, "usd_per_hour": 36.0, "eur_per_hour": 18.0, "nodes": 1, "billing": "per_second",
         "minimum_s": 0, "setup_minutes": 0}  # fmt: skip


def made(runs, ranks, rate=None, steps=100, wall_s=None, host="here", device="cpu", comm=None, **settings):
    """A run directory up to its first step, or with a rate up to its end."""
    config = from_dict({"runs": str(runs), "model": {"name": "resnet18_v1b"}, "comm": comm or {}, **settings})
    run = directory.create(config)
    sizes = make_sizes(ranks, total_steps=steps, train_images=3200)
    run.write_plan(Plan(sizes=sizes, speed_signature="same", threads=1, device=device, classes=5))
    run.write("environment.json", {"tags": {"machine": host, "build": "wheel", "versions": {}}})
    run.write("price.json", PRICE)
    if rate:
        run.write("status.json", {"state": FINISHED, "step": steps, "attempts": [{"attempt": 1, "started_ms": 0}]})
        run.write("summary.json", {"metrics": {"throughput/median": rate, "time/wall_s": wall_s or 0}})
    return run


def predicted(run):
    return forecast.predict(run, run.config(), run.plan())


def test_where_nothing_is_known_it_says_so(tmp_path):
    run = made(tmp_path, 2)
    told = predicted(run)
    assert told["known"] is False and not any(key.startswith("plan/") for key in told)
    assert forecast.record(run, run.config()).startswith("plan      unknown: no earlier run of this configuration")


def test_an_earlier_run_of_as_many_ranks_is_what_it_expects(tmp_path):
    for rate in (80.0, 100.0, 120.0):
        made(tmp_path, 2, rate)
    told = predicted(made(tmp_path, 2))
    assert told["plan/images_per_s"] == 100 and "3 earlier runs" in told["source"]
    assert told["plan/hours"] == pytest.approx(6400 / 100 / 3600)


def test_what_speed_does_not_depend_on_makes_no_other_run_of_it(tmp_path):
    config = from_dict({})
    for change in ({"seed": 7}, {"epochs": 3}, {"optimizer": {"lr": 0.3}}, {"machine": {"usd_per_hour": 9.0}}):
        assert earlier_runs.for_speed(from_dict(change)) == earlier_runs.for_speed(config), change
    for change in ({"precision": "amp"}, {"batch": {"per_device": 7}}, {"optimizer": {"name": "adam"}}):
        assert earlier_runs.for_speed(from_dict(change)) != earlier_runs.for_speed(config), change


def test_time_beside_the_steps_and_its_cost_are_in_it(tmp_path):
    made(tmp_path, 2, 100.0, wall_s=94.0)  # 64 s of steps, 30 s of start and validation
    run = made(tmp_path, 2)
    told = predicted(run)
    assert told["plan/hours"] == pytest.approx(94 / 3600)
    assert told["plan/usd"] == pytest.approx(0.94) and told["plan/eur"] == pytest.approx(0.47)


def test_of_fewer_ranks_alone_it_is_said_to_be_the_most(tmp_path):
    base = made(tmp_path, 1, 40.0)
    told = predicted(made(tmp_path, 4))
    assert told["plan/images_per_s"] == 160
    assert told["source"].startswith("at most") and base.path.name in told["source"]


def test_with_two_numbers_of_ranks_the_exchange_is_fitted(tmp_path):
    made(tmp_path, 1, 40.0)
    made(tmp_path, 2, 60.0)
    told = predicted(made(tmp_path, 4))
    assert 60 < told["plan/images_per_s"] < 120 and "fitted" in told["source"]


@pytest.mark.parametrize("comm", [{}, {"double_buffering": True}])
def test_what_accumulates_is_forecast_as_it_is_planned(tmp_path, comm):
    """Measured is what the planner says of one rank and of two: the forecast of eight is what it says of eight."""
    settings = {"batch": {"accumulation": 4}, "comm": comm}
    config = from_dict({"model": {"name": "resnet18_v1b"}, **settings})
    task = planning.task_of(config, layers.network("resnet18_v1b", 32, 5), 3200, {("m", 32, "float32"): 300.0})
    link = Link(0.0, 5e7)

    def planned(ranks):
        grid = Grid([Machine("m", ranks, link, link, link, link)], [1], batch=[32],
                    double_buffering=[config.comm.double_buffering])  # fmt: skip
        return float(scenarios.evaluate(grid, task)[0]["images_per_s"][0])

    for ranks in (1, 2):
        made(tmp_path, ranks, planned(ranks), **settings)
    told = predicted(made(tmp_path, 8, **settings))
    assert planned(2) < 500 and told["plan/images_per_s"] == pytest.approx(planned(8), rel=0.01)


def test_the_exchange_with_servers_of_the_same_machine_is_not_modelled(tmp_path):
    served = {"backend": "parameter_server"}
    made(tmp_path, 1, 40.0, comm=served)
    made(tmp_path, 2, 60.0, comm=served)
    told = predicted(made(tmp_path, 4, comm=served))
    assert told["plan/images_per_s"] == 160 and "at most" in told["source"]


@pytest.mark.parametrize(
    "other",
    [{"host": "elsewhere"}, {"device": "gpu"}, {"ranks": 4}],
)
def test_runs_that_are_not_alike_do_not_count(tmp_path, other):
    made(tmp_path, **{"ranks": 2, "rate": 100.0, **other})
    assert predicted(made(tmp_path, 2))["known"] is False


def test_another_exchange_is_another_run(tmp_path):
    made(tmp_path, 2, 100.0, comm={"compression": "fp16"})
    assert predicted(made(tmp_path, 2))["known"] is False


def test_of_a_rented_machine_the_tables_know(tmp_path):
    rented = {"machine": {"provider": "aws", "instance": "p3.16xlarge", "region": "us-east-1"}}
    told = predicted(made(tmp_path, 8, device="gpu", data={"image_size": 224}, **rented))
    assert told["known"] and told["plan/images_per_s"] > 0 and "V100" in told["source"]
    assert predicted(made(tmp_path, 8, device="cpu", **rented))["known"] is False


def test_what_was_said_and_how_far_off_it_was_are_recorded(tmp_path):
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
    assert "planned        100 images/s, 25.0% too much" in summary.table(run, "")


def test_a_run_of_unknown_rate_ends_without_an_error(tmp_path):
    run = made(tmp_path, 2, 100.0)
    run.write(directory.FORECAST, {"known": False, "why": "x"})
    run.write("status.json", {"attempts": [{"attempt": 1, "started_ms": 0, "ended_ms": 1000, "ranks": 2}]})
    assert not [key for key in summary.summarise(run, 1).metrics if key.startswith("plan/")]


@pytest.mark.slow
def test_the_second_run_expects_what_the_first_one_did(cli):
    first = cli("train", "launch.ranks=1", *SMALL[:-1], "tracking.enabled=false")
    assert "plan      unknown: no earlier run" in first.out
    second = cli("train", "launch.ranks=1", *SMALL[:-1], "tracking.enabled=false")
    rate = first.run.read("summary.json")["metrics"]["throughput/median"]
    assert second.run.read("forecast.json")["plan/images_per_s"] == pytest.approx(rate)
    assert "an earlier run of this configuration" in second.out and "  planned  " in second.out
    metrics = second.run.read("summary.json")["metrics"]
    assert metrics["plan/error"] == pytest.approx(rate / metrics["throughput/median"] - 1)
