"""Mixup and cutmix against plain NumPy: images, losses, gradients, and what their random numbers depend on."""

from dataclasses import replace

import mxnet as mx
import numpy as np
import pytest
from batches import CPU, RAW
from refusals import error_of

from mxscale.config.schema import Config, from_dict
from mxscale.config.validation import validate
from mxscale.data.reader.batches import Micro, seed_of
from mxscale.models.networks import InputLayer
from mxscale.train.optim import mixing
from mxscale.train.optim.optimizer import CrossEntropy

ONE, BOTH = [("mixup", 0.4), ("cutmix", 1.0)], {"mixup": 0.4, "cutmix": 1.0}
LABELS = np.array([0, 1, 2, 3, 1, 0])


def pixels(count=6, side=9, seed=0):
    return np.random.RandomState(seed).randint(0, 256, (count, 3, side, side)).astype("uint8")


def batch(images, labels=LABELS, shard=2, micro_batch=1):
    return Micro(shard, micro_batch, 0, mx.nd.array(images, dtype=images.dtype), mx.nd.array(labels))


def flat(count=2, side=16):
    """Image i is i everywhere, so that mixed pixels are shares."""
    return np.zeros((count, 1, side, side), "uint8") + np.arange(count, dtype="uint8")[:, None, None, None]


def mixer(seed=1, epochs=99, **augment):
    """Of `epochs` epochs of 30 steps."""
    return mixing.Mixing(from_dict({"seed": seed, "epochs": epochs, "data": {"augment": augment}}), 30)


def mixed_by_numpy(images, name, alpha, random):
    """Return (images, share of each image's own pixels) by loops over images and pixels."""
    out, share = images.astype("float64"), random.beta(alpha, alpha)
    count, _, height, width = images.shape
    if name == "mixup":
        for i in range(count):
            out[i] = share * images[i].astype("float64") + (1 - share) * images[count - 1 - i]
        return out, share
    y, x = int(random.rand() * height), int(random.rand() * width)
    tall, wide = int(height * (1 - share) ** 0.5) // 2, int(width * (1 - share) ** 0.5) // 2
    replaced = 0
    for row in range(height):
        for column in range(width):
            if y - tall <= row < y + tall and x - wide <= column < x + wide:
                out[:, :, row, column] = images[::-1, :, row, column]
                replaced += 1
    return out, 1 - replaced / (height * width)


@pytest.mark.parametrize("name, alpha", ONE)
@pytest.mark.parametrize("kind", ["uint8", "float32"])
def test_images_and_shares_equal_numpy(name, alpha, kind):
    for step in range(20):
        images = pixels(seed=step).astype(kind)
        random = np.random.RandomState(seed_of(1, step, 2, 1, 2))
        expected, share = mixed_by_numpy(images, name, alpha, random)
        given = batch(images)
        found = mixer(**{name: alpha})(step, given)
        assert found.images.dtype == np.float32
        assert found.images.asnumpy() == pytest.approx(expected, abs=1e-4)
        assert found.share == pytest.approx(max(share, 1 - share))
        own, other = (LABELS, LABELS[::-1]) if share >= 0.5 else (LABELS[::-1], LABELS)
        assert (found.labels.asnumpy().tolist(), found.others.asnumpy().tolist()) == (own.tolist(), other.tolist())
        assert np.array_equal(given.images.asnumpy(), images)  # generated batches are used again


def test_last_epochs_are_not_mixed():
    given = batch(pixels())
    for epochs, step, mixed in ((4, 89, True), (4, 90, False), (4, 119, False), (1, 0, False)):
        found = mixer(epochs=epochs, off_epochs=1, mixup=0.4)(step, given)
        assert (found.others is not None) == mixed
        if not mixed:
            assert np.array_equal(found.images.asnumpy(), given.images.asnumpy())
            assert found.images.dtype == np.float32, "as mixed images: the network is compiled for one type"


def test_share_of_cutmix_is_the_area_that_stays():
    clipped = 0
    for step in range(200):
        found = mixer(cutmix=1.0)(step, batch(flat(), LABELS[:2]))
        replaced = found.images[0].asnumpy().mean()
        assert found.share == pytest.approx(max(replaced, 1 - replaced))
        edge = found.images[0, 0].asnumpy()
        clipped += 0 < replaced < 1 and (edge[0].any() or edge[-1].any())
    assert clipped > 20


