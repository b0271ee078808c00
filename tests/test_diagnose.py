"""Where a step's time goes: shares, verdict and advice on given times; the probes; a diagnosis, end to end."""

import sys
import time
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from composed import composed_values
from PIL import Image
from plans import make_sizes

from mxscale.config.schema import from_dict
from mxscale.config.validation import validate
from mxscale.diagnose import diagnosis, presentation, probes, timing
from mxscale.diagnose import record as diagnosis_record
from mxscale.diagnose.advice import Facts, advise
from mxscale.diagnose.breakdown import Estimate, diagnose, judge
from mxscale.launcher.context import Signals
from mxscale.rundir.directory import KILLED, RunDir
from mxscale.rundir.plan import Host, Plan
from mxscale.util.errors import ConfigError


def times(jitter=0.01, repeats=3, **seconds):
    """Three intervals in each of three repetitions around each probe's seconds."""
    around = [1 - jitter, 1, 1 + jitter]
    return {
        name: [[step * (1 + jitter * (turn - 1) / 3) * factor for factor in around] for turn in range(repeats)]
        for name, step in seconds.items()
    }


ALL = dict(input=0.02, compute=0.10, side_by_side=0.11, exchange=0.15, all=0.20)

# ---------------------------------------------------------------- shares


def test_the_shares_are_the_differences_of_neighbours_and_add_up_to_one():
    shares = {part: share.value for part, share in diagnose(times(**ALL)).shares.items()}
    assert shares == pytest.approx({"compute": 0.5, "cores": 0.05, "exchange": 0.2, "input": 0.25})
    assert sum(shares.values()) == pytest.approx(1)


def test_the_share_of_the_input_is_one_minus_real_over_synthetic():
    found = diagnose(times(compute=0.1, exchange=0.116, all=0.2))
    assert found.shares["input"].value == pytest.approx(1 - 0.116 / 0.2)  # the published 42 %


def test_with_one_rank_there_is_computing_and_input_alone():
    assert set(diagnose(times(input=0.01, compute=0.1, all=0.2)).shares) == {"compute", "input"}


def test_the_spread_of_a_share_grows_with_that_of_the_times():
    calm, wild = (diagnose(times(jitter, **ALL)).shares["input"] for jitter in (0.001, 0.1))
    assert calm.high - calm.low < 0.01 < 0.05 < wild.high - wild.low
    assert wild.low <= wild.value <= wild.high


def test_a_drift_that_hits_all_probes_of_a_repetition_alike_leaves_the_shares_alone():
    slower = {name: [[step * factor] * 3 for factor in (1, 1.5, 2)] for name, step in ALL.items()}
    share = diagnose(slower).shares["exchange"]
    assert share.high - share.low < 1e-9 and share.value == pytest.approx(0.2)


def test_the_same_times_give_the_same_bounds():
    assert diagnose(times(0.05, **ALL)) == diagnose(times(0.05, **ALL))


# ---------------------------------------------------------------- the verdict


@pytest.mark.parametrize(
    "seconds, kind, begins",
    [
        (dict(compute=0.05, exchange=0.058, all=0.1), "input", "input-bound: 42 % slower than synthetic (4"),
        (dict(compute=0.05, exchange=0.1, all=0.101), "exchange", "exchange-bound: 50 % of a step"),
        (dict(compute=0.06, side_by_side=0.1, exchange=0.102), "cores", "short of cores: ranks that never"),
        (dict(compute=0.1, exchange=0.105, all=0.107), "compute", "compute-bound: 93 % of a step is computing"),
        (dict(compute=0.07, side_by_side=0.085, exchange=0.095, all=0.106), "cores", "short of cores"),
        (dict(compute=0.07, side_by_side=0.079, exchange=0.088, all=0.097), "none", "no bottleneck stands out: comp"),
    ],
)
def test_the_verdict_names_the_largest_part_that_is_worth_it(seconds, kind, begins):
    found = diagnose(times(0.001, **seconds))
    assert found.kind == kind and found.verdict.startswith(begins)


