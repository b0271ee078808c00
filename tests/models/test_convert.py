"""Conversion of PyTorch's weights; tests/fixtures/reference/logits.json holds PyTorch's scores of the same images."""

import json

import mxnet as mx
import numpy as np
import pytest
from repository import ROOT
from safetensors.numpy import save_file
from torch_state import LAYOUTS, images, shapes, state

from mxscale.config.networks import NETWORKS
from mxscale.models import convert, weights, zoo
from mxscale.util.errors import ConfigError

REFERENCE = json.loads((ROOT / "tests" / "fixtures" / "reference" / "logits.json").read_text())
DEPTHS = [pytest.param(n, marks=pytest.mark.slow) if n > 50 else n for n in LAYOUTS]
COUNTS = ".num_batches_tracked"


def network(layers, arrays):
    net = zoo.build(f"resnet{layers}_v1b", len(arrays["output.weight"]))
    zoo.initialise(net, 0, mx.cpu(), zero_gamma=False)
    zoo.finish(net, (1, 3, 64, 64), mx.cpu())
    weights.fit(net, {n: mx.nd.array(a) for n, a in arrays.items()}, "x", "keep")
    return net


@pytest.mark.slow
@pytest.mark.parametrize("layers", DEPTHS)
def test_a_converted_network_agrees_with_pytorch(layers, tmp_path):
    save_file(state(layers), tmp_path / "w.safetensors")
    net = network(layers, convert.load(str(tmp_path / "w.safetensors"), f"resnet{layers}_v1b"))
    found = net(mx.nd.array(images(REFERENCE["images"], REFERENCE["side"]))).asnumpy()
    want = np.array(REFERENCE["logits"][str(layers)])
    assert np.abs(found - want).max() < 1e-4 * (want.max() - want.min())


@pytest.mark.parametrize("layers", LAYOUTS)
def test_the_name_table_is_a_bijection(layers):
    table = convert.names(NETWORKS[f"resnet{layers}_v1b"])
    assert list(table) == [n for n in shapes(layers, 10) if not n.endswith(COUNTS)]
    assert sorted(table.values()) == list(weights.parameters(zoo.build(f"resnet{layers}_v1b", 10)))


def test_a_round_trip_is_bit_identical(tmp_path):
    given = {n: a for n, a in state(18).items() if not n.endswith(COUNTS)}
    save_file(given, tmp_path / "w.safetensors")
    back = convert.to_torch(NETWORKS["resnet18_v1b"], convert.load(str(tmp_path / "w.safetensors"), "resnet18_v1b"))
    assert list(back) == list(given)
    assert all(back[n].dtype == given[n].dtype and back[n].tobytes() == given[n].tobytes() for n in given)


def names_alone(path, layers=18, change=lambda names: names, dtype="f4"):
    """Write a file with those names and one number each: `weights.fit` checks shapes later."""
    tensors = {n: np.full(1, i, dtype) for i, n in enumerate(change(list(shapes(layers, 10))))}
    save_file(tensors, path)
    return str(path)


def refused(path, name, match, source="torch:w"):
    with pytest.raises(ConfigError, match=match) as error:
        convert.load(path, name, source)
    assert str(error.value).startswith(f"model.pretrained={source}") and "\n" not in str(error.value)


def test_batch_counts_are_ignored_and_optional(tmp_path):
    found = convert.load(names_alone(tmp_path / "w"), "resnet18_v1b")
    without = names_alone(tmp_path / "w", change=lambda names: [n for n in names if not n.endswith(COUNTS)])
    assert set(found) == set(convert.load(without, "resnet18_v1b"))


@pytest.mark.parametrize("prefix", ["module.", "model.", "_orig_mod.", "module._orig_mod.", "model.module."])
def test_a_common_prefix_is_removed(tmp_path, prefix):
    plain = convert.load(names_alone(tmp_path / "w"), "resnet18_v1b")
    wrapped = convert.load(names_alone(tmp_path / "w", change=lambda ns: [prefix + n for n in ns]), "resnet18_v1b")
    assert wrapped.keys() == plain.keys()


def test_a_partial_prefix_is_refused(tmp_path):
    path = names_alone(tmp_path / "w", change=lambda names: ["module.conv1.weight", *names[1:]])
    refused(path, "resnet18_v1b", "missing conv1.weight; unexpected module.conv1.weight$")


