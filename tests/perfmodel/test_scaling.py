"""The model of a training step, against values computed by hand."""

from dataclasses import replace

import numpy as np
import pytest

from mxscale.config.backends import ALL_TO_ALL, RING, SERVERS
from mxscale.perfmodel import step_time
from mxscale.perfmodel.layers import Layer
from mxscale.perfmodel.step_time import Job, Link, at_batch, buckets, calibrate, predict, slowest

MILLION = 1e6


def exchange_s(**fields):
    """Return the seconds of an exchange of 100 MB in one bucket."""
    return predict(Job(compute_s=1.0, gradients=25 * MILLION, **fields)).exchange_s


def test_one_device_exchanges_nothing():
    step = predict(Job(compute_s=0.25, gradients=25 * MILLION, spread=0.01, overhead=0.1, jitter_s=1.0))
    assert {name: value.item() for name, value in vars(step).items()} == {
        "step_s": 0.25,
        "compute_s": 0.25,
        "exchange_s": 0.0,
        "exposed_s": 0.0,
        "stragglers_s": 0.0,
        "input_s": 0.0,
        "bound": "compute",
    }


def test_ring_sends_all_but_the_own_share_twice():
    # 2 x 7/8 x 100 MB / 1 GB/s = 0.175 s, and 14 messages of 1 ms
    assert exchange_s(gpus_per_node=8, intra=Link(1e-3, 1e9)) == pytest.approx(0.175 + 0.014)


def test_ring_over_nodes_is_limited_by_its_slowest_hop():
    # 2 x 7/8 x 100 MB / 1 GB/s; 14 hops, one in four of 1 ms, three of nothing
    found = exchange_s(nodes=2, gpus_per_node=4, intra=Link(0.0, 10e9), nic=Link(1e-3, 1e9))
    assert found == pytest.approx(0.175 + 2e-3)  # by a tree; a ring's 14 hops would take 3.5 ms


def test_latency_over_nodes_is_that_of_a_tree_or_of_a_ring():
    link = {"intra": Link(1e-4, np.inf), "nic": Link(1e-3, np.inf)}
    assert exchange_s(nodes=1000, gpus_per_node=8, **link) == pytest.approx(2 * (7 * 1e-4 + 10 * 1e-3))
    assert exchange_s(nodes=3, gpus_per_node=1, **link) == pytest.approx(2 * 2 * 1e-3)  # both
    slow_inside = {"intra": Link(1e-3, np.inf), "nic": Link(1e-9, np.inf)}
    assert exchange_s(nodes=1, gpus_per_node=8, **slow_inside) == pytest.approx(14e-3)


def test_a_cloud_limits_each_connection():
    k = {"rdma_share": 0.9, "rdma_most": 5e9, "tcp_share": 1.0, "tcp_most": 3e9, "tcp_flow": 5e8,
         "alpha_rdma": 0, "alpha_tcp": 0}  # fmt: skip
    rate = lambda rdma, **flows: float(step_time.between_nodes(k, 3.125e9, rdma, **flows).bytes_per_s)  # noqa: E731
    assert (rate(False), rate(False, flows=1), rate(False, flows=4)) == (3e9, 5e8, 2e9)
    assert rate(True, flows=1) == rate(True) == pytest.approx(2.8125e9)


def test_one_device_per_node_uses_no_inner_link():
    assert exchange_s(nodes=4, intra=Link(9.0, 1.0), nic=Link(0.0, 1e9)) == pytest.approx(0.15)


def test_nic_of_a_server_carries_its_share_both_ways():
    served = {"comm": SERVERS, "nodes": 4, "nic": Link(0.0, 1e9)}
    assert exchange_s(servers=1, **served) == pytest.approx(0.8)  # 4 workers x 100 MB, in and out
    assert exchange_s(servers=2, **served) == pytest.approx(0.4)
    assert exchange_s(servers=4, **served) == pytest.approx(0.2)
    assert exchange_s(servers=8, **served) == pytest.approx(0.2)  # limited by the workers' own NICs
    assert exchange_s(servers=0, **served) == pytest.approx(0.15)  # on the worker nodes: 2 x 3/4, as a ring


def test_devices_share_a_shared_link():
    kvstore = {"comm": ALL_TO_ALL, "gpus_per_node": 4}
    assert exchange_s(intra=Link(0.0, 1e9), **kvstore) == pytest.approx(0.15)
    assert exchange_s(intra=Link(0.0, 1e9, shared=True), **kvstore) == pytest.approx(0.6)


def test_bytes_and_messages_scale_the_exchange():
    assert exchange_s(gpus_per_node=2, intra=Link(0.0, 1e9), bytes_each=2) == pytest.approx(0.05)
    assert exchange_s(gpus_per_node=2, intra=Link(1e-3, 1e9), messages=50) == pytest.approx(0.1 + 2 * 50e-3)


PARTS = ((0.5, 0.25), (0.5, 1.0))  # half of the gradients early, half at the end
LINKED = {"gradients": 25 * MILLION, "gpus_per_node": 2, "intra": Link(0.0, 0.25e9)}  # 0.4 s, 0.2 s per bucket


