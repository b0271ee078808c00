"""Rows, figures and tables of reports."""

import csv
import io
import math

import pytest
from recorded import run

from mxscale.records import recorded as records
from mxscale.report import experiment as report
from mxscale.report import figures
from mxscale.util import text_table


def rows(*runs):
    return records.rows(runs)


def test_runs_with_other_seeds_are_one_row():
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


def test_name_and_place_do_not_separate_rows():
    a = run(name="a", runs="/here", data__cache="/c", tracking__experiment="x", claims="[]")
    b = run(name="b", runs="/there", data__cache="/d", tracking__experiment="y", claims="['io-gap-1']")
    assert len(rows(a, b)) == 1


def test_removed_settings_without_an_effect_do_not_separate_rows():
    old = run("old", comm__timeline=True, evaluation="full", comm__update_on="worker", comm__threshold=0.5,
              comm__hierarchical=False, data__augment__policy="none")  # fmt: skip
    assert len(rows(old, run("new"))) == 1
    assert len(rows(old, run("on servers", comm__update_on="server"))) == 2


def test_rerun_is_in_the_row_of_its_first_run():
    """A rerun has the device and the threads that auto and null resolved to."""
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
def test_other_machine_build_or_data_is_another_row(tags):
    assert len(rows(run("a"), run("b", tags=tags))) == 2


def test_forecast_does_not_separate_rows():
    forecast = {"plan/images_per_s": 320.0, "plan/hours": 0.1}
    assert len(rows(run(seed=1), run(seed=2, **forecast), run(seed=3, **{**forecast, "plan/usd": 1.0}))) == 1


def test_unfinished_runs_are_in_no_row():
    found = rows(run("a", metrics={"best/val_top1": 90.0}), run("b", "FAILED", metrics={"best/val_top1": 1.0}, seed=2))
    assert [row.median("best/val_top1") for row in found] == [90.0]


def test_labels_are_minimal_and_rows_sorted():
    pairs = [(lr, ranks) for lr in (0.1, 0.05) for ranks in (10, 2)]
    runs = [run(optimizer__lr=lr, optimizer__momentum=lr, launch__ranks=ranks) for lr, ranks in pairs]
    assert [row.label for row in rows(*runs)] == [
        "2 ranks lr=0.05", "2 ranks lr=0.1", "10 ranks lr=0.05", "10 ranks lr=0.1",
    ]  # fmt: skip


def test_setting_changed_by_a_resume_counts():
    changed = run(launch__ranks=4, tags={"resumed.launch.ranks": "2", "ranks": "2"})
    assert (changed.devices, records.settings(changed)["launch.ranks"]) == (2, "2")


def test_devices_of_an_older_record_follow_from_its_batch():
    without_tag = {"tags": {"ranks": ""}, "launch__ranks": "auto", "batch__per_device": 16}
    assert run(**without_tag).devices == 4  # 64 = 16 x 4
    assert run(**without_tag, data__shards=4).devices is None  # four shards: one rank or four


def test_unrecorded_value_is_a_dash():
    found = rows(
        run("a", metrics={"cost/total_usd": 0.5}), run("b", launch__ranks=1, metrics={"cost/total_usd": math.nan})
    )
    headings, cells = report.table(found)
    at = headings.index("USD")
    assert sorted(line[at] for line in cells) == ["0.5000", "–"]
    assert "EUR" not in headings


def test_runs_that_missed_the_target_are_counted():
    def cell(*seconds):
        runs = [run(f"{n}", seed=n, target_top1=90.0, metrics={"time/to_target_s": s} if s else {})
                for n, s in enumerate(seconds)]  # fmt: skip
        column = next(column for column in report.COLUMNS if column.heading == "to target")
        return report.cell(rows(*runs)[0], column)

    assert cell(30.0, 50.0) == "40.0 s (30.0–50.0 s)"
    assert cell(30.0, None, 50.0) == "40.0 s (30.0–50.0 s), 2 of 3 runs"
    assert cell(30.0, None, None) == "30.0 s, 1 of 3 runs"
    assert cell(None, None) == "–"


def test_series_differ_only_in_the_devices():
    rate = {"throughput/median": 100.0}
    runs = [run(launch__ranks=n, launch__threads=2 // n, comm__backend=c, metrics=rate)
            for n in (2, 1) for c in ("horovod", "parameter_server") if (n, c) != (1, "parameter_server")]  # fmt: skip
    found = records.device_series(rows(*runs))
    assert [(label, [row.devices for row in group]) for label, group in found] == [
        ("horovod", [1, 2]), ("parameter_server", [2]),
    ]  # fmt: skip


def test_rows_with_as_many_devices_are_series_by_their_threads():
    rate = {"throughput/median": 100.0}
    runs = [run(launch__ranks=n, launch__threads=threads, metrics=rate) for n, threads in ((1, 2), (1, 1), (2, 1))]
    assert [[row.devices for row in group] for _, group in records.device_series(rows(*runs))] == [[1, 2], [1]]


def test_rows_with_as_many_devices_are_series_by_their_hosts():
    rate = {"throughput/median": 100.0}
    runs = [run(launch__ranks=4, launch__hosts=hosts, metrics=rate) for hosts in ("None", "['a:2', 'b:2']")]
    assert [[row.devices for row in group] for _, group in records.device_series(rows(*runs))] == [[4], [4]]


def test_series_of_one_size_are_drawn():
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
def test_pareto_front(points, front):
    assert records.pareto_front(points) == front


def test_csv_has_unrounded_values_and_varied_settings():
    runs = [run(f"r{n}", seed=n, optimizer__lr=lr, metrics={"cost/total_usd": 0.1 / 3 + n})
            for lr in (0.1, 0.2) for n in (1, 2)]  # fmt: skip
    lines = list(csv.DictReader(io.StringIO(report.as_csv(rows(*runs)))))
    assert [line["optimizer.lr"] for line in lines] == ["0.1", "0.2"]
    assert float(lines[0]["cost/total_usd.min"]) == 0.1 / 3 + 1
    assert (lines[0]["seeds"], lines[0]["run_ids"]) == ("1 2", "r1 r2")


def test_markdown_escapes_a_bar():
    assert text_table.markdown(["a"], [["x|y"]]).splitlines()[2] == "| x\\|y |"
