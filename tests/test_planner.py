"""Plans: every combination, how long it takes, what it costs, which one is chosen."""

import csv
import dataclasses
import json
import math
from dataclasses import replace

import numpy as np
import pytest
from conftest import ROOT
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf
from plans import make_sizes

from mxscale.cli import main as commands  # its keys are Hydra's defaults
from mxscale.config.schema import from_dict
from mxscale.config.sizes import bucket_bytes
from mxscale.cost import prices, run_cost
from mxscale.perfmodel import calibration, hardware, layers, machines, rates, scenarios, step_time
from mxscale.perfmodel.layers import Network
from mxscale.perfmodel.rates import Measured
from mxscale.perfmodel.scenarios import Grid, Machine, Task
from mxscale.perfmodel.step_time import Link
from mxscale.planner import choice, keys, planning
from mxscale.planner import figure as plan_figure
from mxscale.planner.choice import Bounds
from mxscale.rundir import directory
from mxscale.rundir.directory import FINISHED
from mxscale.rundir.plan import Host, Plan
from mxscale.util.errors import ConfigError

FREE = Link(0.0, math.inf)
NETWORK = Network("two layers", ((1_000_000, 1e9), (1_000_000, 1e9)))  # 8 MB of float32

# An exchange that hides nothing and devices that all take as long: sums that can be done by hand
PLAIN = {"overlap": 0.0, "overlap_served": 0.0, "spread": 0.0, "jitter": 0.0, "overhead": 0.0}


@pytest.fixture
def plain(monkeypatch):
    monkeypatch.setattr(hardware, "constants", lambda: PLAIN)


SLOW = Link(0.0, 1e8)


def machine(gpus=1, nic=SLOW, usd=10.0, name="m"):
    return Machine(name, gpus, FREE, FREE, nic, nic, usd, usd / 1.25)


def task(**changes):
    known = {("m", 10, "float32"): 100.0, **changes.pop("rates", {})}
    buckets = dict.fromkeys((False, True), 1e9)
    return Task(NETWORK, **{"images": 3600, "epochs": 10, "rates": known, "bucket_bytes": buckets, **changes})


def one(grid: Grid, of: Task) -> dict:
    plans, _ = scenarios.evaluate(grid, of)
    (row,) = scenarios.rows(plans, range(len(plans["hours"])))
    return row


# ---------------------------------------------------------------- one plan, by hand


def test_one_device_trains_at_its_own_rate(plain):
    row = one(Grid([machine()], [1], batch=[10]), task())
    assert row["images_per_s"] == pytest.approx(100) and row["efficiency"] == pytest.approx(1)
    assert row["hours"] == pytest.approx(0.1) and row["usd"] == pytest.approx(1) and row["eur"] == pytest.approx(0.8)
    assert row["bound"] == "compute"


def test_a_ring_of_two_sends_all_gradients_once_each_way(plain):
    """2 (p-1)/p x 8 MB at 100 MB/s is 0.08 s, beside 0.1 s of compute."""
    row = one(Grid([machine()], [2], batch=[10]), task())
    assert row["step_s"] == pytest.approx(0.18)
    assert row["images_per_s"] == pytest.approx(20 / 0.18)
    assert row["efficiency"] == pytest.approx(0.1 / 0.18)


def test_half_the_bytes_take_half_the_time(plain):
    sent = one(Grid([machine()], [2], batch=[10], compression=["fp16"]), task())
    assert sent["exchange_s"] == pytest.approx(0.04)
    halves = one(Grid([machine()], [2], batch=[10], precision=["float16"]), task(rates={("m", 10, "float16"): 100.0}))
    assert halves["exchange_s"] == pytest.approx(0.04)


def test_double_buffering_takes_the_longer_of_the_two(plain):
    slow = machine(nic=Link(0.0, 0.4e8))  # 0.2 s
    row = one(Grid([slow], [2], batch=[10], double_buffering=[True]), task())
    assert row["step_s"] == pytest.approx(0.2) and row["bound"] == "exchange"


def test_of_accumulated_batches_the_last_one_hides_the_exchange(plain, monkeypatch):
    """Two buckets of 0.04 s, one ready in the middle of 2/3 x 0.1 s: it is sent by then, whatever came before."""
    monkeypatch.setitem(PLAIN, "overlap", 1.0)
    halves = {"bucket_bytes": dict.fromkeys((False, True), 4e6)}
    for turns in (1, 4):
        row = one(Grid([machine()], [2], batch=[10]), task(accumulation=turns, **halves))
        assert row["exposed_s"] == pytest.approx(0.08 - 0.1 / 3) and row["compute_s"] == pytest.approx(turns * 0.1)


