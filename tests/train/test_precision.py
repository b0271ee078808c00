"""Number formats, and which ones this MXNet supports."""

import itertools
from dataclasses import replace

import in_process
import mxnet as mx
import numpy as np
import pytest
from heartbeats import NO_HEARTBEAT
from machine import kill_session
from run_files import wait_for_step

from mxscale.config.schema import from_dict
from mxscale.distributed.communicators import Local
from mxscale.environment.machine import multiplies_bf16
from mxscale.train import prepare
from mxscale.train.prepare import check_settings
from mxscale.train.trainer import Trainer
from mxscale.util.errors import ConfigError


@pytest.mark.parametrize("precision", ["amp", "bf16"])
def test_amp_of_mxnet_1_5_is_refused(monkeypatch, precision):
    monkeypatch.setattr(mx, "__version__", "1.5.0")
    message = rf"^precision={precision}: MXNet 1\.5 cannot resume with it; use precision=float32 or float16, or"
    with pytest.raises(ConfigError, match=message):
        check_settings(from_dict({"precision": precision}), None)


@pytest.mark.parametrize("has_instructions", [True, False])
def test_bf16_needs_a_cpu_with_instructions_for_it(monkeypatch, has_instructions):
    monkeypatch.setattr(prepare, "multiplies_bf16", lambda: has_instructions)
    with pytest.raises(ConfigError, match=r"^precision=bf16 needs a CPU; use precision=amp$"):
        prepare.check_precision("bf16", "gpu")
    if has_instructions:
        prepare.check_precision("bf16", "cpu")
        return
    with pytest.raises(ConfigError, match=r"^precision=bf16: .* \(avx512_bf16\), .*use precision=float32$"):
        prepare.check_precision("bf16", "cpu")


@pytest.mark.parametrize("version, precision", [("1.9.1", "amp"), ("1.5.0", "float16"), ("1.5.0", "float32")])
def test_other_precisions_are_accepted(monkeypatch, version, precision):
    monkeypatch.setattr(mx, "__version__", version)
    check_settings(from_dict({"precision": precision}), None)


@pytest.mark.slow
@pytest.mark.skipif(not multiplies_bf16(), reason="the processor has no instructions for bfloat16")
def test_bf16_rounds_alike_on_one_and_three_ranks_and_after_a_kill(cli):
    case = ["epochs=4", "checkpoint.every_steps=4", "data.shards=6", "batch.per_device=4"]
    float32 = cli("train", *case, "launch.ranks=1")
    case.append("precision=bf16")
    alone = cli("train", *case, "launch.ranks=1")
    assert alone.sha == cli("train", *case, "launch.ranks=3").sha != float32.sha
    process = cli.start("train", *case, "launch.ranks=1")
    run = cli.run_of(process)
    wait_for_step(run, 6)
    kill_session(process)
    assert cli("train", f"resume={run}", small=False).sha == alone.sha
    assert last_loss(alone.run) == pytest.approx(last_loss(float32.run), abs=0.05)


def last_loss(run):
    return [line["metrics"]["val/loss"] for line in run.history() if "val/loss" in line["metrics"]][-1]


@pytest.mark.slow
def test_a_float16_network_is_updated_by_the_mean_of_all_passes(tmp_path):
    accumulation, shards, lr = 2, 2, 0.5
    run = in_process.prepared(
        tmp_path / "run",
        "launch.ranks=1",
        "data=synthetic",
        "data.image_size=8",
        "data.num_images=64",
        "batch.per_device=4",
        f"batch.accumulation={accumulation}",
        f"data.shards={shards}",
        "optimizer.momentum=0",
        "optimizer.weight_decay=0",
    )
    config = replace(run.config(), precision="float16")  # preparation refuses it on a CPU
    trainer = Trainer(run, config, run.plan(), Local(), 1, NO_HEARTBEAT)
    before = [parameter.data().asnumpy().astype("float64") for parameter in trainer.trained]
    for _, micro_batch in itertools.product(range(shards), range(accumulation)):
        for grad in trainer.grads[0]:
            grad[:] = 40_000  # the sum of two is beyond float16
        trainer.exchange.pass_done(micro_batch=micro_batch)
    assert trainer.exchange()
    for parameter in trainer.trained:
        parameter.data()._fresh_grad = True
    trainer.optimizer.set_learning_rate(lr)
    trainer.optimizer.update(trainer.divides_by)
    change = lr * 40_000 * accumulation * shards / trainer.sizes.global_batch
    assert {str(np.dtype(parameter.dtype)) for parameter in trainer.trained} == {"float16", "float32"}
    for parameter, old in zip(trainer.trained, before):
        assert parameter.data().asnumpy() == pytest.approx(old - change, rel=2**-10)
