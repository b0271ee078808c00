"""What a report makes of recorded runs: rows, figures, files, and what it refuses."""

import csv
import io
import json
import math
import os
import re
import socket
import sqlite3

import pytest
from recorded import keep, run

from mxscale.cli import main
from mxscale.config.schema import from_dict
from mxscale.records import pareto
from mxscale.records import recorded as records
from mxscale.report import figures
from mxscale.report import rows as report
from mxscale.rundir import directory
from mxscale.tracking import history, tracker

# ---------------------------------------------------------------- rows


def rows(*runs):
    return records.rows(runs)


def test_runs_that_differ_in_the_seed_alone_are_one_row_with_median_least_and_most():
    runs = [run(f"r{n}", seed=n, metrics={"best/val_top1": value}) for n, value in enumerate((97.0, 91.0, 98.0))]
    [row] = rows(*runs)
    assert row.spread("best/val_top1") == (97.0, 91.0, 98.0, 3)
    assert row.seeds == ["0", "1", "2"]
    headings, [cells] = report.table([row])
    assert dict(zip(headings, cells)) == {
        "configuration": "all alike",
        "runs": "3",
        "val top-1": "97.00 % (91.00–98.00 %)",
    }


def test_where_and_under_what_name_a_run_is_recorded_makes_no_other_row():
    a = run(name="a", runs="/here", data__cache="/c", tracking__experiment="x", claims="[]")
    b = run(name="b", runs="/there", data__cache="/d", tracking__experiment="y", claims="['io-gap-1']")
    assert len(rows(a, b)) == 1


def test_a_rerun_is_in_the_row_of_its_first_run():
    """It is given the device and the threads that auto and null came to then."""
    settled = {"ranks": "2", "device": "cpu", "threads": "1"}
    first = run("first", tags=settled)
    again = run("again", launch__ranks=2, launch__device="cpu", launch__threads=1, tags={**settled, "rerun.of": "x"})
    assert len(rows(first, again)) == 1
    assert len(rows(first, run("fewer cores", tags={**settled, "threads": "4"}))) == 2
    assert len(rows(run("older"), run("older, too", seed=2))) == 1  # without the tags


@pytest.mark.parametrize(
    "tags",
    [{"machine": "another"}, {"versions": "mxnet=1.5.0"}, {"build": "ngc"}, {"gpu": "K80"}, {"data.digest": "e"}],
)
def test_another_machine_build_or_data_set_is_another_row(tags):
    assert len(rows(run("a"), run("b", tags=tags))) == 2


def test_what_was_forecast_of_a_run_makes_no_other_row():
    forecast = {"plan/images_per_s": 320.0, "plan/hours": 0.1}
    assert len(rows(run(seed=1), run(seed=2, **forecast), run(seed=3, **{**forecast, "plan/usd": 1.0}))) == 1


def test_unfinished_runs_are_in_no_row():
    found = rows(run("a", metrics={"best/val_top1": 90.0}), run("b", "FAILED", metrics={"best/val_top1": 1.0}, seed=2))
    assert [row.median("best/val_top1") for row in found] == [90.0]


def test_a_label_has_no_more_than_tells_the_rows_apart_and_rows_are_in_the_order_of_numbers():
    runs = [
        run(optimizer__lr=lr, optimizer__momentum=lr, launch__ranks=ranks) for lr in (0.1, 0.05) for ranks in (10, 2)
    ]
    assert [row.label for row in rows(*runs)] == [
        "2 ranks lr=0.05", "2 ranks lr=0.1", "10 ranks lr=0.05", "10 ranks lr=0.1",
    ]  # fmt: skip


def test_a_setting_that_a_resume_changed_counts_as_it_was_last():
    changed = run(launch__ranks=4, tags={"resumed.launch.ranks": "2", "ranks": "2"})
    assert (changed.devices, records.settings(changed)["launch.ranks"]) == (2, "2")


def test_the_devices_of_an_older_record_follow_from_its_batch():
    without_tag = {"tags": {"ranks": ""}, "launch__ranks": "auto", "batch__per_device": 16}
    assert run(**without_tag).devices == 4  # 64 = 16 x 4
    assert run(**without_tag, data__shards=4).devices is None  # of four shards, one rank or four


