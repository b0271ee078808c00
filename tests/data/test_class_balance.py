"""Class weights of the loss, and epochs in which all classes are equally likely."""

from collections import Counter
from dataclasses import replace

import mxnet as mx
import numpy as np
import pytest
from batches import AUGMENTED, CPU, RAW, labels_of, micros, same, train_data
from in_process import prepared, trained
from records import flat, make_records, noise, ramp
from refusals import error_of

from mxscale.config.schema import from_dict, unflatten
from mxscale.config.validation import validate
from mxscale.data import recordio
from mxscale.data.reader import philox
from mxscale.data.reader.records import RecordFile
from mxscale.rundir.plan import Split
from mxscale.train.optim.optimizer import CrossEntropy
from mxscale.train.prepare import class_weights

# ---------------------------------------------------------------- weights


def test_balanced_weights_are_those_of_scikit_learn():
    found = class_weights("balanced", {"classes": list("abc"), "per_class": [60, 30, 10]})
    assert found == pytest.approx((100 / 180, 100 / 90, 100 / 30))  # N / (K n_c)


def test_class_without_images_does_not_change_the_weights():
    found = class_weights("balanced", {"classes": list("abc"), "per_class": [60, 0, 20]})
    assert found == pytest.approx((80 / 120, 0, 80 / 40))


def test_gradient_is_multiplied_by_the_weight_of_the_label():
    logits, labels, weights = np.random.RandomState(0).normal(size=(5, 3)), np.array([0, 2, 1, 0, 2]), (0.5, 3.0, 0.0)
    p = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    objective, scores = CrossEntropy(0.0, weights), mx.nd.array(logits)
    objective.initialize(ctx=[CPU])
    scores.attach_grad()
    with mx.autograd.record():
        losses = objective(scores, mx.nd.array(labels))
    losses.backward()
    factor = np.array(weights)[labels]
    assert losses.asnumpy() == pytest.approx(-factor * np.log(p[range(5), labels]), rel=1e-5)
    assert scores.grad.asnumpy() == pytest.approx(factor[:, None] * (p - np.eye(3)[labels]), abs=1e-5)


@pytest.mark.parametrize("weights", ["[1,2]", "[1,1,1,1,1,1]"])
def test_wrong_number_of_weights_is_refused(unprepared, weights):
    shown = weights.replace(",", ", ")
    assert unprepared(f"class_weights={weights}") == (
        f"class_weights={shown}: the data has 5 classes, expected 5 numbers in label order"
    )


@pytest.mark.parametrize(
    "values, message",
    [
        ({"class_weights": [0, 0.0]}, "class_weights=[0, 0.0]: expected balanced, or one number for each class"),
        ({"class_weights": []}, "class_weights=[]: expected balanced, or one number for each class"),
        ({"class_weights": 2}, "class_weights=2: expected balanced, or one number for each class"),
        ({"class_weights": "equal"}, "class_weights=equal: expected balanced, or one number for each class"),
        ({"class_weights": ["a", 1]}, "class_weights=['a', 1]: expected balanced, or one number for each class"),
        ({"class_weights": [1, -1]}, "class_weights=-1: expected at least 0"),
        ({"class_weights": [1, float("nan")]}, "class_weights=nan: expected at least 0"),
        (
            {"class_weights": "balanced", "data.kind": "synthetic"},
            "class_weights=balanced: the labels of data=synthetic are random; omit class_weights",
        ),
        (
            {"data.sampling": "balanced", "data.kind": "synthetic"},
            "data.sampling=balanced: the labels of data=synthetic are random; omit data.sampling",
        ),
        (
            {"data.sampling": "balanced", "data.reader": "record_iter"},
            "data.sampling=balanced: data.reader=record_iter does not have it; use data.reader=turbojpeg",
        ),
    ],
)
def test_invalid_setting_is_refused(values, message):
    assert error_of(validate, from_dict(unflatten(values))).startswith(message)


@pytest.fixture
def losses(tmp_path, data_cache):
    """losses(*overrides) -> (train/loss, val/loss) after a step with learning rate 0."""

    def run(*overrides):
        case = ["launch.ranks=1", "max_steps=1", "optimizer.lr=0", "schedule.warmup_lr=0", "log_every=1"]
        made = prepared(tmp_path / "run", *case, *overrides, f"data.cache={data_cache}")
        trained(made)
        found = {name: value for line in made.lines() for name, value in line["metrics"].items()}
        made.path.rename(tmp_path / f"ended{len(list(tmp_path.iterdir()))}")
        return found["train/loss"], found["val/loss"]

    return run


