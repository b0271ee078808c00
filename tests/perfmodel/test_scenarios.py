"""Plans: every combination, its time and cost, the figure, the recommended ones."""

import math
import os
from dataclasses import replace

import numpy as np
import pytest
from matplotlib.figure import Figure
from plans import only_plan

from mxscale.perfmodel import hardware, scenarios
from mxscale.perfmodel.layers import Layer, Network
from mxscale.perfmodel.scenarios import Grid, Machine, Task
from mxscale.perfmodel.step_time import Link
from mxscale.planner import choice
from tools import plan_figure

FREE = Link(0.0, math.inf)
NETWORK = Network("two layers", (Layer(1_000_000, 1e9), Layer(1_000_000, 1e9)))  # 8 MB of float32

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


def test_one_device_trains_at_its_rate(plain):
    row = only_plan(Grid([machine()], [1], batch=[10]), task())
    assert row["images_per_s"] == pytest.approx(100) and row["efficiency"] == pytest.approx(1)
    assert row["hours"] == pytest.approx(0.1) and row["usd"] == pytest.approx(1) and row["eur"] == pytest.approx(0.8)
    assert row["bound"] == "compute"


def test_ring_of_two_sends_all_gradients_twice(plain):
    """2 (p-1)/p x 8 MB at 100 MB/s is 0.08 s, beside 0.1 s of compute."""
    row = only_plan(Grid([machine()], [2], batch=[10]), task())
    assert row["step_s"] == pytest.approx(0.18)
    assert row["images_per_s"] == pytest.approx(20 / 0.18)
    assert row["efficiency"] == pytest.approx(0.1 / 0.18)


def test_half_the_bytes_take_half_the_time(plain):
    sent = only_plan(Grid([machine()], [2], batch=[10], compression=["fp16"]), task())
    assert sent["exchange_s"] == pytest.approx(0.04)
    halves = only_plan(
        Grid([machine()], [2], batch=[10], precision=["float16"]), task(rates={("m", 10, "float16"): 100.0})
    )
    assert halves["exchange_s"] == pytest.approx(0.08)  # sent as float32


def test_double_buffering_takes_the_longer_of_both(plain):
    slow = machine(nic=Link(0.0, 0.4e8))  # 0.2 s
    row = only_plan(Grid([slow], [2], batch=[10], double_buffering=[True]), task())
    assert row["step_s"] == pytest.approx(0.2) and row["bound"] == "exchange"


def test_last_accumulated_batch_hides_the_exchange(plain, monkeypatch):
    """Two buckets of 0.04 s, one ready in the middle of 2/3 x 0.1 s: it is sent by then."""
    monkeypatch.setitem(PLAIN, "overlap", 1.0)
    halves = {"bucket_bytes": dict.fromkeys((False, True), 4e6)}
    for batches in (1, 4):
        row = only_plan(Grid([machine()], [2], batch=[10]), task(accumulation=batches, **halves))
        assert row["exposed_s"] == pytest.approx(0.08 - 0.1 / 3) and row["compute_s"] == pytest.approx(batches * 0.1)


def test_slow_input_bounds_the_step(plain):
    row = only_plan(Grid([machine(gpus=4)], [1], batch=[10]), task(input_images_per_s=50))
    assert row["bound"] == "input" and row["images_per_s"] == pytest.approx(50)


def test_servers_share_the_gradients_and_are_billed(plain):
    """Two nodes, one server: it receives and sends 2 x 8 MB at 100 MB/s; the three machines cost 21 an hour."""
    served = Grid([machine()], [2], comm=["parameter_server"], servers=["1"], batch=[10])
    row = only_plan(served, task(server=machine(usd=1.0)))
    assert row["exchange_s"] == pytest.approx(0.32)
    assert row["usd"] == pytest.approx(row["hours"] * 21)
    row = only_plan(replace(served, servers=["1x"]), task(server=machine(usd=1.0)))
    assert row["servers"] == 2 and row["exchange_s"] == pytest.approx(0.16)
    assert row["usd"] == pytest.approx(row["hours"] * 22)
    row = only_plan(replace(served, servers=["0"]), task())  # on the nodes of the workers, which cost nothing more
    assert row["servers"] == 0 and row["usd"] == pytest.approx(row["hours"] * 20)


def test_each_rank_pushes_to_the_servers(plain):
    alone = Grid([machine(gpus=4)], [2], comm=["parameter_server"], servers=["1"], batch=[10])
    of = task(server=machine())
    assert only_plan(alone, of)["exchange_s"] == pytest.approx(4 * 0.32)
    single = replace(alone, nodes=[1])  # the server is still another machine
    assert only_plan(single, of)["exchange_s"] == pytest.approx(4 * 0.16)


def test_server_with_a_slower_link_counts_less(plain):
    served = Grid([machine()], [2], comm=["parameter_server"], servers=["2"], batch=[10])
    row = only_plan(served, task(server=machine(nic=Link(0.0, 0.25e8))))
    assert row["exchange_s"] == pytest.approx(4 * 0.16)


def test_all_images_count_and_setup_is_billed(plain):
    row = only_plan(Grid([machine()], [1], batch=[10]), task(images=3605, setup_s=360))
    assert row["hours"] == pytest.approx(0.2 + 50 / 100 / 3600)


