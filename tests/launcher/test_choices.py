"""Defaults that follow a folder of images."""

import json

import pytest
from composed import composed_values
from image_trees import make_tree, paint

from mxscale.cli.settings import with_choices
from mxscale.config.schema import flatten, from_dict
from mxscale.data.survey import Survey, survey
from mxscale.launcher import choices
from mxscale.launcher.choices import Choices, MeasuredRates
from mxscale.util.errors import RunFailed

PHOTOGRAPHS = Survey({"all": [200] * 10}, short_side=100)
SCANS = Survey({"all": [200] * 10}, short_side=28)
RATES = {64: 150.0, 96: 80.0, 128: 40.0, 160: 25.0, 224: 12.0, 32: 1000.0}


def chosen(found=PHOTOGRAPHS, entry="train", typed=(), speed=1.0, ranks=2, **config):
    """Return the chosen values by key."""
    config = from_dict(
        {"entry": entry, "data": {"kind": "imagefolder", "root": "x"}, "model": {"name": "small"}, **config}
    )
    made = Choices(config, lambda key: key in typed, found, ranks, lambda name, size, batch: speed * RATES[size])
    return {key: choice.value for key, choice in made.all().items()}


def test_a_small_set_is_split_80_10_10_with_gentle_crops():
    values = chosen()
    assert (values["data.val_share"], values["data.test_share"]) == (0.1, 0.1)
    assert values["data.augment.scale"] == [0.5, 1.0]
    large = chosen(Survey({"all": [10_000, 10_000]}, 100))
    assert not {"data.val_share", "data.test_share", "data.augment.scale"} & large.keys()


def test_splits_of_the_folder_stay():
    values = chosen(Survey({"train": [800], "val": [100]}, 100))
    assert "data.val_share" not in values and values["data.augment.scale"] == [0.5, 1.0]


def test_network_and_size_are_the_costliest_that_train_in_the_time():
    def pair(**settings):
        values = chosen(**settings)
        return values["model.name"], values["data.image_size"], values["data.pack_short_side"]

    assert pair() == ("resnet18_v1b", 64, 73)
    assert pair(speed=3.0) == ("resnet18_v1b", 96, 110)  # 128 px would enlarge the images too much
    assert pair(speed=0.01) == ("resnet18_v1b", 64, 73)  # the cheapest, if none is fast enough
    large = Survey({"all": [200] * 10}, 500)
    assert pair(found=large, speed=100.0) == ("resnet50_v1b", 224, 256)
    assert pair(found=SCANS) == ("resnet9", 32, 32)
    assert pair(budget={"minutes": 60.0})[1] == 96


def test_typed_settings_stay_and_the_others_follow_them():
    values = chosen(typed=["model.name"], model={"name": "mobilenet1.0"})
    assert "model.name" not in values and values["data.image_size"] == 64
    values = chosen(typed=["data.image_size"], data={"kind": "imagefolder", "root": "x", "image_size": 96})
    assert values["model.name"] == "resnet18_v1b" and "data.image_size" not in values
    both = chosen(typed=["model.name", "data.image_size", "epochs", "batch.per_device"])
    assert not {"model.name", "data.image_size", "epochs", "batch.per_device"} & both.keys()


def test_epochs_follow_the_number_of_images():
    assert chosen()["epochs"] == 63  # 100,000 / 1,600
    assert chosen(Survey({"all": [20, 20]}, 100))["epochs"] == 100
    assert chosen(Survey({"train": [90_000]}, 100))["epochs"] == 10
    assert chosen(entry="finetune")["epochs"] == 9
    assert chosen(budget={"minutes": 5.0})["epochs"] == "auto"


def test_a_batch_leaves_a_small_set_some_steps():
    assert "batch.per_device" not in chosen()
    assert chosen(Survey({"all": [45, 45]}, 100))["batch.per_device"] == 4  # 72 training images, two ranks
    assert chosen(Survey({"all": [5, 5]}, 100))["batch.per_device"] == 2


def test_fine_tuning_starts_from_imagenet_weights():
    latest = {"name": None, "pretrained": "latest"}
    values = chosen(entry="finetune", model=latest)
    assert (values["model.name"], values["model.pretrained"]) == ("efficientnet_lite0", "imagenet")
    assert "data.image_size" not in values  # it is that of the weights
    typed = chosen(entry="finetune", typed=["model.name"], model={**latest, "name": "resnet18_v1b"})
    assert not {"model.name", "model.pretrained"} & typed.keys()  # imagenet has no weights of it
    assert "model.name" not in chosen(entry="finetune", typed=["model.pretrained"], model=latest)


def test_a_survey_counts_images_and_reads_their_sizes(tmp_path):
    root = make_tree(tmp_path / "set", {"ant": 3, "bee": 2})
    paint(root / "bee" / "large.png", (9, 9, 9), (3024, 4032))
    (root / "ant" / "broken.jpg").write_bytes(b"no image")
    found = survey(from_dict({"data": {"kind": "imagefolder", "root": str(root)}}).data)
    assert found == Survey({"all": [4, 3]}, short_side=16) and not found.splits
    assert survey(from_dict({"data": {"kind": "imagefolder", "root": str(root)}}).data).images == 7


def settings(monkeypatch, folder, *overrides, verb="train"):
    """Return the settings of a command line, whose rates need no measurement."""
    monkeypatch.setattr(MeasuredRates, "_measured", lambda self, name, size, batch: RATES[size])
    root = make_tree(folder / "set", {"ant": 30, "bee": 30})
    line = ["data=imagefolder", f"data.root={root}", f"data.cache={folder}", *overrides]
    return flatten(with_choices(composed_values(verb, *line)[0], line))


def test_a_command_line_is_completed_and_the_choice_printed(tmp_path, monkeypatch, capsys):
    values = settings(monkeypatch, tmp_path, "launch.ranks=2", "epochs=7")
    assert (values["model.name"], values["data.image_size"], values["epochs"]) == ("small", 32, 7)
    printed = capsys.readouterr().out
    assert printed.startswith("chosen    data.val_share=0.1 data.test_share=0.1: 60 images\n")
    assert "batch.per_device=2: 48 training images, at least 8 steps in an epoch" in printed
    assert "images of 16 px, about 0 min at 1,000 images/s" in printed


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
    assert MeasuredRates(path, 0)("small", 32, 8) == MeasuredRates(path, 0)("small", 32, 8) == 10.0
    assert measured == [("small", 32, 8)] and len(json.loads(path.read_text())) == 1
    path.write_text("{torn")
    assert MeasuredRates(path, 0)("small", 32, 8) == 10.0 and len(measured) == 2


def test_a_network_that_can_not_be_measured_is_one_line(tmp_path, monkeypatch):
    monkeypatch.setattr(choices.sys, "executable", "/bin/false")
    with pytest.raises(RunFailed, match="the rate of small at 32 px can't be measured: no message"):
        MeasuredRates(tmp_path / "rates.json", 0)("small", 32, 8)


@pytest.mark.slow
def test_the_rate_of_a_network_is_that_of_its_steps(tmp_path):
    assert MeasuredRates(tmp_path / "rates.json", 0)("small", 32, 8) > 5