@pytest.mark.parametrize(
    "compute, fields, exposed",
    [
        (1.5, {"buckets": PARTS}, 0.2),  # backward 1 s: the first is sent while it runs, the second after it
        (0.15, {"buckets": PARTS}, 0.4 + 0.025 - 0.1),  # backward 0.1 s: the second waits for the first, 0.025 to 0.225
        (1.5, {}, 0.4),  # one bucket is ready with the last layer
        (1.5, {"buckets": PARTS, "overlap": False}, 0.4),
        (1.5, {"buckets": PARTS, "overlap": 0.5}, 0.3),
        (0.3, {"buckets": PARTS, "double_buffering": True}, 0.1),  # all of compute hides it
        (1.5, {"buckets": PARTS, "double_buffering": True}, 0.0),
        # ten batches of 0.15 s: backward of the last one
        (1.5, {"buckets": PARTS, "accumulation": 10}, 0.4 + 0.025 - 0.1),
        (0.3, {"buckets": PARTS, "accumulation": 10, "double_buffering": True}, 0.1),
    ],
)
def test_backward_hides_early_buckets(compute, fields, exposed):
    step = predict(Job(compute_s=compute, **LINKED, **fields))
    assert step.exposed_s == pytest.approx(exposed)
    assert step.step_s == pytest.approx(compute + exposed)
    assert step.exchange_s == pytest.approx(0.4)


def test_stragglers_grow_with_the_number_of_devices():
    # expected maximum of n standard normal values: 0.564, 1.163, 1.766, 2.508 (Harter 1961, table 1)
    assert slowest(np.array([1, 2, 5, 16, 100])) == pytest.approx([0, 0.564, 1.163, 1.766, 2.508], abs=0.03)
    alone = Job(compute_s=1.0, gradients=0, spread=0.02, jitter_s=0.01, overhead=0.03, gpus_per_node=np.array([1, 5]))
    assert predict(alone).stragglers_s == pytest.approx([0, 0.03 * 1.163 + 0.03], abs=1e-3)


def test_longest_part_bounds_the_step():
    job = Job(compute_s=np.array([1.0, 0.1, 0.2]), input_s=np.array([0.5, 0.2, 0.9]), **LINKED)
    step = predict(job)
    assert step.bound.tolist() == ["compute", "exchange", "input"]
    assert step.step_s == pytest.approx([1.4, 0.5, 0.9])


def test_buckets_start_at_the_last_layer():
    layers = [Layer(10, 6), Layer(20, 3), Layer(30, 1)]
    assert buckets(layers, 30) == pytest.approx(np.array([(0.5, 0.1), (0.5, 1.0)]))
    assert buckets(layers, 1000) == ((1.0, 1.0),)


def test_step_scales_with_the_batch_except_kernel_launches():
    assert at_batch(0.1, 64, 32, launches_s=0.02) == pytest.approx(0.18)  # 0.02 + 0.08 x 2
    steps = np.array([0.1, 0.02])  # launches are at most half of the short step
    assert at_batch(steps, np.array([64, 16]), 32, launches_s=0.02) == pytest.approx([0.18, 0.015])


def test_100000_plans_are_one_call():
    rng, count = np.random.default_rng(0), 100_000
    job = Job(
        compute_s=rng.random(count),
        gradients=25e6,
        nodes=rng.integers(1, 64, count),
        gpus_per_node=8,
        intra=Link(1e-5, 1e10),
        nic=Link(1e-5, rng.choice([1e9, 1e10], count)),
        comm=rng.choice([RING, ALL_TO_ALL, SERVERS], count),
        servers=rng.integers(0, 9, count),
        buckets=PARTS,
        spread=0.01,
    )
    step = predict(job)
    varied = {name: getattr(job, name)[7] for name in ("compute_s", "nodes", "comm", "servers")}
    one = predict(replace(job, nic=Link(1e-5, job.nic.bytes_per_s[7]), **varied))
    assert step.step_s[7] == pytest.approx(one.step_s)


def test_link_is_recovered_from_allreduce_times():
    points = [(size, 6 * 50e-6 + 1.5 * size / 2e9) for size in (1e3, 1e5, 1e7)]
    link = calibrate(points, ranks=4)
    assert (link.alpha_s, link.bytes_per_s) == pytest.approx((50e-6, 2e9))


def test_latency_is_never_negative():
    link = calibrate([(1e6, 0.9e-3), (2e6, 2.0e-3), (4e6, 4.1e-3)], ranks=2)
    assert link.alpha_s == 0 and link.bytes_per_s == pytest.approx(1e9, rel=0.1)


@pytest.mark.parametrize(
    "points, ranks",
    [([(1e6, 0.1), (2e6, 0.2)], 1), ([(1e6, 0.1), (1e6, 0.2)], 2), ([(1e6, 0.0), (2e6, 0.1)], 2), ([], 2)],
)
def test_too_few_points_are_refused(points, ranks):
    with pytest.raises(ValueError, match="two sizes or more"):
        calibrate(points, ranks)


def test_falling_seconds_are_refused():
    with pytest.raises(ValueError, match="do not grow"):
        calibrate([(1e3, 1.0), (1e9, 1e-3)], ranks=2)


def test_unsplit_tensor_makes_its_server_the_slowest():
    served = {"comm": SERVERS, "nodes": 4, "nic": Link(0.0, 1e9)}
    assert exchange_s(servers=4, largest=0.75, **served) == pytest.approx(0.6)  # 4 x 75 MB, in and out
    assert exchange_s(largest=0.75, **served) == pytest.approx(0.25)  # 3 x 75 MB for others, 25 MB of its own
    assert exchange_s(pushes=4, **served) == pytest.approx(0.6)  # one push per device
