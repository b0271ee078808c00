"""Networks in the classic format: reading, training, freezing and refusals."""

import dataclasses
import json
import os
import shutil
import subprocess
import sys

import classic
import mxnet as mx
import numpy as np
import pytest
from refusals import error_of

from mxscale.models import graph_trial, pretrained, weights, zoo
from mxscale.models.model_card import ModelCard
from mxscale.util.errors import ConfigError

CPU = mx.cpu()


def images(count=2, side=32):
    return mx.nd.array(np.random.RandomState(1).uniform(0, 255, (count, 3, side, side)))


def brought(folder, prefix, head="keep"):
    """Read a network as the preparation does."""
    return pretrained.bring(f"symbol:{prefix}", "symbol", folder, head)


def ready(folder, classes, head="keep", seed=1):
    net = zoo.build("symbol", classes, folder / pretrained.GRAPH)
    zoo.initialise(net, seed, CPU, zero_gamma=True)
    zoo.finish(net, (1, 3, 32, 32), CPU)
    weights.fit(net, weights.load(folder / pretrained.WEIGHTS), "classic", head)
    return net


def executor_output(network, arrays, pixels, outputs=None, train=False):
    """Return the output of MXNet's executor for the graph and its arrays."""
    network = network if outputs is None else network.get_internals()[outputs]
    values = {name[4:]: array for name, array in arrays.items()}
    # Without gradients MXNet would fuse convolutions with running statistics, in training mode too
    bound = network.simple_bind(CPU, grad_req="write", data=pixels.shape)
    bound.copy_params_from(values, {n: v for n, v in values.items() if n in bound.aux_dict}, allow_extra_params=True)
    return bound.forward(is_train=train, data=pixels)[0].asnumpy()


@pytest.fixture
def resnet(tmp_path):
    """Return (folder, graph, arrays) of a small network of the published kind."""
    network = classic.resnet()
    arrays = classic.arrays_of(network)
    brought(tmp_path, classic.save(network, tmp_path / "resnet", arrays))
    return tmp_path, network, arrays


def test_the_network_equals_its_graph(resnet):
    folder, network, arrays = resnet
    scores = ready(folder, 11)(images()).asnumpy()
    np.testing.assert_allclose(scores, executor_output(network, arrays, images(), "fc1_output"), rtol=1e-4, atol=1e-5)


def test_names_are_structural(resnet):
    names = set(weights.parameters(ready(resnet[0], 11)))
    assert {"features.bn_data.running_mean", "features.conv0.weight", "features.stage4_unit1_sc.weight"} <= names
    assert {"features.stage1_unit1_bn1.gamma", "features.bn1.running_var", "output.weight", "output.bias"} <= names
    assert len(names) == len(resnet[2])


def test_graph_of_2016_gives_the_same_network(tmp_path, resnet):
    folder, network, arrays = resnet
    old = tmp_path / "old"
    old.mkdir()
    prefix = classic.save(network, old / "resnet", arrays)
    (old / "resnet-symbol.json").write_text(classic.as_of_2016(network))
    brought(old, prefix)
    assert (old / pretrained.WEIGHTS).read_bytes() == (folder / pretrained.WEIGHTS).read_bytes()
    np.testing.assert_array_equal(ready(old, 11)(images()).asnumpy(), ready(folder, 11)(images()).asnumpy())


def test_a_gluon_export_is_read(tmp_path):
    net = mx.gluon.model_zoo.vision.get_model("mobilenet0.25", classes=7)
    net.initialize()
    net.hybridize()
    wanted = net(images()).asnumpy()
    net.export(str(tmp_path / "mobilenet"))
    found = brought(tmp_path, tmp_path / "mobilenet")
    np.testing.assert_allclose(ready(tmp_path, 7)(images()).asnumpy(), wanted, rtol=1e-4, atol=1e-6)
    assert found.input is None  # without a normalisation the input is unknown


