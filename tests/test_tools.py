"""The verbs logits and export."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from conftest import ROOT
from hub_server import Hub, serving, set_endpoint
from huggingface_hub import constants
from refusals import command_error
from safetensors.numpy import load_file, save_file
from torch_state import images, state

from mxscale.cli import main
from mxscale.config.schema import from_dict
from mxscale.models import convert, weights
from mxscale.rundir import directory
from mxscale.serve import infer

REFERENCE = json.loads((Path(__file__).parent / "reference" / "logits.json").read_text())


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    """Write a ResNet-18 in PyTorch's names, and images; return the weights' path."""
    folder = tmp_path_factory.mktemp("torch")
    save_file(state(18), folder / "w.safetensors")
    np.save(folder / "x.npy", images(REFERENCE["images"], REFERENCE["side"]))
    return folder / "w.safetensors"


@pytest.fixture
def run(tmp_path, file):
    """Return the directory of a finished run of a ResNet-18 with those weights."""
    config = from_dict({"runs": str(tmp_path / "runs"), "model": {"name": "resnet18_v1b"}})
    run = directory.create(config)
    folder = run.checkpoints / "000000001"
    folder.mkdir(parents=True)
    weights.save(folder / "params", convert.load(str(file), "resnet18_v1b").arrays)
    run.write("best.json", {"step": 1, "val/top1": 50.0, "checkpoint": "checkpoints/000000001"})
    return run


@pytest.fixture
def command(file, tmp_path):
    """Return a function that gives the command of the images' logits by these weights."""
    return lambda source, model="resnet18_v1b": [
        "logits", f"model={model}", f"model.pretrained={source}", f"input={file.parent / 'x.npy'}",
        f"output={tmp_path / 'y.npy'}",
    ]  # fmt: skip


def refused(capsys, match, *argv):
    assert match in command_error(capsys, *argv)


def agree(path):
    found, want = np.load(path), np.array(REFERENCE["logits"]["18"])
    assert found.dtype == np.float32 and np.abs(found - want).max() < 1e-4 * (want.max() - want.min())


@pytest.mark.slow
def test_logits_command_writes_scores(file, command, tmp_path):
    argv = [sys.executable, "-m", "mxscale", *command(f"torch:{file}")]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")
    assert f"{REFERENCE['images']} x 10 logits of resnet18_v1b" in done.stdout
    assert "20 num_batches_tracked ignored" in done.stdout
    agree(tmp_path / "y.npy")
    assert [path.name for path in tmp_path.iterdir()] == ["y.npy"]


def test_logits_of_a_run_equal_those_of_its_params(run, command, tmp_path):
    for source in (run.path, run.checkpoints / "000000001" / "params"):
        assert main.main(command(source)) == 0
        agree(tmp_path / "y.npy")


def test_logits_of_several_batches_keep_their_order(run, command, tmp_path, monkeypatch):
    monkeypatch.setattr(infer, "BATCH", 2)
    assert main.main(command(run.path, model="pretrained")) == 0
    agree(tmp_path / "y.npy")


def test_a_runs_network_round_trips_through_pytorchs_names(run, file, tmp_path):
    out = tmp_path / "out.safetensors"
    assert main.main(["export", f"run={run.path}", f"output={out}"]) == 0
    want = {n: a for n, a in state(18).items() if not n.endswith("num_batches_tracked")}
    found = load_file(out)
    assert found.keys() == want.keys() and all(found[n].tobytes() == a.tobytes() for n, a in want.items())
    back = convert.load(str(out), "resnet18_v1b").arrays
    mine = {n: a.asnumpy() for n, a in weights.load(run.checkpoints / "000000001" / "params").items()}
    assert weights.params_sha256(back) == weights.params_sha256(mine)


def test_logits_of_a_model_of_the_hub(file, command, tmp_path, monkeypatch, capsys):
    with serving(Hub("timm/resnet18", "0" * 40, {"model.safetensors": file.read_bytes()})) as hub:
        set_endpoint(monkeypatch, hub.url)
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
        assert main.main(command("hf:timm/resnet18")) == 0
        agree(tmp_path / "y.npy")
        capsys.readouterr()
        other = command("hf:timm/resnet18@main", model="resnet50_v1b")
        refused(capsys, "hf:timm/resnet18@main does not fit resnet50_v1b: these are", *other)


