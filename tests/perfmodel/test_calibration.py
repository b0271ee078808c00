"""Runs and all-reduces of the user, from which plans are calibrated."""

import dataclasses

import pytest
from plans import make_sizes

from mxscale.config.schema import from_dict
from mxscale.config.verb_settings import Plan as PlanSettings
from mxscale.cost import run_cost
from mxscale.perfmodel import calibration, layers, machines, rates
from mxscale.perfmodel.step_time import Link
from mxscale.rundir import directory
from mxscale.rundir.plan import Host, Plan
from mxscale.rundir.status import FINISHED
from mxscale.util.errors import ConfigError


def finished(runs, ranks: int, rate: float, shards=None, **settings):
    """Create a run directory with the records that plans read."""
    config = from_dict({"runs": str(runs), "model": {"name": "resnet18_v1b"}, **settings})
    run = directory.create(config)
    sizes = make_sizes(ranks, shards=shards or ranks, per_device_batch=config.batch.per_device)
    run.save(Plan(sizes=sizes, threads=1, classes=5, device="cpu"))
    run.write("status.json", {"state": FINISHED})
    run.write("summary.json", {"metrics": {"throughput/median": rate}})
    return run


def test_run_gives_the_rate_of_its_devices(tmp_path):
    run = finished(tmp_path, 2, 60.0)
    runs, links, sources = calibration.read([str(run.path)], run.config())
    rate = rates.measured(layers.network("resnet18_v1b", 32, 5), 32, "float32", runs)
    assert rate.images_per_s == 30 and "on 2 devices, exchange included" in rate.source
    assert (links, sources) == ({}, "")


def test_measured_link_replaces_those_of_the_tables(tmp_path):
    config = finished(tmp_path, 1, 40.0).config()
    inside, between = Link(0.0, 1e9), Link(1e-4, 2.5e8)
    machine = machines.node(
        config.machine, run_cost.pricing(config), {"intra": inside, "nic": between}, PlanSettings(gpus=2)
    )
    assert (machine.intra, machine.intra_kvstore, machine.nic, machine.nic_servers) == (
        inside,
        inside,
        between,
        between,
    )


def test_run_on_unequal_machines_is_refused(tmp_path):
    run = finished(tmp_path, 3, 60.0)
    run.save(dataclasses.replace(run.plan(), hosts=(Host("a", 2, "a"), Host("b", 1, "b"))))
    with pytest.raises(ConfigError, match="unequal numbers of ranks"):
        calibration.read(str(run.path), run.config())


def test_run_with_several_shards_per_rank_is_refused(tmp_path):
    run = finished(tmp_path, 2, 60.0, shards=4)
    with pytest.raises(ConfigError, match="do not model ranks with several data shards"):
        calibration.read(str(run.path), run.config())


def allreduce(runs, nodes: int, fit) -> str:
    """Create a record of `mxscale test-allreduce`."""
    run = directory.create(from_dict({"runs": str(runs)}))
    run.write("test-allreduce.json", {"nodes": nodes, "fit": fit})
    return str(run)


def test_measured_allreduce_gives_the_link_of_its_place(tmp_path):
    between = allreduce(tmp_path, 2, {"alpha_s": 1e-4, "bytes_per_s": 2.5e8})
    inside = allreduce(tmp_path, 1, {"alpha_s": 0.0, "bytes_per_s": 1e9})
    runs, links, sources = calibration.read([between, inside], from_dict({}))
    assert (links["nic"], links["intra"], runs) == (Link(1e-4, 2.5e8), Link(0.0, 1e9), [])
    assert sources == f"link between nodes of {between}; link inside a node of {inside}"


@pytest.mark.parametrize(
    "fit, message", [(None, "no link fits its times"), ({"alpha_s": "x"}, "is damaged: fit.alpha_s")]
)
def test_allreduce_without_a_link_is_refused(tmp_path, fit, message):
    with pytest.raises(ConfigError, match=message):
        calibration.read(allreduce(tmp_path, 2, fit), from_dict({}))


@pytest.mark.parametrize("state", ["RUNNING", "FAILED"])
def test_unfinished_run_is_refused(tmp_path, state):
    run = finished(tmp_path, 1, 40.0)
    run.write("status.json", {"state": state})
    with pytest.raises(ConfigError, match=f"is {state}; name another one"):
        calibration.read(str(run.path), run.config())


@pytest.mark.parametrize(
    "planned, message",
    [
        (
            {"model": {"name": "resnet18_v1b"}, "data": {"image_size": 224}},
            "32 px; the plan is for resnet18_v1b, data.image_size=224",
        ),
        ({}, "trained resnet18_v1b on images of 32 px; the plan is for small"),
    ],
)
def test_run_of_another_network_or_size_is_refused(tmp_path, planned, message):
    run = finished(tmp_path, 1, 40.0, data={"image_size": 32})
    with pytest.raises(ConfigError, match=message):
        calibration.read(str(run.path), from_dict(planned))
