"""Scaling efficiency: which run it refers to, and under which name."""

from dataclasses import replace

import pytest
from plans import make_sizes

from mxscale.config.schema import from_dict
from mxscale.config.signature import signature
from mxscale.records import earlier_runs
from mxscale.rundir import directory
from mxscale.rundir.plan import Plan
from mxscale.rundir.status import FINISHED, Summary


def made(root, ranks, rate=None, on=None, **settings):
    """Create a run directory; with a rate a finished one. `on`: threads, device, gpu, machine."""
    on = {"threads": 1, "device": "cpu", "gpu": None, "machine": "here", **(on or {})}
    config = from_dict({"runs": str(root), **settings})
    run = directory.create(config)
    work = signature(config, "digest", None, ranks=False)
    sizes = make_sizes(ranks, total_steps=100, train_images=3200)
    run.save(Plan(sizes=sizes, weak_signature=work, threads=on["threads"], device=on["device"]))
    run.write("environment.json", {"tags": {"machine": on["machine"], "gpu": on["gpu"], "build": "wheel"}})
    if rate:
        run.write("status.json", {"state": FINISHED, "step": 100, "attempts": [{"attempt": 1, "started_ms": 0}]})
        run.write("summary.json", {"metrics": {"throughput/median": rate}})
    return run


def efficiency(run, rate=150.0):
    figures, baseline = earlier_runs.efficiency(run, run.plan(), rate)
    return Summary({**figures, "throughput/median": rate}, 1, baseline and str(baseline))


def test_efficiency_is_relative_to_the_newest_run_with_one_rank(tmp_path):
    made(tmp_path, 1, 50.0)
    newest = made(tmp_path, 1, 100.0)
    run = made(tmp_path, 2)
    found = efficiency(run)
    assert found.metrics[earlier_runs.EFFICIENCY] == 0.75 and found.baseline == str(newest)
    assert earlier_runs.described(run, found) == f"75.0% of the 1-rank run {newest.path.name}"


def test_a_reference_has_as_many_threads_per_rank(tmp_path):
    equal = made(tmp_path, 1, 100.0, on={"threads": 1})
    made(tmp_path, 1, 180.0, on={"threads": 2})
    assert efficiency(made(tmp_path, 2, on={"threads": 1})).baseline == str(equal)
    assert efficiency(made(tmp_path, 2, on={"threads": 3})).baseline is None


def test_a_reference_with_the_same_back_end_is_preferred(tmp_path):
    equal = made(tmp_path, 1, 100.0, comm={"backend": "parameter_server"})
    made(tmp_path, 1, 180.0)
    assert efficiency(made(tmp_path, 2, comm={"backend": "parameter_server"})).baseline == str(equal)


def test_a_damaged_run_is_no_reference(tmp_path):
    (made(tmp_path, 1, 150.0).path / "config.yaml").write_text("cut")
    assert efficiency(made(tmp_path, 2)).baseline is None


def test_instances_with_the_same_kind_of_gpu_compare(tmp_path):
    small = {"device": "gpu", "gpu": "Tesla K80", "machine": "p2.xlarge", "threads": 4}
    alone = made(tmp_path, 1, 20.0, on=small, machine={"instance": "p2.xlarge"})
    made(tmp_path, 1, 90.0, on={**small, "gpu": "Tesla V100-SXM2-16GB"})
    large = {**small, "machine": "p2.8xlarge", "threads": 2}
    run = made(tmp_path, 8, on=large, machine={"instance": "p2.8xlarge"})
    found = efficiency(run, 154.0)
    assert found.metrics[earlier_runs.EFFICIENCY] == pytest.approx(0.9625) and found.baseline == str(alone)


@pytest.mark.parametrize(
    "other", [{"batch": {"per_device": 8}}, {"optimizer": {"lr": 0.3}}, {"on": {"machine": "elsewhere"}}]
)
def test_other_work_and_other_processors_are_no_reference(tmp_path, other):
    made(tmp_path, 1, 100.0, **other)
    assert efficiency(made(tmp_path, 2)).baseline is None


def test_without_a_reference_the_settings_that_make_one_are_named(tmp_path):
    run = made(tmp_path, 2, on={"threads": 3}, launch={"ranks": 2})
    expected = "unknown without a run of this work with launch.ranks=1 launch.threads=3"
    assert earlier_runs.described(run, efficiency(run)) == expected
    unasked = made(tmp_path, 2, launch={"ranks": "auto"})
    assert earlier_runs.described(unasked, efficiency(unasked)) is None


def test_one_rank_and_several_shards_per_rank_have_no_efficiency(tmp_path):
    made(tmp_path, 1, 100.0)
    run = made(tmp_path, 1)
    assert earlier_runs.described(run, efficiency(run)) is None
    assert not earlier_runs.applies(Plan(sizes=replace(make_sizes(2), shards=4)))
