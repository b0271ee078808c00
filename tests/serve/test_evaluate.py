"""`mxscale evaluate`: metrics against plain loops, a run's own split, another data set."""

import csv
import dataclasses
import json
import os
import re
import shutil
from pathlib import Path
from types import SimpleNamespace

import exported
import numpy as np
import pytest
from refusals import command_error
from run_files import last

from mxscale.cli import main
from mxscale.config.schema import from_dict
from mxscale.rundir.directory import RunDir
from mxscale.serve import evaluate, evaluation_report, trained_models
from mxscale.serve.classification_metrics import BINS, Tally
from mxscale.serve.evaluate import log_softmax
from mxscale.serve.evaluation_report import Evaluated

STREAM = np.random.RandomState(0)
LOGITS, LABELS = 3 * STREAM.standard_normal((500, 7)), STREAM.randint(0, 6, 500)  # no image of the last class


@pytest.fixture(scope="module")
def tally():
    found = Tally(7)
    for start in range(0, 500, 64):
        found.add(log_softmax(LOGITS[start : start + 64]), LABELS[start : start + 64])
    return found


def probabilities():
    return np.exp(LOGITS) / np.exp(LOGITS).sum(axis=1, keepdims=True)


def test_accuracy_and_loss_equal_plain_loops(tally):
    top1 = top5 = 0
    loss = 0.0
    for each, label in zip(probabilities(), LABELS):
        ranked = sorted(range(7), key=lambda c: -each[c])
        top1 += ranked[0] == label
        top5 += label in ranked[:5]
        loss -= np.log(each[label])
    found = tally.metrics()
    assert (found["top1"], found["top5"]) == (100 * top1 / 500, 100 * top5 / 500)
    assert found["loss"] == pytest.approx(loss / 500, rel=1e-12)


def test_metrics_of_classes_equal_plain_loops(tally):
    predicted = LOGITS.argmax(axis=1)
    for number, found in enumerate(tally.by_class()):
        true = sum(p == number and label == number for p, label in zip(predicted, LABELS))
        support, given = sum(number == LABELS), sum(predicted == number)
        assert found.support == support
        assert found.precision == pytest.approx(true / given)
        assert np.isnan(found.recall) if support == 0 else found.recall == pytest.approx(true / support)
        assert found.f1 == pytest.approx(2 * true / (support + given))


def test_calibration_error_equals_a_plain_loop(tally):
    """arXiv:1706.04599, eq. 3."""
    error = 0.0
    confidence, correct = probabilities().max(axis=1), LOGITS.argmax(axis=1) == LABELS
    for number in range(BINS):
        inside = (confidence >= number / BINS) & (confidence < (number + 1) / BINS)
        if inside.any():
            error += inside.sum() / 500 * abs(confidence[inside].mean() - correct[inside].mean())
    assert tally.calibration_error() == pytest.approx(error)


def test_most_confused_classes_come_first(tally):
    found = tally.most_confused()
    assert [count for *_, count in found] == sorted((count for *_, count in found), reverse=True)
    label, predicted, count = found[0]
    assert label != predicted and tally.confusion[label, predicted] == count


def test_batches_do_not_change_the_result(tally):
    whole = Tally(7)
    whole.add(log_softmax(LOGITS), LABELS)
    assert (whole.confusion == tally.confusion).all()
    assert whole.metrics() == pytest.approx(tally.metrics(), nan_ok=True)


@pytest.fixture(scope="module")
def finished(shared_cli):
    """A finished training run with a test split, recorded in a store."""
    return shared_cli("train", "tracking=mlflow", "launch.ranks=1").run


def evaluated(finished, *arguments, folder="test"):
    assert main.main(["evaluate", str(finished), f"runs={finished.path.parents[1]}", *arguments]) == 0
    return json.loads((finished.path / "evaluation" / folder / "evaluation.json").read_text())


@pytest.mark.slow
def test_a_run_is_evaluated_as_at_its_end(finished, capsys):
    found = evaluated(finished)
    assert found["top1"] == pytest.approx(finished.figures["test/top1"], abs=1e-9)
    assert found["images"] == finished.plan().splits["test"].count
    assert "evaluated" in capsys.readouterr().out
    validation = evaluated(finished, "split=val", folder="val")
    assert validation["top1"] == pytest.approx(finished.read("best.json")["val/top1"], abs=1e-9)
    assert validation["loss"] == pytest.approx(finished.read("best.json")["val/loss"], rel=1e-4)
    assert last(finished, "val/top1") <= validation["top1"]


