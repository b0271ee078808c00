"""`mxscale predict`: classes of images in every form, in order, bad images listed."""

import csv
import json
import os
import shutil

import browser
import exported
import numpy as np
import onnx
import pytest
from PIL import Image
from refusals import command_error

from mxscale.cli import main
from mxscale.config.schema import from_dict
from mxscale.config.verb_settings import Predict
from mxscale.data.central_crop import CentralCrop
from mxscale.serve import export, predict
from mxscale.serve.predict import as_text, most_likely
from mxscale.serve.predictor import Predictor


@pytest.fixture
def folder(tmp_path):
    """A folder with an exported network and images in subfolders."""
    (tmp_path / "empty").mkdir()
    exported.write(tmp_path / "net.onnx")
    exported.photographs(tmp_path / "in" / "a", 40)
    exported.photographs(tmp_path / "in" / "b", 5, seed=1)
    return tmp_path


def expected(paths) -> np.ndarray:
    """Return the logits in MXNet of the central crops of files."""
    pixels = [np.asarray(Image.open(path))[:32, 4:36] for path in paths]
    return exported.scores(exported.trained(), np.stack(pixels))


def rows(path) -> list:
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


def test_probabilities_are_those_of_mxnet_in_the_order_of_the_files(folder, capsys):
    out = folder / "out.csv"
    assert main.main(["predict", f"{folder}/net.onnx", f"{folder}/in", "top=3", f"output={out}"]) == 0
    paths = sorted((folder / "in").rglob("*.jpg"))
    assert f"{out}: {len(paths)} images" in capsys.readouterr().err
    logits = expected(paths)
    want = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    found = rows(out)
    assert [row["image"] for row in found] == [str(path) for path in paths]
    for row, probabilities in zip(found, want):
        choices = {row[f"class_{place}"]: float(row[f"probability_{place}"]) for place in (1, 2, 3)}
        assert list(choices.values()) == sorted(choices.values(), reverse=True)
        for name, probability in zip(exported.CLASSES, probabilities):
            assert choices[name] == pytest.approx(probability, abs=1e-5)


@pytest.mark.parametrize("threads", [1, 3, 8])
def test_threads_change_neither_order_nor_values(folder, threads):
    predictor = Predictor(export.exported(f"{folder}/net.onnx", from_dict({})), threads)
    paths = sorted((folder / "in").rglob("*.jpg"))
    batches = list(predictor.predict(paths, predictor.crop.of_file))
    assert [path for batch in batches for path in batch.items] == paths
    assert np.allclose(np.concatenate([batch.logits for batch in batches]), expected(paths), atol=1e-4)