def test_what_is_not_on_record_is_a_dash_and_never_0():
    found = rows(
        run("a", metrics={"cost/total_usd": 0.5}), run("b", launch__ranks=1, metrics={"cost/total_usd": math.nan})
    )
    headings, cells = report.table(found)
    at = headings.index("USD")
    assert sorted(line[at] for line in cells) == ["0.5000", "–"]
    assert "EUR" not in headings


def test_a_seed_that_missed_the_target_counts_as_endless():
    def row(*seconds):
        runs = [run(f"{n}", seed=n, target_top1=90.0, metrics={"time/to_target_s": s} if s else {})
                for n, s in enumerate(seconds)]  # fmt: skip
        return rows(*runs)[0]

    assert report.reached(row(30.0, None, 50.0))[:3] == (50.0, 30.0, math.inf)
    assert report.reached(row(30.0, None, None)).median == math.inf
    assert report.reached(rows(run())[0]) is None  # no target
    assert report.reached(row(30.0, None), "cost/usd_to_target") is None  # no price
    missed = rows(run(target_top1=90.0, metrics={"cost/total_usd": 0.1}))[0]
    assert report.reached(missed, "cost/usd_to_target").median == math.inf
    assert report.reached(missed, "cost/eur_to_target") is None
    column = next(column for column in report.COLUMNS if column.heading == "to target")
    assert report.cell(row(30.0, None, None), column) == "not reached (30.0–not reached)"


def test_shares_are_of_the_measured_step():
    """64 images at 320 images/s: a step of 0.2 s."""
    timed = {"throughput/median": 320.0, "time/compute_median": 0.15, "time/exchange_median": 0.06}
    [row] = rows(run(metrics={**timed, "time/data_wait_median": 0.05}))
    assert report.shares(row) == pytest.approx({"waiting for data": 0.05, "compute": 0.75, "exchange": 0.3})
    assert report.shares(rows(run(metrics={"throughput/median": 320.0}))[0]) is None


def test_a_prediction_is_held_against_the_runs_that_it_was_made_for():
    """The first run of a configuration is predicted nothing; what it measured is no error of what came later."""
    figures = [{"throughput/median": 100.0}, {"throughput/median": 200.0, "plan/images_per_s": 180.0},
               {"throughput/median": 300.0, "plan/images_per_s": 330.0}, {"plan/images_per_s": 1.0}]  # fmt: skip
    [row] = rows(*(run(str(n), seed=n, metrics=known) for n, known in enumerate(figures)))
    assert report.prediction(row) == (255.0, 250.0)
    assert report.prediction(rows(run(metrics=figures[0]), run(metrics=figures[3], seed=2))[0]) is None


