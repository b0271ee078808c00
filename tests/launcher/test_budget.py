"""Budgets: bounds, stop decisions, dry runs and the bill of several attempts."""

import datetime
import json
import math
import os
import time
from dataclasses import replace

import pytest
from plans import make_sizes, make_splits
from refusals import error_of
from run_files import params

from mxscale.cli.settings import merge_for_resume
from mxscale.config.schema import Budget, Machine, from_dict
from mxscale.cost import prices, run_cost
from mxscale.cost.prices import Usage
from mxscale.data import manifest
from mxscale.distributed.stop_consensus import Request
from mxscale.environment.hosts import Host
from mxscale.launcher import budget, commands, dry_run, outcome, setup
from mxscale.launcher.context import Resources, RunContext, Signals
from mxscale.launcher.failure import Logs
from mxscale.launcher.supervisor import Watched
from mxscale.records import summary
from mxscale.rundir import directory
from mxscale.rundir.plan import Plan
from mxscale.rundir.status import Summary
from mxscale.util.errors import ConfigError

TODAY = datetime.date(2025, 6, 1)


def price(usd=36.0, setup_minutes=0.0, **fields):
    machine = Machine(**{"provider": "custom", "usd_per_hour": usd, **fields})
    return prices.freeze_price(machine, setup_minutes, TODAY)


def seconds(bound, price, *before, nodes=1, restart=False):
    """Return the seconds of another attempt after attempts of (seconds, nodes)."""
    earlier = [Usage(*each) for each in before]
    return prices.affordable_s(price, {"usd": bound}, earlier, Usage(0, nodes, restart))


def test_affordable_seconds_follow_from_bound_and_price():
    assert seconds(36, price()) == pytest.approx(3600)
    assert seconds(36, price(), nodes=4) == pytest.approx(900)
    assert seconds(36, price(setup_minutes=10)) == pytest.approx(3000)
    assert prices.affordable_s(price(), {}, (), Usage(0, 1)) == math.inf
    assert seconds(36, price(usd=0.0)) == math.inf


def test_lower_of_two_bounds_applies():
    both = {"usd": 36, "eur": 18 / 1.1339}
    assert prices.affordable_s(price(), both, (), Usage(0, 1)) == pytest.approx(1800)


def test_minutes_are_those_of_all_attempts_together():
    limits, following = Budget(minutes=10, max_usd=36), Usage(0, 1)
    assert budget.allowed_s(limits, price(), (), following) == 600
    assert budget.allowed_s(limits, price(), [Usage(200, 1)], following) == 400
    assert budget.allowed_s(limits, price(usd=720.0), [Usage(100, 1)], following) == 80  # the cost is reached first
    free = prices.freeze_price(Machine(), 0, TODAY)
    assert budget.allowed_s(Budget(minutes=10), free, (), following) == 600  # minutes need no price
    budget.check(Budget(minutes=10), free, [Usage(599, 1)])
    assert (
        error_of(budget.check, Budget(minutes=10), free, [Usage(600, 1)])
        == "budget.minutes=10: the earlier attempts have used it up; raise it"
    )


def test_earlier_attempts_and_set_up_reduce_affordable_seconds():
    # 2 nodes x 10 min = 12 USD, with 5 min of set-up 18 USD: 18 of 36 are left, on one node for 30 min
    assert seconds(36, price(setup_minutes=5), (600, 2)) == pytest.approx(1800)


def test_hourly_billing_affords_whole_hours():
    by_hour = price(billing="per_hour")
    assert seconds(107.99, by_hour) == 2 * 3600
    assert seconds(108, by_hour) == 3 * 3600
    assert seconds(23.328, price(usd=7.776, billing="per_hour")) == 3 * 3600
    assert seconds(35.99, by_hour) == 0
    assert seconds(71, by_hour, (10, 1)) == 0  # the first attempt is billed for an hour
    assert seconds(72, by_hour, (10, 1)) == 3600
    assert seconds(36, price(billing="per_hour", setup_minutes=10)) == 3000