def test_nothing_is_named_that_is_not_larger_than_its_spread():
    # In one of the three repetitions the input took nothing
    measured = {"compute": [[0.1] * 3] * 3, "all": [[0.1] * 3, [0.14] * 3, [0.15] * 3]}
    found = diagnose(measured)
    assert found.shares["input"].value > 0.25 and not found.shares["input"].low > 0
    assert found.kind == "none" and found.verdict.startswith("no bottleneck stands out")


def test_nothing_is_named_that_is_not_larger_than_what_came_out_below_0():
    shares = {"compute": Estimate(0.95, 0.9, 1.0), "cores": Estimate(-0.08, -0.2, 0.1)}
    assert judge({**shares, "exchange": Estimate(0.13, 0.07, 0.3)})[0] == "compute"
    assert judge({**shares, "exchange": Estimate(0.13, 0.09, 0.3)})[0] == "exchange"


def test_a_machine_that_changed_its_speed_between_probes_gets_no_verdict():
    kind, verdict = judge({"compute": Estimate(1.5, 1.1, 2.3), "input": Estimate(-0.5, -1.3, -0.1)})
    assert kind == "none" and verdict.startswith("no bottleneck stands out: the input came out at -50 % of a step")


def test_the_second_part_is_said_too():
    assert "; the exchange 20 %" in diagnose(times(0.001, **ALL)).verdict


# ---------------------------------------------------------------- advice

BASE = from_dict({"data": {"kind": "imagefolder", "root": "/x", "image_size": 100}})
TWO = Facts(ranks=2, threads=1, cores=2, ranks_here=2)
EXCHANGE = diagnose(times(0.0001, compute=0.10, exchange=0.2))


def gains(found, facts=TWO, config=BASE):
    return {one.setting: round(one.gain, 3) for one in advise(found, facts, config)}


def with_comm(**values):
    return replace(BASE, comm=replace(BASE.comm, **values))


def test_hiding_the_exchange_gains_at_most_what_it_takes():
    # 0.2 s -> 0.1 s; half the bytes: 0.15 s; half as often: 0.15 s
    assert gains(EXCHANGE) == {
        "comm.double_buffering=true": 1.0,
        "comm.compression=fp16": 0.333,
        "batch.per_device=64": 0.333,
    }


def test_what_is_set_already_is_not_advised():
    assert set(gains(EXCHANGE, config=with_comm(double_buffering=True, compression="fp16"))) == {"batch.per_device=64"}
    assert gains(EXCHANGE, config=with_comm(overlap=False))["comm.overlap=true"] == 0.5  # 2/3 of 0.1 s: 0.2 -> 0.133


def test_of_accumulated_batches_the_last_one_s_backward_hides_the_exchange():
    late = with_comm(overlap=False, compression="fp16")
    found = gains(EXCHANGE, replace(TWO, turns=2), late)
    assert found["comm.overlap=true"] == 0.2  # 2/3 of 0.05 s: 0.2 -> 0.167
    assert found["comm.double_buffering=true"] == 1.0  # which all of computing hides


def test_an_exchange_longer_than_computing_is_not_hidden_whole():
    facts = replace(TWO, exchange_s=0.15)  # 0.05 s of it are left
    assert gains(EXCHANGE, facts)["comm.double_buffering=true"] == round(0.2 / 0.15 - 1, 3)


def test_a_network_that_fits_one_bucket_is_told_of_smaller_ones():
    facts = replace(TWO, parameters_mb=8.0)
    assert "comm.bucket_mb=2" in gains(EXCHANGE, facts, with_comm(compression="fp16", bucket_mb=32.0))
    assert not any("bucket" in setting for setting in gains(EXCHANGE, replace(TWO, parameters_mb=100.0)))


def test_servers_are_advised_where_there_are_fewer_than_ranks():
    served = with_comm(backend="parameter_server", update_on="server")
    assert gains(EXCHANGE, config=served)["comm.servers=1x"] == 0.333
    assert "comm.double_buffering=true" not in gains(EXCHANGE, config=served)
    assert "comm.servers=1x" not in gains(EXCHANGE, config=with_comm(backend="parameter_server", servers="2x"))