def test_a_slow_input_bounds_the_step(plain):
    row = one(Grid([machine(gpus=4)], [1], batch=[10]), task(input_images_per_s=50))
    assert row["bound"] == "input" and row["images_per_s"] == pytest.approx(50)


def test_servers_are_paid_for_and_share_the_gradients(plain):
    """Two nodes, one server: it takes 2 x 8 MB and gives as much, at 100 MB/s; 11 for each hour of the three."""
    served = Grid([machine()], [2], comm=["parameter_server"], servers=["1"], batch=[10])
    row = one(served, task(server=machine(usd=1.0)))
    assert row["exchange_s"] == pytest.approx(0.32)
    assert row["usd"] == pytest.approx(row["hours"] * 21)
    row = one(scenarios.Grid(**{**vars(served), "servers": ["1x"]}), task(server=machine(usd=1.0)))
    assert row["servers"] == 2 and row["exchange_s"] == pytest.approx(0.16)
    assert row["usd"] == pytest.approx(row["hours"] * 22)


def test_each_rank_sends_its_own_gradients_to_the_servers(plain):
    alone, of = (
        Grid([machine(gpus=4)], [2], comm=["parameter_server"], servers=["1"], batch=[10]),
        task(server=machine()),
    )
    assert one(alone, of)["exchange_s"] == pytest.approx(4 * 0.32)
    single = scenarios.Grid(**{**vars(alone), "nodes": [1]})  # its server is another machine all the same
    assert one(single, of)["exchange_s"] == pytest.approx(4 * 0.16)


def test_a_server_with_a_slower_link_is_worth_less(plain):
    served = Grid([machine()], [2], comm=["parameter_server"], servers=["2"], batch=[10])
    row = one(served, task(server=machine(nic=Link(0.0, 0.25e8))))
    assert row["exchange_s"] == pytest.approx(4 * 0.16)


def test_servers_on_the_workers_nodes_cost_nothing(plain):
    row = one(Grid([machine()], [2], comm=["parameter_server"], servers=["0"], batch=[10]), task())
    assert row["servers"] == 0 and row["usd"] == pytest.approx(row["hours"] * 20)


def test_every_image_counts_and_set_up_is_paid(plain):
    row = one(Grid([machine()], [1], batch=[10]), task(images=3605, setup_s=360))
    assert row["hours"] == pytest.approx(0.2 + 50 / 100 / 3600)


@pytest.mark.parametrize("billing", ["per_second", "per_hour"])
def test_hours_are_billed_as_a_run_is(billing):
    seconds = np.array([1.0, 59.9, 60.0, 3599.0, 3600.0, 3600.0000000001, 3601.0, 86_400.5])
    price = {"known": True, "usd_per_hour": 1.0, "eur_per_hour": None, "nodes": 1, "billing": billing,
             "minimum_s": 60, "setup_minutes": 0}  # fmt: skip
    billed = scenarios.billed_hours(seconds, billing, 60)
    assert billed == pytest.approx([prices.cost(price, [each])["usd"] for each in seconds])


# ---------------------------------------------------------------- all of them


def wide(count=12):
    several = [machine(name="m"), machine(gpus=8, nic=Link(1e-4, 1e9), usd=50.0, name="n")]
    grid = Grid(several, list(range(1, count + 1)), ["horovod", "parameter_server", "device"], ["0", "1", "2x"],
                [10, 20], ["float32", "float16"], ["none", "fp16", "2bit"], [False, True])  # fmt: skip
    known = {(m, b, p): 100.0 * b for m in "mn" for b in (10, 20) for p in ("float32", "float16")}
    return grid, task(rates=known, server=machine(usd=1.0), images=100_000)


def test_every_combination_that_can_be_is_a_plan():
    plans, refused = scenarios.evaluate(*wide(3))
    # horovod: none, fp16; servers: three numbers of them, and 2bit of float32; device: one node, as horovod
    assert len(plans["hours"]) == 2 * 2 * 2 * (3 * 2 * 2 + 3 * 3 * (3 + 2) + 1 * 2 * 2)
    twice, _ = scenarios.evaluate(
        Grid([machine()], [1, 2], ["parameter_server"], ["1", "1x"], [10]), task(server=machine())
    )
    assert list(zip(twice["nodes"], twice["servers"])) == [(1, 1), (2, 1), (2, 2)]
    assert len(refused) == 3 and all(count > 0 for count in refused.values())
    assert plans["nodes"][plans["comm"] == "device"].max() == 1