def test_bound_below_minimum_bill_affords_nothing():
    assert seconds(0.59, price()) == 0  # 60 s cost 0.60
    assert seconds(0.61, price()) == pytest.approx(61)
    assert seconds(6, price(setup_minutes=10)) == 0  # the set-up alone is 6
    assert seconds(0.01, price(provider="owned")) == pytest.approx(1)


@pytest.mark.parametrize("billing", ["per_second", "per_minute", "per_hour"])
@pytest.mark.parametrize("bound", [0.0, 0.7, 36.0, 107.99, 144.0])
@pytest.mark.parametrize(
    "before, nodes, restart",
    [([(30.0, 2)], 3, False), ([(30.0, 2)], 2, True), ([(4000.0, 3), (7.5, 1, True), (100.0, 2, True)], 1, True),
     ([(50.0, 1), (50.0, 2), (100.0, 1, True)], 2, True)],
)  # fmt: skip
def test_affordable_seconds_are_the_longest_within_bound(billing, bound, before, nodes, restart):
    known = price(billing=billing, setup_minutes=0.5)
    bound += prices.bill(known, [Usage(*each) for each in before])["usd"]

    def bill(lasts):
        return prices.bill(known, [*(Usage(*each) for each in before), Usage(lasts, nodes, restart)])["usd"]

    lasts = seconds(bound, known, *before, nodes=nodes, restart=restart)
    assert (bill(lasts) <= bound + 1e-6) == (bill(0) <= bound + 1e-6)
    assert bill(lasts + 1) > bound


def test_budget_of_a_restart_counts_one_start_of_the_machines():
    by_hour = price(billing="per_hour")
    assert seconds(36, by_hour, (1800, 1), restart=True) == 1800
    assert seconds(36, by_hour, (1800, 1)) == 0
    assert seconds(0.60, price(), (20, 1), restart=True) == pytest.approx(40)
    # A lost node has an hour of its own: two of three hours are left for the other one, which has run for 30 min
    assert seconds(108, by_hour, (1800, 2), restart=True) == 1.5 * 3600


def refusal(price, *before, **bounds):
    return error_of(budget.check, Budget(**bounds), price, [Usage(*each) for each in before])


def test_bound_needs_price_in_its_currency():
    assert "budget.max_usd=5 needs a price: machine=local has no price" in refusal(
        prices.freeze_price(Machine(), 0, TODAY), max_usd=5.0
    )
    old = price(as_of="2016-01-01")
    assert "EUR unknown, no exchange rate on or before 2016-01-01; use budget.max_usd" in refusal(old, max_eur=5.0)
    budget.check(Budget(max_usd=5.0), old)
    budget.check(Budget(), prices.freeze_price(Machine(), 0, TODAY))


def test_bound_below_cost_of_start_is_refused():
    assert refusal(price(setup_minutes=10), max_usd=6.0) == (
        "budget.max_usd=6: the start alone (set-up, least billed time) costs 6.0000 USD; raise it"
    )
    assert "costs 36.0000 USD" in refusal(price(billing="per_hour"), max_usd=35.0)
    assert "the start with earlier attempts costs 12.6000 USD" in refusal(price(), (1200, 1), max_usd=12.0)
    budget.check(Budget(max_usd=12.7), price(), [Usage(1200, 1)])


def test_resume_may_change_bound(tmp_path):
    run = directory.create(from_dict({"runs": str(tmp_path), "budget": {"max_usd": 3.0}}))
    merged = merge_for_resume(run, {"budget": {"max_usd": 9.0, "max_eur": None}}, ["budget.max_usd=9"])
    assert merged.budget.max_usd == 9.0
    assert merge_for_resume(run, {"budget": {"max_usd": None}}, []).budget.max_usd == 3.0


def test_resume_with_another_augmentation_is_refused(tmp_path):
    run = directory.create(from_dict({"runs": str(tmp_path)}))
    with pytest.raises(ConfigError, match=r"augment=level3 with resume=.*that run has data\.augment\.pad="):
        merge_for_resume(run, {"data": {"augment": {"pad": 9}}}, ["augment=level3"])