INPUT = diagnose(times(0.0001, input=0.2, compute=0.1, all=0.2))


def test_what_was_tried_of_the_input_gains_what_its_probe_took():
    tried = {"data.threads=4": 0.15, "data.keep=ram": 0.05}
    on_cpu = Facts(ranks=1, threads=1, input_tried=tried)
    # What is lost to the input, 0.1 s, goes by the time that it takes alone: 0.075 s, 0.025 s
    assert gains(INPUT, on_cpu)["data.threads=4"] == round(0.2 / 0.175 - 1, 3)
    assert gains(INPUT, on_cpu)["data.keep=ram"] == 0.6
    # On a GPU it is what batches take longer than computing
    assert gains(INPUT, replace(on_cpu, device="gpu"))["data.keep=ram"] == 1.0


@pytest.mark.parametrize("name", ["brightness", "contrast", "saturation", "hue"])
def test_every_input_that_is_tried_can_be_advised(name):
    run = looked_at(data={"augment": {name: 0.1}, "image_size": 32})
    tried = dict.fromkeys(probes.others_to_read(run, memory=1e9), 0.05)
    assert set(tried) <= set(gains(INPUT, Facts(ranks=1, threads=1, input_tried=tried)))


def test_smaller_files_are_advised_where_they_are_larger_than_the_network_sees_and_ours_to_pack():
    facts = Facts(ranks=1, threads=1, input_tried={"data.keep=ram": 0.05})
    assert gains(INPUT, facts)["data.pack_short_side=100"] == 0.6  # no more than not decoding at all
    small = replace(BASE, data=replace(BASE.data, pack_short_side=110))
    theirs = replace(BASE, data=replace(BASE.data, kind="recordio"))
    for config in (small, theirs):
        assert not any("pack" in setting for setting in gains(INPUT, facts, config))


def test_what_slows_down_is_not_advised():
    assert "data.threads=4" not in gains(INPUT, Facts(ranks=1, threads=1, input_tried={"data.threads=4": 0.21}))


def test_too_many_threads_are_told_of_and_else_more_machines():
    crowded = diagnose(times(0.0001, compute=0.1, side_by_side=0.2))
    assert gains(crowded, replace(TWO, threads=2)) == {"launch.threads=1": 1.0}
    assert gains(crowded) == {"launch.hosts=[a:1,b:1]": 1.0}


def test_computing_gains_what_was_tried_and_on_a_gpu_what_half_precision_may():
    bound = diagnose(times(0.0001, compute=0.1, all=0.1))
    tried = Facts(ranks=1, threads=1, compute_tried={"batch.per_device=64": 0.08, "model=resnet18_v1b": 0.05})
    assert gains(bound, tried) == {"model=resnet18_v1b": 1.0, "batch.per_device=64": 0.25}
    assert gains(bound, Facts(ranks=1, threads=1, device="gpu")) == {"precision=amp": 1.0}


def test_at_most_three_are_told_the_largest_first():
    found, facts = diagnose(times(0.0001, **ALL)), replace(TWO, parameters_mb=1.0, input_tried={"data.keep=ram": 0.001})
    told = advise(found, facts, BASE)
    assert len(told) == 3 and told == sorted(told, key=lambda one: -one.gain)


# ---------------------------------------------------------------- the probes' settings


def looked_at(ranks=2, device="cpu", hosts=(), **values):
    config = validate(from_dict({"launch": {"ranks": ranks}, "data": {"image_size": 48}, **values}))
    shards = config.data.shards or ranks
    images = 32 * shards * config.batch.accumulation
    sizes = make_sizes(ranks, shards=shards, global_batch=images, train_images=500, steps_per_epoch=7, total_steps=70)
    plan = Plan(sizes=sizes, device=device, hosts=tuple(hosts), threads=3, classes=5)
    return probes.Run(probes.untimed(config), plan)


