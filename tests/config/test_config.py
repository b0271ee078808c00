"""The typed configuration: conversion, validation and its messages, and derived sizes."""

import dataclasses

import pytest
from refusals import error_of

from mxscale.config.schema import Config, flatten, from_dict, to_dict, unflatten
from mxscale.config.setting import describe
from mxscale.config.sizes import sizes
from mxscale.config.validation import validate


def refusal(values) -> str:
    return error_of(lambda: validate(from_dict(values)))


def test_the_defaults_are_valid():
    assert validate(from_dict({})) == Config()


def test_from_dict_is_the_inverse_of_to_dict():
    data = {"classes": ["a", "b"], "augment": {"scale": [0.5, 1]}}
    optimizer = {"name": "adam", "momentum": None, "params": {"beta1": 0.8}}
    config = from_dict({"seed": 7, "data": data, "optimizer": optimizer, "launch": {"ranks": 4}})
    assert from_dict(to_dict(config)) == config
    assert config.data.augment.scale == [0.5, 1.0]
    assert config.optimizer.momentum is None


def test_numbers_are_converted_to_the_type_of_the_field():
    lr = from_dict({"optimizer": {"lr": 1}}).optimizer.lr
    assert lr == 1.0 and type(lr) is float
    assert from_dict({"name": 12}).name == "12"
    assert from_dict({"data": {"classes": [0, 1]}}).data.classes == ["0", "1"]


def test_the_config_is_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        Config().seed = 2


def test_flatten_joins_names_and_keeps_empty_mappings():
    values, flat = {"a": {"b": 1, "c": {}}, "d": [1]}, {"a.b": 1, "a.c": {}, "d": [1]}
    assert (flatten(values), unflatten(flat)) == (flat, values)


@pytest.mark.parametrize(
    "values, message",
    [
        ({"epoch": 3}, "unknown key epoch: did you mean epochs?"),
        ({"batch": {"per_devise": 3}}, "unknown key batch.per_devise: did you mean batch.per_device?"),
        ({"data": {"augment": {"flp": True}}}, "unknown key data.augment.flp: did you mean data.augment.flip?"),
        ({"batch": {"zzz": 3}}, "unknown key batch.zzz: expected one of accumulation, per_device"),
    ],
)
def test_an_unknown_key_suggests_the_nearest(values, message):
    assert refusal(values) == message


@pytest.mark.parametrize(
    "key, value, message",
    [
        ("seed", 1.5, "seed=1.5: expected a whole number"),
        ("seed", True, "seed=True: expected a whole number"),
        ("seed", None, "seed=null: expected a whole number"),
        ("optimizer.lr", "0.1x", "optimizer.lr=0.1x: expected a number"),
        ("optimizer.lr", False, "optimizer.lr=False: expected a number"),
        ("data.augment.flip", 1, "data.augment.flip=1: expected true or false"),
        ("name", True, "name=True: expected a string"),
        ("data.mean", 3, "data.mean=3: expected a list such as [1,2]"),
        ("data.mean", [1, "a", 3], "data.mean=a: expected a number"),
        ("data.mean", None, "data.mean=null: expected a list such as [1,2]"),
        ("optimizer.params", [1], "optimizer.params=[1]: expected a mapping such as {a:1}"),
        ("batch", 32, "batch=32: a group of settings: give batch.KEY=VALUE"),
    ],
)
def test_a_wrong_type_is_refused(key, value, message):
    assert refusal(unflatten({key: value})) == message


def test_each_setting_is_described_with_its_rule():
    described = {setting.key: setting for setting in describe(Config)}
    assert {key: setting.default for key, setting in described.items()} == flatten(to_dict(Config()))
    for setting in described.values():
        assert setting.rule.help and len(setting.rule.help) <= 125, setting.key
        assert setting.rule.allowed or type(setting.default) not in (int, float), setting.key
    keys = ("optimizer.lr", "target_top1", "comm.transport", "launch.ranks")
    assert [described[key].rule.allowed for key in keys] == [
        "at least 0", "from 0 to 100", "gloo | mpi", "auto or a whole number of at least 1"
    ]  # fmt: skip
    assert (described["data.augment.pad"].group, described["data.augment.pad"].rule.unit) == ("data.augment", "pixels")


@pytest.mark.parametrize(
    "key, value, message",
    [
        ("optimizer.lr", -0.1, "optimizer.lr=-0.1: expected at least 0"),
        ("optimizer.lr", float("nan"), "optimizer.lr=nan: expected at least 0"),
        ("optimizer.momentum", 1.5, "optimizer.momentum=1.5: expected from 0 to 1"),
        ("batch.per_device", 0, "batch.per_device=0: expected at least 1"),
        ("label_smoothing", 1, "label_smoothing=1.0: expected from 0 to 0.999"),
        ("launch.ranks", 0, "launch.ranks=0: expected auto or a whole number of at least 1"),
        ("launch.ranks", True, "launch.ranks=True: expected auto or a whole number of at least 1"),
        ("launch.ranks", "all", "launch.ranks=all: expected auto or a whole number of at least 1"),
        ("schedule.kind", "cosin", "schedule.kind=cosin: did you mean cosine?"),
        ("precision", "fp8", "precision=fp8: expected one of amp, bf16, float16, float32"),
        ("comm.transport", "nccl", "comm.transport=nccl: expected one of gloo, mpi"),
        ("data.std", [1, 1, 0], "data.std=0.0: expected above 0"),
        ("data.std", [1, float("nan"), 1], "data.std=nan: expected above 0"),
        ("data.mean", [1, 2], "data.mean=[1.0, 2.0]: expected 3 numbers"),
        ("data.augment.scale", [1, 0.5], "data.augment.scale=[1.0, 0.5]: expected [smallest,largest]"),
        ("data.augment.scale", [0.5, 2], "data.augment.scale=2.0: expected above 0 and at most 1"),
        ("data.augment.ratio", [0, 1], "data.augment.ratio=0.0: expected above 0"),
        ("schedule.milestones", [60, 30], "schedule.milestones=[60.0, 30.0]: expected epochs in increasing order"),
        ("name", "a/b", "name=a/b: expected a plain file name"),
        ("name", "..", "name=..: expected a plain file name"),
    ],
)
def test_an_invalid_value_is_refused(key, value, message):
    assert refusal(unflatten({key: value})) == message


