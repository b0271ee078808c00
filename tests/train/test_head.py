"""Frozen layers of a fine-tuning, and the progress that its parent shows."""

import in_process
import mxnet as mx
import numpy as np
import pytest
from composed import composed

from mxscale.cli import settings
from mxscale.launcher import setup
from mxscale.models import weights, zoo
from mxscale.rundir import directory
from mxscale.rundir.plan import Plan
from mxscale.train import prepare


def trained(tmp_path, data_cache, *overrides, entry="finetune"):
    """Train two steps in this process; return the run directory."""
    words = ["data=digits_few", "model=small", "batch.per_device=8", "launch.ranks=1", "max_steps=2", "log_every=1",
             f"runs={tmp_path}/runs", f"data.cache={data_cache}", "data.train_per_class=4"]  # fmt: skip
    config = settings.resolve(composed(entry, *words, *overrides))
    run = directory.create(config)
    run.save(Plan(pretrained=setup.pretrained_file(config)))
    prepare.prepare(run, config)
    assert in_process.trained(run)["state"] == "done"
    return run


@pytest.fixture
def loud(tmp_path):
    """Return an override for weights whose features are 1,000 times too large."""
    net = zoo.build("small", 5)
    zoo.initialise(net, 1, mx.cpu(), False)
    zoo.finish(net, (1, 3, 32, 32), mx.cpu())
    arrays = weights.arrays(net)
    arrays["features.5.1.body.4.gamma"] = arrays["features.5.1.body.4.gamma"] * 1000
    weights.save(tmp_path / "loud.params", arrays)
    return f"model.pretrained={tmp_path}/loud.params"


@pytest.mark.slow
def test_frozen_parameters_do_not_change(tmp_path, data_cache, loud):
    run = trained(tmp_path, data_cache, loud, "model.freeze=stage2", "optimizer.weight_decay=0.1")
    before = {n: a.asnumpy() for n, a in weights.load(tmp_path / "loud.params").items()}
    after = {n: a.asnumpy() for n, a in weights.load(run.checkpoints / "000000002" / "params").items()}
    same = {n for n in before if before[n].tobytes() == after[n].tobytes()}
    assert {n.split(".")[1] for n in same} >= {"0", "1", "3", "4"}
    assert not [n for n in before if n.split(".")[1] in ("0", "1", "3", "4") and n not in same]
    assert not [n for n in same if n.startswith("output.") or (n.endswith("running_mean") and n[9] == "5")]
    assert np.isfinite([line["metrics"]["train/loss"] for line in run.lines() if "train/loss" in line["metrics"]]).all()