@pytest.mark.slow
@pytest.mark.parametrize("alpha", [0.2, 1.0, 4.0])
def test_shares_of_mixup_have_the_variance_of_beta(alpha):
    mix, images = mixer(mixup=alpha), batch(flat(side=1), LABELS[:2])
    shares = np.array([mix(step, images).share for step in range(2000)])
    assert ((shares - 0.5) ** 2).mean() == pytest.approx(1 / (4 * (2 * alpha + 1)), rel=0.1)


def test_with_both_half_of_the_batches_are_cut():
    mix, images = mixer(**BOTH), batch(flat(), LABELS[:2])
    cut = sum(set(np.unique(mix(step, images).images.asnumpy())) <= {0.0, 1.0} for step in range(400))
    assert 160 < cut < 240


def test_mixing_depends_on_seed_step_shard_and_turn_alone():
    images = pixels()

    def mixed(seed=1, step=3, shard=0, micro_batch=0):
        found = mixer(seed, **BOTH)(step, batch(images, shard=shard, micro_batch=micro_batch))
        return found.images.asnumpy().tobytes(), found.share

    others = [mixed(seed=2), mixed(step=4), mixed(shard=1), mixed(micro_batch=1)]
    assert mixed() == mixed()
    assert len({mixed(), *others}) == 5


def test_without_mixing_a_batch_stays_as_it_is():
    given = batch(pixels())
    found = mixing.Mixing(Config(), 30)(0, given)
    assert found.images is given.images and found.labels is given.labels
    assert found.loss(lambda logits, labels: (logits, labels), "logits") == ("logits", given.labels)


@pytest.mark.parametrize("name, alpha", ONE)
def test_mixing_commutes_with_normalisation(name, alpha):
    data, images = replace(RAW, mean=[100.0, 110.0, 120.0], std=[50.0, 60.0, 70.0]), pixels()
    mix, layer = mixer(**{name: alpha}), InputLayer(mx.gluon.nn.HybridLambda("identity"), data, "float32", False)
    normalised = layer(mx.nd.array(images, dtype="uint8")).asnumpy()
    before, after = mix(0, batch(images)), mix(0, batch(normalised))
    assert layer(before.images).asnumpy() == pytest.approx(after.images.asnumpy(), abs=1e-5)


@pytest.mark.parametrize("class_weights", [(), (0.5, 1.0, 2.0, 4.0)])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_mixed_loss_and_its_gradient_equal_numpy(smoothing, class_weights):
    logits = np.random.RandomState(0).normal(size=(6, 4)) * 3
    weights = np.array(class_weights or [1.0] * 4)
    p = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    objective = CrossEntropy(smoothing, class_weights)
    objective.initialize(ctx=[CPU])
    objective.hybridize(static_alloc=True, static_shape=True)
    for share in (0.7, 0.5, 1.0):  # the loss of share 1 is that of the labels
        loss, gradient = np.zeros(6), np.zeros((6, 4))
        for part, labels in ((share, LABELS), (1 - share, LABELS[::-1])):
            target = (1 - smoothing) * np.eye(4)[labels] + smoothing / 4
            factor = part * weights[labels]
            loss -= factor * (target * np.log(p)).sum(axis=1)
            gradient += factor[:, None] * (p - target)
        scores = mx.nd.array(logits)
        scores.attach_grad()
        mixed = mixing.Mixed(None, mx.nd.array(LABELS), mx.nd.array(LABELS[::-1]), share)
        with mx.autograd.record():
            found = mixed.loss(objective, scores)
        found.backward()
        assert found.asnumpy() == pytest.approx(loss, rel=1e-5)
        assert scores.grad.asnumpy() == pytest.approx(gradient, abs=1e-5)


@pytest.mark.parametrize("name", ["mixup", "cutmix"])
def test_batches_of_one_image_are_refused(name):
    config = from_dict({"batch": {"per_device": 1}, "data": {"augment": {name: 0.2}}})
    assert error_of(validate, config) == (
        f"data.augment.{name}=0.2 mixes the images of a batch: expected batch.per_device of at least 2"
    )
