"""Claims: which runs measure a published figure, models, and the page of claims."""

import functools
import re
import shlex

import pytest
from composed import composed
from recorded import run
from repository import ROOT

from mxscale.config.schema import flatten, to_dict
from mxscale.records import claims
from mxscale.records.claims import MEASURED, MODELLED, NEITHER
from mxscale.report import claims as shown
from mxscale.util import csv_tables
from tools import modelled_claims

IDS = list(claims.known())

# The recorded settings of a run of ResNet-152 on 8 K80
K80 = {"launch__ranks": 8, "data__kind": "caltech256", "model__name": "symbol", "epochs": 6, "batch__per_device": 16,
       "model__pretrained": "symbol:data/models/resnet-152", "optimizer__name": "sgd", "optimizer__momentum": 0.0,
       "comm__backend": "device"}  # fmt: skip
SIZES = {"steps/total": 720, "batch/global": 128, "lr/effective": 0.01}  # 6 x 15,360 images


def tagged(*ids, gpu="Tesla K80", status="FINISHED", name="run", metrics=None, **params):
    tags = {"claims": " ".join(ids), **({"gpu": gpu} if gpu else {})}
    return run(name, status, tags=tags, metrics=metrics, **{**K80, **SIZES, **params})


def of(name, *runs, models=None):
    return next(one for one in claims.outcomes(runs, models or {}, {}) if one.row["id"] == name)


def test_models_are_of_claims():
    assert set(claims.modelled()) <= set(IDS)


@pytest.mark.parametrize("column", ["how", "reduced"])
def test_every_way_to_measure_is_a_calculation(column):
    ways = {row[column].split()[0] for row in claims.known().values() if row[column]}
    assert ways - {claims.SOURCE_FACT} <= set(claims.CALCULATIONS)


def test_run_under_the_conditions_measures_the_claim():
    found = of("finetune-acc-6ep", tagged("finetune-acc-6ep", metrics={"val/top1": 86.2}))
    assert (found.state, found.measured.value, found.measured.runs, found.within) == (MEASURED, 86.2, ["run"], True)
    assert shown.state(found) == "measured, within tolerance (>=86 <=87)"


def test_median_of_several_runs_counts():
    runs = [tagged("finetune-acc-6ep", name=f"r{n}", seed=n, metrics={"val/top1": 84.0 + n}) for n in (1, 2, 3)]
    found = of("finetune-acc-6ep", *runs)
    assert (found.measured.value, found.measured.runs, found.within) == (86.0, ["r1", "r2", "r3"], True)


@pytest.mark.parametrize(
    "changed, why",
    [
        ({"gpu": None}, "gpu=none, not K80"),
        ({"gpu": "Tesla V100-SXM2-16GB"}, "gpu=Tesla V100-SXM2-16GB, not K80"),
        ({"launch__device": "cpu"}, "gpu=none, not K80"),
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
    assert (found.state, found.measured.value, found.measured.runs, found.within) == (NEITHER, None, [], None)
    [(run_id, reason)] = found.measured.other
    assert run_id == "run" and why in reason
    assert f"run run has its tag, but under other conditions: {reason}" in shown.in_markdown([found])


def test_diagnosis_on_gpus_measures_the_input_gap():
    gaps = {"metrics": {"diagnose/gap": 0.04}, "launch__ranks": 1}
    there = tagged("io-gap-1", "io-gap-32", name="there", entry="diagnose", **gaps)
    on_cpu = tagged("io-gap-1", name="here", gpu=None, entry="diagnose", **gaps)
    training = tagged("io-gap-1", name="training", **gaps)
    found = of("io-gap-1", there, on_cpu, training)
    assert (found.measured.value, found.measured.runs, found.within) == (4.0, ["there"], True)
    assert dict(found.measured.other) == {"here": "device=cpu, not gpu", "training": "entry=train, not diagnose"}
    assert not of("io-gap-32", there).measured.runs


def test_measured_input_is_compared_at_three_threads():
    rate = {"metrics": {"io/images_per_s": 1600.0}, "gpu": None, "entry": "test-io", "data__reader": "record_iter"}
    there = tagged("test-io", name="there", io__threads="[3]", **rate)
    more = tagged("test-io", name="more", io__threads="[1,2,4]", **rate)
    found = of("test-io", there, more)
    assert (found.measured.value, found.measured.runs, found.within) == (1600.0, ["there"], True)
    assert found.measured.other == [("more", "io.threads=[1,2,4], not [3]")]


def test_run_without_the_tag_measures_nothing():
    found = of("finetune-acc-6ep", tagged("finetune-acc-1ep", metrics={"val/top1": 86.5}))
    assert (found.state, found.measured.other) == (NEITHER, [])


def test_run_without_the_metric_is_reported():
    assert of("finetune-acc-6ep", tagged("finetune-acc-6ep")).measured.other == [("run", "it has no val/top1")]


def test_spread_needs_two_cases():
    accuracy = {"metrics": {"val/top1": 83.0}, "epochs": 1, "steps/total": 120}
    one = tagged("finetune-spread", **accuracy)
    assert of("finetune-spread", one).measured.other == [("run", "one case has no spread")]
    accuracy["metrics"] = {"val/top1": 83.4}
    other = tagged("finetune-spread", name="b", batch__per_device=32, **accuracy)
    found = of("finetune-spread", one, other)
    assert found.measured.value == pytest.approx(0.4) and found.within


def test_slowdown_needs_two_kinds_of_run():
    """96.5 images/s with nccl, 100 with device: 3.5 % slower, published 3 to 4."""
    common = {"gpu": "Tesla V100-SXM2-16GB", "launch__ranks": 4, "epochs": 1}
    sides = [tagged("kvstore-nccl", name=c, comm__backend=c, metrics={"throughput/median": rate}, **common)
             for c, rate in (("nccl", 96.5), ("device", 100.0))]  # fmt: skip
    found = of("kvstore-nccl", *sides)
    assert found.measured.value == pytest.approx(3.5) and found.within and found.measured.runs == ["nccl", "device"]
    assert of("kvstore-nccl", sides[0]).state == NEITHER


def test_values_are_in_the_unit_of_the_claim():
    one_epoch = {"epochs": 1, "steps/total": 120}
    efficiency = tagged("finetune-eff-r152", metrics={"scaling/efficiency": 0.955}, **one_epoch)
    assert of("finetune-eff-r152", efficiency).measured.value == 95.5
    assert of("finetune-time-6ep", tagged("finetune-time-6ep", metrics={"time/wall_s": 660.0})).measured.value == 11.0


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
        ("", 300.0, None),
        (">=86 <=87", None, None),
    ],
)
def test_verdict(agrees, value, within):
    assert claims.verdict({"agrees": agrees}, value) is within