@pytest.mark.parametrize(
    "values, message",
    [
        (
            {"comm": {"backend": "local"}, "launch": {"ranks": 2}},
            "launch.ranks=2 with comm=local: one rank has no communicator; use comm=horovod",
        ),
        (
            {"data": {"shards": 2}, "launch": {"ranks": 4}},
            "data.shards=2 is less than launch.ranks=4: every rank reads a shard",
        ),
        (
            {"data": {"val_share": 0.5, "test_share": 0.5}},
            "data.val_share + data.test_share: expected a sum below 1, which leaves images to train on",
        ),
        (
            {"data": {"kind": "imagefolder"}},
            "data.root is missing: data=imagefolder needs data.root=DIR with DIR/<class>/<image>.jpg",
        ),
        (
            {"data": {"kind": "recordio", "train": "a.rec"}},
            "data.val is missing: data=recordio needs data.train=FILE.rec data.val=FILE.rec",
        ),
        (
            {"data": {"kind": "mnist"}},
            "data.root is missing: data=mnist needs data.root=DIR, where its files are or will be fetched to",
        ),
        (
            {"data": {"val_share": None}},
            "data.val_share=null validates on the images beyond data.train_per_class: set data.train_per_class, or a "
            "data.val_share",
        ),
        (
            {"data": {"mirror": "file:///etc"}},
            "data.mirror=file:///etc: expected http://HOST/FOLDER or https://HOST/FOLDER, no password",
        ),
    ],
)
def test_contradicting_values_are_refused(values, message):
    assert refusal(values) == message


@pytest.mark.parametrize("key", ["optimizer.lr", "schedule.warmup_epochs", "data.augment.hue", "label_smoothing"])
def test_the_bounds_of_a_range_are_valid(key):
    validate(from_dict(unflatten({key: 0})))


def test_sizes_multiply_device_batch_shards_and_accumulation():
    batch = {"per_device": 8, "accumulation": 3}
    config = from_dict({"batch": batch, "data": {"shards": 4}, "epochs": 10, "optimizer": {"lr": 0.1}})
    assert dataclasses.asdict(sizes(config, ranks=2, train_images=1000)) == {
        "ranks": 2,
        "shards": 4,
        "per_device_batch": 8,
        "global_batch": 96,
        "effective_lr": pytest.approx(0.0375),  # 0.1 x 96 / 256
        "train_images": 1000,
        "steps_per_epoch": 10,
        "total_steps": 100,
        "dropped_per_epoch": 40,
    }


def test_the_global_batch_depends_on_shards_not_ranks():
    config = from_dict({"batch": {"per_device": 8}})
    batches = {ranks: sizes(config, ranks, 320, shards=4).global_batch for ranks in (1, 2, 3, 4)}
    assert batches == {1: 32, 2: 32, 3: 32, 4: 32}


def test_sizes_follow_from_ranks_and_settings():
    one = from_dict({"batch": {"per_device": 8}})
    per_rank, smallest = sizes(one, 3, 240), sizes(one, 1, 8)
    assert (per_rank.shards, per_rank.global_batch, per_rank.steps_per_epoch) == (3, 24, 10)
    assert (smallest.steps_per_epoch, smallest.dropped_per_epoch) == (1, 0)
    assert sizes(from_dict({"epochs": 5, "max_steps": 7}), 1, 320).total_steps == 7
    unscaled = from_dict({"schedule": {"reference_batch": None}, "optimizer": {"lr": 0.1}})
    assert sizes(unscaled, 4, 320).effective_lr == 0.1


def test_too_large_a_batch_is_refused_with_the_largest():
    assert error_of(sizes, from_dict({"batch": {"per_device": 64, "accumulation": 2}}), 4, 300) == (
        "batch.per_device=64: the global batch of 512 exceeds the 300 training images; use at most 37"
    )
    assert sizes(from_dict({"batch": {"per_device": 37, "accumulation": 2}}), 4, 300).steps_per_epoch == 1


def test_more_shards_than_images_are_refused():
    assert error_of(sizes, from_dict({"data": {"shards": 8}, "batch": {"per_device": 1}}), 1, 5) == (
        "batch.per_device=1: the global batch of 8 exceeds the 5 training images; "
        "use fewer ranks, shards or accumulation"
    )


def test_more_ranks_than_shards_are_refused_on_resume():
    message = "launch.ranks=4 is more than the 2 shards of this run: use at most 2 ranks"
    assert error_of(sizes, from_dict({}), 4, 1000, shards=2) == message
