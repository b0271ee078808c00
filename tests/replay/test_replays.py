"""Replays: their trials, their settings beside the published ones, their pages, and claims at reduced scale."""

import csv
import dataclasses
import io
import os
import re
import signal

import pytest
from composed import composed_values
from refusals import command_error

from mxscale.cli import main, multirun, replaying
from mxscale.config.schema import flatten, from_dict, to_dict
from mxscale.config.validation import validate
from mxscale.config.verb_settings import Replay as ReplaySettings
from mxscale.environment.hosts import Host
from mxscale.records import claims
from mxscale.records.recorded import Recorded
from mxscale.rendering import canvas
from mxscale.replay import availability, inputs, page, results
from mxscale.replay.availability import Here
from mxscale.replay.entry import HERE, RATIO, SCALES, SMALL, Grid, Trial
from mxscale.replay.registry import REPLAYS
from mxscale.rundir.status import Status
from mxscale.rundir.sweep_directory import REFUSED_TRIAL, TrialRecord
from mxscale.util import csv_tables

NODES = [Host(f"n{number}", 8, f"n{number}") for number in range(128)]
FOLDERS = {"mnist": "/inputs/mnist"}
FILES = ["data.train=a.rec", "data.val=b.rec", "data.root=/images"]


@pytest.fixture
def no_photographs(monkeypatch):
    """Replace the generated photographs by a folder that is not made."""
    monkeypatch.setattr(availability.inputs, "photographs", lambda cache: "/inputs/photographs")


class Earlier(dict):
    """A finished trial for each name."""

    def __missing__(self, name):
        return dataclasses.make_dataclass("Finished", ["run"])(f"runs/train/{name}")


def settings(replay, trial, scale) -> dict:
    """Return the flat settings of a trial, which must be valid."""
    overrides = availability.settings(trial, replay.grid(scale), Earlier(), "cache", Here(hosts=NODES, inputs=FOLDERS))
    given = [each for each in FILES if "recordio" in str(overrides) or f"set:{each.partition('=')[0]}" in trial.needs]
    values, own = composed_values(trial.verb, *overrides, *given)
    validate(from_dict(values))
    return flatten({**values, **(to_dict(own) if own else {})})


@pytest.mark.slow
@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("name", REPLAYS)
def test_every_trial_of_a_replay_has_valid_settings(name, scale, no_photographs):
    replay = REPLAYS[name]
    trials = replay.grid(scale).trials
    assert len({trial.name for trial in trials}) == len(trials)
    for trial in trials:
        settings(replay, trial, scale)