@pytest.mark.slow
def test_weights_apply_to_training_and_not_to_validation(losses):
    plain, weighted = losses(), losses("class_weights=[2,2,2,2,2]")
    assert weighted == pytest.approx((2 * plain[0], plain[1]), rel=1e-5)


@pytest.mark.slow
def test_training_mixes_images_and_validation_does_not(losses):
    plain, mixed = losses(), losses("data.augment.mixup=1")
    assert mixed[0] != plain[0]
    assert mixed[1] == pytest.approx(plain[1], rel=1e-4)  # running statistics of other images


# ---------------------------------------------------------------- sampling

UNEQUAL = [0] * 40 + [1] * 2 + [2] * 11
BALANCED = replace(RAW, sampling="balanced")


@pytest.fixture
def unequal(tmp_path):
    """53 images in three classes, in random order of the classes; image i is (i, i, i)."""
    labels = np.random.RandomState(0).permutation(UNEQUAL)
    return make_records(tmp_path, [flat((i, i, i)) for i in range(len(labels))], labels)


def test_classes_of_an_epoch_are_equally_frequent(unequal):
    source = train_data(unequal, BALANCED, batch=4)  # 13 steps, 52 images
    for epoch in range(4):
        found = micros(source, range(13 * epoch, 13 * epoch + 13))
        assert sorted(Counter(labels_of(found)).values()) == [17, 17, 18]
        seen = np.cumsum(np.eye(3)[np.array(labels_of(found), int)], axis=0)
        assert np.ptp(seen, axis=1).max() == 1  # after each image


def test_images_of_a_class_are_equally_frequent(unequal):
    found = micros(train_data(unequal, BALANCED, batch=1), range(53))
    drawn = Counter((labels[0], int(pixels[0, 0, 0, 0])) for _, _, labels, pixels in found)
    times = {label: [count for (its, _), count in drawn.items() if its == label] for label in (0, 1, 2)}
    assert set(times[0]) == {1} and len(times[0]) in (17, 18)
    assert sorted(times[1]) in ([8, 9], [9, 9])
    assert set(times[2]) == {1, 2} and len(times[2]) == 11


def test_order_depends_on_seed_and_epoch():
    labels = np.array(UNEQUAL, "float32")
    orders = [philox.balanced_order(seed, epoch, labels) for seed, epoch in [(1, 0), (1, 1), (2, 0), (1, 0)]]
    assert np.array_equal(orders[0], orders[3])
    assert len({order.tobytes() for order in orders}) == 3
    large = [frozenset(order[order < 40].tolist()) for order in orders[:3]]  # other images of the largest class
    assert len(set(large)) == 3


def test_equal_classes_have_every_image_once():
    order = philox.balanced_order(3, 1, np.arange(60) % 6)
    assert sorted(order.tolist()) == list(range(60))
    assert all(sorted(round_ % 6) == list(range(6)) for round_ in order.reshape(10, 6))


def test_repetitions_are_augmented_differently(tmp_path):
    records = make_records(tmp_path, [ramp()] * 22, [0] * 20 + [1] * 2)
    found = micros(train_data(records, replace(AUGMENTED, sampling="balanced"), batch=1), range(22))
    rare = {pixels.tobytes() for _, _, labels, pixels in found if labels == [1.0]}
    assert len(rare) == 11


@pytest.mark.parametrize("accumulation", [1, 2])
def test_balanced_batches_do_not_depend_on_ranks_or_start(accumulation, tmp_path):
    records = noise(tmp_path, 50, labels=[0] * 40 + [1] * 10)
    data, last = replace(AUGMENTED, sampling="balanced"), 8

    def read(ranks, start=0):
        shards = {"of": 4, "accumulation": accumulation}
        sources = [train_data(records, data, 3, rank, ranks, **shards) for rank in range(ranks)]
        found = [micro for source in sources for micro in micros(source, range(start, last))]
        return sorted(found, key=lambda micro: micro[:2])

    alone = read(1)
    assert same(alone, read(2)) and same(alone, read(4))
    for start in range(last):
        assert same(read(2, start), [micro for micro in alone if micro[0] >= start]), start


def test_labels_are_read_from_the_headers(tmp_path):
    contents = [b"x" * 5, b"abcd" + recordio.MAGIC * 2 + b"rest", b"y"]  # the second is divided
    with recordio.Writer(tmp_path, "t") as writer:
        for label, content in zip((3, 1_000_000, 0), contents, strict=True):
            writer.write(label, 7, content)
        writer.close()
    assert RecordFile(Split(3, str(tmp_path / "t.rec"), str(tmp_path / "t.idx"))).labels().tolist() == [3, 1_000_000, 0]