@pytest.mark.parametrize("name, published", [("finetune-acc-6ep", "86.5"), ("kvstore-nccl", "3.5"), ("io-gap-1", "5")])
def test_the_published_value_agrees_with_itself(name, published):
    assert claims.verdict(claims.known()[name], float(published))


def test_measured_value_precedes_the_model():
    models = {"finetune-acc-6ep": claims.Modelled(80.0, "80 %", "none")}
    run_of = tagged("finetune-acc-6ep", metrics={"val/top1": 86.5})
    assert of("finetune-acc-6ep", models=models).state == MODELLED
    both = of("finetune-acc-6ep", run_of, models=models)
    assert (both.state, both.within) == (MEASURED, True)


def test_bill_of_twenty_minutes_follows_from_prices():
    """20 min x 7.2 USD/h = 2.40 USD, 7.776: 2.592 USD; at 1.1753 USD per EUR on that day."""
    found = of("finetune-cost", models=claims.modelled())
    assert found.state == MODELLED and found.within
    assert found.modelled.value == pytest.approx(2.592 / 1.1753, abs=1e-3)
    assert "2.04 EUR in us-east-1" in found.modelled.text


def test_planner_models_follow_from_the_conditions():
    """64 V100 at 0.77 of 1,495 images/s each; dedicated servers cost extra machines."""
    models = claims.modelled()
    rate = of("hvd-64-throughput", models=models)
    assert rate.state == MODELLED and not rate.within  # 45,000 published
    assert 60 * 1_281_167 * 90 / rate.modelled.value / 3600 == pytest.approx(models["hvd-64-time"].value, rel=0.01)
    assert models["ps-1-server"].value < 50
    assert "claim holds" in models["hvd-cheapest"].text and "claim holds" in models["p3-cheaper"].text
    assert re.search(r"published rate: median \d+ %, 90 % within \d+ % \(\d+ rows, each without", rate.modelled.error)
    assert re.search(r"median \d+ %, mean \d+ % on \d+ published rows", models["ps-1-server"].error)


def test_table_of_models_is_up_to_date():
    """Regenerate with: python tools/modelled_claims.py > mxscale/tables/modelled_claims.csv"""
    assert (csv_tables.FOLDER / "modelled_claims.csv").read_text() == modelled_claims.table()


def test_claims_of_other_frameworks_are_not_measured():
    runs = [run(tags={"claims": name}, metrics={"time/wall_s": 60.0}) for name in IDS if name.startswith("table-")]
    assert len(runs) == 5
    assert all(of(one.tags["claims"], one).state != MEASURED for one in runs)


def test_claims_without_runs_list_their_requirements():
    found = claims.outcomes([], claims.modelled(), {})
    assert [one.row["id"] for one in found] == IDS
    assert not any(one.state == MEASURED for one in found)
    text, page = shown.in_text(found), shown.in_markdown(found)
    for one in found:
        assert one.row["id"] in text and one.row["needs"]
        assert one.row["command"] in page


COMMANDS = {}  # command of a training run -> claims that its runs must have
CONDITIONS = claims.known()
for row in CONDITIONS.values():
    if re.match(r"python (train|finetune)\.py ", row["command"]):
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
        yield composed(words[1].removesuffix(".py"), *cell)


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
    return run(tags={"gpu": conditions["gpu"], "ranks": str(devices)}, **{**values, **sizes})


RATES = ["finetune-eff-r152", "finetune-eff-r50", "hvd-64-throughput", "ps-1-server"]
LENGTHS = ["finetune-acc-1ep", "finetune-spread", "finetune-acc-6ep", "finetune-time-6ep", "finetune-cost",
           "finetune-acc-r50", "hvd-64-time", "hvd-64-acc", "in15-time", "in15-acc"]  # fmt: skip


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


def test_claims_page_is_up_to_date():
    """Regenerate with: mxscale report report.action=claims report.output=docs"""
    page = (ROOT / "docs" / "claims.md").read_text()
    assert re.findall(r"^\| `([a-z0-9-]+)` ", page, re.MULTILINE) == IDS
    assert page == shown.in_markdown(claims.outcomes([], claims.modelled(), {}))
