"""Claims: which runs measure a published figure, verdicts, committed results, models, and the page of the works."""

import csv
import dataclasses
import functools
import re
import shlex

import pytest
from composed import composed
from recorded import run
from repository import ROOT

from mxscale.config.schema import flatten, to_dict
from mxscale.records import claims
from mxscale.records.claims import AGREES, DISAGREES, ELSEWHERE, INCONCLUSIVE, MEASURED, MODELLED, NEITHER, REDUCED
from mxscale.report import claims as shown
from mxscale.util import csv_tables
from tools import modelled_claims

IDS = list(claims.known())

# The recorded settings of a run of ResNet-152 on 8 K80
K80 = {"launch__ranks": 8, "data__kind": "caltech256", "model__name": "symbol", "epochs": 6, "batch__per_device": 16,
       "model__pretrained": "symbol:data/models/resnet-152", "optimizer__name": "sgd", "optimizer__momentum": 0.0,
       "comm__backend": "device"}  # fmt: skip
SIZES = {"steps/total": 720, "batch/global": 128, "lr/effective": 0.01}  # 6 x 15,360 images


@pytest.fixture(autouse=True)
def results(monkeypatch):
    """Replace tables/measured_claims.csv by the text of a file, at first without results."""
    read = csv_tables.read

    def of(text=""):
        rows = list(csv.DictReader([",".join(shown.COLUMNS), *text.splitlines()]))
        monkeypatch.setattr(csv_tables, "read", lambda name: rows if name == "measured_claims" else read(name))

    of()
    return of


def tagged(*ids, gpu="Tesla K80", status="FINISHED", name="run", metrics=None, **params):
    tags = {"claims": " ".join(ids), **({"gpu": gpu} if gpu else {})}
    return run(name, status, tags=tags, metrics=metrics, **{**K80, **SIZES, **params})


def of(name, *runs, models=None):
    return next(
        one
        for one in claims.outcomes(runs, models or {}, claims.small_trials(runs), claims.committed())
        if one.row["id"] == name
    )


def figure_of(name, *runs, state=MEASURED):
    """Return (values, run ids, verdict) of a claim's figure."""
    found = of(name, *runs)
    return found.figures[state].values, found.figures[state].runs, found.verdict(state)


def test_models_are_of_claims():
    assert set(claims.modelled()) <= set(IDS)


@pytest.mark.parametrize("column", ["how", "reduced"])
def test_every_way_to_measure_is_a_calculation(column):
    ways = {row[column].split()[0] for row in claims.known().values() if row[column]}
    assert ways - {claims.SOURCE_FACT} <= set(claims.CALCULATIONS)


def test_runs_under_the_conditions_measure_the_claim():
    runs = [tagged("finetune-acc-6ep", name=f"r{n}", seed=n, metrics={"val/top1": 86.0 + n / 4}) for n in (1, 2, 3)]
    found = of("finetune-acc-6ep", *runs)
    assert figure_of("finetune-acc-6ep", *runs) == ([86.25, 86.5, 86.75], ["r1", "r2", "r3"], AGREES)
    assert shown.state(found) == "measured, agrees"
    assert shown.here(found) == "86.5 % (86.25 to 86.75, n = 3); Tesla K80 (a CPU, 2 cores, 0 GPUs); 2023-11-14"


def test_fewer_than_three_runs_are_inconclusive():
    runs = [tagged("finetune-acc-6ep", name=f"r{n}", metrics={"val/top1": 86.5}) for n in (1, 2)]
    assert shown.state(of("finetune-acc-6ep", *runs)) == "measured, inconclusive"