def test_the_probes_differ_in_what_they_leave_out():
    found = probes.configs(looked_at(), 10)
    assert {name: len(runs) for name, runs in found.items()} == dict(compute=1, side_by_side=2, exchange=1, all=1)
    for config in (config for runs in found.values() for config in runs):
        assert validate(config) == config
        assert (config.launch.threads, config.batch.per_device, config.data.image_size) == (3, 32, 48)
        assert not config.tracking.enabled and config.log_every == 10
    synthetic, real = found["exchange"][0], found["all"][0]
    assert synthetic.data.kind == "synthetic" and (synthetic.data.num_classes, synthetic.data.num_images) == (5, 500)
    assert replace(synthetic, data=real.data) == real
    alone = found["compute"][0]
    assert (alone.launch.ranks, alone.comm.backend, alone.data) == (1, "local", synthetic.data)


def test_what_makes_no_sense_is_left_out():
    assert set(probes.configs(looked_at(ranks=1), 1)) == {"compute", "all"}
    assert set(probes.configs(looked_at(device="gpu"), 1)) == {"compute", "exchange", "all"}
    assert set(probes.configs(looked_at(data={"kind": "synthetic"}), 1)) == {"compute", "side_by_side", "exchange"}
    assert diagnosis.left_out(looked_at(ranks=1))[0].startswith("the exchange: one rank")


def test_one_rank_has_as_many_batches_in_a_step_as_it_has_in_the_run():
    run = looked_at(data={"shards": 4}, batch={"accumulation": 3})
    assert (run.turns, run.images_of_a_rank) == (6, 192)
    assert probes.configs(run, 1)["compute"][0].data.shards == 2


def test_on_hosts_each_rank_by_itself_is_where_it_is_in_the_run():
    hosts = [Host("a", 1, "a"), Host("b", 2, "b")]
    run = looked_at(ranks=3, hosts=hosts, launch={"ranks": 3, "hosts": ["a:1", "b:2"]})
    where = [config.launch.hosts for config in probes.configs(run, 1)["side_by_side"]]
    assert where == [["a:1"], ["b:1"], ["b:1"]]


def test_the_input_is_tried_with_what_may_be_faster():
    run = looked_at(data={"augment": {"hue": 0.1}, "image_size": 32})
    found = probes.others_to_read(run, memory=1e9)
    assert set(found) == {"data.threads=4", "data.keep=ram", "data.augment.hue=0"}
    assert found["data.augment.hue=0"].data.augment.hue == 0
    assert "data.keep=ram" not in probes.others_to_read(run, memory=1e6)


def test_computing_is_tried_with_larger_batches_that_the_set_has_and_smaller_networks():
    run = looked_at(model={"name": "resnet50_v1b"})
    assert set(probes.others_to_compute(run, 1)) == {"batch.per_device=64", "model=resnet34_v1b"}
    assert probes.others_to_compute(looked_at(batch={"per_device": 200}), 1) == {}


# ---------------------------------------------------------------- timing a run, with a script in its place

SCRIPT = """
import json, pathlib, signal, sys, time, yaml
signal.signal(signal.SIGTERM, lambda *_: sys.exit(75))
folder = pathlib.Path(yaml.safe_load(open(sys.argv[1]))["runs"]) / "train" / "now"
folder.mkdir(parents=True)
(folder / "config.yaml").write_text("")
{body}
"""
STEPS = """
for step in range(1, 1000):
    line = {"attempt": 1, "step": step, "time_ms": 0, "metrics": {"throughput/images_per_s": step}}
    with open(folder / "metrics.jsonl", "a") as file:
        file.write(json.dumps(line) + "\\n")
    time.sleep(0.02)
"""


@pytest.fixture
def scripted(tmp_path, monkeypatch):
    """Runs whose command is a script."""
    start = timing.subprocess.Popen

    def use(body):
        script = tmp_path / "run.py"
        script.write_text(SCRIPT.replace("{body}", body))
        monkeypatch.setattr(
            timing.subprocess, "Popen", lambda argv, **how: start([sys.executable, script, argv[-1]], **how)
        )
        return lambda count=1, seconds=0.3, signals=None: timing.together(
            [from_dict({})] * count, tmp_path / "probes", seconds, 5, signals or Signals()
        )

    return use


