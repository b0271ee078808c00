"""Links fitted to the user's runs and to `mxscale test-allreduce`."""

import dataclasses
import math

import pytest
from plans import make_sizes, only_plan

from mxscale.config.schema import from_dict
from mxscale.config.sizes import bucket_bytes
from mxscale.cost import run_cost
from mxscale.perfmodel import calibration, layers, machines, rates, scenarios, step_time
from mxscale.perfmodel.rates import Measured
from mxscale.perfmodel.scenarios import Grid, Machine, Task
from mxscale.perfmodel.step_time import Link
from mxscale.rundir import directory
from mxscale.rundir.directory import FINISHED
from mxscale.rundir.plan import Host, Plan
from mxscale.util.errors import ConfigError

FREE = Link(0.0, math.inf)
SLOW = Link(0.0, 1e8)


def resnet50():
    return layers.network("resnet50_v1b")


def finished(runs, ranks: int, rate: float, shards=None, **settings):
    """Create a run directory with the records that plans read."""
    config = from_dict({"runs": str(runs), "model": {"name": "resnet18_v1b"}, **settings})
    run = directory.create(config)
    sizes = make_sizes(ranks, shards=shards or ranks, per_device_batch=config.batch.per_device)
    run.write_plan(Plan(sizes=sizes, threads=1, classes=5, device="cpu"))
    run.write("status.json", {"state": FINISHED})
    run.write("summary.json", {"metrics": {"throughput/median": rate}})
    return run


def test_fitted_link_reproduces_the_measured_rate(tmp_path):
    first, second = finished(tmp_path, 1, 40.0), finished(tmp_path, 2, 60.0)
    config = first.config()
    own = calibration.read([str(first.path), str(second.path)], config)
    assert own.links["intra"] is not None and own.links["nic"] is None
    known = machines.Given(gpus=2, links=own.links)
    node = machines.node(config.machine, run_cost.pricing(config), known)
    network = layers.network("resnet18_v1b", 32, 5)
    measured = rates.measured(network, 32, "float32", own.runs).images_per_s
    buckets = dict.fromkeys((False, True), bucket_bytes(config.comm, 4 * network.gradients))
    of = Task(network, 1000, 1, {("local", 32, "float32"): measured}, bucket_bytes=buckets)
    row = only_plan(Grid([node.machine], [1], batch=[32]), of)
    assert row["images_per_s"] == pytest.approx(60, rel=0.01)


ON = {"name": "resnet50_v1b", "rate": 300.0, "batch": 32}  # of one device, without exchange


def as_planned(nodes, gpus, link, accumulation=1, **comm):
    """Return the runs on one device and on all that the planner predicts for such links, as measured runs."""
    config = from_dict({"model": {"name": ON["name"]}, "batch": {"accumulation": accumulation}, "comm": comm})
    network = layers.network(ON["name"])
    slow = Machine("m", gpus, *[FREE if nodes > 1 else link] * 2, *[link] * 2)
    of = scenarios.task_of(config, network, 10**6, {("m", ON["batch"], "float32"): ON["rate"]})
    row = only_plan(Grid([slow], [nodes], [config.comm.backend], ["0"], [ON["batch"]]), of)
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
        ("nic_servers", 2, {"backend": "parameter_server", "servers": "1x"}),
        ("intra", 1, {"backend": "horovod"}),
        ("intra", 1, {"backend": "nccl"}),
        ("intra", 1, {"backend": "horovod", "hierarchical": True}),
        ("intra_kvstore", 1, {"backend": "device"}),
    ],
)
@pytest.mark.parametrize("accumulation", [1, 4])
def test_fit_recovers_the_link_of_planned_runs(link, nodes, comm, accumulation):
    runs = as_planned(nodes, 4, Link(0.0, 2e8), accumulation, **comm)
    found = {name: calibration.fit(runs, name) for name in calibration.CARRIES}
    assert found.pop(link).bytes_per_s == pytest.approx(2e8, rel=0.01)
    assert not any(found.values())  # the other links are undetermined


def test_link_between_nodes_is_fitted_given_the_inner_one():
    runs = as_planned(1, 4, Link(0.0, 5e8)) + as_planned(2, 4, Link(0.0, 2e8), hierarchical=True)
    inside = calibration.fit(runs, "intra")
    free, beside = calibration.fit(runs, "nic"), calibration.fit(runs, "nic", inside)
    assert inside.bytes_per_s == pytest.approx(5e8, rel=0.01) and free.bytes_per_s == pytest.approx(2e8, rel=0.01)
    assert beside.bytes_per_s > 1.2 * free.bytes_per_s  # part of the time is spent inside the nodes


def test_double_buffering_hides_behind_all_accumulated_batches():
    """A ring of 8: an exchange longer than the compute of four batches determines the link."""
    (alone, run) = as_planned(2, 4, Link(0.0, 1e8), accumulation=4)
    delayed = dataclasses.replace(run, comm=dataclasses.replace(run.comm, double_buffering=True))
    links = {"nic": Link(0.0, 1e8)}
    rate = float(calibration.rate_of(delayed, alone.images_per_s, layers.network(ON["name"]), links))
    seconds = 2 * 7 / 8 * 4 * resnet50().gradients / 1e8
    assert seconds > 4 * 32 / 300 and rate == pytest.approx(8 * 4 * 32 / seconds, rel=0.1)
    delayed = dataclasses.replace(delayed, images_per_s=rate)
    assert calibration.fit([alone, delayed], "nic").bytes_per_s == pytest.approx(1e8, rel=0.01)


