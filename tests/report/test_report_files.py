"""Reports from a store to files, and refusals."""

import csv
import re
import socket
import sqlite3

import pytest
from machine import free_port
from recorded import keep, run

from mxscale.cli import main


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    """A SQLite store: `sweep` with a parent, `loose` without, `failed` without a finished run."""
    import mlflow

    folder = tmp_path_factory.mktemp("store")
    uri = f"sqlite:///{folder}/mlflow.db"
    client = mlflow.MlflowClient(uri)
    made = {name: client.create_experiment(name, str(folder / "files")) for name in ("sweep", "loose", "failed")}
    parent = client.create_run(made["sweep"], run_name="<b>sweep", tags={"mxscale.run": "sweep"}).info.run_id
    client.set_terminated(parent)
    for ranks in (1, 2):
        for seed in (1, 2):
            figures = {"throughput/median": 300.0 * ranks**0.9 + seed, "best/val_top1": 90.0 + seed * ranks,
                       "cost/total_usd": 0.1 / ranks + seed / 100, "time/to_target_s": 10.0, "cost/usd_to_target": 0.1,
                       "time/compute_median": 0.1, "time/exchange_median": 0.01,
                       "time/data_wait_median": 0.01}  # fmt: skip
            if ranks == 2:
                figures["scaling/efficiency"] = 0.93
            one = run(f"<i>{ranks}-{seed}", tags={"mlflow.parentRunId": parent}, metrics=figures, launch__ranks=ranks,
                      seed=seed, target_top1=90.0)  # fmt: skip
            keep(client, made["sweep"], one)
    keep(client, made["sweep"], run("<u>broken", "FAILED", tags={"mlflow.parentRunId": parent}))
    keep(client, made["loose"], run("alone", metrics={"best/val_top1": 90.0}))
    keep(client, made["failed"], run("gone", "FAILED"))
    return {"uri": uri, "client": client, "made": made}


@pytest.fixture
def reported(capsys, tmp_path):
    """Run `mxscale report`; (exit status, standard output, standard error)."""

    def call(*overrides):
        status = main.main(["report", f"report.output={tmp_path}/out", *overrides])
        printed = capsys.readouterr()
        return status, printed.out, printed.err

    return call


def refused(answer, *parts):
    status, _, error = answer
    assert (status, error.count("\n")) == (2, 1) and error.startswith("error: ")
    for part in parts:
        assert part in error


def test_report_of_a_sweep_is_written_to_files(store, reported, tmp_path):
    status, out, _ = reported("report.experiment=sweep", f"tracking.uri={store['uri']}")
    names = ["accuracy_cost.png", "report.csv", "report.html", "throughput.png"]
    assert status == 0 and "5 runs, 4 finished, in 2 rows, 1 FAILED" in out
    assert "<h1>sweep</h1>" in (tmp_path / "out" / "report.html").read_text()
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == names
    assert "| 2 ranks       |    2 |" in out and "93.0 %" in out
    page = (tmp_path / "out" / "report.html").read_text()
    assert page.count("<svg") == 2
    # nothing is fetched, and run names are escaped
    assert re.findall(r"(?:src|href)=\"([^\"]*)\"", re.sub(r"xlink:href=\"#[^\"]*\"", "", page)) == ["report.csv"]
    assert "&lt;u&gt;broken" in page and "<u>broken" not in page
    for path in (tmp_path / "out").glob("*.png"):
        assert path.read_bytes().startswith(b"\x89PNG")


def test_report_of_one_run_states_which_figures_are_missing(store, reported, tmp_path):
    status, out, _ = reported("report.experiment=loose", f"tracking.uri={store['uri']}")
    assert status == 0 and "1 run, 1 finished, in 1 row" in out
    text = (tmp_path / "out" / "report.html").read_text()
    assert "Accuracy against cost" in text and "no run has a cost: set a price" in text


@pytest.mark.parametrize(
    "override, parts",
    [
        ("report.experiment=swep", ["report.experiment=swep", "did you mean sweep?"]),
        ("report.experiment=failed", ["1 run, none finished, 1 FAILED"]),
        ("report.experiment=Default", ["0 runs"]),
        ("report.action=clams", ["report.action=clams", "claims"]),
        ("report.compare=[a,b]", ["report.compare was removed", "Compare"]),
        ("+report.outptu=x", ["unknown key report.outptu: did you mean report.output?"]),
        ("report.output=null", ["report.output is missing"]),
    ],
)
def test_invalid_request_is_one_line(store, reported, override, parts):
    refused(reported(f"tracking.uri={store['uri']}", override), *parts)