def test_started_hours_are_billed_with_setup():
    per_hour = {"billing": "per_hour", "setup_s": 3240}  # 54 minutes, then 6 at 100 images/s: one hour
    assert only_plan(Grid([machine()], [1], batch=[10]), task(**per_hour))["usd"] == pytest.approx(10)
    assert only_plan(Grid([machine()], [1], batch=[10]), task(images=3610, **per_hour))["usd"] == pytest.approx(20)


def wide(count=12):
    several = [machine(name="m"), machine(gpus=8, nic=Link(1e-4, 1e9), usd=50.0, name="n")]
    grid = Grid(several, list(range(1, count + 1)), ["horovod", "parameter_server", "device"], ["0", "1", "2x"],
                [10, 20], ["float32", "float16"], ["none", "fp16"], [False, True])  # fmt: skip
    known = {(m, b, p): 100.0 * b for m in "mn" for b in (10, 20) for p in ("float32", "float16")}
    return grid, task(rates=known, server=machine(usd=1.0), images=100_000)


def test_every_valid_combination_is_a_plan():
    plans, refused = scenarios.evaluate(*wide(3))
    # horovod; servers: three numbers; device: one node
    assert len(plans["hours"]) == 2 * 2 * 2 * (3 * 2 * 2 + 3 * 3 * 2 * 2 + 1 * 2 * 2)
    servers = Grid([machine()], [1, 2], ["parameter_server"], ["1", "1x"], [10])
    twice, _ = scenarios.evaluate(servers, task(server=machine()))
    assert list(zip(twice["nodes"], twice["servers"])) == [(1, 1), (2, 1), (2, 2)]
    assert len(refused) == 1 and all(count > 0 for count in refused.values())
    assert plans["nodes"][plans["comm"] == "device"].max() == 1


def test_plans_at_once_equal_single_plans():
    grid, of = wide(4)
    plans, _ = scenarios.evaluate(grid, of)
    rows = scenarios.rows(plans, range(len(plans["hours"])))
    named = {m.name: m for m in grid.machine}
    for number in range(0, len(rows), 37):
        row = rows[number]
        servers = str(plans["servers_setting"][number]) or "0"
        alone = Grid([named[row["instance"]]], [row["nodes"]], [row["comm"]], [servers], [row["batch"]],
                     [row["precision"]], [row["compression"]], [row["double_buffering"]])  # fmt: skip
        assert only_plan(alone, of) == pytest.approx(row)


def test_global_batch_above_the_images_is_left_out():
    plans, refused = scenarios.evaluate(Grid([machine()], [1, 2, 4], batch=[10]), task(images=20))
    assert list(plans["nodes"]) == [1, 2] and list(refused.values()) == [1]


def drawn(plans, monkeypatch, **limits):
    """Return the two axes of the figure of `plans`."""
    saved = []
    monkeypatch.setattr(Figure, "savefig", lambda figure, *_, **__: saved.append(figure))
    plan_figure.draw(plans, limits, [0], "net", os.devnull)
    return saved[0].axes


def test_figure_shows_a_line_per_series_and_the_budget(monkeypatch):
    plans, _ = scenarios.evaluate(*wide())
    left, right = drawn(plans, monkeypatch, usd=5.0)
    assert 1 < len(left.get_lines()) <= plan_figure.MOST_LINES
    labels = {text.get_text() for text in right.get_legend().get_texts()}
    assert {"Pareto front", "recommended", "budget 5 USD"} < labels and right.get_ylabel() == "USD"


def test_figure_without_a_price_is_drawn(monkeypatch):
    plans, _ = scenarios.evaluate(Grid([machine(usd=math.nan)], [1, 2], batch=[10]), task())
    *_, right = drawn(plans, monkeypatch)
    assert [text.get_text() for text in right.texts] == ["no known price"]


def test_tool_draws_the_figure_of_a_plan(tmp_path):
    settings = ["machine=local", "plan.gpus=2", "plan.nic_gbps=10", "plan.images_per_s=95", "plan.nodes=[1,4]"]
    plan_figure.main(str(tmp_path / "plan.png"), *settings)
    assert (tmp_path / "plan.png").read_bytes().startswith(b"\x89PNG")


def test_cheapest_and_fastest_within_bounds():
    plans, _ = scenarios.evaluate(*wide())
    hours, usd = plans["hours"], plans["usd"]
    deadline, budget = np.median(hours), np.median(usd)
    within = choice.satisfied(plans, {"hours": deadline})
    assert usd[choice.cheapest(plans, within)] == usd[hours <= deadline].min()
    within = choice.satisfied(plans, {"usd": budget})
    assert hours[choice.fastest(plans, within)] == hours[usd <= budget].min()


def test_unknown_price_is_within_no_budget():
    plans, _ = scenarios.evaluate(Grid([machine(usd=math.nan)], [1], batch=[10]), task())
    [row] = scenarios.rows(plans, [0])
    assert row["usd"] is None and row["eur"] is None and row["hours"] > 0
    assert not choice.satisfied(plans, {"usd": 1e9}).any() and choice.satisfied(plans, {"hours": 1e9}).all()


def test_front_is_not_dominated():
    plans, _ = scenarios.evaluate(*wide())
    everything = np.ones(len(plans["hours"]), bool)
    best = choice.front(plans, everything)
    for place in best:
        better = (plans["hours"] <= plans["hours"][place]) & (plans["usd"] < plans["usd"][place])
        assert not better.any()
    for place in range(0, len(everything), 11):
        covered = (plans["hours"][best] <= plans["hours"][place]) & (plans["usd"][best] <= plans["usd"][place])
        assert covered.any()
