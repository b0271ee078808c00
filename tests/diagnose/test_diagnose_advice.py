"""Parts of a step, verdict and advice on given times; the configs of the probes."""

from dataclasses import replace

import pytest
from diagnosed import ALL, BASE, TWO, prepared, times

from mxscale.config.validation import validate
from mxscale.diagnose import probes
from mxscale.diagnose.advice import Facts, advise
from mxscale.diagnose.breakdown import Estimate, diagnose, judge
from mxscale.rundir.plan import Host


@pytest.fixture(autouse=True)
def processor_without_bf16(monkeypatch):
    monkeypatch.setattr(probes, "multiplies_bf16", lambda: False)


def test_shares_are_differences_and_add_up_to_one():
    shares = {part: share.value for part, share in diagnose(times(**ALL)).shares.items()}
    assert shares == pytest.approx({"compute": 0.5, "cores": 0.05, "exchange": 0.2, "input": 0.25})
    assert sum(shares.values()) == pytest.approx(1)


def test_one_rank_has_compute_and_input_only():
    assert set(diagnose(times(compute=0.1, all=0.2)).shares) == {"compute", "input"}


def test_interval_of_a_share_grows_with_the_spread():
    calm, wild = (diagnose(times(jitter, **ALL)).shares["input"] for jitter in (0.001, 0.1))
    assert calm.high - calm.low < 0.01 < 0.05 < wild.high - wild.low
    assert wild.low <= wild.value <= wild.high


def test_drift_between_repetitions_does_not_change_shares():
    slower = {name: [[step * factor] * 3 for factor in (1, 1.5, 2)] for name, step in ALL.items()}
    share = diagnose(slower).shares["exchange"]
    assert share.high - share.low < 1e-9 and share.value == pytest.approx(0.2)


def test_bootstrap_is_deterministic():
    assert diagnose(times(0.05, **ALL)) == diagnose(times(0.05, **ALL))


@pytest.mark.parametrize(
    "seconds, kind, begins",
    [
        # 1 - 0.058 / 0.1, the published 42 %
        (dict(compute=0.05, exchange=0.058, all=0.1), "input", "input-bound: 42 % slower than synthetic images (4"),
        (dict(compute=0.05, exchange=0.1, all=0.101), "exchange", "exchange-bound: 50 % of a step"),
        (dict(compute=0.06, side_by_side=0.1, exchange=0.102), "cores", "short of cores: ranks without exchange"),
        (dict(compute=0.1, exchange=0.105, all=0.107), "compute", "compute-bound: 93 % of a step is compute"),
        (dict(compute=0.07, side_by_side=0.085, exchange=0.095, all=0.106), "cores", "short of cores"),
        (dict(compute=0.07, side_by_side=0.079, exchange=0.088, all=0.097), "none", "no bottleneck: comp"),
    ],
)
def test_verdict_names_the_largest_part(seconds, kind, begins):
    found = diagnose(times(0.001, **seconds))
    assert found.kind == kind and found.verdict.startswith(begins)


def test_insignificant_part_is_not_named():
    # in one of the three repetitions the input took no time
    measured = {"compute": [[0.1] * 3] * 3, "all": [[0.1] * 3, [0.14] * 3, [0.15] * 3]}
    found = diagnose(measured)
    assert found.shares["input"].value > 0.25 and not found.shares["input"].low > 0
    assert found.kind == "none" and found.verdict.startswith("no bottleneck")


def test_part_below_the_noise_is_not_named():
    shares = {"compute": Estimate(0.95, 0.9, 1.0), "cores": Estimate(-0.08, -0.2, 0.1)}
    assert judge({**shares, "exchange": Estimate(0.13, 0.07, 0.3)})[0] == "compute"
    assert judge({**shares, "exchange": Estimate(0.13, 0.09, 0.3)})[0] == "exchange"


def test_changed_speed_of_the_machine_gives_no_verdict():
    kind, verdict = judge({"compute": Estimate(1.5, 1.1, 2.3), "input": Estimate(-0.5, -1.3, -0.1)})
    assert kind == "none" and verdict.startswith("no bottleneck: input was measured as -50 % of a step")


def test_verdict_includes_the_second_part():
    assert "; exchange 20 %" in diagnose(times(0.001, **ALL)).verdict


EXCHANGE = diagnose(times(0.0001, compute=0.10, exchange=0.2))


def gains(found, facts=TWO, config=BASE):
    return {one.setting: round(one.gain, 3) for one in advise(found, facts, config)}


def with_comm(**values):
    return replace(BASE, comm=replace(BASE.comm, **values))


def test_hidden_exchange_gains_at_most_its_time():
    # 0.2 s -> 0.1 s; half the bytes: 0.15 s; half as often: 0.15 s
    assert gains(EXCHANGE) == {
        "comm.double_buffering=true": 1.0,
        "comm.compression=fp16": 0.333,
        "batch.per_device=64": 0.333,
    }


def test_current_settings_are_not_advised():
    assert set(gains(EXCHANGE, config=with_comm(double_buffering=True, compression="fp16"))) == {"batch.per_device=64"}


def test_exchange_longer_than_compute_is_partly_hidden():
    longer = diagnose(times(0.0001, compute=0.1, exchange=0.25))  # 0.05 s of its 0.15 s remain
    assert gains(longer)["comm.double_buffering=true"] == round(0.25 / 0.15 - 1, 3)