def test_many_at_once_are_what_each_is_alone():
    grid, of = wide(4)
    plans, _ = scenarios.evaluate(grid, of)
    rows = scenarios.rows(plans, range(len(plans["hours"])))
    named = {m.name: m for m in grid.machine}
    for number in range(0, len(rows), 37):
        row = rows[number]
        word = str(plans["asked_servers"][number]) or "0"
        alone = Grid([named[row["instance"]]], [row["nodes"]], [row["comm"]], [word], [row["batch"]],
                     [row["precision"]], [row["compression"]], [row["double_buffering"]])  # fmt: skip
        assert one(alone, of) == pytest.approx(row)


def test_a_global_batch_beyond_the_images_is_left_out():
    plans, refused = scenarios.evaluate(Grid([machine()], [1, 2, 4], batch=[10]), task(images=20))
    assert list(plans["nodes"]) == [1, 2] and list(refused.values()) == [1]


def test_unknown_money_stays_unknown():
    row = one(Grid([machine(usd=math.nan)], [1], batch=[10]), task())
    assert row["usd"] is None and row["eur"] is None and row["hours"] > 0


# ---------------------------------------------------------------- the figure


def drawn(plans, tmp_path, monkeypatch):
    """The three axes of the figure of `plans`."""
    import matplotlib.pyplot as plt

    monkeypatch.setattr(plt, "close", lambda figure: None)
    plan_figure.draw(plans, Bounds(), [], "net", str(tmp_path / "plan.png"))
    return plt.gcf().axes


def test_the_figure_says_what_bounds_each_plan_and_has_both_currencies(tmp_path, monkeypatch):
    plans, _ = scenarios.evaluate(*wide())
    _, middle, right = drawn(plans, tmp_path, monkeypatch)
    told = {text.get_text() for text in middle.get_legend().get_texts()}
    assert told == set(plans["bound"]) and "exchange" in told
    (beside,) = right.child_axes
    assert (right.get_ylabel(), beside.get_ylabel()) == ("USD", "EUR")


def test_the_figure_of_plans_without_a_price_is_drawn_too(tmp_path, monkeypatch):
    plans, _ = scenarios.evaluate(Grid([machine(usd=math.nan)], [1, 2], batch=[10]), task())
    *_, right = drawn(plans, tmp_path, monkeypatch)
    assert [text.get_text() for text in right.texts] == ["no price is known"]


# ---------------------------------------------------------------- the one to choose


def test_the_cheapest_and_the_fastest_within_bounds():
    plans, _ = scenarios.evaluate(*wide())
    hours, usd = plans["hours"], plans["usd"]
    deadline, budget = np.median(hours), np.median(usd)
    kept = Bounds(deadline_hours=deadline).kept(plans)
    assert usd[choice.cheapest(plans, kept)] == usd[hours <= deadline].min()
    kept = Bounds(budget_usd=budget).kept(plans)
    assert hours[choice.fastest(plans, kept)] == hours[usd <= budget].min()


def test_a_plan_of_unknown_cost_keeps_no_budget():
    plans, _ = scenarios.evaluate(Grid([machine(usd=math.nan)], [1], batch=[10]), task())
    assert not Bounds(budget_usd=1e9).kept(plans).any() and Bounds(deadline_hours=1e9).kept(plans).all()


def test_the_front_has_what_no_other_beats():
    plans, _ = scenarios.evaluate(*wide())
    everything = np.ones(len(plans["hours"]), bool)
    best = choice.front(plans, everything)
    for place in best:
        better = (plans["hours"] <= plans["hours"][place]) & (plans["usd"] < plans["usd"][place])
        assert not better.any()
    for place in range(0, len(everything), 11):
        covered = (plans["hours"][best] <= plans["hours"][place]) & (plans["usd"][best] <= plans["usd"][place])
        assert covered.any()


# ---------------------------------------------------------------- how fast a device is


def resnet50():
    return layers.network("resnet50_v1b")


def test_a_rate_by_hand_comes_first():
    runs = [Measured("resnet50_v1b", 32, "float32", 1, 1, 50.0, "r")]
    rate = rates.of_device(resnet50(), "V100-16GB", 32, "float32", 77.0, runs)
    assert (rate.images_per_s, rate.kind) == (77.0, "given")
    assert rates.of_device(resnet50(), "V100-16GB", 32, "float32", None, runs).kind == "measured"