@pytest.mark.parametrize(
    "changed, why",
    [
        ({"launch__ranks": 2}, "devices=2, not 8"),
        ({"epochs": 1}, "epochs=1, not 6"),
        ({"steps/total": 1}, "images/per_epoch=21, not >=14935"),
        ({"data__kind": "digits"}, "data.kind=digits, not caltech256"),
        ({"lr/effective": 0.04}, "lr/per_device=0.005, not 0.00125"),
        ({"batch__per_device": 32}, "batch.per_device=32, not 16"),
        ({"optimizer__name": "nag"}, "optimizer.name=nag, not sgd"),
        ({"comm__backend": "horovod"}, "comm.backend=horovod, not device"),
        ({"model__pretrained": "symbol:x/resnet-50"}, "not resnet-152"),
        ({"status": "FAILED"}, "it is FAILED"),
    ],
)
def test_run_under_other_conditions_measures_nothing(changed, why):
    found = of("finetune-acc-6ep", tagged("finetune-acc-6ep", metrics={"val/top1": 86.5}, **changed))
    assert (found.state, found.figures, found.verdict(MEASURED)) == (NEITHER, {}, None)
    [(run_id, reason)] = found.other
    assert run_id == "run" and why in reason
    assert f"run run has its tag, but under other conditions: {reason}" in shown.in_markdown([found])


@pytest.mark.parametrize("name", ["finetune-time-6ep", "finetune-cost"])
@pytest.mark.parametrize("changed", [{"gpu": None}, {"gpu": "Tesla V100-SXM2-16GB"}, {"launch__device": "cpu"}])
def test_times_on_other_hardware_measure_nothing(name, changed):
    figures = {"time/wall_s": 600.0, "cost/total_eur": 2.0}
    found = of(name, tagged(name, machine__instance="p2.8xlarge", metrics=figures, **changed))
    assert found.state == NEITHER and "not K80" in found.other[0][1]


MNIST = {"gpu": None, "launch__ranks": 2, "lr/effective": 0.02, "data__kind": "mnist", "model__name": "mnist_convnet",
         "comm__backend": "horovod", "comm__transport": "mpi", "batch__per_device": 64, "optimizer__momentum": 0.9,
         "steps/total": 100, "log_every": 50}  # fmt: skip


def of_mnist(*values, **changed):
    return [tagged("mnist-2procs-acc", name=f"r{n}", metrics={"train/top1": value}, **{**MNIST, **changed})
            for n, value in enumerate(values)]  # fmt: skip


def test_runs_on_another_machine_are_no_reproduction():
    found = of("mnist-2procs-acc", *of_mnist(93.4, 93.5, 93.6))
    assert (found.state, found.verdict(ELSEWHERE)) == (ELSEWHERE, DISAGREES)
    assert found.figures[ELSEWHERE].hardware == "a CPU, 2 cores"
    page = shown.in_markdown([found])
    assert "**measured on other hardware**: 93.5 % (93.4 to 93.6, n = 3); a CPU, 2 cores" in page
    assert "needs the laptop, which is not named" in page and "1 measured on other hardware" in page


@pytest.mark.parametrize("changed", [{"comm__transport": "gloo"}, {"log_every": 100}, {"launch__ranks": 1}])
def test_published_accuracy_of_mnist_is_of_two_ranks_over_mpi_in_its_window(changed):
    assert of("mnist-2procs-acc", *of_mnist(87.5, **changed)).state == NEITHER


def test_runs_on_the_published_hardware_take_precedence():
    there, elsewhere = (tagged("finetune-acc-6ep", name=gpu, gpu=gpu, metrics={"val/top1": 86.5})
                        for gpu in ("Tesla K80", "Tesla V100"))  # fmt: skip
    found = of("finetune-acc-6ep", elsewhere, there)
    assert (found.state, list(found.figures)) == (MEASURED, [MEASURED, ELSEWHERE])


def test_only_runs_of_the_newest_other_machine_are_an_interval():
    runs = of_mnist(87.5, 88.0, 93.0)
    runs[0] = dataclasses.replace(runs[0], started_ms=1, tags={**runs[0].tags, "machine": "an old CPU"})
    found = of("mnist-2procs-acc", *runs)
    assert found.figures[ELSEWHERE].values == [88.0, 93.0]
    assert found.other == [("r0", "newer runs are on another machine")]