@pytest.mark.parametrize("where", [{}, {"pad": (1, 1), "stride": (2, 2)}])
def test_a_1x1_convolution_head_is_replaced(tmp_path, where):
    body = mx.sym.Activation(
        mx.sym.Convolution(mx.sym.var("x"), num_filter=6, kernel=(3, 3), name="a"), act_type="relu"
    )
    last = mx.sym.Convolution(mx.sym.Dropout(body), num_filter=9, kernel=(1, 1), name="b", **where)
    pooled = mx.sym.Pooling(mx.sym.Activation(last, act_type="relu"), global_pool=True, pool_type="avg", kernel=(1, 1))
    network = mx.sym.SoftmaxOutput(mx.sym.Flatten(pooled, name="scores"), name="softmax")
    shapes, _, _ = network.infer_shape(x=(1, 3, 32, 32))
    arrays = {
        f"arg:{name}": mx.nd.random.normal(shape=shape)
        for name, shape in zip(network.list_arguments(), shapes)
        if name not in ("x", "softmax_label")
    }
    brought(tmp_path, classic.save(network, tmp_path / "net", arrays))
    kept = ready(tmp_path, 9)
    assert set(weights.parameters(kept)) == {"features.a.weight", "features.a.bias", "output.0.weight", "output.0.bias"}
    values = {name[4:]: array for name, array in arrays.items()}
    scores = network.get_internals()["scores_output"]
    inner = scores.bind(CPU, {**values, "x": images()}).forward()[0].asnumpy()
    np.testing.assert_allclose(kept(images()).asnumpy(), inner, rtol=1e-4)
    assert ready(tmp_path, 4, "replace")(images()).shape == (2, 4)


def test_the_input_of_normalising_networks_is_stated(tmp_path, resnet):
    assert brought(tmp_path, tmp_path / "resnet").input == {"image_size": 224, "mean": [0.0] * 3, "std": [1.0] * 3}


def test_an_epoch_can_be_selected(tmp_path):
    network = classic.resnet()
    prefix = classic.save(network, tmp_path / "resnet", epoch=126)
    assert brought(tmp_path, f"{prefix}@126").files.keys() == {f"{prefix}-symbol.json", f"{prefix}-0126.params"}


def test_a_fixed_gamma_is_one_and_is_not_trained(tmp_path):
    network = classic.resnet()
    arrays = classic.arrays_of(network)
    arrays["arg:bn_data_gamma"][:] = 5  # ignored: fix_gamma computes with 1
    brought(tmp_path, classic.save(network, tmp_path / "resnet", arrays))
    net = ready(tmp_path, 11)
    gamma = weights.parameters(net)["features.bn_data.gamma"]
    assert gamma.grad_req == "null" and (gamma.data().asnumpy() == 1).all()
    arrays["arg:bn_data_gamma"][:] = 1
    wanted = executor_output(network, arrays, images(), "fc1_output")
    np.testing.assert_allclose(net(images()).asnumpy(), wanted, rtol=1e-4, atol=1e-5)


def test_use_global_stats_is_respected_in_training(tmp_path):
    body = mx.sym.Convolution(mx.sym.var("data"), num_filter=4, kernel=(3, 3), name="a")
    body = mx.sym.Pooling(mx.sym.BatchNorm(body, use_global_stats=True, name="n"), global_pool=True, pool_type="avg")
    network = mx.sym.SoftmaxOutput(mx.sym.FullyConnected(body, num_hidden=11, name="f"), name="softmax")
    brought(tmp_path, classic.save(network, tmp_path / "net"))
    net = ready(tmp_path, 11)
    before = weights.arrays(net)
    trained_step(net, images())
    assert moved(net, before) == {n for n in before if not n.startswith("features.n.")} | {"features.n.beta"}


def trained_step(net, pixels, hybrid=True):
    if hybrid:
        net.hybridize(static_alloc=True, static_shape=True)
    trained = [p for p in weights.parameters(net).values() if p.grad_req != "null"]
    trainer = mx.gluon.Trainer(trained, "sgd", {"learning_rate": 0.01, "wd": 0.01}, kvstore=None)
    with mx.autograd.record():
        loss = mx.gluon.loss.SoftmaxCrossEntropyLoss()(net(pixels), mx.nd.array([0, 1]))
    loss.backward()
    trainer.step(2)


def moved(net, before):
    return {name for name, value in weights.arrays(net).items() if (value != before[name]).any()}


def test_training_moves_everything_but_fixed_gammas(resnet):
    net = ready(resnet[0], 11)
    before = weights.arrays(net)
    trained_step(net, images())
    still = set(before) - moved(net, before)
    assert still == {"features.bn_data.gamma"}
    assert len(zoo.running_statistics(net)) == len([name for name in resnet[2] if name.startswith("aux:")])