def test_of_own_runs_the_nearest_batch_and_the_fewest_devices_count():
    runs = [
        Measured("resnet50_v1b", 32, "float32", 4, 1, 100.0, "four"),
        Measured("resnet50_v1b", 32, "float32", 1, 1, 30.0, "one"),
        Measured("resnet50_v1b", 128, "float32", 1, 1, 45.0, "large"),
        Measured("resnet50_v1b", 32, "float16", 1, 1, 90.0, "half"),
    ]
    assert rates.measured(resnet50(), 32, "float32", runs).images_per_s == 30
    assert rates.measured(resnet50(), 100, "float32", runs).images_per_s == 45
    assert rates.measured(resnet50(), 32, "amp", runs) is None
    alone = rates.measured(resnet50(), 32, "float32", runs[:1])
    assert alone.images_per_s == 25 and "their exchange included" in alone.source


def test_a_published_rate_is_that_of_the_nearest_batch():
    """MXNet's performance page has 298.51 images/s on a V100 at batch 32, 363.69 at 128."""
    assert rates.of_device(resnet50(), "V100-16GB", 32, "float32").images_per_s == 298.51
    rate = rates.of_device(resnet50(), "V100-16GB", 128, "float32")
    assert rate.kind == "published" and "batch 128" in rate.source


def test_a_published_rate_at_another_batch_is_taken_there():
    smaller = rates.of_device(resnet50(), "V100-16GB", 16, "float16")
    larger = rates.of_device(resnet50(), "V100-16GB", 512, "float16")
    assert smaller.images_per_s < larger.images_per_s and "taken to batch 16" in smaller.source


def test_without_one_flops_over_what_the_gpu_achieves():
    rate = rates.of_device(layers.network("vgg19_bn"), "V100-16GB", 32, "float32")
    known = hardware.device("V100")["resnet50_fp32"]
    assert rate.kind == "computed" and "ResNet-50" in rate.source
    assert rate.images_per_s == pytest.approx(known * resnet50().flops / layers.network("vgg19_bn").flops)


def test_unknown_is_not_guessed():
    with pytest.raises(ConfigError, match=r"plan.images_per_s"):
        rates.of_device(resnet50(), "K80", 32, "float16")
    with pytest.raises(ConfigError, match=r"plan.images_per_s"):
        rates.of_device(resnet50(), None, 32, "float32")


def test_every_instance_with_a_price_is_known_and_the_other_way_round():
    from mxscale.util import csv_tables

    priced = {row["instance"]: row for row in csv_tables.read("prices")}
    assert set(machines.known()) == set(priced)
    for name, row in machines.known().items():
        assert (row["gpus"], row["gpu"]) == (priced[name]["gpus"], priced[name]["gpu"])
        assert row["source"] and row["rdma"] in ("yes", "no")


def test_a_network_of_another_size():
    larger = layers.network("resnet50_v1b", image_size=448)
    assert larger.gradients == resnet50().gradients and larger.flops == pytest.approx(4 * resnet50().flops, rel=0.01)
    fewer = layers.network("resnet50_v1b", classes=10)
    assert resnet50().gradients - fewer.gradients == 990 * 2049


# ---------------------------------------------------------------- one's own measurements


def finished(runs, ranks: int, rate: float, shards=None, **settings):
    """A run directory as far as plans look at it."""
    config = from_dict({"runs": str(runs), "model": {"name": "resnet18_v1b"}, **settings})
    run = directory.create(config)
    sizes = make_sizes(ranks, shards=shards or ranks, per_device_batch=config.batch.per_device)
    run.write_plan(Plan(sizes=sizes, threads=1, classes=5, device="cpu"))
    run.write("status.json", {"state": FINISHED})
    run.write("summary.json", {"metrics": {"throughput/median": rate}})
    return run


def test_a_link_that_is_fitted_gives_back_what_was_measured(tmp_path):
    first, second = finished(tmp_path, 1, 40.0), finished(tmp_path, 2, 60.0)
    config = first.config()
    own = calibration.read([str(first.path), str(second.path)], config)
    assert own.intra is not None and own.nic is None
    known = machines.Given(gpus=2, intra=own.intra)
    node = machines.node(config.machine, run_cost.pricing(config), known)
    network = layers.network("resnet18_v1b", 32, 5)
    measured = rates.measured(network, 32, "float32", own.runs).images_per_s
    buckets = dict.fromkeys((False, True), bucket_bytes(config.comm, 4 * network.gradients))
    of = Task(network, 1000, 1, {("local", 32, "float32"): measured}, bucket_bytes=buckets)
    row = one(Grid([node.machine], [1], batch=[32]), of)
    assert row["images_per_s"] == pytest.approx(60, rel=0.01)