def test_diagnosis_on_gpus_measures_the_input_gap():
    gaps = {"metrics": {"diagnose/gap": 0.04}, "launch__ranks": 1}
    there = tagged("io-gap-1", "io-gap-32", name="there", entry="diagnose", **gaps)
    on_cpu = tagged("io-gap-1", name="here", gpu=None, entry="diagnose", **gaps)
    training = tagged("io-gap-1", name="training", **gaps)
    assert figure_of("io-gap-1", there, on_cpu, training) == ([4.0], ["there"], INCONCLUSIVE)
    other = of("io-gap-1", there, on_cpu, training).other
    assert dict(other) == {"here": "device=cpu, not gpu", "training": "entry=train, not diagnose"}
    assert not of("io-gap-32", there).figures


@pytest.mark.parametrize("kind", ["caltech256", "imagefolder"])
def test_input_is_compared_at_three_threads_and_the_published_size(kind):
    """On photographs of the user too: the processor of 2017 is not stated, so each is another one."""
    rate = {"metrics": {"io/images_per_s": 1600.0}, "gpu": None, "entry": "test-io", "data__reader": "record_iter",
            "data__kind": kind, "data__pack_short_side": 256, "data__image_size": 224, "data__augment__crop": "random",
            "data__augment__flip": True}  # fmt: skip
    there = [tagged("test-io", name=f"r{n}", io__threads="[3]", **rate) for n in range(3)]
    more = tagged("test-io", name="more", io__threads="[1,2,4]", **rate)
    assert figure_of("test-io", *there, more, state=ELSEWHERE) == ([1600.0] * 3, ["r0", "r1", "r2"], AGREES)
    assert of("test-io", more).other == [("more", "io.threads=[1,2,4], not [3]")]
    size = tagged("test-io", io__threads="[3]", **{**rate, "data__pack_short_side": "original"})
    assert of("test-io", size).other == [("run", "data.pack_short_side=original, not 256")]


def test_run_without_the_tag_measures_nothing():
    found = of("finetune-acc-6ep", tagged("finetune-acc-1ep", metrics={"val/top1": 86.5}))
    assert (found.state, found.other) == (NEITHER, [])


def test_run_without_the_metric_is_reported():
    assert of("finetune-acc-6ep", tagged("finetune-acc-6ep")).other == [("run", "it alone gives no value val/top1")]


def test_spread_needs_two_cases():
    def cases(batch, *accuracies):
        return [tagged("finetune-spread", name=f"{batch}-{n}", epochs=1, batch__per_device=batch,
                       metrics={"val/top1": value}, **{"steps/total": 120})
                for n, value in enumerate(accuracies)]  # fmt: skip

    assert of("finetune-spread", *cases(16, 83.0, 84.0)).other[0] == ("16-0", "it alone gives no spread val/top1")
    values, runs, verdict = figure_of("finetune-spread", *cases(16, 83.0, 83.2, 83.1), *cases(32, 83.4, 83.4, 83.4))
    assert (values, verdict) == (pytest.approx([0.4, 0.2, 0.3]), AGREES)
    assert runs == ["16-0", "32-0", "16-1", "32-1", "16-2", "32-2"]


def test_slowdown_is_of_pairs_in_order_of_their_start():
    """96.5 images/s with nccl, 100 with device: 3.5 % slower, published 3 to 4."""
    common = {"gpu": "Tesla V100-SXM2-16GB", "launch__ranks": 4, "epochs": 1}
    rates = {"nccl": (96.5, 193.0, 95.9), "device": (100.0, 200.0, 100.0)}
    runs = [dataclasses.replace(tagged("kvstore-nccl", name=f"{comm}{n}", comm__backend=comm,
                                       metrics={"throughput/median": rate}, **common), started_ms=n)
            for comm, of_comm in rates.items() for n, rate in enumerate(of_comm)]  # fmt: skip
    values, ids, verdict = figure_of("kvstore-nccl", *reversed(runs))
    assert (values, verdict) == (pytest.approx([3.5, 3.5, 4.1]), INCONCLUSIVE)
    assert ids == ["nccl0", "device0", "nccl1", "device1", "nccl2", "device2"]
    assert of("kvstore-nccl", runs[0]).state == NEITHER