@pytest.mark.parametrize("layers", LAYOUTS)
def test_weights_of_another_depth_get_a_suggestion(tmp_path, layers):
    other = "resnet18_v1b" if layers != 18 else "resnet50_v1b"
    match = f"does not fit {other}: these are weights of another network; use model=resnet{layers}_v1b$"
    refused(names_alone(tmp_path / "w", layers), other, match)


def test_missing_and_unexpected_tensors_are_named(tmp_path):
    path = names_alone(tmp_path / "w", change=lambda names: [*names[:-1], "conv1.bias", "layer5.0.conv1.weight"])
    refused(path, "resnet18_v1b", "missing fc.bias; unexpected conv1.bias, layer5.0.conv1.weight$")


@pytest.mark.parametrize("layers", [18, 50])
def test_weights_without_a_classifier_are_a_network_without_one(tmp_path, layers):
    path = names_alone(tmp_path / "w", layers, lambda names: [n for n in names if not n.startswith("fc.")])
    found = convert.load(path, f"resnet{layers}_v1b")
    assert set(convert.names(NETWORKS[f"resnet{layers}_v1b"]).values()) - set(found) == {"output.weight", "output.bias"}


def test_float16_becomes_float32_and_integers_are_refused(tmp_path):
    found = convert.load(names_alone(tmp_path / "w", dtype="f2"), "resnet18_v1b")
    assert {a.dtype.name for a in found.values()} == {"float32"}
    integers = names_alone(tmp_path / "w", dtype="i1")
    refused(integers, "resnet18_v1b", "not of a floating-point type: conv1.weight, bn1.weight")


def test_an_unsupported_network_is_refused_before_reading(tmp_path):
    refused(str(tmp_path / "no"), "resnet50_v1", r"fit efficientnet_lite0, .*, not model.name=resnet50_v1$")


# As https://huggingface.co/timm/resnet18.a1_in1k/blob/main/config.json
TIMM = {
    "architecture": "resnet18",
    "num_classes": 1000,
    "pretrained_cfg": {
        "tag": "a1_in1k",
        "input_size": [3, 224, 224],
        "test_input_size": [3, 288, 288],
        "interpolation": "bicubic",
        "crop_pct": 0.95,
        "mean": [0.485, 0.456, 0.406],
        "std": [0.229, 0.224, 0.225],
    },
}


def test_timms_input_is_converted_to_0_255(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(TIMM))
    assert convert.input_of(str(tmp_path / "w.pth")) == {
        "image_size": 224,
        "mean": [123.675, 116.28, 103.53],
        "std": [58.395, 57.12, 57.375],
        "interpolation": "bicubic",
        "crop": 0.95,
    }


def test_no_stated_input_is_none(tmp_path):
    assert convert.input_of(str(tmp_path / "w.pth")) is None
    for other in ({}, [], {"model_type": "bert"}):
        (tmp_path / "config.json").write_text(json.dumps(other))
        assert convert.input_of(str(tmp_path / "w.pth")) is None


@pytest.mark.parametrize(
    "changed",
    [
        {"input_size": [3, 224, 256]},
        {"input_size": [1, 224, 224]},
        {"input_size": 224},
        {"input_size": [3, 0, 0]},
        {"input_size": [3, 5000, 5000]},
        {"mean": 1.0},
        {"std": [0.0, 1, 1]},
        {"crop_pct": 2},
        {"mean": [10**400] * 3},
        {"mean": [0.5]},
        {"std": ["a", "b", "c"]},
        {"std": None},
        {"crop_pct": "most"},
        {"mean": [float("nan")] * 3},
    ],
)
def test_an_invalid_input_is_refused(tmp_path, changed):
    (tmp_path / "config.json").write_text(json.dumps({"pretrained_cfg": {**TIMM["pretrained_cfg"], **changed}}))
    with pytest.raises(ConfigError, match=r"config.json does not state the input of the weights"):
        convert.input_of(str(tmp_path / "w.pth"))


def test_an_invalid_config_json_is_refused(tmp_path):
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ConfigError, match=r"config.json, which describes the weights beside it, is not JSON"):
        convert.input_of(str(tmp_path / "w.pth"))


def test_another_architecture_with_the_same_names_is_refused(tmp_path):
    path = names_alone(tmp_path / "w")
    (tmp_path / "config.json").write_text(json.dumps({**TIMM, "architecture": "resnetaa18"}))
    refused(path, "resnet18_v1b", "is a resnetaa18 .*config.json.*not supported")
    for same in ("resnet18", "tv_resnet18", "gluon_resnet18_v1b"):
        (tmp_path / "config.json").write_text(json.dumps({**TIMM, "architecture": same}))
        assert convert.load(path, "resnet18_v1b")
