"""Export of trained networks: ONNX Runtime and other programs compute what MXNet computes."""

import json
import shutil
from dataclasses import replace

import classic
import mxnet as mx
import numpy as np
import onnx
import pytest
from checkpoint_files import complete
from refusals import command_error
from safetensors import safe_open
from safetensors.numpy import load_file, save_file
from torch_state import state

from mxscale.cli import main
from mxscale.config.networks import network
from mxscale.config.schema import from_dict
from mxscale.models import convert, pretrained, weights, zoo
from mxscale.models.model_card import ModelCard
from mxscale.rundir import directory
from mxscale.rundir.plan import Plan
from mxscale.serve import export, trained_models
from mxscale.serve.predictor import Predictor
from mxscale.serve.trained_models import Exported, Network

ANIMALS = tuple(f"animal {number}" for number in range(10))
FAST = ("small", "mnist_convnet", "mobilenet0.25", "mobilenetv2_0.25", "squeezenet1.1", "resnet18_v1", "resnet18_v2")
LARGE = ("alexnet", "densenet121", "inceptionv3", "resnet50_v1b", "resnet50_v2")  # bench/predict.py: all


@pytest.fixture
def run(tmp_path):
    """Return the directory of a run of a ResNet-18 with the weights of a file of PyTorch."""
    save_file(state(18), tmp_path / "w.safetensors")
    data = {"image_size": 64, "eval_resize": 72}
    run = directory.create(from_dict({"runs": f"{tmp_path}/runs", "model": {"name": "resnet18_v1b"}, "data": data}))
    folder = run.checkpoints / "000000001"
    folder.mkdir(parents=True)
    weights.save(folder / "params", convert.load(str(tmp_path / "w.safetensors"), "resnet18_v1b"))
    complete(folder)
    run.write("best.json", {"step": 1, "val/top1": 50.0, "checkpoint": "checkpoints/000000001"})
    run.save(Plan(classes=10, class_names=ANIMALS))
    return run


def random_network(name: str, side: int) -> Network:
    """Return a network with random weights, statistics and gammas."""
    entry, stream = network(name), np.random.RandomState(0)
    net = zoo.build(name, 10)
    zoo.initialise(net, 1, mx.cpu(), zero_gamma=False)
    zoo.finish(net, (1, 3, side, side), mx.cpu())
    for key, parameter in weights.parameters(net).items():
        kind = key.rpartition(".")[2]
        if kind in ("gamma", "running_var"):
            parameter.set_data(mx.nd.array(stream.uniform(0.5, 1.5, parameter.shape)))
        elif kind in ("beta", "running_mean", "bias"):
            parameter.set_data(mx.nd.array(stream.normal(0, 0.1, parameter.shape)))
    scores = net(mx.nd.random.normal(shape=(8, 3, side, side), dtype="float32")).asnumpy()
    for key in ("output.weight", "output.bias"):  # as of a trained network: logits of a few units
        head = weights.parameters(net).get(key)
        if head is not None:
            head.set_data(head.data() * (3 / scores.std()))
    card = ModelCard(entry.name, ANIMALS, side, None, "bilinear", (120.0, 110.0, 100.0), (60.0, 50.0, 40.0), "0" * 64)
    return Network(net, card)


def exported(trained: Network) -> Exported:
    return Exported(export.of_network(*trained).SerializeToString(), trained.card)


@pytest.mark.parametrize("name", [*FAST, *(pytest.param(name, marks=pytest.mark.slow) for name in LARGE)])
def test_onnx_runtime_agrees_with_mxnet_to_1e_5(name):
    trained = random_network(name, max(32, network(name).min_side))
    assert export.difference(trained, exported(trained)) <= 1e-5


@pytest.mark.slow
def test_onnx_runtime_agrees_with_mxnet_for_a_classic_symbol(tmp_path):
    trained = trained_models.load(f"symbol:{classic.save(classic.resnet(), tmp_path / 'net')}", from_dict({}))
    assert trained.card.image_size == 224
    assert export.difference(trained, exported(trained)) <= 1e-5


def test_an_onnx_file_takes_any_batch_and_states_its_classes_run_and_input(run, capsys):
    assert main.main(["export", str(run.path)]) == 0
    assert "differ from MXNet's by at most" in capsys.readouterr().out
    found = export.exported(str(run.path / "model.onnx"), from_dict({}))
    card = found.card
    assert (card.class_names, card.run, card.network) == (ANIMALS, str(run.path), "resnet18_v1b")
    assert (card.image_size, card.resize) == (64, 72)
    predictor, images = Predictor(found, 1), np.random.RandomState(0).randint(0, 256, (5, 64, 64, 3)).astype("uint8")
    probabilities, logits = predictor.scores(images)
    assert np.allclose(probabilities.sum(axis=1), 1, atol=1e-6)
    one_by_one = np.concatenate([predictor.scores(image[None])[1] for image in images])
    assert np.allclose(one_by_one, logits, atol=1e-4)


