"""Defaults that follow a folder of images."""

import json

import pytest
from composed import composed_values
from image_trees import make_tree, paint

from mxscale.cli.settings import with_choices
from mxscale.config.schema import flatten, from_dict
from mxscale.data.survey import Sized, Survey, survey
from mxscale.launcher import choices
from mxscale.launcher.choices import Choices, MeasuredRates
from mxscale.util.errors import RunFailed


def folder(short_side=100, **splits):
    """Return the survey of images of one size; splits: the images of each class."""
    items = {name: [[None] * count for count in counts] for name, counts in splits.items()}
    return Survey([], items, [Sized(short_side, short_side, 2 * short_side, "x.jpg")])


PHOTOGRAPHS = folder(all=[200] * 10)
FOLDER = {"kind": "imagefolder", "root": "x", "val_share": 0.1, "test_share": 0.1}
SCANS = folder(28, all=[200] * 10)
RATES = {64: 150.0, 96: 80.0, 128: 40.0, 160: 25.0, 192: 17.0, 224: 12.0, 32: 1000.0}


def chosen(found=PHOTOGRAPHS, entry="train", typed=(), speed=1.0, ranks=2, data=None, **config):
    """Return the chosen values by key."""
    config = from_dict({"entry": entry, "data": {**FOLDER, **(data or {})}, "model": {"name": "small"}, **config})
    made = Choices(config, lambda key: key in typed, found, ranks, lambda name, size, batch: speed * RATES[size])
    return made.all()


def test_crops_of_a_small_set_and_of_fine_tuning_are_gentle():
    assert chosen()["data.augment.scale"] == [0.5, 1.0]
    many = [10_000, 10_000]
    assert "data.augment.scale" not in chosen(folder(all=many))
    assert "data.augment.scale" in chosen(folder(28, all=many))


def test_training_images_follow_from_the_split():
    def images(found, **data):
        return found.training_images(from_dict({"data": {"val_share": 0.1, "test_share": 0.1, **(data or {})}}).data)

    assert images(folder(all=[15, 9])) == 12 + 7
    assert images(folder(train=[10, 20], val=[1, 1])) == 30
    assert images(folder(train=[10, 20], test=[1, 1])) == 27  # a validation share of train
    assert images(folder(all=[100, 20]), train_per_class=30) == 30 + 16


def test_network_and_size_are_the_costliest_that_train_in_the_time():
    def pair(**settings):
        values = chosen(**settings)
        return values["model.name"], values["data.image_size"], values["data.pack_short_side"]

    assert pair() == ("resnet18_v1b", 64, 73)
    assert pair(speed=3.0) == ("resnet18_v1b", 96, 110)  # 128 px would enlarge the images too much
    assert pair(speed=0.01) == ("resnet18_v1b", 64, 73)  # the cheapest, if none is fast enough
    large = folder(500, all=[200] * 10)
    assert pair(found=large, speed=100.0) == ("resnet50_v1b", 224, 256)
    assert pair(found=SCANS) == ("resnet9", 32, 32)
    assert pair(budget={"minutes": 60.0})[1] == 96


def test_typed_settings_stay_and_the_others_follow_them():
    values = chosen(typed=["model.name"], model={"name": "mobilenet1.0"})
    assert "model.name" not in values and values["data.image_size"] == 64
    values = chosen(typed=["data.image_size"], data={"image_size": 96})
    assert values["model.name"] == "resnet18_v1b" and "data.image_size" not in values
    both = chosen(typed=["model.name", "data.image_size", "epochs", "batch.per_device"])
    assert not {"model.name", "data.image_size", "epochs", "batch.per_device"} & both.keys()


def test_epochs_follow_the_number_of_images():
    assert chosen()["epochs"] == 63  # 100,000 / 1,600
    assert chosen(folder(all=[20, 20]))["epochs"] == 100
    assert chosen(entry="finetune")["epochs"] == 7


def test_a_large_set_is_seen_as_often_as_the_time_permits():
    def epochs(speed, **settings):
        return chosen(folder(28, train=[60_000]), speed=speed, **settings)["epochs"]

    assert [epochs(0.01), epochs(0.4), epochs(9.0)] == [3, 4, 10]
    tuned = {"entry": "finetune", "model": {"name": None, "pretrained": "latest"}}
    assert [epochs(0.1, **tuned), epochs(1.5, **tuned), epochs(90.0, **tuned)] == [1, 1, 3]


def test_a_long_epoch_has_checkpoints_within():
    assert "checkpoint.every_steps" not in chosen()
    many = chosen(folder(500, train=[60_000]), entry="finetune", model={"name": None, "pretrained": "latest"})
    assert many["checkpoint.every_steps"] == 200


def test_a_budget_sets_the_epochs():
    assert chosen(budget={"minutes": 5.0})["epochs"] == "auto"
    assert chosen(budget={"minutes": 5.0}, schedule={"kind": "step"})["epochs"] == 63


def test_a_batch_leaves_a_small_set_some_steps():
    assert "batch.per_device" not in chosen()
    assert chosen(folder(all=[160, 160]))["batch.per_device"] == 16  # 256 training images, two ranks
    assert chosen(folder(all=[5, 5]))["batch.per_device"] == 8


def test_fine_tuning_starts_from_imagenet_weights():
    latest = {"name": None, "pretrained": "latest"}
    values = chosen(entry="finetune", model=latest)
    assert (values["model.name"], values["model.pretrained"]) == ("efficientnet_lite0", "imagenet")
    assert values["data.image_size"] == 160 and values["model.input"] == "normalisation"
    assert chosen(entry="finetune", model=latest, speed=2.0)["data.image_size"] == 224
    typed = chosen(entry="finetune", typed=["model.name"], model={**latest, "name": "resnet18_v1b"})
    assert not {"model.name", "model.pretrained"} & typed.keys()  # imagenet has no weights of it
    assert "model.name" not in chosen(entry="finetune", typed=["model.pretrained"], model=latest)