def test_series_are_rows_that_differ_in_the_number_of_devices_alone():
    rate = {"throughput/median": 100.0}
    runs = [run(launch__ranks=n, launch__threads=2 // n, comm__backend=c, metrics=rate)
            for n in (2, 1) for c in ("horovod", "parameter_server") if (n, c) != (1, "parameter_server")]  # fmt: skip
    found = records.one_but_for_devices(rows(*runs))
    assert [(label, [row.devices for row in group]) for label, group in found] == [
        ("horovod", [1, 2]), ("parameter_server", [2]),
    ]  # fmt: skip


def test_several_numbers_of_devices_are_drawn_where_no_series_has_two_of_them():
    rate = {"throughput/median": 100.0}
    runs = [run(launch__ranks=n, optimizer__lr=lr, metrics=rate) for n, lr in ((1, 0.1), (2, 0.2))]
    figure, caption = figures.throughput(rows(*runs))
    assert len(figure.axes[0].patches) == 2 and "more series" not in caption


@pytest.mark.parametrize(
    "points, front",
    [
        ([], []),
        ([(1, 90), (2, 95), (3, 94)], [0, 1]),
        ([(3, 95), (1, 90), (2, 90)], [1, 0]),
        ([(1, 90), (1, 92), (1, 92)], [1]),
    ],
)
def test_the_front_is_what_nothing_else_beats_in_both(points, front):
    assert pareto.front(points) == front


def test_a_csv_has_every_digit_and_every_setting_that_differs():
    runs = [run(f"r{n}", seed=n, optimizer__lr=lr, metrics={"cost/total_usd": 0.1 / 3 + n})
            for lr in (0.1, 0.2) for n in (1, 2)]  # fmt: skip
    lines = list(csv.DictReader(io.StringIO(report.as_csv(rows(*runs)))))
    assert [line["optimizer.lr"] for line in lines] == ["0.1", "0.2"]
    assert float(lines[0]["cost/total_usd.min"]) == 0.1 / 3 + 1
    assert (lines[0]["seeds"], lines[0]["run_ids"]) == ("1 2", "r1 r2")


def test_a_bar_in_a_cell_does_not_end_it():
    assert report.markdown(["a"], [["x|y"]]).splitlines()[2] == "| x\\|y |"


# ---------------------------------------------------------------- from a store to files


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    """A SQLite store: `sweep` with a parent, `loose` without, `failed` without a finished run."""
    os.environ["MLFLOW_DISABLE_TELEMETRY"] = "true"
    import mlflow

    folder = tmp_path_factory.mktemp("store")
    uri = f"sqlite:///{folder}/mlflow.db"
    client = mlflow.MlflowClient(uri)
    made = {name: client.create_experiment(name, str(folder / "files")) for name in ("sweep", "loose", "failed")}
    parent = client.create_run(made["sweep"], run_name="<b>sweep", tags={"mxscale.run": "sweep"}).info.run_id
    client.set_terminated(parent)
    ids = []
    for ranks in (1, 2):
        for seed in (1, 2):
            figures = {"throughput/median": 300.0 * ranks**0.9 + seed, "best/val_top1": 90.0 + seed * ranks,
                       "cost/total_usd": 0.1 / ranks + seed / 100, "time/to_target_s": 10.0, "cost/usd_to_target": 0.1,
                       "time/compute_median": 0.1, "time/exchange_median": 0.01, "time/data_wait_median": 0.01,
                       "plan/images_per_s": 310.0 * ranks}  # fmt: skip
            if ranks == 2:
                figures["scaling/efficiency"] = 0.93
            one = run(f"<i>{ranks}-{seed}", tags={"mlflow.parentRunId": parent}, metrics=figures, launch__ranks=ranks,
                      seed=seed, target_top1=90.0)  # fmt: skip
            ids.append(keep(client, made["sweep"], one))
    keep(client, made["sweep"], run("<u>broken", "FAILED", tags={"mlflow.parentRunId": parent}))
    keep(client, made["loose"], run("alone", metrics={"best/val_top1": 90.0}))
    unfinished = keep(client, made["failed"], run("gone", "FAILED"))
    return {"uri": uri, "client": client, "parent": parent, "ids": ids, "unfinished": unfinished, "made": made}


@pytest.fixture
def reported(capsys, tmp_path, monkeypatch):
    """Run `mxscale report`; (exit status, standard output, standard error)."""
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)

    def call(*overrides):
        status = main.main(["report", f"report.output={tmp_path}/out", *overrides])
        printed = capsys.readouterr()
        return status, printed.out, printed.err

    return call


def refused(answer, *words):
    status, _, error = answer
    assert (status, error.count("\n")) == (2, 1) and error.startswith("error: ")
    for word in words:
        assert word in error


def artifacts(store, run_id):
    return sorted(each.path for each in store["client"].list_artifacts(run_id, "report"))


def test_a_report_of_a_sweep_is_written_and_recorded_with_it(store, reported, tmp_path):
    status, out, _ = reported("report.experiment=sweep", f"tracking.uri={store['uri']}")
    names = ["accuracy_cost.png", "predicted.png", "report.csv", "report.html", "report.md", "throughput.png",
             "time.png", "to_target.png"]  # fmt: skip
    assert status == 0 and "5 runs, 4 finished, in 2 rows, 1 FAILED" in out
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == names
    assert artifacts(store, store["parent"]) == [f"report/{name}" for name in names]
    assert "| 2 ranks       |    2 |" in out and "93.0 %" in out
    page = (tmp_path / "out" / "report.html").read_text()
    assert page.count("<svg") == 5
    # one file: nothing is fetched, and what runs are called is no markup
    assert re.findall(r"(?:src|href)=\"([^\"]*)\"", re.sub(r"xlink:href=\"#[^\"]*\"", "", page)) == ["report.csv"]
    assert "&lt;u&gt;broken" in page and "<u>broken" not in page
    for path in (tmp_path / "out").glob("*.png"):
        assert path.read_bytes().startswith(b"\x89PNG")