def copied(finished, folder, **changes) -> RunDir:
    """Return a copy of the run with another plan."""
    run = RunDir(shutil.copytree(finished.path, folder / "run"))
    run.save(dataclasses.replace(run.plan(), **changes))
    return run


@pytest.mark.slow
def test_packed_images_that_are_gone_are_packed_again(finished, tmp_path):
    run = copied(finished, tmp_path, data_dir=str(tmp_path / "gone"))
    assert main.main(["evaluate", str(run), "tracking=none"]) == 0
    found = json.loads((run.path / "evaluation" / "test" / "evaluation.json").read_text())
    assert found["top1"] == pytest.approx(finished.figures["test/top1"], abs=1e-9)


@pytest.mark.slow
def test_images_that_have_changed_since_the_training_are_refused(finished, tmp_path, capsys):
    run = copied(finished, tmp_path, data_digest="0" * 64)
    assert "its images have changed since the training" in command_error(capsys, "evaluate", str(run), "tracking=none")


@pytest.mark.slow
def test_records_that_cannot_be_read_are_one_line(finished, tmp_path, capsys):
    packed = Path(shutil.copytree(finished.plan().data_dir, tmp_path / "packed"))
    run = copied(finished, tmp_path, data_dir=str(packed))
    (packed / "test.idx").write_text("damaged\n" * finished.plan().splits["test"].count)
    error = command_error(capsys, "evaluate", str(run), "tracking=none")
    assert "test.rec cannot be read" in error


@pytest.mark.slow
def test_a_run_is_evaluated_with_its_own_settings(finished, capsys):
    error = command_error(capsys, "evaluate", str(finished), "data.mean=[1,2,3]")
    assert f"data.mean: {finished} is evaluated with its own settings; omit it, or add data=NAME" in error


@pytest.mark.slow
def test_scans_larger_than_the_input_are_resized(finished):
    assert trained_models.load(finished, from_dict({})).card.resize == finished.config().data.image_size


@pytest.mark.slow
def test_tables_and_page_agree(finished):
    found, folder = evaluated(finished), finished.path / "evaluation" / "test"
    with open(folder / "confusion.csv", newline="") as file:
        matrix = np.array([row[1:] for row in csv.reader(file)][1:], int)
    assert 100 * np.trace(matrix) / matrix.sum() == pytest.approx(found["top1"])
    shown = (folder / "evaluation.html").read_text()
    assert f"{found['top1']:.2f} %" in shown and "Reliability" in shown
    assert shown.count("data:image/jpeg") == min(60, int(matrix.sum() - np.trace(matrix)))
    assert (folder / "confusion.png").stat().st_size > 5000


@pytest.mark.slow
def test_an_evaluation_is_recorded_in_the_run_of_the_model(finished):
    from mlflow.tracking import MlflowClient

    found = evaluated(finished)
    state = finished.read("tracking.json")
    client = MlflowClient(state["uri"])
    assert client.get_run(state["run_id"]).data.metrics["evaluation/test/top1"] == pytest.approx(found["top1"])
    assert "evaluation/test/confusion.png" in {
        each.path for each in client.list_artifacts(state["run_id"], "evaluation/test")
    }


@pytest.mark.slow
def test_a_run_is_named_by_its_id_in_mlflow_or_as_the_latest(finished, capsys):
    found, root = evaluated(finished), f"runs={finished.path.parents[1]}"
    for name in (f"run:{finished.read('tracking.json')['run_id']}", "latest"):
        capsys.readouterr()
        assert main.main(["evaluate", name, root]) == 0
        assert f"{found['top1']:.2f} %" in capsys.readouterr().out
    assert main.main(["evaluate", "run:0123", root]) == 2
    assert "run:0123" in capsys.readouterr().err


def tree(folder, classes, count=10):
    for number, name in enumerate(classes):
        exported.photographs(folder / "train" / name, count, seed=number)
        exported.photographs(folder / "val" / name, count, seed=50 + number)
    return folder


def test_another_data_set_is_matched_by_the_names_of_its_classes(tmp_path):
    exported.write(tmp_path / "net.onnx")
    argv = ["evaluate", f"{tmp_path}/net.onnx", "data=imagefolder", f"data.cache={tmp_path}/cache",
            f"output={tmp_path}/out", "tracking=none", f"data.root={tree(tmp_path / 'images', ['eel', 'cat'])}",
            "data.pack_format=png", "data.pack_short_side=original"]  # fmt: skip
    assert main.main(argv) == 0
    found = json.loads((tmp_path / "out" / "evaluation.json").read_text())
    assert (found["images"], found["split"]) == (20, "val")
    with open(tmp_path / "out" / "classes.csv", newline="") as file:
        assert [(row["class"], row["support"]) for row in csv.DictReader(file)] == [
            ("cat", "10"),
            ("dog", "0"),
            ("eel", "10"),
        ]