def test_runs_are_read_from_the_moment_that_all_are_warm_and_then_ended(scripted):
    for reading in scripted(STEPS)(count=2):
        assert reading.rates[0] > 5  # warm-up is not in it
        assert reading.rates == list(range(int(reading.rates[0]), int(reading.rates[-1]) + 1))
        assert 3 <= len(reading.rates) < 100
        assert reading.others >= 0


def test_a_run_that_ends_by_itself_is_a_failed_probe_with_its_error(scripted):
    with pytest.raises(timing.ProbeFailed, match="rank 0: no such thing"):
        scripted("print('error: rank 0: no such thing'); sys.exit(1)")()


def test_a_run_that_is_refused_is_told_from_one_that_failed(scripted):
    with pytest.raises(timing.Refused, match="no images"):
        scripted("print('error: no images'); sys.exit(2)")()


def test_a_signal_ends_the_runs(scripted):
    signals = Signals()
    signals.reason = "SIGINT"
    with pytest.raises(timing.Stopped, match="SIGINT"):
        scripted(STEPS)(signals=signals)


class Batches:
    """Two batches of four images a step, a millisecond each."""

    def step(self, step):
        for _ in range(2):
            time.sleep(0.001)
            yield SimpleNamespace(images=SimpleNamespace(wait_to_read=lambda: None), labels=np.zeros(4))


def test_the_input_alone_is_read_for_its_time_in_five_intervals():
    from mxscale.train import input_probe

    began = time.perf_counter()
    rates = input_probe.rates(Batches(), 0, 0.1)
    assert time.perf_counter() - began >= 0.1
    assert len(rates) == 5 and all(0 < rate <= 4000 for rate in rates)


# ---------------------------------------------------------------- the command


def composed(*overrides):
    values, own = composed_values("diagnose", *overrides)
    return validate(from_dict(values)), own["diagnose"]


def test_the_command_knows_the_settings_of_a_run_and_its_own():
    config, own = composed("model=resnet18_v1b", "diagnose.seconds=3")
    assert config.model.name == "resnet18_v1b" and diagnosis.settings_of(own) == diagnosis.Settings(3.0, 5, 3)


def test_the_published_gaps_are_an_experiment_of_it():
    config, _ = composed("experiment=adaltas_input", "data.root=/x")
    assert config.claims == ["io-gap-1", "io-gap-32"]
    diagnosis.check(config)


@pytest.mark.parametrize(
    "override, told",
    [
        ("diagnose.seconds=0", "diagnose.seconds=0: expected a number above 0"),
        ("diagnose.seconds=-1", "diagnose.seconds=-1: expected a number above 0"),
        ("diagnose.seconds=nan", "diagnose.seconds=nan: expected a number above 0"),
        ("diagnose.repeats=1", "diagnose.repeats=1: expected a whole number of at least 2"),
        ("diagnose.warmup_steps=0.5", "diagnose.warmup_steps=0.5: expected a whole number of at least 1"),
        ("resume=auto", "resume=auto: a diagnosis makes runs of its own"),
        ("comm=dist_async", "comm=dist_async: its ranks take no step together"),
        ("claims=[io-gap]", "claims: no published figure is called io-gap"),
    ],
)
def test_what_can_not_be_diagnosed_is_one_line_and_makes_nothing(override, told, tmp_path):
    with pytest.raises(ConfigError) as error:
        config, own = composed(override, f"runs={tmp_path}")
        diagnosis.main(config, own)
    assert str(error.value).startswith(told) and "\n" not in str(error.value)
    assert not list(tmp_path.iterdir())