def test_without_a_sweep_a_report_has_a_run_of_its_own_once(store, reported, tmp_path):
    for _ in range(2):
        status, out, _ = reported("report.experiment=loose", f"tracking.uri={store['uri']}")
        assert status == 0 and "1 run, 1 finished, in 1 row" in out
    found = store["client"].search_runs([store["made"]["loose"]], "tags.`mxscale.report` = 'loose'")
    assert [each.info.run_name for each in found] == ["report"]
    assert "report/report.html" in artifacts(store, found[0].info.run_id)
    text = (tmp_path / "out" / "report.md").read_text()
    assert "Accuracy against cost: not shown, no run has a cost: name a price" in text


@pytest.mark.parametrize("gone", ["deleted", "unknown"])
def test_a_report_is_not_kept_with_a_sweep_that_is_gone(store, reported, gone):
    client = store["client"]
    experiment = client.create_experiment(gone, client.get_experiment(store["made"]["loose"]).artifact_location)
    sweep = client.create_run(experiment, run_name="sweep").info.run_id if gone == "deleted" else "0" * 32
    for seed in (1, 2):
        keep(client, experiment, run(str(seed), seed=seed, tags={"mlflow.parentRunId": sweep}))
    if gone == "deleted":
        client.delete_run(sweep)
    status, out, _ = reported(f"report.experiment={gone}", f"tracking.uri={store['uri']}")
    [own] = client.search_runs([experiment], f"tags.`mxscale.report` = '{gone}'")
    assert status == 0 and f"recorded with run {own.info.run_id} of MLflow" in out
    assert "report/report.html" in artifacts(store, own.info.run_id)
    assert gone == "unknown" or artifacts(store, sweep) == []


def test_two_runs_side_by_side(store, reported, tmp_path):
    a, b = store["ids"][0], store["ids"][2]
    status, out, _ = reported(f"report.compare=[{a},{b}]", f"tracking.uri={store['uri']}")
    assert status == 0
    assert re.search(r"\| launch.ranks +\| 1 +\| 2 ", out) and "optimizer.lr" not in out
    assert re.search(r"\| best/val_top1 +\| +91 \| +92 \|", out)
    assert "&lt;i&gt;1-1" in (tmp_path / "out" / "compare.html").read_text()


def test_what_was_forecast_of_two_runs_is_no_setting_that_differs(store, reported):
    forecast = [{"plan/images_per_s": rate, "plan/hours": 1 / rate} for rate in (310.0, 620.0)]
    a, b = (keep(store["client"], store["made"]["loose"], run(str(n), metrics={"plan/images_per_s": 310.0}, **each))
            for n, each in enumerate(forecast))  # fmt: skip
    status, out, _ = reported(f"report.compare=[{a},{b}]", f"tracking.uri={store['uri']}")
    assert status == 0 and "## Settings\n\nThe same." in out
    assert re.search(r"\| plan/images_per_s +\| +310 \| +310 \|", out)  # a figure
    for kept in (a, b):
        store["client"].delete_run(kept)


def test_run_directories_side_by_side_need_no_store(reported, tmp_path):
    made = []
    for lr in (0.1, 0.2):
        one = directory.create(from_dict({"runs": str(tmp_path), "optimizer": {"lr": lr}}))
        lines = [{"attempt": 1, "step": s, "time_ms": s, "metrics": {"train/loss": lr * s}} for s in (1, 2)]
        one.metrics_file.write_text("".join(json.dumps(line) + "\n" for line in lines))
        one.write("status.json", {"state": "FINISHED", "attempts": [{"attempt": 1, "started_ms": 0, "ended_ms": 9}]})
        one.write("environment.json", {"tags": {"machine": "m"}, "machine": {"memory_gb": 10 * lr}, "python": "3.11"})
        made.append(one)
    status, out, _ = reported(f"report.compare=[{made[0]},{made[1]}]", "tracking.uri=http://127.0.0.1:9")
    assert status == 0
    assert re.search(r"\| optimizer.lr +\| 0.1 +\| 0.2 ", out) and re.search(
        r"\| machine.memory_gb +\| 1.0 +\| 2.0 ", out
    )
    assert "| python" not in out
    assert (tmp_path / "out" / "train_loss.png").is_file()
    assert history.curves_of(made[0], ["train/loss", "val/loss"]) == {"train/loss": [(1, 0.1), (2, 0.2)]}