def test_files_and_folders_are_accepted_and_counted_once(folder, capsys):
    one = f"{folder}/in/b/0001.jpg"
    assert main.main(["predict", f"{folder}/net.onnx", one, f"{folder}/in/b", "top=1"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 5 and lines[0].startswith(one)
    assert lines[0].split()[1] in exported.CLASSES and lines[0].endswith("%")


def test_a_folder_holds_what_training_would_read(folder):
    (folder / "elsewhere").mkdir()
    shutil.copy(folder / "in/b/0001.jpg", folder / "elsewhere" / "linked.jpg")
    (folder / "in" / "link").symlink_to(folder / "elsewhere")
    for hidden in ("in/._0001.jpg", "in/__MACOSX/0001.jpg"):
        (folder / hidden).parent.mkdir(exist_ok=True)
        (folder / hidden).write_bytes(b"no image")
    whole = predict.images_of(f"{folder}/in")
    assert [path for path in whole if "link" in path] == [f"{folder}/in/link/linked.jpg"]
    assert not [path for path in whole if "._" in path or "__MACOSX" in path]


def test_rows_hold_predictions_or_the_error_of_a_bad_image(folder, capsys):
    (folder / "in" / "b" / "bad.jpg").write_bytes(b"no image")
    out = folder / "out.csv"
    assert main.main(["predict", f"{folder}/net.onnx", f"{folder}/in/b", f"output={out}"]) == 0
    assert [os.path.basename(row["image"]) for row in rows(out)] == sorted(os.listdir(folder / "in" / "b"))
    (bad,) = (row for row in rows(out) if row["error"])
    assert bad["error"] == "not an image of a known format" and bad["class_1"] == bad["probability_1"] == ""
    assert all(row["class_1"] in exported.CLASSES for row in rows(out) if row != bad)
    assert "1 of 6 images cannot be used" in capsys.readouterr().err


def test_bad_images_alone_fail(folder, capsys):
    (folder / "bad.jpg").write_bytes(b"")
    assert main.main(["predict", f"{folder}/net.onnx", f"{folder}/bad.jpg"]) == 1
    assert "bad.jpg: empty file" in capsys.readouterr().err


def test_photographs_are_resized_and_cropped_as_validation_images(folder):
    exported.write(folder / "resized.onnx", resize=36)
    (path,) = exported.photographs(folder / "large", 1, size=(100, 80))
    predictor = Predictor(export.exported(f"{folder}/resized.onnx", from_dict({})), 1)
    (batch,) = predictor.predict([path], predictor.crop.of_file)
    image = Image.open(path).resize((45, 36), Image.Resampling.BILINEAR)
    pixels = np.asarray(image)[2:34, 6:38]
    # A draft of the JPEG at half its size is resized: a level or two of 255
    assert np.allclose(batch.logits, exported.scores(exported.trained(), pixels[None]), atol=0.2)


def test_contact_sheet_shows_images_predictions_and_bad_files(folder):
    (folder / "in" / "b" / "bad<b>.jpg").write_bytes(b"no image")
    sheet = folder / "sheet.html"
    assert (
        main.main(["predict", f"{folder}/net.onnx", f"{folder}/in/b", f"sheet={sheet}", f"output={folder}/y.csv"]) == 0
    )
    page = sheet.read_text()
    assert page.count("data:image/jpeg;base64,") == 5 and "bad&lt;b&gt;.jpg" in page and "5 images" in page


@pytest.mark.slow
@pytest.mark.skipif(not (browser.CHROMIUM and browser.DRIVER), reason="chromium or chromium-driver is missing")
def test_pictures_are_filtered_by_class_and_ordered_by_probability(tmp_path):
    pixels = np.zeros((8, 8, 3), "uint8")
    choices = {"a.jpg": ("cat", 0.5), "b.jpg": ("eel", 0.9), "c.jpg": ("cat", 0.7)}
    with predict.writing(predict.Sheet, f"{tmp_path}/sheet.html", ["cat", "eel"], 1) as sheet:
        for name, choice in choices.items():
            sheet.good(name, [choice], pixels)

    def shown(predicted, order):
        script = """const [predicted, order, shown] = [...arguments, []];
          document.getElementById("predicted").value = predicted; document.getElementById("order").value = order;
          document.getElementById("order").onchange();
          return [...document.querySelectorAll(".sheet figure")].filter(each => each.offsetParent).map(
            each => each.querySelector("small").innerText)"""
        return window.driver.execute_script(script, predicted, order)

    with browser.opened(tmp_path) as window:
        window.open(f"file://{tmp_path}/sheet.html")
        assert shown("", "0") == ["a.jpg", "b.jpg", "c.jpg"]
        assert shown("", "-1") == ["b.jpg", "c.jpg", "a.jpg"]
        assert shown("cat", "1") == ["a.jpg", "c.jpg"]
        assert shown("", "0") == ["a.jpg", "b.jpg", "c.jpg"]


def test_equal_probabilities_keep_the_order_of_the_classes():
    found = most_likely(np.array([0.25, 0.5, 0.25]), ["a", "b", "c"], 3)
    assert [name for name, _ in found] == ["b", "a", "c"]


def test_classes_of_no_weight_are_not_listed():
    assert as_text([("cat", 0.9996), ("dog", 0.0004), ("ant", 0.0)]) == ["cat 100.0%"]
    assert as_text([("cat", 0.0004), ("dog", 0.0004)]) == ["cat 0.0%"]  # the first class of thousands


@pytest.mark.parametrize(
    "argv, message",
    [
        ([], "source is missing: mxscale predict MODEL IMAGES"),
        (["latest"], "images is missing: mxscale predict MODEL IMAGES"),
        (["{0}/net.onnx", "{0}/none"], "none: no such file or folder"),
        (["{0}/net.onnx", "{0}/*.jpg"], "*.jpg: no such file or folder"),
        (["{0}/net.onnx", "{0}/empty"], "no images there"),
        (["{0}/net.onnx", "{0}/in", "top=0"], "top=0: expected at least 1"),
        (["{0}/net.onnx", "{0}/in", "output=x.txt"], "output=x.txt: expected a name that ends in .csv"),
        (["{0}/net.onnx", "{0}/in", "sheet=x.pdf"], "sheet=x.pdf: expected a name that ends in .html"),
        (["{0}/net.onnx", "{0}/in", "threads=2"], "threads was removed: predict and evaluate use the cores of their"),
        (["{0}/net.onnx", "{0}/in", "output={0}/no/x.csv"], "x.csv: cannot be written"),
        (["{0}/none.onnx", "{0}/in"], "none.onnx: No such file"),
        (["{0}/in/a/0000.jpg", "{0}/in"], "is not an MXNet parameter file"),
    ],
)
def test_invalid_command_is_one_line(folder, capsys, argv, message):
    assert message in command_error(capsys, "predict", *(each.format(folder) for each in argv))


@pytest.mark.parametrize("content", [b"", b"no model", b"\x08\x08\x12\x00" * 20])
def test_a_file_that_is_no_exported_network_is_one_line(folder, capsys, content):
    (folder / "bad.onnx").write_bytes(content)
    error = command_error(capsys, "predict", f"{folder}/bad.onnx", f"{folder}/in")
    assert "is no ONNX file" in error or "has no metadata of mxscale" in error


def test_a_file_that_another_program_changed_is_one_line(folder, capsys):
    network = onnx.load(f"{folder}/net.onnx")
    network.ir_version = 99
    onnx.save(network, f"{folder}/newer.onnx")
    error = command_error(capsys, "predict", f"{folder}/newer.onnx", f"{folder}/in")
    assert f"{folder}/newer.onnx: ONNX Runtime" in error and "cannot load the network: " in error
    network = onnx.load(f"{folder}/net.onnx")
    network.graph.output.pop()
    onnx.save(network, f"{folder}/cut.onnx")
    error = command_error(capsys, "predict", f"{folder}/cut.onnx", f"{folder}/in")
    assert (
        f"{folder}/cut.onnx: the network has images tensor(uint8)[32, 32, 3], probabilities tensor(float)[3]; its"
        in error
    )


def test_a_tensor_beyond_any_memory_is_one_line(folder, capfd):
    network = onnx.load(f"{folder}/net.onnx")
    network.graph.initializer[0].dims[0] = 2**62
    onnx.save(network, f"{folder}/huge.onnx")
    assert main.main(["predict", f"{folder}/huge.onnx", f"{folder}/in"]) == 2
    assert capfd.readouterr().err.count("\n") == 1  # the runtime logs to the process's stderr


def changed(network, **metadata):
    """Set metadata of a network in ONNX."""
    for each in network.metadata_props:
        each.value = metadata.pop(each.key, each.value)
    assert not metadata


@pytest.mark.parametrize(
    "key, value, message",
    [
        ("class_names", json.dumps([str(n) for n in range(99)]), "its metadata states images tensor(uint8)[32, 32, 3]"),
        ("class_names", '["a", ["b"], "c"]', "class_names[1]=['b']: expected a string"),
        ("class_names", '["a", null, "c"]', "class_names[1]=None: expected a string"),
        ("class_names", '["a", "b", "a"]', "its metadata is invalid (two classes have the same name)"),
        ("class_names", '"abc"', "class_names='abc': expected a list"),
        ("class_names", "[" * 100_000, "its metadata is damaged"),
        ("class_names", '["a", "\\ud800", "c"]', "its metadata is invalid ('utf-8' codec can't encode"),
        ("resize", "36.5", "resize=36.5: expected a whole number"),
        ("resize", "-1", "resize=-1: expected from 8 to 65500"),
        ("image_size", "null", "image_size is missing"),
        ("image_size", "0", "image_size=0: expected from 8 to 4096"),
        ("image_size", "-5", "image_size=-5"),
        ("image_size", "100000", "image_size=100000"),
        ("image_size", "64", "the network has images tensor(uint8)[32, 32, 3]"),
        ("image_size", "true", "image_size=True: expected a whole number"),
        ("interpolation", '"nearest"', "interpolation=nearest"),
        ("mean", "[1, 2]", "mean=[1, 2]: expected 3 numbers"),
        ("std", "[1, 0, 2]", "std=0: expected above 0"),
        ("mean", "[NaN, 1, 2]", "mean="),
        ("mean", "[1" + "0" * 5000 + "]", "its metadata is damaged"),
    ],
)
def test_metadata_that_no_export_writes_is_one_line(folder, capsys, key, value, message):
    network = onnx.load(f"{folder}/net.onnx")
    changed(network, **{key: value})
    onnx.save(network, f"{folder}/odd.onnx")
    error = command_error(capsys, "predict", f"{folder}/odd.onnx", f"{folder}/in")
    assert message in error and len(error) < 600


def float_input(network):
    network.graph.input[0].type.tensor_type.elem_type = onnx.TensorProto.FLOAT


def external_data(network):
    tensor = next(each for each in network.graph.initializer if len(each.raw_data) > 400)
    tensor.ClearField("raw_data")
    tensor.data_location = onnx.TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="weights.bin")


def giant_tensor(network):
    tensor = next(each for each in network.graph.initializer if len(each.raw_data) > 400)
    tensor.dims[:] = [2**40, 2**20]


def another_size_inside(network):
    for each in network.graph.output:
        each.type.tensor_type.shape.dim[1].dim_value = 5
    changed(network, class_names=json.dumps(list("abcde")))


@pytest.mark.parametrize("change", [float_input, external_data, giant_tensor, another_size_inside])
def test_a_graph_that_no_export_writes_is_one_line(folder, capfd, change):
    network = onnx.load(f"{folder}/net.onnx")
    change(network)
    (folder / "odd.onnx").write_bytes(network.SerializeToString())
    assert len(command_error(capfd, "predict", f"{folder}/odd.onnx", f"{folder}/in")) < 600


def test_an_interrupted_prediction_leaves_no_file(folder, monkeypatch):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(CentralCrop, "of_file", interrupted)
    with pytest.raises(KeyboardInterrupt):
        predict.main(from_dict({}), Predict(f"{folder}/net.onnx", [f"{folder}/in"], output=f"{folder}/x.csv"))
    assert not list(folder.glob("*x.csv*"))