def test_a_survey_counts_images_and_reads_their_sizes(tmp_path):
    root = make_tree(tmp_path / "set", {"ant": 3, "bee": 2})
    paint(root / "bee" / "large.png", (9, 9, 9), (3024, 4032))
    (root / "ant" / "broken.jpg").write_bytes(b"no image")
    found = survey(from_dict({"data": {"kind": "imagefolder", "root": str(root)}}).data)
    assert (found.counts, found.images, found.short_side) == ({"all": [4, 3]}, 7, 16)
    assert found.describe_sizes() == (
        "6 of 7 images read: smallest 20 x 16, median 20 x 16, largest 3024 x 4032 (bee/large.png)"
    )
    (root / "bee" / "large.png").unlink()
    assert survey(from_dict({"data": {"kind": "imagefolder", "root": str(root)}}).data).describe_sizes() == (
        "5 of 6 images read: all 20 x 16"
    )


@pytest.fixture(autouse=True)
def idle(monkeypatch):
    """Make the machine look idle."""
    monkeypatch.setattr(choices.OtherPrograms, "share", lambda self: 5.0)


def settings(monkeypatch, folder, *overrides, verb="train", ants=30):
    """Return the settings of a command line, whose rates need no measurement."""
    monkeypatch.setattr(MeasuredRates, "_measured", lambda self, name, size, batch: RATES[size])
    root = make_tree(folder / "set", {"ant": ants, "bee": 30})
    line = ["data=imagefolder", f"data.root={root}", f"data.cache={folder}", *overrides]
    return flatten(with_choices(composed_values(verb, *line)[0], line))


def test_a_command_line_is_completed_and_the_choice_printed(tmp_path, monkeypatch, capsys):
    values = settings(monkeypatch, tmp_path, "launch.ranks=2", "epochs=7")
    assert (values["model.name"], values["data.image_size"], values["epochs"]) == ("small", 32, 7)
    printed = capsys.readouterr().out
    crops = "crops keep at least half of an image, half of them mirrored (letters and digits: data.augment.flip=false)"
    assert f"chosen    data.augment.scale=[0.5,1.0]: {crops}\n" in printed
    assert "batch.per_device=8: 48 training images, at least 8 steps in an epoch" in printed
    assert "training  0 to 1 min on this machine" in printed


def test_the_choice_names_mirrored_crops(tmp_path, monkeypatch, capsys):
    settings(monkeypatch, tmp_path)
    assert "half of them mirrored (letters and digits: data.augment.flip=false)" in capsys.readouterr().out
    settings(monkeypatch, tmp_path, "data.augment.flip=false")
    assert "mirrored" not in capsys.readouterr().out


def test_uneven_classes_are_named_with_the_setting_that_weighs_them_alike(tmp_path, monkeypatch, capsys):
    remark = "classes   bee has 10 times the images of ant (to weigh all alike: class_weights=balanced)\n"
    settings(monkeypatch, tmp_path / "a", ants=3)
    assert remark in capsys.readouterr().out
    settings(monkeypatch, tmp_path / "b", "class_weights=balanced", ants=3)
    assert "classes " not in capsys.readouterr().out
    settings(monkeypatch, tmp_path / "c", ants=4)
    assert "classes " not in capsys.readouterr().out


def test_groups_count_as_typed(tmp_path, monkeypatch):
    values = settings(monkeypatch, tmp_path, "model=resnet18_v1b", "augment=level1")
    assert values["model.name"] == "resnet18_v1b" and values["data.augment.scale"] != [0.5, 1.0]


@pytest.mark.parametrize("override", ["resume=runs/x", "rerun.run=x", "experiment=cifar10_images"])
def test_experiments_resumed_runs_and_reruns_are_complete(tmp_path, monkeypatch, capsys, override):
    settings(monkeypatch, tmp_path, override)
    assert not capsys.readouterr().out


def test_a_rate_is_measured_once(tmp_path, monkeypatch):
    measured = []
    monkeypatch.setattr(MeasuredRates, "_measured", lambda self, *what: measured.append(what) or 10.0)
    path = tmp_path / "cache" / "rates.json"
    assert MeasuredRates(path, 0, 2)("small", 32, 8) == MeasuredRates(path, 0, 2)("small", 32, 8) == 10.0
    assert measured == [("small", 32, 8)] and len(json.loads(path.read_text())) == 1
    path.write_text("{torn")
    assert MeasuredRates(path, 0, 2)("small", 32, 8) == 10.0 and len(measured) == 2


def test_a_rate_beside_other_programs_is_not_kept(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(MeasuredRates, "_measured", lambda self, *what: 10.0)
    monkeypatch.setattr(choices.OtherPrograms, "share", lambda self: 90.0)
    assert MeasuredRates(tmp_path / "rates.json", 0, 2)("small", 32, 8) == 10.0
    assert not (tmp_path / "rates.json").exists()
    assert "the rate of small at 32 px is too low: other programs use 90 % of the cores" in capsys.readouterr().out


def test_a_network_that_can_not_be_measured_is_one_line(tmp_path, monkeypatch):
    monkeypatch.setattr(choices.sys, "executable", "/bin/false")
    with pytest.raises(RunFailed, match="the rate of small at 32 px can't be measured: no message"):
        MeasuredRates(tmp_path / "rates.json", 0, 2)("small", 32, 8)


@pytest.mark.slow
def test_the_rate_of_a_network_is_that_of_its_steps(tmp_path):
    assert MeasuredRates(tmp_path / "rates.json", 0, 2)("small", 32, 8) > 0