# ---------------------------------------------------------------- what is refused


@pytest.mark.parametrize(
    "override, words",
    [
        ("report.experiment=swep", ["report.experiment=swep", "did you mean sweep?"]),
        ("report.experiment=failed", ["1 run, none finished, 1 FAILED"]),
        ("report.experiment=Default", ["0 runs"]),
        ("report.action=clams", ["report.action=clams", "claims"]),
        ("report.compare=[a]", ["expected two"]),
        ("report.compare=a", ["expected a list"]),
        ("+report.outptu=x", ["unknown key report.outptu: did you mean report.output?"]),
        ("report.output=null", ["report.output is missing"]),
        (f"report.compare=[{'a' * 32},{'b' * 32}]", ["a" * 32, "knows no run"]),
        ("report.compare=[no-such,run]", ["no-such", "knows no run"]),
    ],
)
def test_what_can_not_be_reported_is_one_line(store, reported, override, words):
    refused(reported(f"tracking.uri={store['uri']}", override), *words)


def test_an_unfinished_run_is_not_compared(store, reported):
    pair = f"report.compare=[{store['unfinished']},{store['ids'][0]}]"
    refused(reported(pair, f"tracking.uri={store['uri']}"), store["unfinished"], "not finished (FAILED)")


def test_a_store_that_is_not_there_is_not_made(reported, tmp_path):
    refused(reported(f"tracking.uri=sqlite:///{tmp_path}/none.db"), "there is no such file", "tracking.uri")
    assert not (tmp_path / "none.db").exists()


def test_a_store_of_another_version_is_left_as_it_is(reported, tmp_path):
    """MLflow itself would bring an older one's tables up to date without asking."""
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
def test_a_file_that_is_no_store_is_said_to_be_none(reported, tmp_path, content):
    (tmp_path / "x.db").write_bytes(content)
    refused(reported(f"tracking.uri=sqlite:///{tmp_path}/x.db"), "no store of MLflow's")


def test_a_server_that_is_down_is_one_line_in_seconds(reported):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        uri = f"http://127.0.0.1:{free.getsockname()[1]}"
    refused(reported(f"tracking.uri={uri}", "tracking.timeout_s=2"), uri, "connection refused")


def test_a_server_that_does_not_answer_is_given_up_in_time(reported):
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        uri = f"http://127.0.0.1:{silent.getsockname()[1]}"
        refused(reported(f"tracking.uri={uri}", "tracking.timeout_s=1"), uri, "no answer in time")


def test_claims_are_listed_where_nothing_was_ever_recorded(reported, tmp_path):
    status, out, _ = reported("report.action=claims", f"runs={tmp_path}/none")
    assert status == 0 and "0 measured here" in out
    assert (tmp_path / "out" / "claims.md").is_file() and not (tmp_path / "none").exists()
    given = reported("report.action=claims", f"tracking.uri=sqlite:///{tmp_path}/none.db")
    refused(given, "there is no such file")


def test_a_run_in_a_store_measures_nothing_by_its_tag_alone(store, reported):
    """A shrunk run of the experiment, on a CPU."""
    tags = {"claims": "finetune-cost in15-time"}
    kept = keep(store["client"], store["made"]["loose"], run("shrunk", tags=tags, metrics={"cost/total_eur": 0.01}))
    status, out, _ = reported("report.action=claims", f"tracking.uri={store['uri']}", "report.experiment=loose")
    assert status == 0 and "0 measured here" in out
    assert " ".join(out.split()).count(f"run {kept} carries it, under other conditions: a CPU, not") == 2
    store["client"].delete_run(kept)


def test_the_store_of_a_report_is_the_one_that_runs_are_recorded_in(monkeypatch, tmp_path):
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    config = from_dict({"runs": str(tmp_path)})
    assert tracker.store_uri(config) == f"sqlite:///{tmp_path}/mlflow.db"