@pytest.mark.slow
def test_weights_without_a_stated_input_have_that_of_pretraining(run, tmp_path):
    shutil.copy(run.checkpoints / "000000001" / "params", tmp_path / "x.params")
    card = trained_models.load(f"{tmp_path}/x.params", from_dict({"model": {"name": "resnet18_v1b"}})).card
    assert (card.image_size, card.resize) == (224, 256)
    given = from_dict({"model": {"name": "resnet18_v1b"}, "data": {"mean": [1, 2, 3]}})
    card = trained_models.load(f"{tmp_path}/x.params", given).card
    assert (card.image_size, card.resize, card.mean) == (224, 256, (1, 2, 3))
    model = {"name": "resnet18_v1b", "input": "normalisation"}  # as for a typed data.image_size
    given = from_dict({"model": model, "data": {"image_size": 64, "eval_resize": 72}})
    card = trained_models.load(f"{tmp_path}/x.params", given).card
    assert (card.image_size, card.resize) == (64, 72)


def test_gamma_that_mxnet_ignores_is_1_in_the_graph():
    data = mx.sym.var("pixels")
    symbol = mx.sym.BatchNorm(data, name="bn")  # fix_gamma is on unless stated
    values = {"bn_gamma": mx.nd.array([3.0, 4.0])}
    export.fix_gamma(symbol, values)
    assert values["bn_gamma"].asnumpy().tolist() == [1, 1]
    values = {"bn_gamma": mx.nd.array([3.0, 4.0])}
    export.fix_gamma(mx.sym.BatchNorm(data, name="bn", fix_gamma=False), values)
    assert values["bn_gamma"].asnumpy().tolist() == [3, 4]


def test_an_operator_without_a_translation_is_named(capsys, monkeypatch):
    trained = random_network("small", 32)
    original = trained.net.hybrid_forward

    def forward(F, x, *arguments, **parameters):
        return F.arccosh(original(F, x, *arguments, **parameters))

    monkeypatch.setattr(type(trained.net), "hybrid_forward", lambda self, F, x, *a, **k: forward(F, x, *a, **k))
    with pytest.raises(Exception, match=r"format=onnx: .*arccosh"):
        export.of_network(*trained)


def test_a_difference_above_the_bound_writes_no_file(run, monkeypatch, capsys):
    monkeypatch.setattr(export, "difference", lambda *_: 2e-4)
    assert "differ from MXNet's by 2.0e-04" in command_error(capsys, "export", str(run.path))
    assert not (run.path / "model.onnx").exists()


@pytest.mark.slow
def test_symbol_files_are_read_again_with_the_same_scores(run, tmp_path):
    prefix = tmp_path / "net"
    assert main.main(["export", str(run.path), "format=symbol", f"output={prefix}"]) == 0
    assert json.loads((tmp_path / "net.json").read_text())["class_names"] == list(ANIMALS)
    before, after = (trained_models.load(name, from_dict({})) for name in (str(run.path), f"symbol:{prefix}"))
    assert (after.card.image_size, after.card.resize) == (64, 72) and after.card.mean == before.card.mean
    assert after.card.class_names == ANIMALS
    images = mx.nd.random.normal(shape=(2, 3, 64, 64))
    assert np.allclose(before.net(images).asnumpy(), after.net(images).asnumpy(), atol=1e-4)


@pytest.mark.slow
def test_images_that_were_not_resized_in_training_are_not_resized_after_an_export(run, tmp_path):
    config = run.config()
    data = replace(config.data, eval_resize=None, pack_short_side="original", kind="imagefolder", root=str(tmp_path))
    run.write_config(replace(config, data=data))
    assert main.main(["export", str(run.path), "format=symbol", f"output={tmp_path}/net"]) == 0
    before, after = (trained_models.load(name, from_dict({})) for name in (str(run.path), f"symbol:{tmp_path}/net"))
    assert before.card.resize is None and after.card.resize is None