def test_more_servers_are_advised():
    served = with_comm(backend="parameter_server")
    assert gains(EXCHANGE, config=served)["comm.servers=1x"] == 0.333
    assert "comm.servers=1x" not in gains(EXCHANGE, config=with_comm(backend="parameter_server", servers="2x"))


def test_refused_settings_are_not_advised():
    assert "batch.per_device=64" not in gains(EXCHANGE, replace(TWO, larger_fits=False))
    pushed_once = with_comm(backend="dist_device_sync", servers="1")
    assert "comm.servers=1x" not in gains(EXCHANGE, replace(TWO, ranks_here=2), pushed_once)
    crowded = diagnose(times(0.0001, compute=0.05, side_by_side=0.1, exchange=0.1, all=0.1))
    assert "launch.hosts: more machines" in gains(crowded, replace(TWO, ranks_here=2))
    assert "launch.hosts: more machines" not in gains(crowded, replace(TWO, ranks_here=2), with_comm(backend="device"))


INPUT = diagnose(times(0.0001, compute=0.1, all=0.2))


def test_settings_of_the_input_gain_at_most_all_of_it():
    config = replace(BASE, data=replace(BASE.data, augment=replace(BASE.data.augment, hue=0.1)))
    assert gains(INPUT, Facts(ranks=1, threads=2), config) == dict.fromkeys(
        ["data.augment.hue=0", "data.pack_short_side=100"], 1.0
    )
    assert gains(diagnose(times(0.0001, compute=0.2, all=0.2)), Facts(ranks=1, threads=2), config) == {}


def test_smaller_files_are_advised_for_large_packed_images():
    facts = Facts(ranks=1, threads=1)
    assert gains(INPUT, facts)["data.pack_short_side=100"] == 1.0  # at most all of the input
    small = replace(BASE, data=replace(BASE.data, pack_short_side=110))
    ready_made = replace(BASE, data=replace(BASE.data, kind="recordio"))
    for config in (small, ready_made):
        assert not any("pack" in setting for setting in gains(INPUT, facts, config))


def test_fewer_threads_or_more_machines_are_advised():
    crowded = diagnose(times(0.0001, compute=0.1, side_by_side=0.2))
    assert gains(crowded, replace(TWO, threads=2)) == {"launch.threads=1": 1.0}
    assert gains(crowded) == {"launch.hosts: more machines": 1.0}


def test_half_precision_is_advised_on_a_gpu():
    bound = diagnose(times(0.0001, compute=0.1, all=0.1))
    assert gains(bound, Facts(ranks=1, threads=1)) == {}
    assert gains(bound, Facts(ranks=1, threads=1, device="gpu")) == {"precision=amp": 1.0}
    assert gains(bound, Facts(ranks=1, threads=1, device="gpu"), with_comm(double_buffering=True)) == {}


def test_advice_has_the_three_largest_gains():
    suggestions = advise(diagnose(times(0.0001, **ALL)), TWO, BASE)
    assert len(suggestions) == 3 and suggestions == sorted(suggestions, key=lambda one: -one.gain)


def test_probes_differ_only_in_what_they_leave_out():
    found = probes.configs(prepared(), 10)
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


@pytest.mark.parametrize("precision, other", [("float32", "bf16"), ("bf16", "float32")])
def test_the_other_precision_of_a_cpu_is_measured_and_advised_if_it_is_faster(monkeypatch, precision, other):
    monkeypatch.setattr(probes, "multiplies_bf16", lambda: True)
    found = probes.configs(prepared(precision=precision), 1)
    assert found["other_precision"] == [replace(found["compute"][0], precision=other)]
    assert "other_precision" not in probes.configs(prepared(precision=precision, device="gpu"), 1)
    assert "other_precision" not in probes.configs(prepared(precision=precision, model={"name": "symbol"}), 1)
    bound, config = diagnose(times(0.0001, compute=0.1, all=0.1)), replace(BASE, precision=precision)
    assert gains(bound, Facts(ranks=1, threads=1, other_precision_s=0.05), config) == {f"precision={other}": 1.0}
    assert gains(bound, Facts(ranks=1, threads=1, other_precision_s=0.15), config) == {}


def test_inapplicable_probes_are_left_out():
    assert set(probes.configs(prepared(ranks=1), 1)) == {"compute", "all"}
    assert set(probes.configs(prepared(device="gpu"), 1)) == {"compute", "exchange", "all"}
    assert set(probes.configs(prepared(data={"kind": "synthetic"}), 1)) == {"compute", "side_by_side", "exchange"}


def test_one_rank_has_the_batches_of_the_run():
    run = prepared(data={"shards": 4}, batch={"accumulation": 3})
    assert (run.micro_batches, run.images_of_a_rank) == (6, 192)
    assert probes.configs(run, 1)["compute"][0].data.shards == 2


def test_single_ranks_run_on_their_hosts():
    hosts = [Host("a", 1, "a"), Host("b", 2, "b")]
    run = prepared(ranks=3, hosts=hosts, launch={"ranks": 3, "hosts": ["a:1", "b:2"]})
    where = [config.launch.hosts for config in probes.configs(run, 1)["side_by_side"]]
    assert where == [["a:1"], ["b:1"], ["b:1"]]