def test_the_accuracy_of_training_is_printed_beside_that_of_the_files(tally):
    card = SimpleNamespace(class_names=[str(number) for number in range(len(tally.confusion))])
    evaluated = Evaluated(card, "test", "images", tally, [], [])
    assert "training" not in evaluation_report.summary(evaluated, Path("x"))
    text = evaluation_report.summary(evaluated._replace(in_training=76.625), Path("x"))
    assert re.search(r"^  in the run +76.62 %: of the packed, resized copies of these images$", text, re.MULTILINE)


def test_files_are_evaluated_as_they_are_predicted(tmp_path):
    exported.write(tmp_path / "net.onnx", resize=36)
    for number, name in enumerate(["cat", "eel"]):
        exported.photographs(tmp_path / "images" / "train" / name, 2, size=(200, 150), seed=number)
        exported.photographs(tmp_path / "images" / "val" / name, 9, size=(200, 150), seed=50 + number)
    argv = ["evaluate", f"{tmp_path}/net.onnx", "data=imagefolder", f"data.root={tmp_path}/images", "tracking=none",
            f"data.cache={tmp_path}/cache", f"output={tmp_path}/out"]  # fmt: skip
    assert main.main(argv) == 0
    found = json.loads((tmp_path / "out" / "evaluation.json").read_text())
    argv = ["predict", f"{tmp_path}/net.onnx", f"{tmp_path}/images/val", f"output={tmp_path}/predicted.csv"]
    assert main.main(argv) == 0
    losses, wrong = [], set()
    with open(tmp_path / "predicted.csv", newline="") as file:
        for row in csv.DictReader(file):
            probabilities = {row[f"class_{place}"]: float(row[f"probability_{place}"]) for place in (1, 2, 3)}
            losses.append(-np.log(probabilities[Path(row["image"]).parent.name]))
            if row["class_1"] != Path(row["image"]).parent.name:
                wrong.add((row["image"], Path(row["image"]).parent.name, row["class_1"]))
    assert found["read"] == "images" and len(losses) == found["images"]
    assert found["loss"] == pytest.approx(np.mean(losses), rel=1e-4)
    with open(tmp_path / "out" / "errors.csv", newline="") as file:
        errors = list(csv.DictReader(file))
    assert {(row["image"], row["class"], row["predicted"]) for row in errors} == wrong and wrong
    assert [row["probability"] for row in errors] == sorted((row["probability"] for row in errors), reverse=True)
    shown, folder = (tmp_path / "out" / "evaluation.html").read_text(), os.path.commonpath([one[0] for one in wrong])
    assert f"Below <code>{folder}/</code>" in shown
    assert all(f"<small>{os.path.relpath(image, folder)}</small>" in shown for image, *_ in wrong)


def test_a_run_is_predicted_with_the_resizing_of_its_packing():
    """Packing resizes with the bicubic filter, whatever data.interpolation is, and validation not any more."""
    folder = {"kind": "imagefolder", "root": "x", "image_size": 32, "eval_resize": 36, "pack_short_side": 36}
    net = exported.trained().net
    for data, interpolation in (({}, "bicubic"), ({"pack_short_side": 40}, "bilinear")):
        config = from_dict({"model": {"name": "small"}, "data": {**folder, **data}})
        assert trained_models._card(config, exported.CLASSES, net, "run").interpolation == interpolation
    assert trained_models._card(config, exported.CLASSES, net, None).interpolation == "bilinear"


@pytest.mark.slow
def test_images_that_a_network_does_not_resize_keep_their_size(tmp_path):
    exported.write(tmp_path / "net.onnx", resize=None)
    root, losses = tree(tmp_path / "images", ["eel", "cat"]), set()
    for size in ("original", 64):
        argv = ["evaluate", f"{tmp_path}/net.onnx", "data=imagefolder", f"data.root={root}", "data.pack_format=png",
                f"data.cache={tmp_path}/cache", f"data.pack_short_side={size}", f"output={tmp_path}/out",
                "tracking=none"]  # fmt: skip
        assert main.main(argv) == 0
        losses.add(json.loads((tmp_path / "out" / "evaluation.json").read_text())["loss"])
    assert len(losses) == 1