def test_runs_with_other_batches_are_no_pair():
    common = {"launch__ranks": 4, "epochs": 1, "gpu": "Tesla V100"}
    runs = [tagged("kvstore-nccl", name=f"{comm}{batch}", comm__backend=comm, batch__per_device=batch,
                   metrics={"throughput/median": rate}, **common)
            for comm, batch, rate in (("device", 16, 410.0), ("nccl", 32, 505.0))]  # fmt: skip
    assert of("kvstore-nccl", *runs).state == NEITHER


def test_values_are_in_the_unit_of_the_claim():
    one_epoch = {"epochs": 1, "steps/total": 120}
    efficiency = tagged("finetune-eff-r152", metrics={"scaling/efficiency": 0.955}, **one_epoch)
    assert figure_of("finetune-eff-r152", efficiency)[0] == [95.5]
    minutes = tagged("finetune-time-6ep", metrics={"time/wall_s": 660.0})
    assert figure_of("finetune-time-6ep", minutes)[0] == [11.0]


@pytest.mark.parametrize(
    "agrees, value, within",
    [
        (">=83.0 <=83.4", 83.4, True),
        (">=83.0 <=83.4", 83.5, False),
        (">=86 <=87", 86.0, True),
        (">=86 <=87", 85.9, False),
        (">=-2 <=2", -1.9, True),
        (">=-2 <=2", -2.1, False),
        ("<2.5", 2.46, True),
        ("<2.5", 2.5, False),
        ("<=20", 20.0, True),
        (">1500", 1499.0, False),
        (">1500", 1500.0, False),
        (">=192", 192.0, True),
    ],
)
def test_tolerance_has_its_bounds(agrees, value, within):
    assert claims.holds(agrees, value) is within


@pytest.mark.parametrize(
    "values, verdict",
    [
        ([83.0, 83.2, 83.4], AGREES),
        ([82.9, 83.2, 83.4], INCONCLUSIVE),
        ([82.0, 82.5, 82.9], DISAGREES),
        ([82.0, 83.9, 84.0], INCONCLUSIVE),
        ([83.2, 83.2], INCONCLUSIVE),
        ([60.0], INCONCLUSIVE),
    ],
)
def test_interval_of_at_least_three_values_decides(values, verdict):
    assert claims.verdict(">=83.0 <=83.4", values) == verdict
    assert claims.verdict("", values) is None


@pytest.mark.parametrize(
    "bounds, words", [(">=94 <=98", "94 to 98"), (">=2 <=2", "2"), (">1500", "over 1500"), ("<=20", "at most 20")]
)
def test_tolerance_in_words(bounds, words):
    assert shown.tolerance(bounds) == words


@pytest.mark.parametrize("name, published", [("finetune-acc-6ep", "86.5"), ("kvstore-nccl", "3.5"), ("io-gap-1", "5")])
def test_the_published_value_agrees_with_itself(name, published):
    assert claims.verdict(claims.known()[name]["agrees"], 3 * [float(published)]) == AGREES


def test_measured_value_precedes_the_model():
    models = {"finetune-acc-6ep": claims.Modelled(80.0, "80 %", "none")}
    run_of = tagged("finetune-acc-6ep", metrics={"val/top1": 86.5})
    assert shown.state(of("finetune-acc-6ep", models=models)) == "modelled value disagrees"
    both = of("finetune-acc-6ep", run_of, models=models)
    assert (both.state, both.verdict(MODELLED)) == (MEASURED, DISAGREES)
    assert "modelled: 80 % (none)" in shown.here(both)


COMMITTED = """mnist-2procs-acc,measured on other hardware,93.4 93.5 93.6,"a CPU, 2 cores",2026-11-27,python x,Gloo 93
ps-1-server,reduced scale,0.4 0.5 0.6,"a CPU, 2 cores",2026-11-27,,"""


def test_committed_results_are_shown_without_runs(results):
    results(COMMITTED)
    found, small = of("mnist-2procs-acc"), of("ps-1-server")
    assert (shown.state(found), small.state) == ("measured on other hardware, disagrees", REDUCED)
    assert shown.here(found) == "93.5 % (93.4 to 93.6, n = 3); a CPU, 2 cores; 2026-11-27; Gloo 93"
    assert "one server has 0.50 of Horovod's images/s (0.40 to 0.60, n = 3); agrees if under 1" in shown.here(small)
    page = shown.in_markdown([found, small])
    assert "`python x`" in page and "`mxscale replay aws-scaling scale=small`" in page