def test_fewer_servers_than_nodes_are_slower():
    """Four nodes: with a server on each, 2 x 3/4 of the gradients pass its NIC; on one node, 3; dedicated, 2 x 4."""
    _, each = as_planned(4, 1, Link(0.0, 2e8), backend="parameter_server", servers="1x")
    single = dataclasses.replace(each, comm=dataclasses.replace(each.comm, servers=1))
    apart = dataclasses.replace(single, server_nodes=1)
    jobs = [calibration.job(run, 300.0, resnet50(), {"nic": Link(0.0, 2e8)}) for run in (each, single, apart)]
    whole_s = 4 * resnet50().gradients / 2e8
    assert [float(step_time.predict(job).exchange_s / whole_s) for job in jobs] == pytest.approx([1.5, 3, 8])


def test_hosts_without_ranks_are_server_nodes(tmp_path):
    served = {"comm": {"backend": "parameter_server", "servers": 2}, "batch": {"accumulation": 3}}
    run = finished(tmp_path, 4, 60.0, **served)
    run.write_plan(dataclasses.replace(run.plan(), hosts=tuple(Host(name, 2, name) for name in "abcd")))
    measured = calibration.of_run(str(run.path))
    assert (measured.nodes, measured.server_nodes, measured.accumulation) == (2, 2, 3)


def test_runs_calibrate_the_link_of_their_exchange(tmp_path):
    runs = [finished(tmp_path, 1, 40.0)]
    runs += [finished(tmp_path, 2, rate, comm={"backend": backend})
             for backend, rate in (("horovod", 60.0), ("device", 70.0), ("parameter_server", 30.0))]  # fmt: skip
    own = calibration.read([str(run.path) for run in runs], runs[0].config())
    inside, kvstore = own.links["intra"], own.links["intra_kvstore"]
    assert inside.bytes_per_s < kvstore.bytes_per_s and not own.links["nic"] and not own.links["nic_servers"]
    assert own.sources == "link inside a node fitted to own runs; link inside a node (comm=device) fitted to own runs"
    given = machines.Given(gpus=2, links={**own.links, "nic_servers": SLOW})
    node = machines.node(runs[0].config().machine, run_cost.pricing(runs[0].config()), given)
    assert (node.machine.intra, node.machine.intra_kvstore) == (inside, kvstore)
    assert node.machine.nic == SLOW


def test_run_with_other_threads_fits_no_link(tmp_path):
    first, second = finished(tmp_path, 1, 40.0), finished(tmp_path, 2, 60.0)
    second.write_plan(dataclasses.replace(second.plan(), threads=2))
    assert calibration.read([str(first.path), str(second.path)], first.config()).links["intra"] is None


def test_threads_of_runs_on_gpus_do_not_matter(tmp_path):
    first, second = finished(tmp_path, 1, 40.0), finished(tmp_path, 2, 60.0)
    for run, threads in ((first, 64), (second, 32)):
        run.write_plan(dataclasses.replace(run.plan(), device="gpu", threads=threads))
    assert calibration.read([str(first.path), str(second.path)], first.config()).links["intra"] is not None


def test_run_on_unequal_machines_is_refused(tmp_path):
    run = finished(tmp_path, 3, 60.0)
    run.write_plan(dataclasses.replace(run.plan(), hosts=(Host("a", 2, "a"), Host("b", 1, "b"))))
    with pytest.raises(ConfigError, match="unequal numbers of ranks"):
        calibration.read(str(run.path), run.config())


def test_servers_are_fitted_beside_a_measured_allreduce(tmp_path):
    served = {"comm": {"backend": "parameter_server"}}
    first, second = finished(tmp_path, 1, 40.0), finished(tmp_path, 2, 60.0, **served)
    second.write_plan(dataclasses.replace(second.plan(), hosts=tuple(Host(name, 1, name) for name in "ab")))
    between = allreduce(tmp_path, 2, {"alpha_s": 1e-4, "bytes_per_s": 2.5e8})
    links = calibration.read([between, str(first.path), str(second.path)], first.config()).links
    assert links["nic"].bytes_per_s == 2.5e8 and links["nic_servers"].bytes_per_s != 2.5e8


def test_run_with_several_shards_per_rank_is_refused(tmp_path):
    run = finished(tmp_path, 2, 60.0, shards=4)
    with pytest.raises(ConfigError, match="several data shards, which plans do not model"):
        calibration.read(str(run.path), run.config())


def allreduce(runs, nodes: int, fit) -> str:
    """Create a record of `mxscale test-allreduce`."""
    run = directory.create(from_dict({"runs": str(runs)}))
    run.write("test-allreduce.json", {"nodes": nodes, "fit": fit})
    return str(run)


def test_measured_allreduce_gives_the_link_of_its_place(tmp_path):
    between = allreduce(tmp_path, 2, {"alpha_s": 1e-4, "bytes_per_s": 2.5e8})
    inside = allreduce(tmp_path, 1, {"alpha_s": 0.0, "bytes_per_s": 1e9})
    own = calibration.read([between, inside], from_dict({}))
    assert (own.links["nic"], own.links["intra"], own.runs) == (Link(1e-4, 2.5e8), Link(0.0, 1e9), [])
    assert own.sources == f"link between nodes of {between}; link inside a node of {inside}"


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
    with pytest.raises(ConfigError, match=f"is {state}; name a finished one"):
        calibration.read(str(run.path), run.config())


@pytest.mark.parametrize(
    "planned, message",
    [
        ({"model": {"name": "resnet18_v1b"}, "data": {"image_size": 224}}, "images of 32 px, the plan is for 224"),
        ({}, "the runs trained resnet18_v1b, the plan is for small"),
    ],
)
def test_run_of_another_network_or_size_is_refused(tmp_path, planned, message):
    run = finished(tmp_path, 1, 40.0, data={"image_size": 32})
    with pytest.raises(ConfigError, match=message):
        calibration.read(str(run.path), from_dict(planned))