def test_an_unknown_key_or_choice_is_one_line(capsys):
    refused(capsys, "unknown key inputs: did you mean input?", "logits", "inputs=x")
    refused(capsys, "model=resnet18_v1c", "logits", "model=resnet18_v1c")
    refused(capsys, "expected KEY=VALUE", "export", "run")


def test_missing_settings_are_named(capsys, tmp_path):
    refused(capsys, "input is missing: input=PATH", "logits", "output=y")
    refused(capsys, "output is missing", "logits", "input=x")
    refused(capsys, "model.pretrained is missing", "logits", "input=x", "output=y")
    refused(capsys, "run is missing", "export", "output=y")
    refused(capsys, "output is missing", "export", "run=x")
    refused(capsys, "run=no is no run directory", "export", "run=no", "output=y")
    refused(capsys, "no such file", "logits", "model.pretrained=torch:no", f"input={npy(tmp_path)}", "output=y")


def npy(folder, array=None):
    path = folder / "x.npy"
    np.save(path, images(1, 32) if array is None else array)
    return path


@pytest.mark.parametrize(
    "array, found",
    [
        (np.zeros((1, 3, 8, 8)), "found float64 (1, 3, 8, 8)"),
        (np.zeros((3, 8, 8), "f4"), "found float32 (3, 8, 8)"),
        (np.zeros((1, 8, 8, 3), "f4"), "found float32 (1, 8, 8, 3)"),
        (np.zeros((0, 3, 8, 8), "f4"), "has no images"),
        (np.array([{}], dtype=object), "is not a .npy file"),
    ],
)
def test_an_input_of_another_kind_is_one_line(capsys, tmp_path, array, found):
    argv = ["logits", "model.pretrained=torch:no", f"input={npy(tmp_path, array)}", "output=y"]
    refused(capsys, found, *argv)


def test_truncated_or_missing_input_is_one_line(capsys, tmp_path):
    path = npy(tmp_path)
    refused(capsys, "no such file", "logits", "model.pretrained=torch:no", f"input={tmp_path / 'no'}", "output=y")
    for length in (0, 5, 50, 500):
        path.write_bytes(path.read_bytes()[:length])
        refused(capsys, "is not a .npy file", "logits", "model.pretrained=torch:no", f"input={path}", "output=y")


def test_unwritable_output_is_one_line(capsys, run, file, tmp_path):
    refused(capsys, "cannot be written", "export", f"run={run.path}", f"output={tmp_path / 'no' / 'w'}")
    (tmp_path / "folder").mkdir()
    refused(capsys, "cannot be written", "export", f"run={run.path}", f"output={tmp_path / 'folder'}")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["folder", "runs"]


def test_network_without_pytorch_names_is_not_exported(capsys, tmp_path):
    other = directory.create(from_dict({"runs": str(tmp_path / "runs"), "model": {"name": "small"}}))
    folder = other.checkpoints / "000000001"
    folder.mkdir(parents=True)
    weights.save(folder / "params", {"output.bias": np.zeros(2, "f4")})
    other.write("best.json", {"step": 1, "val/top1": 50.0, "checkpoint": "checkpoints/000000001"})
    refused(capsys, "is a small, which cannot be exported to PyTorch", "export", f"run={other.path}", "output=y")


def test_invalid_weights_are_refused_as_by_a_run(capsys, file, tmp_path):
    argv = [f"model.pretrained=torch:{tmp_path / 'w.safetensors'}", f"input={npy(tmp_path)}", "output=y"]
    refused(capsys, "model.name=resnet18_v1c: did you mean resnet18_v1", "logits", "model.name=resnet18_v1c", *argv)
    (tmp_path / "w.safetensors").symlink_to(file)
    (tmp_path / "config.json").write_text('{"input_size": [3, 8, 9]}')
    refused(capsys, "config.json does not state the input of the weights", "logits", "model=resnet18_v1b", *argv)


def test_weights_without_a_classifier_have_no_logits(capsys, command, tmp_path):
    save_file({n: a for n, a in state(18).items() if not n.startswith("fc.")}, tmp_path / "w.safetensors")
    refused(capsys, "has no classifier", *command(f"torch:{tmp_path / 'w.safetensors'}"))