FOUND = {
    "kind": "input",
    "verdict": "input-bound: 25 % slower than synthetic (24 to 26); the exchange 20 %",
    "advice": [one._asdict() for one in advise(diagnose(times(**ALL)), TWO, BASE)],
    "steps_s": {name: one._asdict() for name, one in diagnose(times(**ALL)).steps.items()},
    "images_per_s": {name: diagnosis.rate(one, 64)._asdict() for name, one in diagnose(times(**ALL)).steps.items()},
    "shares": {part: one._asdict() for part, one in diagnose(times(**ALL)).shares.items()},
    "data_wait": 0.2,
    "others_cores": 0.05,
    "facts": {"ranks": 2, "cores": 2},
}


def test_the_table_has_each_probe_and_each_part_and_fits_a_terminal():
    lines = (presentation.table(FOUND) + "\n" + presentation.advised(FOUND)).splitlines()
    assert any(line.split()[:8] == ["compute", "alone,", "1", "rank", "x", "2", "640.0", "(631.6"] for line in lines)
    assert any("the input" in line and "25.0 %" in line for line in lines)
    assert sum("at most" in line for line in lines) == 3
    assert max(map(len, lines)) <= 120


def test_other_work_on_the_machine_is_warned_of():
    assert "warning: other work took 0.9 of 2 cores meanwhile" in presentation.table({**FOUND, "others_cores": 0.9})
    assert "warning" not in presentation.table(FOUND)


def test_the_figure_is_drawn(tmp_path):
    presentation.draw(FOUND, str(tmp_path / "figure.png"))
    assert min(Image.open(tmp_path / "figure.png").size) > 500


def test_mlflow_gets_the_shares_with_their_bounds_and_the_gap():
    metrics = diagnosis_record.figures(FOUND)
    assert metrics["diagnose/gap"] == metrics["diagnose/share/input"] == pytest.approx(0.25)
    assert metrics["diagnose/share/input_low"] < 0.25 < metrics["diagnose/share/input_high"]
    assert metrics["diagnose/images_per_s/compute"] == pytest.approx(640)


# ---------------------------------------------------------------- the whole, with given rates in place of runs

ENVIRONMENT = {"mxnet": {}, "image": {}, "versions": {}, "git": {"commit": None, "dirty": None},
               "machine": {"cpu": "a processor", "cores": 2}}  # fmt: skip


@pytest.fixture
def given(tmp_path, monkeypatch):
    """`given(outcomes)` diagnoses a run of two ranks whose probes give 100, 90, 80, 40 images/s ...

    outcomes: probe -> an exception that it raises in place.  Returns (exit status, the record's RunDir).
    """

    def use(**outcomes):
        def read(work, name, config):
            if name.startswith("other") and "other" in outcomes:
                raise outcomes["other"]
            return [64 / 200] * 5

        def together(configs, folder, seconds, warmup, signals):
            probe = folder.name.rpartition("-")[0] or folder.name
            if folder.name in outcomes or probe in outcomes:
                raise outcomes.get(folder.name, outcomes.get(probe))
            run = RunDir(folder / "0" / "train" / "now")
            run.write_config(configs[0])
            run.write_plan(replace(looked_at().plan, data_digest="d"))
            run.write("environment.json", ENVIRONMENT)
            rate = dict(look=80, compute=50, side_by_side=45, exchange=80, all=40).get(probe, 50)
            return [timing.Reading([rate] * 4, [0.1] * 4, [], run, 0.5, 1.0) for _ in configs]

        monkeypatch.setattr(diagnosis.Work, "_read", read)
        monkeypatch.setattr(timing, "together", together)
        monkeypatch.setattr(presentation, "draw", lambda found, path: None)
        config, own = composed(f"runs={tmp_path}", "tracking=none", "diagnose.repeats=2", "launch.ranks=2")
        status = diagnosis.main(config, own)
        (record,) = (tmp_path / "diagnose").iterdir()
        return status, RunDir(record)

    return use