ON = {"name": "resnet50_v1b", "rate": 300.0, "batch": 32}  # of one device, without an exchange


def as_planned(nodes, gpus, link, accumulation=1, **comm):
    """What the planner says of a run on such links: as that run, and one device by itself, would be measured."""
    config = from_dict({"model": {"name": ON["name"]}, "batch": {"accumulation": accumulation}, "comm": comm})
    network = layers.network(ON["name"])
    slow = Machine("m", gpus, *[FREE if nodes > 1 else link] * 2, *[link] * 2)
    of = planning.task_of(config, network, 10**6, {("m", ON["batch"], "float32"): ON["rate"]})
    row = one(Grid([slow], [nodes], [config.comm.backend], ["0"], [ON["batch"]]), of)
    known = {"comm": config.comm, "image_size": 224, "accumulation": accumulation}
    measured = [(1, 1, ON["rate"]), (nodes * gpus, nodes, row["images_per_s"])]
    return [Measured(ON["name"], ON["batch"], "float32", devices, on, rate, "a run", **known)
            for devices, on, rate in measured]  # fmt: skip


@pytest.mark.parametrize(
    "link, nodes, comm",
    [
        ("nic", 2, {"backend": "horovod"}),
        ("nic", 2, {"backend": "horovod", "hierarchical": True}),
        ("nic", 2, {"backend": "horovod", "overlap": False}),
        ("served", 2, {"backend": "parameter_server", "servers": "1x"}),
        ("intra", 1, {"backend": "horovod"}),
        ("intra", 1, {"backend": "nccl"}),
        ("intra", 1, {"backend": "horovod", "hierarchical": True}),
        ("kept", 1, {"backend": "device"}),
    ],
)
@pytest.mark.parametrize("accumulation", [1, 4])
def test_a_link_is_found_again_in_what_was_planned_with_it(link, nodes, comm, accumulation):
    runs = as_planned(nodes, 4, Link(0.0, 2e8), accumulation, **comm)
    found = {name: calibration.fit(runs, name) for name in calibration.CARRIES}
    assert found.pop(link).bytes_per_s == pytest.approx(2e8, rel=0.01)
    assert not any(found.values())  # it says nothing of the others


def test_the_link_between_nodes_is_fitted_beside_the_one_inside_them():
    runs = as_planned(1, 4, Link(0.0, 5e8)) + as_planned(2, 4, Link(0.0, 2e8), hierarchical=True)
    inside = calibration.fit(runs, "intra")
    free, beside = calibration.fit(runs, "nic"), calibration.fit(runs, "nic", inside)
    assert inside.bytes_per_s == pytest.approx(5e8, rel=0.01) and free.bytes_per_s == pytest.approx(2e8, rel=0.01)
    assert beside.bytes_per_s > 1.2 * free.bytes_per_s  # part of what these took passed inside


def test_with_double_buffering_all_accumulated_batches_hide_the_exchange():
    """A ring of 8: what is longer than four batches' computing shows the link."""
    (alone, run) = as_planned(2, 4, Link(0.0, 1e8), accumulation=4)
    delayed = dataclasses.replace(run, comm=dataclasses.replace(run.comm, double_buffering=True))
    links = {"nic": Link(0.0, 1e8)}
    rate = float(calibration.rate_of(delayed, alone.images_per_s, layers.network(ON["name"]), links))
    seconds = 2 * 7 / 8 * 4 * resnet50().gradients / 1e8
    assert seconds > 4 * 32 / 300 and rate == pytest.approx(8 * 4 * 32 / seconds, rel=0.1)
    delayed = dataclasses.replace(delayed, images_per_s=rate)
    assert calibration.fit([alone, delayed], "nic").bytes_per_s == pytest.approx(1e8, rel=0.01)


def test_fewer_servers_than_nodes_are_a_narrower_way():
    """Of four nodes: a server on each, 2 x 3/4 of all gradients pass its adapter; on one alone, 3; apart, 2 x 4."""
    _, each = as_planned(4, 1, Link(0.0, 2e8), backend="parameter_server", servers="1x")
    single = dataclasses.replace(each, comm=dataclasses.replace(each.comm, servers=1))
    apart = dataclasses.replace(single, server_nodes=1)
    jobs = [calibration.job(run, 300.0, resnet50(), {"nic": Link(0.0, 2e8)}) for run in (each, single, apart)]
    whole_s = 4 * resnet50().gradients / 2e8
    assert [float(step_time.predict(job).exchange_s / whole_s) for job in jobs] == pytest.approx([1.5, 3, 8])