SIZES = make_sizes(per_device_batch=10, steps_per_epoch=100, total_steps=1000)
SPLITS = make_splits(train=1000, val=200, test=400)
T0 = 1_700_000_000_000


def a_run(folder, lines=(), attempts=((0, None, 1),), known=None, **config):
    """Return a run with lines (attempt, step, second, metrics) and attempts (from, to, nodes) in seconds after T0."""
    run = directory.create(from_dict({"runs": str(folder), "epochs": 10, **config}))
    spans = []
    for number, (began, ended, nodes) in enumerate(attempts, 1):
        span = {"attempt": number, "started_ms": T0 + 1000 * began, "nodes": nodes, "ranks": 1}
        spans.append(span if ended is None else {**span, "ended_ms": round(T0 + 1000 * ended)})
    run.write("status.json", {"attempts": spans, "state": "RUNNING", "attempt": len(spans)})
    run.save(known or price())
    run.save(Plan(sizes=SIZES, splits=SPLITS, data_digest="d", threads=1, device="cpu", classes=10))
    write_lines(run, lines)
    return run


def write_lines(run, lines):
    with open(run.metrics_file, "a") as file:
        for attempt, step, second, metrics in lines:
            line = {"attempt": attempt, "step": step, "time_ms": T0 + int(1000 * second), "metrics": metrics}
            file.write(json.dumps(line) + "\n")


def checkpoint(run, step, second):
    folder = run.checkpoint(step)
    folder.mkdir(parents=True)
    (folder / "MANIFEST").write_text("")
    os.utime(folder / "MANIFEST", (T0 / 1000 + second, T0 / 1000 + second))


def trained(rate=100.0):
    return {"train/loss": 1.0, "throughput/images_per_s": rate}


def val(top1):
    return {"val/loss": 1.0, "val/top1": top1}


def test_cost_adds_attempts_on_different_machines(tmp_path):
    lines = [(1, 100, 50, val(40.0)), (2, 200, 1100, val(60.0)), (2, 300, 1200, val(50.0))]
    run = a_run(tmp_path, lines, [(0, 100, 2), (1000, 1300, 1)], price(setup_minutes=5), target_top1=55.0)
    run.write("best.json", {"val/top1": 60.0, "step": 200, "checkpoint": "checkpoints/000000200"})
    at = run_cost.cost_of(run)
    # 36 USD/h = 0.01 USD/s: 2 nodes x (300 s of set-up + 50 s)
    assert at({"attempt": 1, "time_ms": T0 + 50_000})["cost/usd"] == pytest.approx(7.0)
    assert at({"attempt": 2, "time_ms": T0 + 1_100_000})["cost/usd"] == pytest.approx(8.0 + 1.0)
    figures = summary.summarise(run, 2).metrics
    assert figures["cost/total_usd"] == pytest.approx(8.0 + 3.0)
    assert figures["cost/total_eur"] == pytest.approx(11.0 / 1.1339)
    assert (figures["time/to_target_s"], figures["cost/usd_to_target"]) == (200.0, pytest.approx(9.0))
    assert figures["cost/eur_to_target"] == pytest.approx(9.0 / 1.1339)
    run.write("summary.json", {"metrics": figures})
    table = summary.table(run, "")
    assert "cost to target  9.0000 USD = 7.9372 EUR (200.0 s)" in table


def test_a_restart_continues_the_bill_of_its_run(tmp_path):
    run = a_run(tmp_path, attempts=((0, 1800.007, 1),), known=price(billing="per_hour"), budget={"max_usd": 37.0})
    following = setup.begin_attempt(outcome.restart_context(context(run)))
    first, second = run.attempts
    assert (second.started_ms, second.continues, following.attempt) == (first.ended_ms, True, 2)
    assert run_cost.total(run, 2, T0 + 3600_000)["usd"] == 36
    assert run_cost.cost_of(run)({"attempt": 2, "time_ms": T0 + 3600_001})["cost/usd"] == 72
    assert budget.deadline(run, run.config().budget, 2) == pytest.approx(T0 / 1000 + 3600)
    resumed = setup.begin_attempt(context(run))  # in another process
    assert not run.attempts[-1].continues and resumed.attempt == 3


