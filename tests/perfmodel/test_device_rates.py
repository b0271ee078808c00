"""Rates of one device, their sources, and the machines of the tables."""

from dataclasses import replace

import numpy as np
import pytest

from mxscale.config.schema import Machine
from mxscale.perfmodel import hardware, layers, machines, rates, roofline
from mxscale.perfmodel.rates import Measured
from mxscale.perfmodel.roofline import Step
from mxscale.rundir.price import Price
from mxscale.util import csv_tables
from mxscale.util.errors import ConfigError


def resnet50():
    return layers.network("resnet50_v1b")


def test_given_rate_comes_first():
    runs = [Measured("resnet50_v1b", 32, "float32", 1, 50.0, "r")]
    rate = rates.of_device(resnet50(), "V100-16GB", 32, "float32", 77.0, runs)
    assert (rate.images_per_s, rate.source) == (77.0, "given (plan.images_per_s)")
    assert rates.of_device(resnet50(), "V100-16GB", 32, "float32", None, runs).source.startswith("measured")


def test_own_run_with_nearest_batch_and_fewest_devices():
    runs = [
        Measured("resnet50_v1b", 32, "float32", 4, 100.0, "four"),
        Measured("resnet50_v1b", 32, "float32", 1, 30.0, "one"),
        Measured("resnet50_v1b", 128, "float32", 1, 45.0, "large"),
        Measured("resnet50_v1b", 32, "float16", 1, 90.0, "half"),
    ]
    assert rates.measured(resnet50(), 32, "float32", runs).images_per_s == 30
    assert rates.measured(resnet50(), 100, "float32", runs).images_per_s == 45
    assert rates.measured(resnet50(), 32, "amp", runs) is None
    alone = rates.measured(resnet50(), 32, "float32", runs[:1])
    assert alone.images_per_s == 25 and "exchange included" in alone.source


def test_published_rate_of_the_nearest_batch():
    """MXNet's performance page has 298.51 images/s on a V100 at batch 32, 363.69 at 128."""
    assert rates.of_device(resnet50(), "V100-16GB", 32, "float32").images_per_s == 298.51
    rate = rates.of_device(resnet50(), "V100-16GB", 128, "float32")
    assert rate.source.startswith("published") and "batch 128" in rate.source


def test_published_rate_is_scaled_to_the_batch():
    smaller = rates.of_device(resnet50(), "V100-16GB", 16, "float16")
    larger = rates.of_device(resnet50(), "V100-16GB", 512, "float16")
    assert smaller.images_per_s < larger.images_per_s and "scaled to batch 16" in smaller.source


def test_rate_of_another_network_is_related_by_the_roofline():
    vgg = layers.network("vgg19_bn")
    rate = rates.of_device(vgg, "V100-16GB", 32, "float32")
    assert (
        rate.kind == "related"
        and "related by the network's layers to a published rate (resnet-50 on V100, fp32, batch 32" in rate.source
    )
    known, wanted = (roofline.step_s(Step(network, 32, "float32"), "V100-16GB") for network in (resnet50(), vgg))
    # Launches stay as they are; the rest of the published step has the ratio of both rooflines
    step_s = wanted.launches_s + (32 / 298.51 - known.launches_s) * wanted.images_s / known.images_s
    assert rate.images_per_s == pytest.approx(32 / step_s)


def test_rate_in_another_precision_is_related_by_the_roofline():
    rate = rates.of_device(resnet50(), "K80", 32, "float16")
    assert rate.kind == "related" and "resnet-50 on K80, fp32, batch 32" in rate.source
    assert 1 < rate.images_per_s / rates.of_device(resnet50(), "K80", 32, "float32").images_per_s < 2


def test_device_without_a_published_rate_has_that_of_its_peaks():
    rate = rates.of_device(resnet50(), "L4", 64, "amp")
    assert (rate.kind, rate.source) == ("computed", "computed from the peaks of L4 and the network's layers")
    assert rate.images_per_s == pytest.approx(64 / sum(roofline.step_s(Step(resnet50(), 64, "amp"), "L4")))


@pytest.mark.parametrize("gpu", ["Tesla X1", None])
def test_unknown_rate_is_refused(gpu):
    with pytest.raises(ConfigError, match=r"plan.images_per_s"):
        rates.of_device(resnet50(), gpu, 32, "float32")


def machine_of(instance):
    unknown = Price(False, why="of no interest")
    return machines.node(replace(Machine(), instance=instance), lambda settings: unknown, {})


@pytest.mark.parametrize("instance", hardware.instances())
def test_every_instance_has_a_rate_with_a_stated_error(instance):
    gpu = machine_of(instance).gpu
    for precision in ("float32",) if gpu.startswith(hardware.CPU) else ("float32", "float16", "amp"):
        rate = rates.of_device(layers.network("resnet18_v1b"), gpu, 64, precision)
        assert 10 < rate.images_per_s < 20000 and rate.error


