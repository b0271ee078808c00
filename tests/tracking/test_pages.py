"""MLflow's own pages in a browser: what a reader sees of two small runs that were trained and sent to a server."""

from types import SimpleNamespace

import browser
import pytest
from tracked_runs import Server
from verbs import Cli

from mxscale.tracking import experiment_view

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not (browser.CHROMIUM and browser.DRIVER), reason="chromium or chromium-driver is missing"),
]
SIDE = "?workflowType=machine_learning"
ALL_RUNS = f"#/experiments/1/runs?viewStateShareKey={experiment_view.KEY}&workflowType=machine_learning"
SETTINGS = ["data.train_per_class=24", "batch.per_device=12", "epochs=2", "log_every=1", "launch.threads=1",
       "machine=custom", "machine.usd_per_hour=3.06"]  # fmt: skip


@pytest.fixture(scope="module")
def trained(tmp_path_factory, data_cache):
    """Two runs, on one rank and on two, the second evaluated and registered as a model; their server and ids."""
    server = Server(tmp_path_factory.mktemp("server"))
    server.start()
    try:
        cli = Cli(tmp_path_factory.mktemp("pages") / "runs", data_cache)
        there = f"tracking.uri={server.uri}"
        one = cli("train", *SETTINGS, there, "launch.ranks=1", small=False)
        two = cli("train", *SETTINGS, there, "launch.ranks=2", small=False)
        cli("evaluate", there, f"source={two.run}", small=False)
        cli("register", there, f"source={two.run}", "registered=digits", small=False)
        ids = [ended.run.read("tracking.json")["run_id"] for ended in (one, two)]
        yield SimpleNamespace(uri=server.uri, ids=ids, page=f"#/experiments/1/runs/{ids[1]}")
    finally:
        server.kill()


@pytest.fixture(scope="module")
def window(tmp_path_factory):
    with browser.opened(tmp_path_factory.mktemp("browser")) as one:
        yield one


@pytest.fixture
def opened(trained, window):
    """Return a function that opens a page of the server, and the window."""

    def at(page: str) -> browser.Browser:
        window.open(f"{trained.uri}/{page}")
        return window

    return at


def test_the_table_of_runs_has_figures_and_names(opened):
    opened(ALL_RUNS).shows("small digits 1 rank", "small digits 2 ranks", *experiment_view.COLUMNS)


def test_runs_are_compared_in_charts(opened):
    opened(ALL_RUNS + "&compareRunsMode=CHART").has_charts()


def test_a_run_shows_result_command_and_curves(trained, opened):
    page = opened(trained.page + SIDE)
    page.shows("% val top-1", "mxscale train", "USD")
    page.click("Show more")
    page.shows("best val top-1", "run directory")
    page.has_image("get-artifact?path=learning-curves.png")


@pytest.mark.parametrize(
    "tab, words",
    [
        ("model-metrics", ["best", "val_top1", "total_eur"]),
        ("system-metrics", ["cpu_utilization_percentage", "system_memory_usage_megabytes", "disk_usage_percentage"]),
    ],
)
def test_a_run_has_charts(trained, opened, tab, words):
    page = opened(f"{trained.page}/{tab}{SIDE}")
    page.shows(*words)
    page.has_charts()


@pytest.mark.parametrize("name", ["learning-curves.png", "evaluation/test/confusion.png"])
def test_a_figure_is_shown_as_an_artifact(trained, opened, name):
    page = opened(f"{trained.page}/artifacts/{name}{SIDE}")
    page.shows(name)
    page.has_image()


def test_the_evaluation_is_shown_as_an_artifact(trained, opened):
    page = opened(f"{trained.page}/artifacts/evaluation/test/evaluation.html{SIDE}")
    page.shows("evaluation/test/evaluation.html")
    page.in_frame()
    page.shows("Confusion matrix", "top-1")


def test_a_model_has_its_version_and_champion(opened):
    opened("#/models/digits" + SIDE).shows("digits", "Version 1", "champion")
    opened("#/models/digits/versions/1" + SIDE).shows("Version 1", "Source Run", "small digits 2 ranks")


def test_two_runs_are_compared(trained, opened):
    ids = ",".join(f'"{each}"' for each in trained.ids)
    page = opened(f'#/compare-runs?runs=[{ids}]&experiments=["1"]&workflowType=machine_learning')
    page.shows("Comparing 2 Runs", "small digits 1 rank", "small digits 2 ranks", "launch.ranks")