def test_own_runs_replace_a_committed_result(results):
    results(COMMITTED)
    found = of("mnist-2procs-acc", *of_mnist(87.5))
    assert (found.figures[ELSEWHERE].values, found.verdict(ELSEWHERE)) == ([87.5], INCONCLUSIVE)


def test_results_are_written_as_they_are_read(results):
    results(COMMITTED)
    written = shown.measurements(claims.outcomes([], {}, {}, claims.committed()))
    assert sorted(written.splitlines()[1:]) == sorted(COMMITTED.splitlines())


def test_committed_results_are_of_claims_and_states(monkeypatch):
    monkeypatch.undo()
    for row in csv_tables.read("measured_claims"):
        assert row["id"] in IDS and row["state"] in claims.BY_RUNS and row["hardware"], row
        assert re.fullmatch(r"20\d\d-\d\d-\d\d", row["date"]) and row["values"].split(), row
    assert (csv_tables.FOLDER / "measured_claims.csv").read_text().startswith(",".join(shown.COLUMNS) + "\n")


def test_bill_of_twenty_minutes_follows_from_prices():
    """20 min x 7.2 USD/h = 2.40 USD, 7.776: 2.592 USD; at 1.1753 USD per EUR on that day."""
    found = of("finetune-cost", models=claims.modelled())
    assert (found.state, found.verdict(MODELLED)) == (MODELLED, AGREES)
    assert found.modelled.value == pytest.approx(2.592 / 1.1753, abs=1e-3)
    assert "2.04 EUR in us-east-1" in found.modelled.text


def test_planner_models_follow_from_the_conditions():
    """64 V100 at 0.78 of 1,437 images/s each; dedicated servers cost extra machines."""
    models = claims.modelled()
    rate = of("hvd-64-throughput", models=models)
    assert (rate.state, rate.verdict(MODELLED)) == (MODELLED, DISAGREES)  # 45,000 published
    assert 60 * 1_281_167 * 90 / rate.modelled.value / 3600 == pytest.approx(models["hvd-64-time"].value, rel=0.01)
    assert models["ps-1-server"].value < 50
    assert "claim holds" in models["hvd-cheapest"].text and "claim holds" in models["p3-cheaper"].text
    assert re.search(r"published rate: median \d+ %, 90 % within \d+ % \(\d+ rows, each without", rate.modelled.error)
    assert re.fullmatch(r"scaling over TCP: median \d+ %, 90 % within \d+ % \(.+\)", models["ps-1-server"].error)


def test_table_of_models_is_up_to_date():
    """Regenerate with: python tools/modelled_claims.py > mxscale/tables/modelled_claims.csv"""
    assert (csv_tables.FOLDER / "modelled_claims.csv").read_text() == modelled_claims.table()


def test_claims_of_other_frameworks_are_not_measured():
    runs = [run(tags={"claims": name}, metrics={"time/wall_s": 60.0}) for name in IDS if name.startswith("table-")]
    assert len(runs) == 5
    assert all(of(one.tags["claims"], one).state != MEASURED for one in runs)


def test_claims_without_runs_list_their_requirements():
    found = claims.outcomes([], claims.modelled(), {}, claims.committed())
    assert [one.row["id"] for one in found] == IDS
    assert not any(one.state == MEASURED for one in found)
    text, page = shown.in_text(found), shown.in_markdown(found)
    for one in found:
        assert one.row["id"] in text and one.row["needs"]
        assert one.row["command"] in page


COMMANDS = {}  # command of a training run -> claims that its runs must have
CONDITIONS = claims.known()
for row in CONDITIONS.values():
    if re.match("mxscale (train|finetune) ", row["command"]):
        COMMANDS.setdefault(row["command"], set()).update(
            {row["id"]} if row["how"] not in ("", claims.SOURCE_FACT) else ()
        )