def test_servers_on_other_machines_than_the_ranks_are_no_nodes_of_devices(tmp_path):
    served = {"comm": {"backend": "parameter_server", "servers": 2}, "batch": {"accumulation": 3}}
    run = finished(tmp_path, 4, 60.0, **served)
    run.write_plan(replace(run.plan(), hosts=tuple(Host(name, 2, name) for name in "abcd")))
    measured = calibration.of_run(str(run.path))
    assert (measured.nodes, measured.server_nodes, measured.accumulation) == (2, 2, 3)


def test_runs_of_each_exchange_calibrate_the_link_that_it_went_by(tmp_path):
    runs = [finished(tmp_path, 1, 40.0)]
    runs += [finished(tmp_path, 2, rate, comm={"backend": backend})
             for backend, rate in (("horovod", 60.0), ("device", 70.0), ("parameter_server", 30.0))]  # fmt: skip
    own = calibration.read([str(run.path) for run in runs], runs[0].config())
    assert own.intra.bytes_per_s < own.kept.bytes_per_s and (own.nic, own.served) == (None, None)
    assert own.said == "link inside a node fitted to own runs; link inside a node (comm=device) fitted to own runs"
    node = machines.node(runs[0].config().machine, run_cost.pricing(runs[0].config()),
                         machines.Given(gpus=2, intra=own.intra, kept=own.kept, served=SLOW))  # fmt: skip
    assert (node.machine.intra, node.machine.kept, node.machine.nic) == (own.intra, own.kept, SLOW)


def test_a_run_on_other_threads_says_nothing_of_the_link(tmp_path):
    first, second = finished(tmp_path, 1, 40.0), finished(tmp_path, 2, 60.0)
    second.write_plan(replace(second.plan(), threads=2))
    assert calibration.read([str(first.path), str(second.path)], first.config()).intra is None


def test_a_run_whose_ranks_took_several_data_shards_is_refused(tmp_path):
    run = finished(tmp_path, 2, 60.0, shards=4)
    with pytest.raises(ConfigError, match="several data shards one after the other, which no plan does"):
        calibration.read(str(run.path), run.config())


def test_the_bench_of_all_reduce_gives_the_link_between_nodes(tmp_path):
    table = tmp_path / "links.csv"
    table.write_text("name,ranks,transport,alpha_s,bytes_per_s,date,source\nlo,2,gloo,0.0001,2.5e8,2026-01-01,x\n")
    assert calibration.read(str(table), from_dict({})).nic == Link(1e-4, 2.5e8)


@pytest.mark.parametrize(
    "text, told",
    [
        ("a,b\n1,2\n", "expected a row with ranks, alpha_s, bytes_per_s"),
        ("", "expected a row with"),
        ("ranks,alpha_s,bytes_per_s\n2,,\n", "could not convert"),
        ("ranks,alpha_s,bytes_per_s\n2\n", "could not convert"),
        ("ranks,alpha_s,bytes_per_s\n2,nan,1e9\n", "expected alpha_s of at least 0"),
        ("ranks,alpha_s,bytes_per_s\n2,0,0\n", "expected alpha_s of at least 0"),
    ],
)
def test_a_table_that_is_none_is_refused(tmp_path, text, told):
    (tmp_path / "links.csv").write_text(text)
    with pytest.raises(ConfigError, match=told):
        calibration.read(str(tmp_path / "links.csv"), from_dict({}))


@pytest.mark.parametrize(
    "state, words", [(None, "is unfinished; let it end first"), ("FAILED", "is FAILED; let it end first")]
)
def test_a_run_that_has_not_finished_is_refused(tmp_path, state, words):
    run = finished(tmp_path, 1, 40.0)
    run.write("status.json", {"state": state})
    with pytest.raises(ConfigError, match=words):
        calibration.read(str(run.path), run.config())


def test_a_run_that_saw_images_of_another_size_is_refused(tmp_path):
    run = finished(tmp_path, 1, 40.0, data={"image_size": 32})
    with pytest.raises(ConfigError, match="saw images of 32 px, the plan is for 224"):
        calibration.read(str(run.path), from_dict({"model": {"name": "resnet18_v1b"}, "data": {"image_size": 224}}))