def test_no_cost_without_price(tmp_path):
    free = prices.freeze_price(Machine(), 0, TODAY)
    run = a_run(tmp_path, [(1, 100, 50, val(60.0))], [(0, 100, 1)], free, target_top1=55.0)
    run.write("best.json", {"val/top1": 60.0, "step": 100, "checkpoint": "checkpoints/000000100"})
    figures = summary.summarise(run, 1).metrics
    assert not [name for name in figures if name.startswith("cost/")] and figures["time/to_target_s"] == 50.0


def test_nodes_with_servers_alone_are_billed(tmp_path):
    nodes = [Host("a", 2, "a"), Host("b", 2, "b"), Host("c", 2, "c")]
    config = from_dict({"launch": {"ranks": 4}, "comm": {"backend": "parameter_server", "servers": 1},
                        "machine": {"usd_per_hour": 10.0}})  # fmt: skip
    known = setup.price_of(config, nodes)
    assert known.nodes == 3 and prices.cost(known, 3600)["usd"] == 30.0


def durations(run):
    return budget.Durations(run, run.plan())


def test_stop_time_follows_from_observed_durations(tmp_path):
    run = a_run(tmp_path, [(1, 90, 10, trained(50.0)), (1, 100, 12, trained(100.0)), (1, 100, 16, val(1.0))])
    checkpoint(run, 100, 18)
    observed = durations(run)
    # 1.5 times the slowest step of 0.2 s and the checkpoint of 2 s, and 3 s for the end
    assert observed.stop_s() == pytest.approx(1.5 * (3 * 0.2 + 2) + 3)
    write_lines(run, [(1, 110, 20, trained(25.0)), (1, 120, 24, trained())])
    checkpoint(run, 120, 27)
    observed.update()
    assert observed.stop_s() == pytest.approx(1.5 * (3 * 0.4 + 3) + 3)


def test_the_last_steps_leave_less_to_wait_for(tmp_path):
    run = a_run(tmp_path, [(1, 990, 10, trained(50.0)), (1, 999, 12, trained(50.0))])
    assert durations(run).stop_s() == pytest.approx(1.5 * 0.2 + 3 + 3)


def test_remote_ranks_take_longer_to_end(tmp_path):
    run = a_run(tmp_path)
    alone = durations(run).stop_s()
    hosts = (Host("a", 1, "a", here=True), Host("b", 1, "b"))
    run.save(replace(run.plan(), hosts=hosts))
    assert durations(run).stop_s() == alone + 5


def test_unobserved_durations_have_defaults(tmp_path):
    assert durations(a_run(tmp_path)).stop_s() == 3 * 3 + 3 + 3


def monitor(folder, now, bound, monkeypatch, step=100, rate=100.0, **config):
    lines = [(1, step - 10, 10, trained(rate)), (1, step, 11, trained(rate)), (1, step, 12, val(1.0))]
    run = a_run(folder, lines, **config)
    checkpoint(run, step, 12.5)
    monkeypatch.setattr(time, "time", lambda: T0 / 1000 + now)
    return budget.BudgetMonitor(run, Budget(max_usd=bound), run.plan(), 1)


def test_run_stops_in_time_for_checkpoint(tmp_path, monkeypatch):
    takes = 1.5 * (0.3 + 0.5) + 3
    early = monitor(tmp_path, 200 - takes - 0.1, 2.0, monkeypatch)  # 2 USD last for 200 s
    assert early.due() == Request.NONE and early.reason is None
    late = monitor(tmp_path, 200 - takes + 0.1, 2.0, monkeypatch)
    assert late.due() == Request.STOP and late.reason == "budget" and not late.exhausted()
    assert late.due() == Request.NONE  # once
    assert monitor(tmp_path, 197.5, 2.0, monkeypatch).exhausted()