# Settings of the published runs: the trial, and its values; {lr}: the learning rate of the global batch
SGD = {"optimizer.name": "sgd", "optimizer.momentum": 0.0, "comm.backend": "device", "data.kind": "caltech256"}
AWS = {"optimizer.name": "sgd", "optimizer.momentum": 0.9, "batch.per_device": 256, "epochs": 90, "precision": "amp"}
PUBLISHED = [
    ("beeva-p2-resnet152", "1x16", {**SGD, "batch.per_device": 16, "epochs": 1, "lr": 0.00125,
                                    "data.augment.flip": True}),
    ("beeva-p2-resnet152", "1x32", {**SGD, "batch.per_device": 32, "epochs": 1, "lr": 0.0025}),
    ("beeva-p2-resnet152", "8x16", {**SGD, "batch.per_device": 16, "epochs": 1, "lr": 0.01}),
    ("beeva-p2-resnet152", "8x32", {**SGD, "batch.per_device": 32, "epochs": 1, "lr": 0.02}),
    ("beeva-p2-six-epochs", "8x16", {**SGD, "batch.per_device": 16, "epochs": 6, "lr": 0.01}),
    ("beeva-p2-resnet50", "8x32", {**SGD, "batch.per_device": 32, "epochs": 6, "lr": 0.02}),
    ("beeva-p2-resnet50", "1x32", {"machine.instance": "p2.xlarge"}),
    ("beeva-p3", "p2-1x16", {"machine.instance": "p2.xlarge"}),
    ("beeva-p3", "p2-8x16", {"machine.instance": "p2.8xlarge"}),
    ("beeva-p3", "p3-4x32", {**SGD, "batch.per_device": 32, "epochs": 1, "lr": 0.01, "machine.instance": "p3.8xlarge"}),
    ("beeva-p3", "p3-1x16", {**SGD, "batch.per_device": 16, "lr": 0.00125, "machine.instance": "p3.2xlarge"}),
    ("beeva-builds", "source-16", {**SGD, "batch.per_device": 16, "lr": 0.005}),
    ("beeva-kvstore", "nccl-16", {**SGD, "comm.backend": "nccl", "batch.per_device": 16, "lr": 0.005}),
    ("aws-scaling", "horovod-64", {**AWS, "comm.backend": "horovod", "lr": 6.4}),
    ("aws-scaling", "1-server-64", {**AWS, "comm.backend": "dist_device_sync", "comm.servers": 1, "lr": 6.4}),
    ("aws-scaling", "2-servers-per-worker-64", {**AWS, "comm.backend": "dist_device_sync", "comm.servers": "2x",
                                                "lr": 6.4}),
    ("adaltas-gap", "synthetic-1", {"launch.ranks": 1, "batch.per_device": 64}),
    ("adaltas-gap", "synthetic-8", {"launch.ranks": 8, "batch.per_device": 64}),
    ("chainermn-in15", "in15", {"batch.per_device": 32, "epochs": 90, "lr": 12.8, "optimizer.name": "rmsprop_warmup",
                                "comm.compression": "fp16", "model.bn_statistics": "last_batch"}),
    ("chainermn-double-buffering", "double-buffering-fp16-32", {"batch.per_device": 64, "comm.compression": "fp16",
                                                                "comm.double_buffering": True}),
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name, trial, wanted", PUBLISHED, ids=[f"{name}:{trial}" for name, trial, _ in PUBLISHED])
def test_full_scale_has_the_published_settings(name, trial, wanted):
    replay = REPLAYS[name]
    [found] = [each for each in replay.full.trials if each.name == trial]
    values = settings(replay, found, "full")
    devices = found.nodes * 8 if found.nodes else int(values["launch.ranks"])
    rate = values["optimizer.lr"] * values["batch.per_device"] * devices / values["schedule.reference_batch"]
    wanted = dict(wanted)
    if "lr" in wanted:
        assert rate == pytest.approx(wanted.pop("lr"))
    assert {key: values[key] for key in wanted} == wanted


@pytest.mark.slow
def test_some_run_at_full_scale_has_the_tag_of_each_measured_claim():
    for name, replay in REPLAYS.items():
        if name == "adaltas-gap":  # whose claims are those of `mxscale diagnose`
            continue
        tagged = {claim for trial in replay.full.trials for claim in settings(replay, trial, "full").get("claims", ())}
        rows = [row for row in claims.known().values() if row["replay"] == name]
        measured = {row["id"] for row in rows if row["how"] not in ("", "source")}
        assert measured <= tagged, name


def test_a_claim_at_reduced_scale_names_trials_of_its_replay():
    for row in filter(lambda row: row["replay"], claims.known().values()):
        trials = {trial.name for trial in REPLAYS[row["replay"]].small.trials}
        assert set(row["reduced"].split()[2:]) <= trials, row["id"]


def test_published_numbers_belong_to_panels():
    for row in csv_tables.read("published_figures"):
        panels = REPLAYS[row["replay"]].panels
        assert row["metric"] in {name for panel in panels for name in (panel.name, panel.metric)}, row
        assert re.match(r"claim ([\w-]+)$|arXiv:|beeva-", row["source"])
        assert not row["source"].startswith("claim ") or row["source"][6:] in claims.known()


def run(name: str, replay="aws-scaling small", seed=1, **metrics) -> Recorded:
    tags = {"replay": replay, "sweep.name": f"{name}-seed{seed}", "claims": "ps-1-server", "ranks": "2"}
    found = {key.replace("__", "/"): value for key, value in metrics.items()}
    return Recorded(f"id-{name}-{seed}", name, "FINISHED", {"seed": str(seed)}, tags, found, seed)


RATES = {"horovod-2": 100.0, "1-server-2": 60.0, "2-servers-per-worker-2": 50.0}
FASTER = {1: 1.0, 2: 1.1, 3: 1.2}  # a round's machine


def rounds(rates, seeds=(1, 2, 3)) -> dict:
    """Return runs by trial whose rates differ between rounds, but not in their ratios."""
    return {name: [run(name, seed=seed, throughput__median=FASTER[seed] * rate) for seed in seeds]
            for name, rate in rates.items()}  # fmt: skip


@pytest.fixture
def at_small_scale():
    """The outcomes of all claims by three rounds of three trials of a small replay, later ones faster."""
    runs = [run(name, seed=seed, throughput__median=seed * rate + 30 * (seed == 3 and name == "2-servers-per-worker-2"))
            for name, rate in RATES.items() for seed in (3, 1, 2)]  # fmt: skip
    outcomes = claims.outcomes(runs, claims.modelled(), claims.small_trials(runs))
    return {one.row["id"]: one for one in outcomes}


def test_a_reduced_figure_has_a_value_for_each_round(at_small_scale):
    one_server = at_small_scale["ps-1-server"]
    assert one_server.figures[claims.REDUCED].values == pytest.approx([0.6, 0.6, 0.6])
    assert one_server.verdict(claims.REDUCED) == claims.AGREES
    ratios = at_small_scale["ps-2to1"].figures[claims.REDUCED]
    assert (ratios.low, ratios.median, ratios.high) == pytest.approx((0.5, 0.5, 0.6))
    assert ratios.runs[-2:] == ["id-2-servers-per-worker-2-3", "id-horovod-2-3"]
    assert at_small_scale["ps-2to1"].verdict(claims.REDUCED) == claims.DISAGREES


def test_rounds_are_paired_by_their_seed():
    runs = [run("horovod-2", seed=seed, throughput__median=100.0 * seed) for seed in (1, 2, 3)]
    runs += [run("1-server-2", seed=seed, throughput__median=50.0 * seed) for seed in (2, 3)]
    found = {one.row["id"]: one for one in claims.outcomes([], {}, claims.small_trials(runs))}["ps-1-server"]
    assert found.figures[claims.REDUCED].values == [0.5, 0.5]
    assert found.verdict(claims.REDUCED) == claims.INCONCLUSIVE


def test_only_the_newest_sweep_of_a_replay_counts():
    old, new = (run(name, throughput__median=rate) for name, rate in (("horovod-2", 100.0), ("1-server-2", 60.0)))
    old.tags["sweep"], new.tags["sweep"] = "first", "second"
    new = dataclasses.replace(new, started_ms=old.started_ms + 1)
    assert claims.small_trials([new, old]) == {"aws-scaling": {"1-server-2": [new]}}


def test_a_free_machine_has_no_relative_cost():
    panel = next(one for one in REPLAYS["aws-scaling"].panels if one.metric == "cost/total_eur")
    runs = {name: [run(name, cost__total_eur=0.0)] for name in RATES}
    assert results.measured(panel, REPLAYS["aws-scaling"].small, runs) == []


def test_a_reduced_figure_never_counts_as_measured(at_small_scale):
    states = {name: one.state for name, one in at_small_scale.items()}
    assert states["ps-1-server"] == claims.REDUCED
    assert claims.MEASURED not in states.values()


def test_the_newest_finished_run_of_each_trial_and_seed_of_a_small_replay_counts():
    again = dataclasses.replace(run("horovod-2"), id="newer", started_ms=9)
    earlier = dataclasses.replace(run("horovod-2", seed=10), tags={"replay": "aws-scaling small",
                                                                   "sweep.name": "horovod-2"})  # fmt: skip
    runs = [earlier, again, run("horovod-2", seed=2), run("horovod-2")]
    [found] = claims.small_trials(runs)["aws-scaling"].values()
    assert [one.id for one in found] == ["newer", "id-horovod-2-2", "id-horovod-2-10"]
    assert claims.small_trials([run("horovod-2", replay="aws-scaling full")]) == {}
    assert claims.small_trials([dataclasses.replace(run("horovod-2"), status="FAILED")]) == {}


def test_prices_and_other_teams_rows_are_source_facts():
    states = {one.row["id"]: one.state for one in claims.outcomes([], claims.modelled(), {})}
    assert {name for name, state in states.items() if state == claims.SOURCE} == {
        "p3-price", "dgx1-price", "table-he", "table-goyal", "table-codreanu", "table-cho", "table-you",
    }  # fmt: skip


def test_requirements_are_named_with_what_to_do():
    here = Here(gpus=["Tesla K80"], hosts=NODES[:1], keys=["data.train"])

    def of(*needs, nodes=None):
        return availability.missing(Trial("a", "a", "", needs=needs, nodes=nodes), here)

    assert of("set:data.train", nodes=1) == []
    assert of("set:data.val") == ["data.val=PATH"]
    assert of(nodes=2) == ["2 machines: name 2 in launch.hosts"]
    assert of("file:/nowhere/a.params") == ["/nowhere/a.params, to be placed there"]
    alone = dataclasses.replace(here, hosts=[])
    assert availability.missing(Trial("a", "a", "", needs=("gpus:K80:1",)), alone) == []
    assert availability.missing(Trial("a", "a", "", needs=("gpus:V100:4",)), alone) == [
        "4 V100 (this machine has 1 x Tesla K80)"
    ]


def test_trials_of_a_slow_network_take_their_hosts():
    [trial] = [trial for trial in REPLAYS["aws-scaling"].small.trials if trial.name == "1-server-2"]
    here = Here(slow_hosts=["a:1", "b:1", "c:1", "d:1"])
    settings = availability.settings(trial, Grid(()), Earlier(), "cache", here)
    assert settings[-1] == "launch.hosts=[a:1,b:1,c:1]"
    assert not any("hosts" in word for word in availability.settings(trial, Grid(()), Earlier(), "cache", Here()))
    assert availability.missing(trial, Here()) == availability.missing(trial, here) == []
    assert availability.missing(trial, Here(slow_hosts=["a:1"])) == ["3 hosts with slow links: name 3 in slow_hosts"]


def test_the_command_of_a_page_names_the_slow_hosts():
    request = object.__new__(replaying.Request)
    request.options = ReplaySettings(scale=SMALL, rounds=5, mnist="/m")
    request.overrides, request.here = ["seed=2"], Here(slow_hosts=["a:1", "b:1"])
    command = request.command(REPLAYS["aws-scaling"])
    assert command == "mxscale replay aws-scaling scale=small rounds=5 mnist=/m 'slow_hosts=[a:1,b:1]' seed=2"


@pytest.fixture
def content():
    """The content of a half-finished replay."""
    replay = REPLAYS["aws-scaling"]
    runs, planned = rounds(RATES), replay.small.planned([1, 2, 3])
    points = results.published(replay)
    for panel in replay.panels:
        points += results.measured(panel, replay.small, runs)
    lacking = next(one for one in planned if one.trial.name == "horovod-1")
    outcomes = claims.outcomes([], claims.modelled(), {replay.name: runs})
    return results.Content(replay, SMALL, "digits", "mxscale replay aws-scaling scale=small", points, planned,
                        [(lacking, "not run yet")], outcomes, runs)  # fmt: skip


def test_the_page_has_published_and_own_numbers_and_what_is_missing(content, tmp_path):
    text = page.write(content, tmp_path).read_text()
    assert "45,000" in text and "arXiv" not in text
    assert "horovod-1-seed1" in text and "not run yet" in text
    assert "<b>reduced scale, agrees</b>: one server has 0.60" in text
    assert "0.6 (0.6 to 0.6, n = 3): 66" in text and "medians of 3 runs with minimum and maximum" in text
    lines = list(csv.DictReader(io.StringIO((tmp_path / "aws-scaling.csv").read_text())))
    rates = {(line["by"], line["series"]): line for line in lines if line["metric"] == "ratio throughput/median"}
    assert rates[("published", "Horovod")]["absolute"] == "45000.0"
    assert float(rates[("here", "1 server")]["value"]) == pytest.approx(0.6)
    assert {path.name for path in tmp_path.glob("*.png")} == {"aws-scaling-1.png", "aws-scaling-2.png"}


def test_bars_that_dwarf_others_are_on_a_logarithmic_axis():
    panel = next(panel for panel in REPLAYS["adaltas-gap"].panels if panel.way != RATIO)

    def scale(*values):
        places = enumerate(values)
        points = [results.Point("", "a", str(at), HERE, value, value, value, None, "") for at, value in places]
        return page.bars(panel, points, {"a": "grey"}).axes[0].get_yscale()

    assert (scale(50.0, 60.0), scale(50.0, 0.0), scale(50.0, 5000.0)) == ("linear", "linear", "log")


def test_a_trial_without_an_end_is_called_interrupted_everywhere():
    record = TrialRecord(1, 0, "key", "horovod-1", run="runs/x", state="KILLED")
    assert results._unfinished(record) == record.ended == "interrupted"


def test_derived_panels_compare_with_their_reference():
    replay = REPLAYS["adaltas-gap"]
    runs = rounds({"synthetic-1": 100.0, "real-1": 80.0})
    points = {point.series: point.value for point in results.measured(replay.panels[0], replay.small, runs)}
    assert points == {"synthetic": 0.0, "real": pytest.approx(20.0)}


def test_a_run_relates_to_the_reference_of_its_own_round():
    panel = REPLAYS["aws-scaling"].panels[0]
    runs = rounds(RATES) | {"1-server-2": [run("1-server-2", seed=2, throughput__median=55.0)]}
    points = {point.series: point for point in results.measured(panel, REPLAYS["aws-scaling"].small, runs)}
    assert points["1 server"].value == pytest.approx(0.5) and points["1 server"].absolute == 55
    assert points["1 server"].source == "id-1-server-2-2"


def test_published_rates_relate_to_the_reference_of_their_side():
    points = {(point.series, point.x): point for point in results.published(REPLAYS["beeva-p2-resnet152"])}
    eight = points["batch 16", "8 GPU"]
    rates = [point for point in results.published(REPLAYS["beeva-p2-resnet152"]) if point.metric.startswith("ratio")]
    assert [round(point.value, 2) for point in rates] == [1, 1, 7.99, 7.95]
    assert [point.absolute for point in rates] == [18.9, 19.8, 151, 157.5] and eight.absolute is None


def test_rounds_repeat_shown_trials_with_each_seed_in_turn():
    first, second = Trial("first", None, ""), Trial("a", "s", "x")
    names = [one.name for one in Grid((first, second, Trial("b", "s", "y"))).planned([1, 2])]
    assert names == ["first", "a-seed1", "b-seed1", "a-seed2", "b-seed2"]
    assert [one.name for one in Grid((first, second)).planned([])] == ["first", "a"]


def test_replays_without_mnist_name_it_as_missing():
    [trial, _] = REPLAYS["aws-mnist"].small.trials
    assert availability.missing(trial, Here()) == []
    assert availability.missing(trial, Here(lacking={"mnist": "MNIST: give mnist=DIR"})) == ["MNIST: give mnist=DIR"]


def test_unreachable_mnist_is_a_reason_with_the_setting_to_give(tmp_path):
    (tmp_path / "mnist").write_text("")
    reasons = inputs.without_mnist(from_dict({}).data, str(tmp_path / "mnist"))
    assert reasons["mnist"].startswith("MNIST: give mnist=DIR with its four files (data.root=")


def test_a_back_end_has_its_colour_in_each_figure():
    assert canvas.colours(["Horovod", "1 server"])["1 server"] == canvas.colours(["1 server, fast"])["1 server, fast"]
    found = canvas.colours(["Horovod", "horovod 2", "small", "nccl"])
    assert found["Horovod"] == canvas.BLUE and found["nccl"] == canvas.GREEN
    assert len(set(found.values())) == 4


def test_paths_of_inputs_are_quoted():
    trial = Trial("c", "s", "x", ("data.root={photographs}", "batch.per_device=${a}"))
    here = Here(inputs={"photographs": "/home/jürgen, (x)/photographs"})
    overrides = availability.settings(trial, Grid(()), Earlier(), "cache", here)
    assert overrides == ["data.root='/home/jürgen, (x)/photographs'", "batch.per_device=${a}"]


def test_an_unwritable_output_is_refused_before_the_first_run(capsys, tmp_path):
    (tmp_path / "file").write_text("")
    words = ["replay", "beeva-kvstore", "scale=small", f"runs={tmp_path}/runs", "tracking=none"]
    assert "not writable" in command_error(capsys, *words, f"output={tmp_path}/file/pages")


def test_wrong_requests_are_refused(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert "did you mean beeva-kvstore?" in command_error(capsys, "replay", "beeva-kvstor")
    assert "scale=tiny" in command_error(capsys, "replay", "beeva-kvstore", "scale=tiny")
    assert "only for scale=small" in command_error(capsys, "replay", "aws-scaling", "slow_hosts=[a:1]")
    assert "again=2" in command_error(capsys, "replay", "beeva-kvstore", "again=2")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_trials_of_a_replay_take_as_many_machines_as_they_need(monkeypatch, tmp_path):
    seen = []

    def execute(composed, overrides, hook):
        seen.append(list(composed.launch.hosts))
        return Status(REFUSED_TRIAL, exit=2, error="not run")

    monkeypatch.setattr(multirun.job, "execute", execute)
    words = ["replay", "aws-scaling", f"output={tmp_path}/pages", f"runs={tmp_path}/runs", "data.train=a.rec"]
    words += ["data.val=b.rec", "launch.hosts=[a:8,b:8,c:8]", "tracking.uri=http://user:pass-word@127.0.0.1:9"]
    assert main.main(words) == 2
    assert seen == [["a:8"], ["a:8", "b:8"]] * 4
    written = (tmp_path / "pages" / "aws-scaling.html").read_text()
    assert "user:***@" in written and "pass-word" not in written


@pytest.mark.slow
def test_a_replay_whose_run_does_not_compose_is_refused(capsys, tmp_path):
    """The trials choose their data set themselves."""
    words = ["replay", "chainermn-large-batch", "scale=small", f"output={tmp_path}/pages", f"runs={tmp_path}/runs"]
    assert main.main([*words, "+data=digits"]) == 2
    assert capsys.readouterr().err.count("error: chainermn-large-batch, ") == 3 * 7


@pytest.mark.slow
def test_replay_continues_where_it_was_interrupted_and_killed(cli):
    """Finished runs are kept, and the page of a half-finished replay shows what is missing."""
    page = cli.folder / "pages" / "beeva-p2-resnet50.html"
    words = ("beeva-p2-resnet50", "scale=small", "rounds=1", "max_steps=2", f"output={page.parent}")

    def started(trial: int):
        process = cli.start("replay", *words, small=False)
        next(line for line in process.stdout if line.startswith(f"trial {trial} "))
        return process

    process = started(trial=1)
    os.kill(process.pid, signal.SIGINT)
    assert "0 of 2 runs" in cli.ended(process, 75).out
    assert "not run yet: the same command continues" in page.read_text()
    process = started(trial=2)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    done = cli("replay", *words, small=False)
    assert done.out.count("already finished") >= 2 and "2 of 2 runs" in done.out
    assert "Without a result" not in page.read_text()


@pytest.mark.slow
def test_an_invalid_further_setting_is_refused_before_the_first_run(cli):
    done = cli("replay", "beeva-p2-resnet50", "scale=small", "model.freeze=stage9", small=False, expect=2)
    assert "model.freeze=stage9" in done.err and not (cli.folder / "sweeps").exists()