@pytest.mark.parametrize(
    "ran, told", [({"device": "cpu"}, "ran on a CPU, and"), ({"gpu": "NVIDIA A100-SXM4-40GB"}, "ran on NVIDIA A100")]
)
def test_a_run_on_another_device_says_nothing_of_a_gpu(ran, told):
    run = Measured("resnet50_v1b", 32, "float32", 1, 1, 11.0, "a run", **ran)
    with pytest.raises(ConfigError, match=told):
        rates.of_device(layers.network("resnet50_v1b"), "V100-16GB", 32, "float32", runs=[run])


def test_a_published_rate_is_taken_to_the_size_of_the_images():
    rate = {side: rates.reported(layers.network("resnet50_v1b", side), "V100-16GB", 32, "float32").images_per_s
            for side in (112, 224, 448)}  # fmt: skip
    assert rate[112] > 3 * rate[224] and rate[448] == pytest.approx(rate[224] / 4, rel=0.2)


def test_a_machine_that_only_ones_own_price_names_can_be_planned(tmp_path, undrawn, capsys):
    by_hand = ["machine.usd_per_hour=7.8", "plan.gpus=8", "plan.nic_gbps=100", "plan.images_per_s=100"]
    plan(tmp_path, "machine=aws", "machine.instance=g4dn.metal", "plan.images=1000", *by_hand)
    assert "8 x device" in capsys.readouterr().out


def test_runs_of_another_network_are_refused(tmp_path):
    run = finished(tmp_path, 1, 40.0)
    with pytest.raises(ConfigError, match="those runs trained resnet18_v1b, the plan is for small"):
        calibration.read(str(run.path), from_dict({}))


# ---------------------------------------------------------------- the command


def plan(output, *overrides):
    """What `python plan.py` does with these, in this process."""
    with initialize_config_dir(str(ROOT / "conf"), version_base="1.3"):
        composed = compose("plan", overrides=[f"plan.output={output}", *overrides])
    values = OmegaConf.to_container(composed, resolve=True)
    own = {key: values.pop(key) for key in ("plan", "json")}
    planning.main(commands.validate(commands.from_dict(keys.without_data(values))), own["plan"], own["json"])


@pytest.fixture
def undrawn(monkeypatch):
    """Without the figure, which takes most of the time."""
    monkeypatch.setattr(planning.figure, "draw", lambda *_: None)


P3 = "machine.instance=p3.16xlarge"
OWN = ["machine=local", "plan.gpus=1", "plan.nic_gbps=1", "plan.images_per_s=9"]