def cells(command):
    """Return the configs of a command: one, or the first and the last cell of a sweep."""
    words = shlex.split(command)
    placed = {"TRAIN.rec": "/x.rec", "VAL.rec": "/y.rec"}
    overrides = [re.sub(r"TRAIN.rec|VAL.rec", lambda m: placed[m[0]], word) for word in words[2:] if word != "-m"]
    overrides = [word.replace("...", "c:8") for word in overrides]
    for at in (0, -1) if "-m" in words else (0,):
        cell = [_choice(word, at) if "-m" in words else word for word in overrides]
        yield composed(words[1], *cell)


@pytest.mark.parametrize("command", COMMANDS)
def test_command_of_a_claim_composes_with_its_tag(command):
    assert all(COMMANDS[command] <= set(config.claims) for config in cells(command))


def _choice(word, at):
    key, _, values = word.partition("=")
    if "[" in values or "," not in values:
        return word
    return f"{key}={values.split(',')[at]}"


def recorded(config, conditions, devices, **changed):
    """Return a run of `config` on the published hardware, of which `changed` settings differ."""
    values = {**flatten(to_dict(config)), **{key.replace("__", "."): value for key, value in changed.items()}}
    batch = values["batch.per_device"] * devices
    lr = values["optimizer.lr"] * batch / (config.schedule.reference_batch or batch)
    images = int(conditions.get("images/per_epoch", batch))
    values["model.name"] = values["model.name"] or "symbol"  # as the preparation finds it in the weights
    sizes = {"steps/total": values["epochs"] * images // batch, "batch/global": batch, "lr/effective": lr}
    return run(tags={"gpu": conditions.get("gpu", "Tesla K80"), "ranks": str(devices)}, **{**values, **sizes})


RATES = ["finetune-eff-r152", "finetune-eff-r50", "hvd-64-throughput", "ps-1-server"]
LENGTHS = ["finetune-acc-1ep", "finetune-spread", "finetune-acc-6ep", "finetune-time-6ep", "finetune-cost",
           "finetune-acc-r50", "hvd-64-time", "hvd-64-acc", "in15-time", "in15-acc"]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", RATES + LENGTHS)
def test_only_the_published_settings_count_as_a_measurement(name):
    wanted = CONDITIONS[name]
    conditions = dict(claims.CONDITION.fullmatch(text).group(1, 3) for text in wanted["settings"].split())
    changes = [{"batch__per_device": 17}, {"optimizer__name": "adam"}, {"comm__backend": "kvstore_local"}]
    changes += [{"epochs": 7}] if name in LENGTHS else []
    for config in cells(wanted["command"]):
        for devices in map(int, conditions["devices"].split("|")):
            made = functools.partial(recorded, config, conditions, devices)
            assert claims.differences(made(), wanted) == []
            for change in [*changes, {"optimizer__lr": 3 * config.optimizer.lr}]:
                assert claims.differences(made(**change), wanted), change


def test_pages_have_the_counts_and_results_of_the_tables(monkeypatch):
    """Regenerate with: mxscale report report.action=claims report.output=docs runs=NEW_FOLDER"""
    monkeypatch.undo()
    found = claims.outcomes([], claims.modelled(), {}, claims.committed())
    assert (ROOT / "docs" / "published-works.md").read_text() == shown.in_markdown(found)
    readme = " ".join((ROOT / "README.md").read_text().replace("\n>", " ").split())
    assert f"{shown.counts(found)} ([results](docs/published-works.md))." in readme


def test_every_work_is_cited_with_its_address():
    page = shown.in_markdown(claims.outcomes([], {}, {}, claims.committed()))
    readme = (ROOT / "README.md").read_text()
    for row in csv_tables.read("published_works"):
        assert f"[{row['title']}]({row['address']})" in page
    assert {row["work"] for row in csv_tables.read("published_works")} == {
        row["work"] for row in claims.known().values()
    }
    assert all(address in page for address in re.findall(r"^\[[A-Za-z]+ \d{4}\]: (\S+)$", readme, re.MULTILINE))
