"""`mxscale register`, and the models that it logs and registers."""

import ast
import base64
import csv
import re
import sys
from pathlib import Path

import exported
import numpy as np
import pandas
import pytest
from PIL import Image
from refusals import command_error
from tracked_runs import Server

from mxscale.cli import main
from mxscale.data import images
from mxscale.data.central_crop import CentralCrop
from mxscale.serve import register
from mxscale.tracking import models


@pytest.fixture
def classifier(tmp_path):
    """Return a function that loads the served model with an exported network; it also returns the network."""

    class Context:
        artifacts = {"network": str(tmp_path / "net.onnx")}

    def loaded(resize=None):
        from mxscale.serve.served_model import Classifier

        network, model = exported.write(tmp_path / "net.onnx", resize), Classifier()
        model.load_context(Context)
        return model, network

    return loaded


def in_base64(path) -> str:
    return base64.b64encode(Path(path).read_bytes()).decode()


@pytest.mark.parametrize(
    "size, resize",
    [((40, 32), None), ((100, 80), 36), ((20, 90), None), ((33, 47), 40), ((49, 98), 256), ((640, 480), 36)],
)
def test_an_image_is_served_with_the_probabilities_of_predict(classifier, tmp_path, size, resize):
    model, _ = classifier(resize)
    (path,) = exported.photographs(tmp_path / "in", 1, size=size)
    argv = ["predict", f"{tmp_path}/net.onnx", str(path), f"output={tmp_path}/out.csv"]
    assert main.main(argv) == 0
    (served,) = model.predict(None, pandas.DataFrame({"image": [in_base64(path)]}))
    with open(tmp_path / "out.csv", newline="") as file:
        (row,) = csv.DictReader(file)
    predicted = [(row[f"class_{place}"], np.float32(row[f"probability_{place}"])) for place in (1, 2, 3)]
    assert [(choice["class"], choice["probability"]) for choice in served["top"]] == predicted


STREAM = np.random.RandomState(0)
PIXELS = {
    mode: STREAM.randint(0, 256, (40, 50, *channels)).astype("uint8")
    for mode, channels in {"RGBA": [4], "LA": [2], "L": []}.items()
}

ROTATED = Image.Exif()
ROTATED[0x0112] = 6


@pytest.mark.parametrize(
    "image, options",
    [
        (Image.fromarray(PIXELS["RGBA"]), {"format": "PNG"}),
        (Image.fromarray(PIXELS["LA"], "LA"), {"format": "PNG"}),
        (Image.fromarray(PIXELS["L"]).convert("P"), {"format": "PNG", "transparency": 3}),
        (Image.fromarray(257 * PIXELS["L"].astype("uint16")), {"format": "PNG"}),
        (Image.fromarray(PIXELS["L"].astype("int32")), {"format": "TIFF"}),
        (Image.fromarray(PIXELS["L"]), {"format": "JPEG", "exif": b"Exif\0\0II*\0nonsense"}),
        (Image.fromarray(PIXELS["L"]), {"format": "JPEG", "exif": ROTATED}),
    ],
    ids=["rgba", "grey with alpha", "transparent colour", "16 bits", "32 bits", "invalid EXIF", "rotated"],
)  # fmt: skip
def test_served_images_are_decoded_as_in_packing(classifier, tmp_path, image, options):
    model, _ = classifier(36)
    image.save(tmp_path / "in", **options)
    wanted = CentralCrop(exported.SIDE, 36, "bilinear")(images.decode(tmp_path / "in"))
    assert np.array_equal(model._pixels(0, in_base64(tmp_path / "in")), wanted)


def test_served_predictions_are_those_of_mxnet(classifier, tmp_path):
    model, network = classifier()
    paths = exported.photographs(tmp_path / "in", 3)
    found = model.predict(None, pandas.DataFrame({"image": [in_base64(path) for path in paths]}), {"top": 2})
    logits = exported.scores(network, np.stack([np.asarray(Image.open(path))[:, 4:36] for path in paths]))
    for row, each in zip(np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True), found):
        assert each["class"] == exported.CLASSES[row.argmax()] and len(each["top"]) == 2
        assert each["probability"] == pytest.approx(row.max(), abs=1e-5)


@pytest.mark.parametrize("text", ["zz", "", "aGVsbG8=", None, 3.5, 10**13, [1], "é"])
def test_an_image_that_cannot_be_decoded_is_named(classifier, text):
    from mlflow.exceptions import MlflowException

    with pytest.raises(MlflowException, match="image 0: "):
        classifier()[0].predict(None, pandas.DataFrame({"image": [text]}))


@pytest.fixture(scope="module")
def finished(shared_cli):
    """Two finished runs recorded in a store; the second one trained longer."""
    return [shared_cli("train", "tracking=mlflow", "launch.ranks=1", f"epochs={epochs}").run for epochs in (1, 6)]


@pytest.fixture(scope="module")
def store(finished):
    from mlflow.tracking import MlflowClient

    uri = finished[0].read("tracking.json")["uri"]
    return MlflowClient(uri, uri)