def test_training_mode_normalises_by_the_batch(resnet):
    folder, network, arrays = resnet
    net = ready(folder, 11)
    pixels = images(8, 64)  # enough values per channel for its variance
    with mx.autograd.train_mode():
        scores = net(pixels).asnumpy()
    wanted = executor_output(network, arrays, pixels, "fc1_output", train=True)
    np.testing.assert_allclose(scores, wanted, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("stage", ["stage1", "stage3", "features"])
def test_frozen_stages_do_not_move_and_the_rest_does(resnet, stage):
    net = ready(resnet[0], 11)
    zoo.freeze(net, stage)
    before = weights.arrays(net)
    trained_step(net, images())
    last = int(stage[5:]) if stage != "features" else 4
    frozen = ["features.bn_data.", "features.conv0.", "features.bn0."]
    frozen += [f"features.stage{number}_" for number in range(1, last + 1)]
    frozen += ["features.bn1."] if stage == "features" else []
    assert moved(net, before) == {name for name in before if not name.startswith(tuple(frozen))}


def test_frozen_network_normalises_as_in_validation(resnet):
    net = ready(resnet[0], 11)
    zoo.freeze(net, "features")
    validated = net(images()).asnumpy()
    with mx.autograd.train_mode():
        np.testing.assert_allclose(net(images()).asnumpy(), validated, rtol=1e-5)


def test_an_unknown_stage_is_refused_with_the_known_ones(resnet):
    with pytest.raises(ConfigError, match=r"^model.freeze=stage5: expected one of none, features, stage1, .*stage4"):
        zoo.freeze(ready(resnet[0], 11), "stage5")


def refused(folder, prefix):
    message = error_of(brought, folder, prefix)
    assert f"symbol:{prefix}" in message and not (folder / pretrained.WEIGHTS).exists()
    return message


@pytest.fixture
def saved(tmp_path):
    network = classic.resnet()
    arrays = classic.arrays_of(network)
    return tmp_path, network, arrays, classic.save(network, tmp_path / "net", arrays)


def test_missing_files_are_named(saved):
    folder, _, _, prefix = saved
    (folder / "net-0000.params").unlink()
    assert f"{prefix}-0000.params does not exist" in refused(folder, prefix)
    assert f"{prefix}-0003.params does not exist" in refused(folder, f"{prefix}@3")
    (folder / "net-symbol.json").unlink()
    assert f"{prefix}-symbol.json does not exist" in refused(folder, prefix)


def test_a_graph_cut_at_every_tenth_is_refused(saved):
    folder, _, _, prefix = saved
    complete = (folder / "net-symbol.json").read_text()
    for tenth in range(10):
        (folder / "net-symbol.json").write_text(complete[: len(complete) * tenth // 10])
        assert "truncated or not a graph" in refused(folder, prefix)


@pytest.mark.parametrize("text", ["[]", "{}", '{"nodes": 3}', '{"nodes": [], "heads": []}', "7"])
def test_other_json_is_refused(saved, text):
    folder, _, _, prefix = saved
    (folder / "net-symbol.json").write_text(text)
    refused(folder, prefix)


def test_a_node_that_is_its_own_input_is_refused(saved):
    folder, network, _, prefix = saved
    graph = json.loads(network.tojson())
    at = [node["name"] for node in graph["nodes"]].index("softmax")
    graph["nodes"][at]["inputs"][0][0] = at
    (folder / "net-symbol.json").write_text(json.dumps(graph))
    assert f"node {at} refers to no earlier node" in refused(folder, prefix)


def test_a_missing_output_is_refused(saved):
    folder, network, _, prefix = saved
    for output in (1, 3, 2**31):
        graph = json.loads(network.tojson())
        node = next(node for node in graph["nodes"] if node["name"] == "relu1")
        node["inputs"][0][1] = output
        (folder / "net-symbol.json").write_text(json.dumps(graph))
        assert f"relu1 reads output {output} of bn1, which it lacks" in refused(folder, prefix)


def test_a_node_without_inputs_is_refused(saved):
    folder, network, _, prefix = saved
    for name in ("fc1", "softmax", "bn0"):
        graph = json.loads(network.tojson())
        next(node for node in graph["nodes"] if node["name"] == name)["inputs"] = []
        (folder / "net-symbol.json").write_text(json.dumps(graph))
        assert f"{name} (" in refused(folder, prefix)


@pytest.mark.parametrize("text", ["[" * 100_000, '{"nodes": [' + "{}, " * 10_001 + '{}], "heads": []}'])
def test_a_deep_graph_is_refused(saved, text):
    folder, _, _, prefix = saved
    (folder / "net-symbol.json").write_text(text)
    refused(folder, prefix)


@pytest.mark.parametrize("file", ["net-symbol.json", "net-0000.params"])
def test_a_fifo_is_not_waited_for(saved, file):
    folder, _, _, prefix = saved
    (folder / file).unlink()
    os.mkfifo(folder / file)
    assert "a FIFO, not a regular file" in error_of(brought, folder, prefix)


@pytest.mark.slow
@pytest.mark.parametrize(
    "changed, reason",
    [
        ({"num_group": "0"}, "it ends by SIGFPE"),
        ({"pad": "(1000000, 1000000)"}, "Failed to allocate CPU Memory"),
    ],
)
def test_a_graph_that_mxnet_cannot_run_is_refused(saved, changed, reason):
    _, network, _, prefix = saved
    graph = json.loads(network.tojson())
    next(node for node in graph["nodes"] if node["name"] == "conv0")["attrs"].update(changed)
    message = error_of(graph_trial.check, {"graph": graph, "input": "data"}, 32, f"symbol:{prefix}")
    assert message.startswith(f"model.pretrained=symbol:{prefix}: MXNet cannot run its graph on images of 32 pixels")
    assert reason in message


@pytest.mark.slow
def test_a_graph_that_mxnet_can_run_passes(resnet):
    folder = resnet[0]
    graph_trial.check(str(folder / pretrained.GRAPH), 32, "symbol:resnet")


@pytest.mark.slow
def test_a_lower_limit_of_ulimit_is_kept(resnet):
    code = f"from mxscale.models import graph_trial; graph_trial.check('{resnet[0] / pretrained.GRAPH}', 32, 'x')"
    subprocess.run(["bash", "-c", f'ulimit -v 8000000 -t 60; exec {sys.executable} -c "{code}"'], check=True)


def test_an_unknown_operator_is_named(saved):
    folder, _, _, prefix = saved
    file = folder / "net-symbol.json"
    file.write_text(file.read_text().replace('"Pooling"', '"PoolingOfTomorrow"'))
    assert "PoolingOfTomorrow" in refused(folder, prefix)


def test_missing_and_unexpected_arrays_are_named(saved):
    folder, network, arrays, prefix = saved
    del arrays["arg:conv0_weight"]
    arrays["aux:strange"] = mx.nd.ones(2)
    classic.save(network, folder / "net", arrays)
    assert "missing conv0_weight; unexpected strange" in refused(folder, prefix)


def test_a_graph_without_a_classifier_is_refused(saved):
    folder, network, _, prefix = saved
    network.get_internals()["bn1_output"].save(f"{prefix}-symbol.json")
    assert "it has no classifier: the last layer is bn1 (BatchNorm)" in refused(folder, prefix)


def test_a_graph_with_several_outputs_is_refused(saved):
    folder, network, _, prefix = saved
    mx.sym.Group([network, network.get_internals()["bn1_output"]]).save(f"{prefix}-symbol.json")
    assert "2 outputs (softmax, bn1)" in refused(folder, prefix)


def test_a_damaged_saved_graph_is_refused(resnet):
    file = resnet[0] / pretrained.GRAPH
    file.write_text(json.dumps({"graph": {}, "input": "data"}))
    with pytest.raises(ConfigError, match=rf"^{file}: not a network \("):
        zoo.build("symbol", 3, file)
    shutil.rmtree(resnet[0])
    with pytest.raises(ConfigError, match=r"not a network \("):
        zoo.build("symbol", 3, file)


def test_a_damaged_card_of_our_export_is_refused_and_other_json_is_ignored(tmp_path):
    prefix = classic.save(classic.resnet(), tmp_path / "resnet")
    card = ModelCard("symbol", ("a", "b"), 32, None, "bilinear", (1.0, 2.0, 3.0), (1.0, 1.0, 1.0), "0" * 64)
    for content in ("{", "[]", json.dumps({"class_names": ["a"]})):
        (tmp_path / "resnet.json").write_text(content)
        assert pretrained.load(f"symbol:{prefix}", "symbol").class_names is None
    (tmp_path / "resnet.json").write_text(json.dumps(dataclasses.asdict(card)))
    assert pretrained.load(f"symbol:{prefix}", "symbol").input["mean"] == [1, 2, 3]
    (tmp_path / "resnet.json").write_text(json.dumps({**dataclasses.asdict(card), "std": [0, 1, 1]}))
    message = error_of(pretrained.load, f"symbol:{prefix}", "symbol")
    assert message.startswith(f"symbol:{prefix}: its metadata is invalid (std=0: expected above 0)")