def test_a_fitted_run_ends_without_the_steps_that_exceed_its_budget(tmp_path, monkeypatch):
    fitted = {"schedule": {"steps": 1000}}
    end = 1.5 * (2 * 0.1 + 3 + 2 * 0.5) + 3  # two steps, validation and test, checkpoints; the processes
    early = monitor(tmp_path / "1", 200 - end - 0.1, 2.0, monkeypatch, step=900, **fitted)
    assert early.due() == Request.NONE
    late = monitor(tmp_path / "2", 200 - end + 0.1, 2.0, monkeypatch, step=900, **fitted)
    assert (late.due(), late.due(), late.reason) == (Request.FINISH, Request.NONE, None)
    in_time = monitor(tmp_path / "3", 200 - end + 0.1, 2.0, monkeypatch, step=999, **fitted)
    assert in_time.due() == Request.NONE
    too_early = monitor(tmp_path / "4", 200 - 1.5 * (0.3 + 0.5) - 2.9, 2.0, monkeypatch, step=740, **fitted)
    assert too_early.due() == Request.STOP
    assert monitor(tmp_path / "5", 200 - end + 0.1, 2.0, monkeypatch, step=900).due() == Request.NONE


def test_no_stop_without_bound(tmp_path):
    free = budget.BudgetMonitor(a_run(tmp_path), Budget(), Plan(), 1)
    assert free.due() == Request.NONE and not free.exhausted() and free.reason is None


def context(run, attempt=1):
    return RunContext(run, run.config(), Resources([], price(), T0 / 1000), Signals(), attempt=attempt)


def test_no_ranks_after_preparation_spent_budget(tmp_path, monkeypatch):
    run = a_run(tmp_path)
    monkeypatch.setattr(time, "time", lambda: T0 / 1000 + 95)
    budget.check_prepared(run, Budget(max_usd=1.05), 1)
    with pytest.raises(ConfigError, match=r"budget.max_usd=1: it leaves 5 s after the preparation"):
        budget.check_prepared(run, Budget(max_usd=1.0), 1)


def test_attempt_stopped_during_set_up_is_billed(tmp_path, monkeypatch):
    run = a_run(tmp_path, [(1, 1, 5, trained(100.0))], attempts=((0, 10, 1), (20, None, 1)))
    run.save(run.status().with_attempt(ranks=None))
    run.save(Summary())
    monkeypatch.setattr(time, "time", lambda: T0 / 1000 + 40)
    outcome.end_attempt(setup.Attempt(context(run, 2), None, Logs(run.path / "ranks")), Watched("SIGINT", None))
    metrics = run.read("summary.json")["metrics"]
    assert (metrics["time/wall_s"], metrics["throughput/median"]) == (30, 100)
    assert metrics["cost/total_usd"] == pytest.approx(1.20)  # each start is billed as 60 s at least


def test_preparation_ends_before_it_exceeds_bound(tmp_path, monkeypatch):
    run = a_run(tmp_path, budget={"max_usd": 1.0})  # 100 s
    monkeypatch.setattr(time, "time", lambda: T0 / 1000 + 96 + time.monotonic() - monotonic)
    monotonic = time.monotonic()
    forever = commands.Command(["sleep", "600"], dict(os.environ))
    monkeypatch.setattr(commands, "preparation", lambda *_: forever)
    with pytest.raises(ConfigError, match=r"^budget.max_usd=1: the preparation alone exceeds it; raise it"):
        setup.prepare(context(run))
    assert 0.9 < time.monotonic() - monotonic < 300  # of 600; it had time until 97 s