def registered(run, name):
    assert main.main(["register", str(run), name, f"runs={run.path.parents[1]}"]) == 0


@pytest.mark.slow
def test_champion_moves_only_to_a_better_version(finished, store, capsys):
    worse, better = sorted(finished, key=lambda run: run.read("best.json")["val/top1"])
    for run, champion in ((worse, "1"), (better, "2"), (worse, "2"), (better, "2")):
        registered(run, "digits")
        assert str(store.get_model_version_by_alias("digits", "champion").version) == champion
    assert "digits version 4: " in capsys.readouterr().out
    version = store.get_model_version("digits", "2")
    assert version.run_id == better.read("tracking.json")["run_id"]
    logged = store.get_logged_model(version.source.removeprefix("models:/"))
    assert logged.status == "READY" and logged.source_run_id == version.run_id
    assert store.get_model_version("digits", "4").source == version.source  # a checkpoint is logged once


@pytest.fixture
def server(tmp_path):
    server = Server(tmp_path)
    try:
        server.start()
        yield server
    finally:
        server.kill()


@pytest.mark.slow
def test_a_run_logs_its_best_checkpoint_on_a_server(cli, server, capfd):
    import mlflow

    ended = cli("train", "tracking=mlflow", f"tracking.uri={server.uri}", "launch.ranks=1")
    logged_by = cli("register", f"source={ended.run}", f"tracking.uri={server.uri}", small=False)
    run_id, client = ended.run.read("tracking.json")["run_id"], mlflow.MlflowClient(server.uri)
    recorded = client.get_run(run_id)
    (output,) = recorded.outputs.model_outputs
    logged = client.get_logged_model(output.model_id)
    assert f"model {logged.model_id}; register it with: mxscale register {ended.run} NAME" in logged_by.out
    assert logged.status == "READY" and recorded.info.status == "FINISHED"
    assert logged.metrics[0].value == ended.run.read("best.json")["val/top1"]
    mlflow.set_tracking_uri(server.uri)
    model = mlflow.pyfunc.load_model(f"runs:/{run_id}/best")
    names = list(ended.run.plan().class_names)
    assert model.metadata.metadata["class_names"] == names
    image = register.example_image(32)
    assert model.predict(pandas.DataFrame({"image": [image]}))[0]["class"] in names
    assert main.main(["register", str(ended.run), "own", f"tracking.uri={server.uri}"]) == 0
    assert re.search(f"^own version 1: .* top-1, model {logged.model_id};", capfd.readouterr().out, re.MULTILINE)


@pytest.mark.slow
def test_what_cannot_be_registered_is_one_line(finished, tmp_path, capsys):
    run = finished[0]
    assert "source is missing: mxscale register RUN NAME" in command_error(capsys, "register")
    assert "registered=a/b: expected a name" in command_error(capsys, "register", str(run), "a/b")
    assert "no such run directory" in command_error(capsys, "register", str(tmp_path / "none"), "x")
    assert "is no run directory: it has no config.yaml" in command_error(capsys, "register", str(tmp_path), "x")
    uri = run.read("tracking.json")["uri"]
    (run.path / "tracking.json").rename(tmp_path / "tracking.json")
    try:
        error = command_error(capsys, "register", str(run), "x", f"tracking.uri={uri}")
        assert f"does not have {run.path}; send it with: mxscale sync {run.path}" in error
    finally:
        (tmp_path / "tracking.json").rename(run.path / "tracking.json")


@pytest.mark.parametrize(
    "setting, expected",
    [
        ("tracking.register=a", "tracking.register was removed: run mxscale register RUN_DIR NAME"),
        ("tracking.log_model=best", "tracking.log_model was removed: run mxscale register RUN_DIR"),
        ("evaluation=full", "evaluation was removed: run mxscale evaluate RUN_DIR"),
    ],
)
def test_a_removed_setting_names_the_verb(capsys, setting, expected):
    assert expected in command_error(capsys, "train", setting)


def test_a_model_brings_all_modules_of_mxscale_that_it_imports(tmp_path):
    made = register.contents(tmp_path, tmp_path / "net.onnx", exported.SIDE, {})
    brought = {".".join(path.relative_to(tmp_path).with_suffix("").parts) for path in made.imported.rglob("*.py")}
    needed = {node.module for path in (made.code, *made.imported.rglob("*.py")) for node in imports(path)}
    own = {name for name in needed if name.startswith("mxscale")}
    assert own and own <= {*brought, "mxscale.data"}
    installed = {*models.REQUIRED, "mlflow", "PIL"}
    assert {name.split(".")[0] for name in needed - own} <= {*installed, *sys.stdlib_module_names}


def imports(path):
    """Yield the statements `from MODULE import NAME` of a file, and `import MODULE` as such, outside `try`."""
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.ImportFrom):
            yield node
        elif isinstance(node, ast.Import):
            yield from (ast.ImportFrom(alias.name) for alias in node.names)