def test_all_probes_end_in_a_record(given, capsys):
    status, record = given()
    found = record.read("diagnosis.json")
    assert status == 0 and record.read("status.json")["state"] == "FINISHED"
    rates = {name: round(one["value"], 6) for name, one in found["images_per_s"].items()}
    assert rates == {"input": 200, "compute": 100, "side_by_side": 90, "exchange": 80, "all": 40}
    assert found["verdict"].startswith("input-bound: 50 % slower than synthetic") and found["repeats"] == 2
    assert found["verdict"] in capsys.readouterr().out
    assert record.read("environment.json")["tags"]["kind"] == "diagnose"
    assert record.read("summary.json")["metrics"]["diagnose/gap"] == 0.5
    assert set(found["facts"]["input_tried"]) == {"data.threads=4", "data.keep=ram"}


def test_a_probe_that_fails_ends_it_with_its_error_and_keeps_what_is_whole(given, capsys):
    status, record = given(**{"exchange-2": timing.ProbeFailed("rank 1: no such thing")})
    assert status == 1 and record.read("status.json")["state"] == "FAILED"
    assert capsys.readouterr().err.splitlines()[-1] == "error: rank 1: no such thing"
    assert record.read("diagnosis.json")["repeats"] == 1


def test_ctrl_c_keeps_what_was_measured(given, capsys):
    status, record = given(**{"all-2": timing.Stopped("SIGINT")})
    assert status == 75 and record.read("status.json")["state"] == KILLED
    assert set(record.read("diagnosis.json")["times_s"]) == {"input", "compute", "side_by_side", "exchange", "all"}
    assert "interrupted (SIGINT); what was measured is in" in capsys.readouterr().out


def test_ctrl_c_before_anything_was_measured_says_so(given, capsys):
    status, record = given(look=timing.Stopped("SIGINT"))
    assert status == 75 and record.read("diagnosis.json") is None
    assert "nothing was measured" in capsys.readouterr().out


def test_what_train_would_refuse_is_refused_in_its_words_and_leaves_nothing(given, tmp_path):
    with pytest.raises(ConfigError, match="no images here"):
        given(look=timing.Refused("no images here"))
    assert not list((tmp_path / "diagnose").iterdir())


def test_a_setting_that_can_not_be_tried_is_left_out(given):
    status, record = given(other=timing.ProbeFailed("out of memory"))
    assert status == 0 and record.read("diagnosis.json")["facts"]["input_tried"] == {}


# ---------------------------------------------------------------- end to end

# As few starts of ranks as there can be: no exchange, and no batch of twice the size to try
TINY = ["diagnose.seconds=0.3", "diagnose.repeats=2", "diagnose.warmup_steps=1", "comm=local", "launch.threads=1",
        "data.train_per_class=24", "batch.per_device=64"]  # fmt: skip


@pytest.mark.slow
def test_a_diagnosis_end_to_end(cli, tmp_path):
    ended = cli("diagnose", *TINY, f"tracking.uri=sqlite:///{tmp_path}/mlflow.db", small=False, timeout=600)
    record, found = ended.run, ended.run.read("diagnosis.json")
    assert record.path.parent.name == "diagnose" and (record.path / "diagnosis.png").is_file()
    assert set(found["times_s"]) == {"input", "compute", "all"} and all(
        len(one) == 2 for one in found["times_s"].values()
    )
    assert sum(share["value"] for share in found["shares"].values()) == pytest.approx(1)
    assert found["verdict"] in ended.out and "one rank has nobody to exchange with" in ended.out
    assert not list(record.path.glob("probes/**/checkpoints")), "probes' checkpoints are not kept"
    mlflow = pytest.importorskip("mlflow")
    client = mlflow.MlflowClient(f"sqlite:///{tmp_path}/mlflow.db")
    (run,) = client.search_runs([client.get_experiment_by_name("mxscale").experiment_id])  # probes are not recorded
    assert run.data.tags["kind"] == "diagnose" and run.info.status == "FINISHED"
    assert run.data.metrics["diagnose/share/compute"] == pytest.approx(found["shares"]["compute"]["value"])
    assert {"diagnosis.json", "diagnosis.png"} <= {file.path for file in client.list_artifacts(run.info.run_id)}