@pytest.mark.parametrize("side, noted", [(32, False), (224, True)])
def test_a_network_made_for_much_smaller_images_is_noted(tmp_path, capsys, side, noted):
    config = from_dict({"runs": str(tmp_path), "data": {"image_size": side}})
    setup.announce(a_run(tmp_path), config, Plan(sizes=SIZES, splits=SPLITS, device="cpu"), price())
    assert (f"small, made for images of 32 px, not {side}: set model=NAME" in capsys.readouterr().out) == noted


def estimate(known=None, setup_minutes=0.0, **bounds):
    config = from_dict({"budget": bounds, "launch": {"setup_minutes": setup_minutes}})
    return dry_run.estimate(config, Plan(sizes=SIZES, splits=SPLITS), known or price(setup_minutes=setup_minutes))


def test_a_dry_run_estimates_time_and_cost_from_a_rate():
    lines = estimate(setup_minutes=1.0, images_per_s=100.0, max_usd=2.0, max_eur=0.8).splitlines()
    assert lines == [
        "time      2.7 min (set-up 60 s, training 100 s)",  # 1000 steps of 0.1 s
        "cost      1.6000 USD = 1.4111 EUR",
        "budget    budget.max_usd=2 is enough",
        "budget    budget.max_eur=0.8 is exceeded",
    ]
    assert "unknown: machine=local has no price" in estimate(prices.freeze_price(Machine(), 0, TODAY), images_per_s=1.0)
    assert "give budget.images_per_s=N" in estimate()


def described(counts, **changes):
    """Return the line on a set whose training classes have these numbers of images."""
    names = [f"c{number}" for number in range(len(counts))]
    split = {"count": sum(counts), "per_class": counts, "enlarged": 3}
    found = {"duplicates": {"across": 0, "two_classes": 0}, "skipped": [], "dir": "/cache/x", **changes}
    packed = {"classes": names, "splits": {"train": split, "val": {**split, "count": 9}}, **found}
    return manifest.summary(packed, from_dict({}).data)


def test_a_dry_run_describes_the_images():
    images = described([12, 5])
    assert images.startswith("digits: 2 classes, 17 train, 9 val images in /cache/x; 6 images smaller than")


def test_a_dry_run_counts_copies_and_skipped_files():
    copies, skipped = {"across": 2, "two_classes": 1}, [{"path": "a/x.jpg", "reason": "truncated"}]
    images = described([2, 2], duplicates=copies, skipped=skipped)
    assert "1 bad images skipped, see its manifest.json" in images
    assert "2 images are exact copies of images in another split; 1 images are exact copies" in images


@pytest.mark.slow
def test_run_stopped_by_budget_resumes_to_same_weights(cli):
    # 1 USD per second on a machine without a minimum bill; a checkpoint at each step keeps the number of steps low
    run = ("machine=owned", "machine.usd_per_hour=3600", "launch.ranks=1", "epochs=2000", "schedule=constant")
    stopped = cli("train", *run, "checkpoint.every_steps=1", "budget.max_usd=34", expect=75)
    assert "interrupted (budget); raise the bound and resume with:" in stopped.out
    assert (stopped.status["state"], stopped.status["reason"]) == ("KILLED", "budget")
    spent = stopped.run.read("summary.json")["metrics"]["cost/total_usd"]
    assert 5 < spent < 34
    step = max(int(path.name) for path in stopped.run.checkpoints.glob("[0-9]*"))
    assert step == max(line["step"] for line in stopped.run.lines())
    more = cli("train", f"resume={stopped.run}", "budget.max_usd=500", f"max_steps={step + 5}", small=False)
    uninterrupted = cli("train", *run, f"max_steps={step + 5}")
    assert more.sha == uninterrupted.sha
    assert more.run.read("summary.json")["metrics"]["cost/total_usd"] > spent
    assert params(more.run).keys() == params(uninterrupted.run).keys()
    runs = set(stopped.run.path.parent.iterdir())
    text = cli("train", *run, "budget.dry_run=true", "budget.images_per_s=100", "budget.max_usd=1")
    assert "steps     " in text.out and "budget.max_usd=1 is exceeded" in text.out
    assert text.run is None and set(stopped.run.path.parent.iterdir()) == runs
