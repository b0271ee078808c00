"""The moving average of a network: what is validated, exported and resumed."""

import re

import mxnet as mx
import numpy as np
import pytest
from composed import composed
from small_training import Training

from mxscale.util.errors import ConfigError

DECAY = 0.6
AVERAGED = {"ema_decay": DECAY, "lr": 1e-3}


def test_average_equals_plain_recurrence(tmp_path):
    training = Training(tmp_path, optimizer=AVERAGED)
    name = "0.weight"
    expected = training.parameters[name].data().asnumpy().astype(np.float64)
    for step in range(20):
        training.step(step)
        weight = training.parameters[name].data().asnumpy()
        decay = min(DECAY, (1 + step) / (10 + step))  # 0.1 at first, DECAY from step 13 on
        expected = decay * expected + (1 - decay) * weight
    averaged = training.evaluated()[name]
    assert np.allclose(averaged, expected, rtol=1e-5, atol=1e-7)
    assert not np.allclose(averaged, weight, rtol=1e-3)


def test_running_statistics_are_averaged_per_shard(tmp_path):
    training = Training(tmp_path, optimizer=AVERAGED)
    expected = training.statistics.gather(training.checkpointer.comm).astype(np.float64)
    for step in range(5):
        training.step(step)
        decay = min(DECAY, (1 + step) / (10 + step))
        expected = decay * expected + (1 - decay) * training.statistics.gather(training.checkpointer.comm)
    width = expected.shape[1] // 2
    assert np.allclose(training.evaluated()["1.running_mean"], expected.mean(axis=0)[:width], rtol=1e-5, atol=1e-7)


def test_averaging_does_not_change_training(tmp_path):
    plain = Training(tmp_path / "plain", optimizer={"lr": 1e-3}).step(1, 2, 3)
    averaged = Training(tmp_path / "averaged", optimizer=AVERAGED).step(1, 2, 3)
    assert averaged.digest() == plain.digest()


@pytest.mark.parametrize("file", ["params", "trained"])
def test_checkpoint_holds_average_and_weights(tmp_path, file):
    training = Training(tmp_path, optimizer=AVERAGED).step(1, 2).save(2)
    saved = mx.nd.load(str(training.run.checkpoint(2) / file))["0.weight"].asnumpy()
    weight = training.parameters["0.weight"].data().asnumpy()
    assert np.array_equal(saved, weight) == (file == "trained")


@pytest.mark.parametrize(
    "overrides, wrong",
    [
        (["precision=float16"], "optimizer.ema_decay=0.9 with precision=float16: an average in float16"),
        (["optimizer.ema_decay=1"], "optimizer.ema_decay=1.0: expected above 0 and at most 0.99999"),
    ],
)
def test_average_without_meaning_is_refused(overrides, wrong):
    with pytest.raises(ConfigError, match=f"^{re.escape(wrong)}"):
        composed("train", "optimizer.ema_decay=0.9", *overrides)