def test_the_command_says_what_a_training_takes(tmp_path, capsys):
    both = ["plan.comm=[horovod,parameter_server]", "plan.nodes=[1,2,4,8]", "plan.epochs=90"]
    plan(tmp_path, "model=resnet50_v1b", P3, *both, "plan.deadline_hours=3", "plan.input_images_per_s=20000")
    out = capsys.readouterr().out
    for word in ("25.6 million gradients", "90 of 1,281,167 images", "mxnet-perf-faq", "24.48 USD/h", "c5.18xlarge",
                 "within 3 h: 8 x p3.16xlarge", "20,000 images/s a node"):  # fmt: skip
        assert word in out
    table = [line for line in out.splitlines() if line.endswith(("  compute", "  exchange", "  input"))]
    assert len(table) == 8 and sum(line.startswith("* ") for line in table) >= 1
    with open(tmp_path / "plan.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 8 and {"instance", "usd", "eur", "hours", "efficiency", "bound"} <= set(rows[0])
    first = rows[0]
    assert float(first["usd"]) == pytest.approx(float(first["hours"]) * 24.48, rel=1e-4)
    assert (tmp_path / "plan.png").read_bytes().startswith(b"\x89PNG")


def test_json_is_one_object(tmp_path, capsys, undrawn):
    plan(tmp_path, P3, "plan.nodes=2", "json=true", "plan.images=5000", "epochs=2")
    (line,) = capsys.readouterr().out.splitlines()
    told = json.loads(line)
    assert told["count"] == 1 and told["plans"][0]["devices"] == 16
    assert set(told["answer"]) == {"cheapest and fastest"} and "2 of 5,000 images (given)" in told["known"]["epochs"]


def test_of_many_plans_those_are_shown_that_no_other_beats(tmp_path, capsys):
    batches = "plan.batch=[" + ",".join(map(str, range(8, 136, 8))) + "]"
    plan(tmp_path, P3, batches, "plan.double_buffering=[false,true]", "plan.compression=[none,fp16]")
    out = capsys.readouterr().out
    assert "of 256 plans: no other is both faster and cheaper" in out and out.count("\n") < 60
    assert max(map(len, out.splitlines()[:-4])) <= 120


def test_a_deadline_that_no_plan_keeps_is_an_answer(tmp_path, capsys, undrawn):
    plan(tmp_path, P3, "plan.deadline_hours=0.001")
    assert "no plan is done within 0.001 h; the nearest: 8 x p3.16xlarge" in capsys.readouterr().out


def test_a_machine_of_ones_own_is_planned_from_what_is_given(tmp_path, capsys, undrawn):
    plan(tmp_path, "machine=local", "plan.gpus=2", "plan.nic_gbps=10", "plan.images_per_s=95", "plan.nodes=[1,4]")
    out = capsys.readouterr().out
    assert "given by hand" in out and "cost unknown" in out and "price unknown" in out and "fastest: 4 x local" in out


@pytest.mark.parametrize(
    "given, told",
    [
        ([P3, "model.name=resnet50v1b"], "did you mean resnet50_v1b?"),
        (["machine.instance=p3.16xlarg"], "machine.instance=p3.16xlarg: did you mean p3.16xlarge?"),
        (["plan.instance=[p3.16xlarge,p9.large]"], "machine.instance=p9.large"),
        ([P3, "machine.region=eu-wst-1"], "machine.region=eu-wst-1"),
        ([P3, "plan.comm=hrovod"], "plan.comm=hrovod: did you mean horovod?"),
        ([P3, "plan.comm=[device]", "plan.nodes=[2]"], "one process drives the devices of one node"),
        ([P3, "plan.precision=[int8]"], "plan.precision=int8"),
        ([P3, "plan.nodes=0"], "plan.nodes=0: expected whole numbers from 1 to 1,000,000"),
        ([P3, "plan.nodes=[]"], "plan.nodes=[]: expected a list"),
        ([P3, "plan.servers=3y"], "plan.servers=3y"),
        ([P3, "plan.double_buffering=1"], "plan.double_buffering=1: expected true or false"),
        ([P3, "plan.budget_usd=-3"], "plan.budget_usd=-3.0: expected a number above 0"),
        ([P3, "plan.budget_eur=0"], "plan.budget_eur=0.0: expected a number above 0"),
        ([P3, "plan.deadline_hours=nan"], "plan.deadline_hours=nan: expected a number above 0"),
        ([P3, "plan.images=many"], "plan.images=many: expected a whole number"),
        ([P3, "plan.epochs=-1"], "plan.epochs=-1.0"),
        ([P3, "data=imagefolder"], "plan.images is missing"),
        (["machine.instance=p5.48xlarge"], "give plan.images_per_s"),
        (["machine.instance=p2.xlarge"], "plan.nic_gbps is missing"),
        (["machine=local"], "plan.gpus is missing"),
        (
            ["machine=local", "plan.gpus=1", "plan.nic_gbps=1", "plan.images_per_s=9", "plan.budget_usd=5"],
            "no price is known",
        ),
        ([P3, "machine.region=eu-west-1", "plan.comm=parameter_server"], "plan.server_usd_per_hour"),
        ([P3, "plan.comm=parameter_server", "plan.server_instance=c5.18xlrge"], "did you mean c5.18xlarge?"),
        ([P3, "plan.calibrate=/nowhere"], "plan.calibrate=/nowhere: that is no run directory"),
        ([P3, "json=1"], "json=1: expected true or false"),
    ],
)
def test_bad_input_is_refused(given, told, tmp_path):
    with pytest.raises(ConfigError) as refused:
        plan(tmp_path, *given)
    assert told in str(refused.value) and "\n" not in str(refused.value)


def test_a_folder_that_can_not_be_written_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"plan\.output"):
        plan(tmp_path / "file" / "plans", P3)


def test_the_entry_script_ends_with_what_it_found(cli, tmp_path):
    """An unknown key is named; a plan needs neither data nor a region."""
    done = cli("plan", P3, f"plan.output={tmp_path}", "plan.nodes=[1]", small=False)
    assert "cheapest and fastest: 1 x p3.16xlarge" in done.out
    done = cli("plan", P3, "plan.nodez=3", small=False, expect=2)
    assert done.err == "error: unknown key plan.nodez: did you mean plan.nodes?\n"


def test_the_link_inside_a_node_is_its_devices_own():
    for gpu, words in {
        "H200": "nvlink4 99.45 GB/s inside a node",
        "A10G": "pcie4 11.66 GB/s inside a node",
        None: "pcie3 5.83 GB/s inside a node, taken because the link is not known",
    }.items():
        assert machines.inside_node(gpu, 8)[2] == words