@pytest.mark.parametrize("precision", ["float32", "amp"])
def test_rates_rise_with_the_batch_and_the_generation(precision):
    table = [
        [rates.of_device(resnet50(), gpu, batch, precision).images_per_s for batch in (8, 32, 128, 256, 512, 2048)]
        for gpu in ("K80", "P100", "V100-16GB", "A100-40GB", "H100", "H200")
    ]
    assert all((np.diff(table, axis=axis) > 0).all() for axis in (0, 1))


def test_half_precision_is_not_slower():
    for gpu in {machine_of(instance).gpu for instance in hardware.instances()}:
        full, half = (rates.of_device(resnet50(), gpu, 32, name).images_per_s for name in ("float32", "amp"))
        assert half >= full, gpu


def test_a_device_with_a_published_rate_of_another_network_alone_uses_it():
    rate = rates.of_device(layers.network("resnet101_v1"), f"{hardware.CPU}c5.18xlarge", 128, "float32")
    assert rate.kind == "related" and "resnet152_v2 on CPU c5.18xlarge" in rate.source


def test_a_run_on_a_cpu_calibrates_plans_for_cpus_alone():
    run = Measured("resnet50_v1b", 32, "float32", 1, 70.0, "r", device="cpu")
    assert rates.of_device(resnet50(), machine_of("c5.18xlarge").gpu, 32, "float32", runs=[run]).images_per_s == 70
    on_gpu = replace(run, device="gpu", gpu="NVIDIA T4")
    with pytest.raises(ConfigError, match=r"ran on NVIDIA T4, but the plan is for CPU of c5\.18xlarge"):
        rates.of_device(resnet50(), machine_of("c5.18xlarge").gpu, 32, "float32", runs=[on_gpu])


def test_instances_and_prices_agree():
    """Machines of GCP without a built-in price are listed too: an import adds the price of their GPUs."""
    priced, rows = {row["instance"]: row for row in csv_tables.read("prices")}, csv_tables.read("instances")
    assert set(priced) <= set(hardware.instances()) and len(hardware.instances()) == len(rows)
    for row in rows:
        known = priced.get(row["instance"], row)
        assert (row["gpus"], row["gpu"]) == (known["gpus"], known["gpu"])
        assert row["source"] and row["rdma"] in ("yes", "no") and row["link"] in ("", *hardware.links())
    unpriced = set(hardware.instances()) - set(priced)
    assert unpriced == {"a2-megagpu-16g", "a4-highgpu-8g"}


def test_network_scales_with_size_and_classes():
    larger = layers.network("resnet50_v1b", image_size=448)
    assert larger.gradients == resnet50().gradients and larger.flops == pytest.approx(4 * resnet50().flops, rel=0.01)
    fewer = layers.network("resnet50_v1b", classes=10)
    assert resnet50().gradients - fewer.gradients == 990 * 2049


@pytest.mark.parametrize(
    "ran, message", [({"device": "cpu"}, "ran on a CPU, but"), ({"gpu": "NVIDIA A100-SXM4-40GB"}, "ran on NVIDIA A100")]
)
def test_run_on_another_device_is_refused(ran, message):
    run = Measured("resnet50_v1b", 32, "float32", 1, 11.0, "a run", **ran)
    with pytest.raises(ConfigError, match=message):
        rates.of_device(layers.network("resnet50_v1b"), "V100-16GB", 32, "float32", runs=[run])


def test_published_rate_is_scaled_to_the_image_size():
    rate = {side: rates.of_device(layers.network("resnet50_v1b", side), "V100-16GB", 32, "float32").images_per_s
            for side in (112, 224, 448)}  # fmt: skip
    launches_s = roofline.step_s(Step(resnet50(), 32, "float32"), "V100-16GB").launches_s
    step_s = launches_s + (32 / rate[224] - launches_s) / 4  # all but the launches
    assert rate[112] == pytest.approx(32 / step_s, rel=0.01) and rate[448] == pytest.approx(rate[224] / 4, rel=0.2)


def test_link_inside_a_node_depends_on_the_device():
    for gpu, text in {
        "H200": "nvlink4 109.35 GB/s inside a node",
        "A10G": "pcie4 10.9 GB/s inside a node",
        None: "pcie3 5.45 GB/s inside a node (default, the link is unknown)",
    }.items():
        assert machines.inside_node(gpu, 8)[2] == text


def test_every_device_with_a_published_rate_has_peaks():
    known = [point for point in rates.single() if hardware.device(point.gpu)]
    step = Step(resnet50(), 32, "float32")
    assert len(known) > 200 and all(roofline.step_s(step, point.gpu) for point in known)


def test_a_rate_is_scaled_to_what_differs_alone():
    smaller = rates.of_device(layers.network("resnet50_v1b", 112), "V100-16GB", 32, "float32").source
    assert smaller.endswith(", scaled to 0.25 of the FLOPs")
    assert rates.of_device(resnet50(), "V100-16GB", 24, "float32").source.endswith(", scaled to batch 24")