@pytest.mark.parametrize("counts", [{"cat": 1, "eel": 2}, {"eel": 2}])
def test_every_image_of_a_set_without_splits_can_be_evaluated(tmp_path, counts):
    exported.write(tmp_path / "net.onnx")
    for name, count in counts.items():
        exported.photographs(tmp_path / "images" / name, count)
    argv = ["evaluate", f"{tmp_path}/net.onnx", "data=imagefolder", f"data.cache={tmp_path}/cache", "split=all",
            f"data.root={tmp_path}/images", f"output={tmp_path}/out"]  # fmt: skip
    assert main.main(argv) == 0
    assert json.loads((tmp_path / "out" / "evaluation.json").read_text())["images"] == sum(counts.values())


def test_images_are_packed_at_the_size_that_a_larger_network_sees(tmp_path):
    exported.write(tmp_path / "net.onnx", resize=300)
    argv = ["evaluate", f"{tmp_path}/net.onnx", "data=imagefolder", f"data.cache={tmp_path}/cache",
            f"data.root={tree(tmp_path / 'images', ['eel', 'cat'], count=2)}", f"output={tmp_path}/out"]  # fmt: skip
    assert main.main(argv) == 0
    [packed] = (tmp_path / "cache").glob("*/manifest.json")
    assert json.loads(packed.read_text())["splits"]["val"]["min_side"] == 300


def test_a_folder_that_cannot_be_written_is_refused_before_the_work(tmp_path, capsys, monkeypatch):
    exported.write(tmp_path / "net.onnx")
    monkeypatch.setattr(evaluate, "evaluate", None)
    root = tree(tmp_path / "images", ["eel", "cat"], count=2)
    argv = ["evaluate", f"{tmp_path}/net.onnx", "data=imagefolder", f"data.cache={tmp_path}/cache"]
    assert main.main([*argv, f"data.root={root}", f"output={tmp_path}/net.onnx"]) == 2
    assert f"output={tmp_path}/net.onnx: not writable" in capsys.readouterr().err


@pytest.mark.slow
def test_a_store_that_lacks_the_run_is_refused_before_the_work(finished, tmp_path, capsys, monkeypatch):
    from mlflow.tracking import MlflowClient

    monkeypatch.setattr(evaluate, "evaluate", None)
    other = f"sqlite:///{tmp_path}/odd#name/mlflow.db"
    (tmp_path / "odd#name").mkdir()
    MlflowClient(other).search_experiments()
    error = command_error(capsys, "evaluate", str(finished), f"tracking.uri='{other}'")
    assert f"does not have {finished}; send it with: mxscale sync" in error
    assert [path.name for path in tmp_path.iterdir()] == ["odd#name"]


@pytest.mark.parametrize(
    "arguments, message",
    [
        ([], "source is missing: mxscale evaluate MODEL"),
        (["{0}/net.onnx"], "net.onnx names no data: add data=NAME"),
        (["{0}/net.onnx", "split=validation"], "split=validation: expected one of all, test, train, val"),
        (["{0}/net.onnx", "views=flip"], "views was removed: every image is evaluated once"),
        (["{0}/net.onnx", "data=imagefolder", "data.root={0}/images", "split=test"], "has only train, val"),
        (["{0}/net.onnx", "data=synthetic"], "data=synthetic has no labels to evaluate"),
    ],
)
def test_invalid_command_is_one_line(tmp_path, capsys, arguments, message):
    exported.write(tmp_path / "net.onnx")
    tree(tmp_path / "images", ["eel", "cat"], count=2)
    argv = [each.format(tmp_path) for each in arguments]
    assert main.main(["evaluate", *argv, f"data.cache={tmp_path}/cache", "tracking=none"]) == 2
    packed_or_refused = capsys.readouterr().err.splitlines()
    assert message in packed_or_refused[-1] and len(packed_or_refused) <= 2


def test_unknown_classes_are_named(tmp_path, capsys):
    exported.write(tmp_path / "net.onnx")
    root = tree(tmp_path / "images", ["cat", "dogs"], count=2)
    argv = ["evaluate", f"{tmp_path}/net.onnx", "data=imagefolder", f"data.root={root}", f"data.cache={tmp_path}/cache"]
    assert main.main([*argv, "tracking=none"]) == 2
    error = capsys.readouterr().err
    assert "the network has no class dogs: did you mean dog?" in error and "its 3 are cat, dog, eel" in error