@pytest.mark.slow
def test_safetensors_have_pytorchs_names_where_pytorch_has_the_network(run, tmp_path):
    out = tmp_path / "out.safetensors"
    assert main.main(["export", str(run.path), "format=safetensors", f"output={out}"]) == 0
    want = {name: array for name, array in state(18).items() if not name.endswith("num_batches_tracked")}
    found = load_file(out)
    assert found.keys() == want.keys() and all(found[name].tobytes() == array.tobytes() for name, array in want.items())
    with safe_open(out, "np") as file:
        assert json.loads(file.metadata()["class_names"]) == list(ANIMALS)
    again = trained_models.load(f"torch:{out}", from_dict({"model": {"name": "resnet18_v1b"}})).card
    assert (again.image_size, again.resize, again.class_names) == (64, 72, ANIMALS)


@pytest.mark.slow
def test_typed_settings_and_model_input_precede_the_input_that_weights_state(run, tmp_path, capsys):
    weights_file, out = f"torch:{tmp_path}/w.safetensors", tmp_path / "net.onnx"
    stated = {"input_size": [3, 64, 64], "mean": [0.5] * 3, "std": [0.5] * 3, "interpolation": "bicubic"}
    (tmp_path / "config.json").write_text(json.dumps(stated))
    for given, size, mean in (
        ([], 64, 127.5),
        (["data.image_size=32"], 32, 127.5),
        (["model.input=config", "data.image_size=32", "data.mean=[1,2,3]"], 32, 1),
    ):
        assert main.main(["export", weights_file, "model=resnet18_v1b", f"output={out}", *given]) == 0
        card = export.exported(str(out), from_dict({})).card
        assert (card.image_size, card.mean[0]) == (size, mean)
    (tmp_path / "config.json").write_text(json.dumps({**stated, "std": [0, 0.5, 0.5]}))
    assert "does not state the input of the weights" in command_error(
        capsys, "export", weights_file, "model=resnet18_v1b"
    )


@pytest.mark.slow
def test_a_run_of_a_symbol_network_may_move(run, tmp_path):
    assert main.main(["export", str(run.path), "format=symbol", f"output={tmp_path}/net"]) == 0
    source = pretrained.load(f"symbol:{tmp_path}/net", "symbol")
    config = from_dict({"runs": f"{tmp_path}/runs", "model": {"name": "symbol"}, "data": {"image_size": 64}})
    symbolic = directory.create(config)
    (symbolic.checkpoints / "1").mkdir(parents=True)
    weights.save(symbolic.checkpoints / "1" / "params", source.arrays)
    complete(symbolic.checkpoints / "1")
    symbolic.write("network.json", source.graph)
    symbolic.write("best.json", {"step": 1, "val/top1": 50.0, "checkpoint": "checkpoints/1"})
    symbolic.save(Plan(classes=10, class_names=ANIMALS, graph=str(symbolic.path / "network.json")))
    moved = symbolic.path.rename(tmp_path / "moved")
    assert trained_models.load(str(moved), from_dict({})).card.class_names == ANIMALS


def test_safetensors_of_other_networks_have_structural_names(tmp_path):
    trained = random_network("small", 32)
    export.write_safetensors(trained, str(tmp_path / "w.safetensors"))
    assert load_file(tmp_path / "w.safetensors").keys() == weights.arrays(trained.net).keys()


@pytest.mark.slow
def test_weights_of_a_run_in_float16_are_exported_in_float32(run):
    trained = trained_models.load(str(run.path), from_dict({}))
    trained.net.cast("float16")
    graph = export.of_network(trained.net, replace(trained.card))
    assert {each.data_type for each in graph.graph.initializer} <= {onnx.TensorProto.FLOAT, onnx.TensorProto.INT64}


@pytest.mark.slow
def test_what_cannot_be_exported_is_one_line(run, tmp_path, capsys):
    assert "source is missing" in command_error(capsys, "export")
    assert "is no run directory with a best checkpoint" in command_error(capsys, "export", str(tmp_path))
    assert "no such run directory or file" in command_error(capsys, "export", "no")
    assert "format=onxx: did you mean onnx?" in command_error(capsys, "export", "latest", "format=onxx")
    assert "latest: no finished training run" in command_error(capsys, "export", "latest", f"runs={tmp_path}/none")
    for format in ("onnx", "symbol", "safetensors"):
        argv = ["export", str(run.path), f"format={format}", f"output={tmp_path}/no/x"]
        assert f"output={tmp_path}/no/x: cannot be written" in command_error(capsys, *argv)
    assert "expected the name of a file" in command_error(capsys, "export", str(run.path), f"output={tmp_path}/")
    save_file({n: a for n, a in state(18).items() if not n.startswith("fc.")}, tmp_path / "headless.safetensors")
    argv = ["export", f"torch:{tmp_path}/headless.safetensors", "model=resnet18_v1b", f"output={tmp_path}/x.onnx"]
    assert "has no classifier" in command_error(capsys, *argv)