def test_missing_store_is_not_created(reported, tmp_path):
    refused(reported(f"tracking.uri=sqlite:///{tmp_path}/none.db"), "no such file", "tracking.uri")
    assert not (tmp_path / "none.db").exists()


def test_store_of_another_version_is_not_migrated(reported, tmp_path):
    """MLflow itself would migrate older tables without asking."""
    file = tmp_path / "old.db"
    with sqlite3.connect(file) as base:
        base.execute("create table alembic_version (version_num varchar(32))")
        base.execute("insert into alembic_version values ('451aebb31d03')")  # MLflow 1.0
    before = file.read_bytes()
    refused(
        reported(f"tracking.uri=sqlite:///{file}"), "another version of MLflow", "451aebb31d03", "mlflow db upgrade"
    )
    assert file.read_bytes() == before


@pytest.mark.parametrize("content", [b"", b"no database, but words about one" * 10])
def test_file_that_is_no_store_is_refused(reported, tmp_path, content):
    (tmp_path / "x.db").write_bytes(content)
    refused(reported(f"tracking.uri=sqlite:///{tmp_path}/x.db"), "not an MLflow store")


def test_unreachable_or_silent_server_is_one_line(reported):
    uri = f"http://127.0.0.1:{free_port()}"
    refused(reported(f"tracking.uri={uri}", "tracking.timeout_s=2"), uri, "connection refused")
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        uri = f"http://127.0.0.1:{silent.getsockname()[1]}"
        refused(reported(f"tracking.uri={uri}", "tracking.timeout_s=1"), uri, "no answer in time")


def test_claims_are_listed_without_records(reported, tmp_path):
    status, out, _ = reported("report.action=claims", f"runs={tmp_path}/none")
    assert status == 0 and "0 measured," in out
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["published-works.md"]
    assert not (tmp_path / "none").exists()
    given = reported("report.action=claims", f"tracking.uri=sqlite:///{tmp_path}/none.db")
    refused(given, "no such file")


def test_tag_alone_measures_no_claim(store, reported, tmp_path):
    """A shrunk run of the experiment, on a CPU."""
    tags = {"claims": "finetune-cost in15-time"}
    run_id = keep(store["client"], store["made"]["loose"], run("shrunk", tags=tags, metrics={"cost/total_eur": 0.01}))
    status, out, _ = reported("report.action=claims", f"tracking.uri={store['uri']}", "report.experiment=loose")
    assert status == 0 and "0 measured," in out
    page = (tmp_path / "out" / "published-works.md").read_text()
    assert page.count(f"run {run_id} has its tag, but under other conditions: gpu=none, not") == 2
    store["client"].delete_run(run_id)


def test_own_results_of_claims_are_written_as_a_table(store, reported, tmp_path):
    made = [run(f"speed{seed}", tags={"replay": "aws-mnist small", "sweep.name": f"speed-seed{seed}"}, seed=seed,
                metrics={"throughput/median": 3000.0 + seed}) for seed in (1, 2, 3)]  # fmt: skip
    ids = [keep(store["client"], store["made"]["loose"], one) for one in made]
    status, _, _ = reported("report.action=claims", f"tracking.uri={store['uri']}", "report.experiment=loose")
    page = (tmp_path / "out" / "published-works.md").read_text()
    assert status == 0 and "3,002 samples/s of both processes (3,001 to 3,003, n = 3)" in page
    assert f"runs {' '.join(ids)}" in page
    [row] = [row for row in csv.DictReader((tmp_path / "out" / "measured_claims.csv").open()) if row["values"]
             and row["id"] == "mnist-2procs-speed" and row["state"] == "reduced scale"]  # fmt: skip
    assert (row["values"], row["hardware"], row["date"]) == ("3001 3002 3003", "a CPU, 2 cores", "2023-11-14")
    for run_id in ids:
        store["client"].delete_run(run_id)
